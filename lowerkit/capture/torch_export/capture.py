"""Capture of an ``nn.Module`` or an ExportedProgram: the trunk that TorchScript joins too.

Steps: ``torch.export`` (a module only) -> functional graph of whole ATen ops (``linear``, ``layer_norm``, ``gelu``,
``scaled_dot_product_attention`` stay what they are: the decomposition table is empty) -> torch dialect by reference.
Bytes moved: none of the weights'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from lowerkit.capture.archives import require_sums
from lowerkit.capture.torch_export.diagnostics import capture_error, first_line, refuse_training, refuse_unsupported
from lowerkit.capture.torch_export.eager import EagerCall, eager_callable, flat_arrays, nested_arguments, quiet
from lowerkit.capture.torch_export.graph.data_dependent_select import select_by_data
from lowerkit.capture.torch_export.graph.importer import ImportPlan, TensorBank, import_graph
from lowerkit.capture.torch_export.graph.index_checks import with_index_checks
from lowerkit.capture.torch_export.graph.overlapping_writes import refuse_overlapping_writes
from lowerkit.capture.torch_export.graph.prepare import prepare
from lowerkit.capture.torch_export.graph.size_arithmetic import spell_out_sizes
from lowerkit.capture.torch_export.graph.subgraph_locations import watched_lines
from lowerkit.capture.torch_export.lifted_states import with_lifted_states
from lowerkit.capture.torch_export.output_tree import describe_inputs, describe_outputs
from lowerkit.capture.torch_export.process_groups import mesh_of_groups
from lowerkit.capture.torch_export.pt2.load import read_exported
from lowerkit.capture.torch_export.states import freeze_states, live_states, stateful_eager
from lowerkit.capture.torch_export.symbolic.dims import SymbolNames, is_static
from lowerkit.capture.torch_export.symbolic.guards import NotedGuards
from lowerkit.dialect.context import new_context
from lowerkit.errors import CaptureError, InputError, LowerkitError, UnsupportedError, UsageError
from lowerkit.mlir import ir
from lowerkit.program.dtypes import bytes_by_type, to_torch, torch_name_of
from lowerkit.program.functional_program import FunctionalProgram
from lowerkit.program.program import Program
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import Signature, TensorSpec


def capture_module(
    module: nn.Module,
    example_inputs: Sequence[Any],
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dim_names: Mapping[str, str] | None = None,
) -> Program:
    """Captures a module by ``torch.export`` (non-strict).

    Args:
        module: in the mode it is to be compiled for: ``.eval()``.
        example_inputs: positional arguments of ``forward``: tensors, or nests of them.
        dynamic_shapes: as for ``torch.export.export``.
        kwargs: keyword arguments of ``forward``.
        dim_names: names for symbolic dims that have none, by ``"<input>:<axis>"``.

    Raises:
        CaptureError: LK2001, ``torch.export`` refused the module.
        UnsupportedError: the graph holds what lowerkit cannot express; all of it is listed.
    """
    named = dict(kwargs or {})
    meta = is_meta(module, example_inputs)
    # Tensors that forward makes without naming a device must be where the parameters are.
    with torch.device("meta") if meta else nullcontext():
        exported = _export(module, tuple(example_inputs), named, dynamic_shapes)
    program = capture_exported(
        exported,
        source=type(module).__qualname__,
        dim_names={**(dim_names or {}), **_dim_names(exported, dynamic_shapes)},
        eager_module=module,
    )
    if not meta:
        live = live_states(program.signature.states, module, {**exported.constants, **exported.state_dict})
        program.eager = stateful_eager(eager_callable(module, tuple(example_inputs), named), live)
        program.example_inputs = flat_arrays((tuple(example_inputs), named))
        program.arguments = nested_arguments(example_inputs, named)
    return program


def is_meta(module: nn.Module, example_inputs: Sequence[Any]) -> bool:
    """Whether a model has shapes and no data: a parameter, a buffer or an input of it is on the meta device."""
    tensors = [*module.parameters(), *module.buffers(), *example_inputs]
    return any(isinstance(tensor, torch.Tensor) and tensor.is_meta for tensor in tensors)


def capture_exported(
    exported: ExportedProgram,
    *,
    source: str = "ExportedProgram",
    dim_names: Mapping[str, str] | None = None,
    input_names: Sequence[str] | None = None,
    eager_module: Any = None,
) -> Program:
    """Captures an ExportedProgram; the program itself is not changed.

    Args:
        exported: the program.
        source: what was captured, in the user's words.
        dim_names: names for symbolic dims that have none, by ``"<input>:<axis>"``.
        input_names: names that replace those of the placeholders, where there are as many.
        eager_module: what the program was made of; the caller then sets ``eager`` and ``example_inputs``.

    Raises:
        UnsupportedError: the graph holds what lowerkit cannot express; all of it is listed.
        CaptureError: LK2001, the importer failed on a node that it should know.
    """
    refuse_training(exported)
    refuse_overlapping_writes(exported.graph)
    context = new_context()
    with quiet(), torch.no_grad():
        try:
            noted = NotedGuards.of(exported)
            functional = prepare(with_index_checks(with_lifted_states(exported)))
            noted.add_of_decompositions(functional.graph)
            select_by_data(functional.graph)
            spell_out_sizes(functional.graph)
        except LowerkitError:
            raise
        except Exception as error:
            raise capture_error(error, "the exported program could not be made functional") from error
    refuse_unsupported(functional)
    freeze_states(functional)
    signature, tree = _signature(functional, dim_names or {}, input_names, noted)
    weights = WeightStore(bytes_by_type([*exported.state_dict.values(), *exported.constants.values()]))
    try:
        module = import_graph(ImportPlan.of(functional), TensorBank(weights), context)
    except LowerkitError:
        raise
    except (NotImplementedError, TypeError, AssertionError, RuntimeError, KeyError, ValueError, ir.MLIRError) as error:
        raise CaptureError(
            "LK2001", f"the graph could not be imported: {first_line(error)}", hint="report this: a bug of lowerkit"
        ) from error
    example = exported.example_inputs if eager_module is None else None
    positional, named = example or ((), {})
    eager = None
    if example is not None:
        # The module is made when it is called: that imports TorchDynamo, and compiling alone does not need it.
        live = live_states(signature.states, None, {**exported.constants, **exported.state_dict})
        eager = stateful_eager(EagerCall(cache(partial(exported.module, check_guards=False)), positional, named), live)
    return Program(
        context=context,
        module=module,
        weights=weights,
        signature=signature,
        source=source,
        output_tree=tree,
        input_tree=describe_inputs(exported),
        eager=eager,
        eager_module=eager_module,
        arguments=_nested_as(exported) if example is None else nested_arguments(positional, named),
        functional=functional,
        exported=exported,
        example_inputs=None if example is None else flat_arrays((positional, named)),
        remarks=noted.remarks(),
        mesh=mesh_of_groups(functional.graph, module),
    )


def capture_at_shapes(exported: ExportedProgram, inputs: Sequence[Any], source: str) -> Program:
    """Captures a program of symbolic dims once more for the shapes of ``inputs``: arrays, in its order.

    Raises:
        UsageError: LK1004, its arguments are no plain tensors.
        CaptureError: LK2001, it does not take these shapes.
    """
    tensors = [to_torch(array) for array in inputs]
    in_spec = exported.call_spec.in_spec
    if in_spec is None or in_spec.num_leaves != len(tensors):
        raise UsageError(
            "LK1004", "shapes can be fixed where every argument is a tensor", hint="export the model with fixed shapes"
        )
    positional, named = pytree.tree_unflatten(tensors, in_spec)
    module = exported.module(check_guards=False)
    program = capture_exported(_export(module, tuple(positional), named, None), source=source)
    program.example_inputs = flat_arrays((tuple(positional), named))
    return program


def _nested_as(exported: ExportedProgram) -> Callable[[Sequence[Any]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """What makes arguments from arrays where a program has no example inputs: all of its leaves are tensors then."""

    def nest(arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        in_spec = exported.call_spec.in_spec
        if in_spec is None or in_spec.num_leaves != len(arrays):
            raise UsageError(
                "LK1003", "the exported program does not say how its arguments nest", hint="export it again"
            )
        return pytree.tree_unflatten([to_torch(array) for array in arrays], in_spec)

    return nest


def _export(
    module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    with quiet(), torch.no_grad(), watched_lines() as lines:
        try:
            exported = torch.export.export(module, arguments, named, dynamic_shapes=dynamic_shapes, strict=False)
            lines.restore(exported.graph_module)
            return exported
        except Exception as error:
            raise capture_error(error, f"torch.export cannot capture {type(module).__qualname__}") from error


def _signature(
    exported: FunctionalProgram,
    dim_names: Mapping[str, str],
    input_names: Sequence[str] | None,
    noted: NotedGuards,
) -> tuple[Signature, Any]:
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    specs = exported.graph_signature
    inputs = [
        spec.arg.name
        for spec in specs.input_specs
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument)
    ]
    symbols = SymbolNames(exported.range_constraints, [(name, values[name].shape) for name in inputs], dim_names)
    public = input_names if input_names is not None and len(input_names) == len(inputs) else inputs
    leaves: list[int | tuple[Any] | None] = []
    producers: list[str] = []
    for spec in specs.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            continue
        if isinstance(spec.arg, ConstantArgument):
            leaves.append(None if spec.arg.value is None else (spec.arg.value,))
        else:
            leaves.append(len(producers))
            producers.append(spec.arg.name)
    out_spec = exported.out_spec
    assert out_spec is not None, "an ExportedProgram knows the structure of its outputs"
    tree, names = describe_outputs(out_spec, leaves)

    def tensor(name: str, producer: str) -> TensorSpec:
        value = values[producer]
        dtype = torch_name_of(value.dtype)
        if dtype is None:
            raise UnsupportedError("LK4001", f"{name!r} has element type {value.dtype}, which is not supported")
        return TensorSpec(name, dtype, symbols.shape(value.shape, repr(name)))

    states = [
        TensorSpec(spec.target or "", *_plain_spec(values[spec.arg.name]))
        for spec in specs.output_specs
        if spec.kind == OutputKind.BUFFER_MUTATION
    ]
    found = Signature(
        inputs=[tensor(name, producer) for name, producer in zip(public, inputs, strict=True)],
        outputs=[tensor(names[index], producer) for index, producer in enumerate(producers)],
        states=states,
        dims=symbols.dims,
        guards=noted.guards(symbols),
    )
    return found, tree


def _plain_spec(value: torch.Tensor) -> tuple[str, list[Any]]:
    dtype = torch_name_of(value.dtype)
    if dtype is None or not all(is_static(extent) for extent in value.shape):
        raise UnsupportedError(
            "LK4002",
            f"a state of shape {tuple(value.shape)} and {value.dtype} is not supported: its shape must be fixed",
        )
    return dtype, [int(extent) for extent in value.shape]


def _dim_names(exported: ExportedProgram, dynamic_shapes: Any) -> dict[str, str]:
    """Names of ``torch.export.Dim`` objects by ``"<input>:<axis>"``."""
    if dynamic_shapes is None:
        return {}
    dims = cast("type[Any]", torch.export.Dim)
    found: dict[str, str] = {}

    def axes(shape: Any) -> dict[int, str]:
        pairs = shape.items() if isinstance(shape, Mapping) else enumerate(shape or ())
        return {axis: dim.__name__ for axis, dim in pairs if isinstance(dim, dims) or hasattr(dim, "__name__")}

    def is_shape(node: Any) -> bool:
        if node is None:
            return True
        if isinstance(node, Mapping):
            return all(isinstance(key, int) for key in node)
        return isinstance(node, (list, tuple)) and not any(isinstance(item, (list, tuple, Mapping)) for item in node)

    shapes = dynamic_shapes.values() if isinstance(dynamic_shapes, Mapping) else dynamic_shapes
    leaves = [leaf for shape in shapes for leaf in pytree.tree_leaves(shape, is_leaf=is_shape)]
    names = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    if len(leaves) == len(names):
        for name, shape in zip(names, leaves, strict=True):
            found.update({f"{name}:{axis}": text for axis, text in axes(shape).items()})
    return found


def load_exported(path: Path) -> ExportedProgram:
    """Loads a ``.pt2``; :func:`lowerkit.capture.archives.require_harmless_exported` was asked first.

    Raises:
        InputError: LK1002, torch cannot load it, or its bytes are not those that were written.
        CaptureError: LK2002, it holds pickled objects.
    """
    with quiet():
        try:
            require_sums(path)
            return read_exported(path)
        except LowerkitError:
            raise
        except Exception as error:  # torch raises what it likes for a damaged archive
            raise InputError(
                "LK1002",
                f"{path} is a torch.export archive that torch {torch.__version__} cannot load: {first_line(error)}",
                hint="export it again with this version of torch",
            ) from error
