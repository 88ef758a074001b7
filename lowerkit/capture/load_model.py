"""``capture_path``: from what a user names on a command line to a Program.

What a file is, :mod:`~lowerkit.capture.file_kind` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.capture.example_inputs import Given, in_order, nested_in_order, refuse_dynamic_shapes
from lowerkit.capture.factory import is_factory, make_model
from lowerkit.capture.file_kind import file_kind
from lowerkit.capture.input_spec import (
    DynamicDim,
    Expected,
    InputSpec,
    dims_of,
    example_arrays,
    parse_dynamic,
    parse_inputs,
)
from lowerkit.errors import InputError, UsageError
from lowerkit.program.dtypes import to_torch, torch_dtype, torch_name_of
from lowerkit.program.files import SourceFile, hash_file
from lowerkit.program.program import Program
from lowerkit.torch_version import require_torch


def capture_path(
    model: str | Path,
    inputs: Sequence[str] = (),
    dynamic: Sequence[str] = (),
    *,
    seed: int = 0,
    dtype: str | None = None,
    example_inputs: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    use_cache: bool = False,
    meta: bool = False,
) -> Program:
    """Captures the model that ``model`` names.

    Args:
        model: a path, or a factory.
        inputs: values of ``--input``, see :mod:`lowerkit.capture.input_spec`.
        dynamic: values of ``--dynamic``.
        seed: of random inputs.
        dtype: ``f32``, ``bf16`` or ``f16``: floating weights and inputs are converted first (factories, TorchScript).
        example_inputs: tensors or arrays that take the place of ``inputs``, in the model's order.
        kwargs: the same by name: keyword arguments of ``forward``, or names of inputs.
        dynamic_shapes: as for ``torch.export.export``, of a factory's module; files fix their shapes.
        use_cache: take a .pt2 or TorchScript file that was captured before from the cache on disk; what comes from
            there can be compiled and has no eager side.
        meta: run a factory on the meta device, so that no weight is ever allocated; the program can be sized, not
            compiled. The weights of files stay in the file in any case.

    Raises:
        UsageError: LK1004, an option cannot be parsed, or does not go with this kind of model; LK1007, this version of
            torch is not supported.
        InputError: the file, or the inputs, cannot be used; all problems of the inputs at once.
        CaptureError, UnsupportedError: the model cannot be captured.
    """
    require_torch()
    specs, dims = parse_inputs(inputs), parse_dynamic(dynamic)
    given = None if example_inputs is None and not kwargs else Given(tuple(example_inputs or ()), dict(kwargs or {}))
    if is_factory(str(model)):
        return _from_factory(str(model), specs, dims, seed, dtype, given, dynamic_shapes, meta)
    path = Path(model)
    kind = file_kind(path)
    refuse_dynamic_shapes(dynamic_shapes, str(path), "export it with dynamic_shapes, or use --dynamic (ONNX)")
    source = SourceFile.of(path)
    if dtype is not None and kind != "torchscript":
        raise UsageError(
            "LK1004",
            f"the element types of {path} are fixed; they cannot be converted to {dtype}",
            hint="export the model in that type, or name a factory",
        )
    if dims and kind != "onnx":
        raise UsageError(
            "LK1004",
            f"the shapes of {path} are fixed, so --dynamic has no effect",
            hint="export it with dynamic_shapes, or name a factory",
        )

    def from_archive() -> Program:
        if kind == "torchscript":
            return _from_torchscript(path, specs, seed, dtype, given)
        return _from_exported(path, specs, seed, given)

    if kind == "onnx":
        program = _from_onnx(path, specs, dims, seed, given)
    elif use_cache:
        from lowerkit.capture.program_cache import ProgramCache, captured_once

        files = [hash_file(spec.file) for spec in specs if spec.file is not None and spec.file.is_file()]
        asked = [kind, specs, files, seed, dtype, *(given.key() if given is not None else ())]
        program = captured_once(ProgramCache(), path, asked, from_archive)
    else:
        program = from_archive()
    program.sources.append(source)
    return program


def _from_factory(
    text: str,
    specs: Sequence[InputSpec],
    dims: Sequence[DynamicDim],
    seed: int,
    dtype: str | None,
    given: Given | None,
    dynamic_shapes: Any,
    meta: bool,
) -> Program:
    import torch
    from torch.utils import _pytree as pytree

    from lowerkit.capture.capture import capture
    from lowerkit.capture.torch_export.eager import argument_names

    made = make_model(text, meta=meta)
    module = made.module
    positional, named = made.positional, made.named
    if given is not None:
        positional, named = pytree.tree_map(
            lambda value: to_torch(value) if isinstance(value, np.ndarray) else value,
            (given.positional or (() if given.named else positional), given.named or named),
        )
    if dims and dynamic_shapes is not None:
        raise UsageError("LK1004", "dims are given twice: as --dynamic and as dynamic_shapes", hint="choose one")
    leaves, structure = pytree.tree_flatten((positional, named))
    names = argument_names(module, positional, named)
    if dtype is not None:
        if isinstance(module, torch.nn.Module):
            module = module.to(torch_dtype(dtype))
        leaves = [leaf.to(torch_dtype(dtype)) if _is_floating(leaf) else leaf for leaf in leaves]
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if specs or dims:
        wanted = {spec.name for spec in specs}
        expected = [
            Expected(names[place], torch_name_of(leaves[place].dtype), (None,) * leaves[place].ndim) for place in places
        ]
        kept = [
            InputSpec(entry.name, tuple(leaves[place].shape), entry.dtype)
            for entry, place in zip(expected, places, strict=True)
            if entry.name not in wanted
        ]
        arrays = example_arrays(expected, [*specs, *kept], dims, seed=seed)
        for place, entry, array in zip(places, expected, arrays, strict=True):
            if entry.name in wanted:
                leaves[place] = to_torch(array).to("meta" if meta else "cpu")
    positional, named = pytree.tree_unflatten(leaves, structure)
    shapes = _torch_dynamic(leaves, structure, {names[place]: place for place in places}, dims) if dims else None
    program = capture(module, positional, shapes if dims else dynamic_shapes, named or None)
    program.source = text
    return program


def _torch_dynamic(leaves: list[Any], structure: Any, places: Mapping[str, int], dims: Sequence[DynamicDim]) -> Any:
    """Builds what ``torch.export`` takes: the structure of the arguments with ``{axis: Dim}`` at the tensors."""
    import torch
    from torch.utils import _pytree as pytree

    made = {dim.symbol: torch.export.Dim(dim.symbol, min=dim.minimum, max=dim.maximum) for dim in dims}
    shapes: list[Any] = [None] * len(leaves)
    problems: list[str] = []
    for dim in dims:
        place = places[dim.name]
        if dim.axis >= leaves[place].ndim:
            problems.append(f"{dim.name!r} has {leaves[place].ndim} dims, --dynamic names dim {dim.axis}")
            continue
        shapes[place] = {**(shapes[place] or {}), dim.axis: made[dim.symbol]}
    if problems:
        raise InputError("LK1003", "--dynamic does not fit the inputs", details=problems)
    positional, named = pytree.tree_unflatten(shapes, structure)
    if not named:
        return positional
    return (*positional, *named.values()) if not positional else (*positional, named)


def _is_floating(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _from_onnx(
    path: Path, specs: Sequence[InputSpec], dims: Sequence[DynamicDim], seed: int, given: Given | None
) -> Program:
    try:
        from lowerkit.capture.onnx.capture import capture_onnx, declared_inputs
    except ModuleNotFoundError as error:
        raise UsageError(
            "LK2001", f"{path} is an ONNX model and the onnx package is missing", hint="pip install 'lowerkit[onnx]'"
        ) from error
    declared = declared_inputs(path)
    if given is not None:
        arrays = in_order(declared, given.positional, given.named)
    else:
        arrays = example_arrays(declared, specs, dims, seed=seed)
    shapes: dict[str, list[int | str | None]] = {}
    for entry, array in zip(declared, arrays, strict=True):
        spec = next((spec for spec in specs if spec.name == entry.name), None)
        shape: list[int | str | None]
        if spec is not None and spec.shape is not None:
            shape = list(spec.shape)
        elif spec is not None or given is not None:
            shape = list(array.shape)
        else:
            shape = [extent if isinstance(extent, (int, str)) else None for extent in entry.shape or array.shape]
        for dim in dims:
            if dim.name == entry.name and dim.axis < len(shape):
                shape[dim.axis] = dim.symbol
        shapes[entry.name] = shape
    return capture_onnx(path, input_shapes=shapes, dims=dims_of(dims), example_inputs=arrays)


def _from_torchscript(
    path: Path, specs: Sequence[InputSpec], seed: int, dtype: str | None, given: Given | None
) -> Program:
    from lowerkit.capture.torchscript.capture import ScriptArguments, capture_script, load_script

    script = load_script(path)
    arguments = ScriptArguments.of(script, [spec.name for spec in specs])
    if given is not None:
        arrays = in_order(arguments.expected, given.flat(), given.named)
    else:
        arrays = example_arrays(arguments.expected, specs, seed=seed)
    tensors = [to_torch(array) for array in arrays]
    if dtype is not None:
        script = script.to(torch_dtype(dtype))
        tensors = [tensor.to(torch_dtype(dtype)) if tensor.is_floating_point() else tensor for tensor in tensors]
    return capture_script(script, arguments.nest(tensors), source=str(path))


def _from_exported(path: Path, specs: Sequence[InputSpec], seed: int, given: Given | None) -> Program:
    from lowerkit.capture.torch_export.capture import capture_exported, load_exported

    program = capture_exported(load_exported(path), source=str(path))
    expected = [Expected(spec.name, spec.dtype, tuple(spec.shape)) for spec in program.signature.inputs]
    if given is not None:
        program.example_inputs = nested_in_order(program, given.positional, given.named)
    elif specs or program.example_inputs is None:
        ranges = {dim.name: dim for dim in program.signature.dims}
        dims = [
            DynamicDim(entry.name, axis, extent, ranges[extent].minimum, ranges[extent].maximum)
            for entry in expected
            for axis, extent in enumerate(entry.shape or ())
            if isinstance(extent, str)
        ]
        program.example_inputs = example_arrays(expected, specs, dims, seed=seed)
    return program
