"""From an exported graph to the torch dialect: torch-mlir's importer with weights by reference and full locations.

The importer is torch-mlir's own and takes the graph op by op. Three things are replaced: a parameter, buffer or
constant tensor becomes ``lk.weight`` (the stock importer writes each weight into a Python list); each op gets
``NameLoc("node@module.path", call stack)``; a mutated buffer is read by ``lk.state_read`` before everything else and
written by ``lk.state_write`` after everything else, so that no read can see a value of the same run.
"""

# torch and torch-mlir are subclassed and told apart by names that they keep private; the versions are pinned.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ExportGraphSignature, OutputKind, TensorArgument

# The importers are part of torch-mlir, not of the MLIR bindings that `lowerkit.mlir` stands for.
from torch_mlir.extras import fx_importer as upstream

from lowerkit.capture.torch_export.graph.control_flow import IMPORTERS
from lowerkit.capture.torch_export.graph.types import builtin_type
from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.program.dtypes import to_numpy, torch_name_of
from lowerkit.program.functional_program import FunctionalProgram
from lowerkit.program.locations import frames_of_trace, make_location
from lowerkit.program.weights import WeightStore


@dataclass
class TensorBank:
    """Gives tensors their symbols in a WeightStore; a tensor that is seen twice keeps its first symbol."""

    weights: WeightStore
    _symbols: dict[tuple[Any, ...], str] = field(default_factory=dict[tuple[Any, ...], str])
    _kept: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def symbol(self, tensor: torch.Tensor, wanted: str) -> str:
        """Returns the symbol of ``tensor``, adding it to the store (unread) at the first time."""
        key = self._identity(tensor)
        known = self._symbols.get(key)
        if known is not None:
            return known
        dtype = torch_name_of(tensor.dtype)
        if dtype is None:
            raise UnsupportedError(
                "LK4001",
                f"weight {wanted!r} has element type {tensor.dtype}, which is not supported",
                hint="convert the model to float32, bfloat16 or float16 before capturing it",
            )
        if tensor.layout != torch.strided:
            raise UnsupportedError("LK4001", f"weight {wanted!r} is sparse ({tensor.layout}), which is not supported")
        symbol = self.weights.unique_name(wanted)
        if tensor.is_meta:
            self.weights.declare(symbol, dtype, tuple(tensor.shape))
        else:
            self.weights.add(symbol, lambda: to_numpy(tensor), dtype=dtype, shape=tuple(tensor.shape))
        self._symbols[key] = symbol
        self._kept.append(tensor)  # the identity holds as long as the tensor lives
        return symbol

    @staticmethod
    def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
        if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.numel() == 0 or tensor.layout != torch.strided:
            return (id(tensor),)
        seen = (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_neg(), tensor.is_conj())
        if tensor.is_meta:
            return (tensor.untyped_storage()._cdata, tensor.storage_offset(), *seen)
        return (tensor.data_ptr(), *seen)


@dataclass(frozen=True)
class ImportPlan:
    """What the importer reads of a program; output specs that are no tensors are left out.

    Attributes:
        states: buffer name to the name of the node that produces its next value.
    """

    graph: fx.Graph
    graph_signature: ExportGraphSignature
    state_dict: dict[str, Any]
    constants: dict[str, Any]
    states: dict[str, str]

    @staticmethod
    def of(program: FunctionalProgram) -> ImportPlan:
        """Takes what is read of ``program``."""
        signature = program.graph_signature
        outputs, states = [], {}
        for output in signature.output_specs:
            if output.kind == OutputKind.USER_OUTPUT and isinstance(output.arg, TensorArgument):
                outputs.append(output)
            elif output.kind == OutputKind.BUFFER_MUTATION:
                assert isinstance(output.target, str), "a mutated buffer has a name"
                states[output.target] = output.arg.name
        reduced = ExportGraphSignature(signature.input_specs, outputs)
        return ImportPlan(program.graph, reduced, program.state_dict, program.constants, states)


def import_graph(plan: ImportPlan, bank: TensorBank, context: ir.Context) -> ir.Module:
    """Imports a functional graph as ``func.func @main`` on value tensors.

    Raises:
        UnsupportedError: a tensor is of an element type that lowerkit does not have.
        NotImplementedError, TypeError, AssertionError, RuntimeError, KeyError: from the upstream importer.
    """
    # A state keeps its name, which the user knows it by; weights make way.
    bank.weights.reserve(plan.states)
    importer = _Importer(plan, bank, context)
    importer.import_program(plan)  # type: ignore[arg-type]  # duck-typed on the four fields it reads
    return importer.module


class _Importer(upstream.FxImporter):
    def __init__(self, plan: ImportPlan, bank: TensorBank, context: ir.Context) -> None:
        super().__init__(
            context=context, config_check=False, hooks=_Hooks(bank, plan), graph_node_importer_cls=NodeImporter
        )
        self._cc = _ContextCache(context, py_attr_tracker=self._py_attr_tracker)

    def _import_all_child_modules(self, *_: Any, **__: Any) -> None:
        """Bodies of higher-order ops are imported in place."""


class _ContextCache(upstream.ContextCache):
    """Locations with node and module names; types cached by their text."""

    __slots__ = ("_types",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._types: dict[str, ir.Type] = {}

    def get_node_location(self, node: fx.Node) -> ir.Location:
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        path = path.removeprefix("L['self']").lstrip(".")
        return make_location(node.name, path, frames_of_trace(node.meta.get("stack_trace")), self._c)

    def get_vtensor_type(
        self, shape: torch.Size, dtype: torch.dtype, *, val: torch.Tensor | None = None, mutable: bool = False
    ) -> ir.Type:
        if torch_name_of(dtype) is None:
            raise UnsupportedError("LK4001", f"tensors of element type {dtype} are not supported")
        extents = ",".join(str(int(extent)) if is_static(extent) else "?" for extent in shape)
        text = (
            f"!torch.{'tensor' if mutable else 'vtensor'}<[{extents}],{upstream.TORCH_DTYPE_TO_MLIR_TYPE_ASM[dtype]}>"
        )
        known = self._types.get(text)
        if known is None:
            known = self._types[text] = ir.Type.parse(text, context=self._c)
        return known

    def value_info_to_type(self, val: Any, **details: Any) -> ir.Type:
        # A graph read from a file states the results of `split` as a tuple, the same graph in memory as a list.
        return super().value_info_to_type(list(val) if isinstance(val, tuple) else val, **details)

    def create_vtensor_type(self, dtype: torch.dtype, size: torch.Size) -> ir.Type:
        return self.get_vtensor_type(size, dtype)

    def tensor_metadata_to_type(self, tm: Any, *, val: torch.Tensor | None = None, mutable: bool = False) -> ir.Type:
        return self.get_vtensor_type(tm.shape, tm.dtype, val=val, mutable=mutable)


class _Hooks(upstream.FxImporterHooks):
    def __init__(self, bank: TensorBank, plan: ImportPlan) -> None:
        self.bank = bank
        self.plan = plan
        self.constant_names = {
            spec.arg.name: spec.target for spec in plan.graph_signature.input_specs if spec.target is not None
        }

    def resolve_input(self, gni: Any, value: Any, info: upstream.InputInfo) -> ir.Value:
        name = info.input_spec.target
        assert name is not None, "a parameter or buffer has a name"
        if name in self.plan.states:
            self.bank.weights.add(
                name, lambda: to_numpy(value), dtype=torch_name_of(value.dtype), shape=tuple(value.shape)
            )
            return _reference("lk.state_read", name, value, gni)
        return _reference("lk.weight", self.bank.symbol(value, name), value, gni)


class NodeImporter(upstream.GraphNodeImporter):
    """Imports the nodes of one graph; ``function_name`` is the function that they become part of."""

    __slots__ = ("computes_doubles", "function_name")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.function_name = "main"
        self.computes_doubles = False

    def inside(self, block: ir.Block, function_name: str) -> NodeImporter:
        """Returns an importer of a body's graph into a function of its own."""
        inner = NodeImporter(self.fx_importer, self._c, self._cc, block)
        inner.function_name = function_name
        return inner

    @property
    def _own_hooks(self) -> _Hooks:
        hooks = self.fx_importer._hooks
        assert isinstance(hooks, _Hooks), "_Importer gave them"
        return hooks

    def import_constant(self, loc: ir.Location, node: fx.Node, constant: Any) -> ir.Value:
        """Imports a constant tensor by reference."""
        if not isinstance(constant, torch.Tensor):
            return super().import_constant(loc, node, constant)
        hooks = self._own_hooks
        with loc, ir.InsertionPoint(self._b):
            name = hooks.constant_names.get(node.name, node.name)
            value = _reference("lk.weight", hooks.bank.symbol(constant, name), constant, self)
        self.bind_node_value(node, value)
        return value

    def _import_literal(self, py_value: Any, info: Any = None) -> ir.Value:
        if isinstance(py_value, torch.Tensor):
            symbol = self._own_hooks.bank.symbol(py_value, "constant")
            return _reference("lk.weight", symbol, py_value, self)
        return super()._import_literal(py_value, info)

    def lazy_import_buffer(self, loc: ir.Location, node: fx.Node, buffer_value: Any, info: upstream.InputInfo) -> None:
        """Imports a buffer by reference, or as a state."""
        super().lazy_import_buffer(loc, node, buffer_value, info)
        if info.store_producer_node is not None:
            self.resolve_node_value(node)
            self._on_node_produced.clear()  # writes come last, in return_node_values

    def return_node_values(self, loc: ir.Location, nodes: Any, constants: Any) -> None:
        """Writes the states, then returns."""
        plan = self._own_hooks.plan
        producers = {node.name: node for node in plan.graph.nodes}
        with loc, ir.InsertionPoint(self._b):
            for name, producer in plan.states.items():
                value = self.resolve_node_value(producers[producer])
                builtin = builtin_type(producers[producer].meta["val"])
                with make_location(name, name.rpartition(".")[0], (), self._c):
                    plain = ir.Operation.create("torch_c.to_builtin_tensor", results=[builtin], operands=[value]).result
                    ir.Operation.create(
                        "lk.state_write", operands=[plain], attributes={"symbol": ir.StringAttr.get(name)}
                    )
        super().return_node_values(loc, nodes, constants)

    def _import_torch_op_overload(self, loc: ir.Location, node: fx.Node, concrete_target: Any = None) -> None:
        values = [one.meta.get("val") for one in (node, *node.all_input_nodes)]
        self.computes_doubles = torch.float64 in [value.dtype for value in values if isinstance(value, torch.Tensor)]
        if str(node.target) != "aten._native_batch_norm_legit_no_training.default":
            super()._import_torch_op_overload(loc, node, concrete_target)
            return
        # Functionalization's name for an eval-mode batch norm; its second and third result are empty tensors.
        assert isinstance(node.target, torch._ops.OpOverload), "its text was looked at"
        settings: list[Any] = list(node.args[5:7])
        tensors = [self._import_argument(loc, argument) for argument in node.args[:5]]
        with loc:
            off = self._import_literal(False)
            numbers = [self._import_literal(float(setting)) for setting in settings]
        (result_type, *_) = self._unpack_node_result_types(node, node.target._schema)
        normalized = ir.Operation.create(
            "torch.aten.batch_norm", results=[result_type], operands=[*tensors, off, *numbers, off], loc=loc
        )
        self._multi_result_nodes.add(node)
        self.bind_node_value(node, normalized.result, 0)

    def _import_scalar_as_tensor(self, loc: ir.Location, arg: Any) -> ir.Value:
        """A number where a tensor is expected; upstream rounds every float to f32, also beside tensors of f64."""
        if not self.computes_doubles or not isinstance(arg, float):
            return super()._import_scalar_as_tensor(loc, arg)
        with loc:
            number = self._import_literal(arg)
            kind = self._cc.get_vtensor_type(torch.Size([]), torch.float64)
            return ir.Operation.create("torch.prim.NumToTensor.Scalar", results=[kind], operands=[number]).result

    def _import_hop(self, loc: ir.Location, node: fx.Node, hop: Any) -> None:
        control_flow = IMPORTERS.get(hop.name())
        if control_flow is not None:
            control_flow(self, loc, node)
            return
        if hop.name() != "wrap_with_set_grad_enabled":
            super()._import_hop(loc, node, hop)
            return
        _, body_node, *arguments = node.args
        assert isinstance(body_node, fx.Node), "the body is a get_attr node"
        body = getattr(node.graph.owning_module, str(body_node.target))
        placeholders = [inner for inner in body.graph.nodes if inner.op == "placeholder"]
        for placeholder, argument in zip(placeholders, arguments, strict=True):
            self.bind_node_value(placeholder, self._import_argument(loc, argument))
        self.import_nodes(body.graph.nodes, skip_placeholders_outputs=True)
        (returned,) = next(inner for inner in body.graph.nodes if inner.op == "output").args
        self._multi_result_nodes.add(node)
        for index, inner in enumerate(returned):
            self.bind_node_value(node, self.resolve_node_value(inner), index)


def _reference(op_name: str, symbol: str, tensor: torch.Tensor, gni: Any) -> ir.Value:
    location = make_location(symbol, symbol.rpartition(".")[0], (), gni._c)
    result = ir.Operation.create(
        op_name, results=[builtin_type(tensor)], attributes={"symbol": ir.StringAttr.get(symbol)}, loc=location
    ).result
    torch_type = gni._cc.get_vtensor_type(tensor.shape, tensor.dtype)
    return ir.Operation.create(
        "torch_c.from_builtin_tensor", results=[torch_type], operands=[result], loc=location
    ).result
