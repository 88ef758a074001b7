"""``torch.cond`` and ``torch.while_loop``: each body becomes a function, called by ``lk.cond`` or ``lk.while``.

Arguments of the functions are tensors. A parameter that a body reads is a weight of the body's own, so that passes know
it there; a symbolic size is read off an argument that has it; what no body reads is not passed. Arguments stand in the
order of their types, because the ops take a bounded number of runs of equal types.
"""

# torch-mlir's importer is subclassed by what calls this; its methods are private.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from lowerkit.capture.torch_export.graph.types import builtin_type
from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.dialect import CondOp, WhileOp
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import func, ir

if TYPE_CHECKING:
    from lowerkit.capture.torch_export.graph.importer import NodeImporter

CONTROL_FLOW = frozenset({"cond", "while_loop"})


def body_graphs(graph: fx.Graph) -> Iterator[fx.Graph]:
    """Yields ``graph`` and, after each, the graphs of the bodies that its control flow runs."""
    yield graph
    for node in graph.nodes:
        if node.op == "get_attr":
            body = getattr(graph.owning_module, str(node.target), None)
            if isinstance(body, fx.GraphModule):
                yield from body_graphs(body.graph)


def import_cond(importer: NodeImporter, loc: ir.Location, node: fx.Node) -> None:
    """Imports ``cond(predicate, then, else, operands)``."""
    predicate, then_body, else_body, operands = node.args
    if not isinstance(predicate, fx.Node) or not isinstance(predicate.meta.get("val"), torch.Tensor):
        raise _refused(node, "its predicate is no tensor")
    bodies = [_body(node, body) for body in (then_body, else_body)]
    call = _Call(importer, loc, node, list(operands), bodies, carried=0)  # type: ignore[call-overload]
    names = [call.define(body, label) for body, label in zip(bodies, ("then", "else"), strict=True)]
    with loc, ir.InsertionPoint(importer._b):
        decides = call.plain(predicate)
        op = CondOp.build(decides, call.operands(), names[0], names[1], call.result_types())
    call.bind_results(op.operation.results)


def import_while(importer: NodeImporter, loc: ir.Location, node: fx.Node) -> None:
    """Imports ``while_loop(condition, body, carried, additional)``."""
    condition, body, carried, additional = node.args
    bodies = [_body(node, condition), _body(node, body)]
    inputs = [*carried, *additional]  # type: ignore[misc]
    call = _Call(importer, loc, node, inputs, bodies, carried=len(carried))  # type: ignore[arg-type]
    names = [call.define(one, label) for one, label in zip(bodies, ("condition", "body"), strict=True)]
    with loc, ir.InsertionPoint(importer._b):
        op = WhileOp.build(call.operands(), call.carried, names[0], names[1])
    call.bind_results(op.operation.results)


class _Call:
    """One call of control flow: which operands are passed, in what order, and the functions of its bodies."""

    def __init__(
        self,
        importer: NodeImporter,
        loc: ir.Location,
        node: fx.Node,
        operands: Sequence[Any],
        bodies: Sequence[fx.GraphModule],
        carried: int,
    ) -> None:
        self.importer = importer
        self.loc = loc
        self.node = node
        self.inputs = operands
        self.carried = carried
        self.weights: dict[int, ir.Operation] = {}
        self.sizes: list[int] = []
        tensors: list[int] = []
        used = [[bool(place.users) for place in _placeholders(body)] for body in bodies]
        for number, operand in enumerate(operands):
            value = operand.meta.get("val") if isinstance(operand, fx.Node) else operand
            if isinstance(value, torch.SymInt) and number >= carried:
                self.sizes.append(number)
            elif not isinstance(value, torch.Tensor):
                raise _refused(node, f"its operand {operand} is a {type(value).__name__}, not a tensor")
            elif number >= carried and (weight := _weight_behind(self._value(operand))) is not None:
                self.weights[number] = weight
            elif number < carried or any(marks[number] for marks in used) or _is_dynamic(value):
                tensors.append(number)
        self.order = sorted(tensors, key=lambda number: (number >= carried, str(self._type(number))))

    def define(self, body: fx.GraphModule, label: str) -> str:
        """Imports a body as a function; returns its name."""
        importer = self.importer
        name = f"{importer.function_name}.{self.node.name}.{label}"
        returned = _returned(body)
        results = returned if label == "condition" or not self.carried else [returned[n] for n in self._result_order()]
        with self.loc:
            types = [self._type(number) for number in self.order]
            result_types = [importer._cc.node_val_to_type(result) for result in results]
            function = func.FuncOp(name, (types, result_types), ip=ir.InsertionPoint(importer.fx_importer.module.body))
            function.attributes["torch.assume_strict_symbolic_shapes"] = ir.UnitAttr.get()
            block = function.add_entry_block()
        inner = importer.inside(block, name)
        places = _placeholders(body)
        for number, argument in zip(self.order, block.arguments, strict=True):
            inner.bind_node_value(places[number], argument)
        with self.loc, ir.InsertionPoint(block):
            for number, weight in self.weights.items():
                inner.bind_node_value(places[number], self._weight(weight))
            for number in self.sizes:
                if places[number].users:
                    inner.bind_node_value(places[number], self._size(number, places, inner))
        inner.import_nodes(body.graph.nodes, skip_placeholders_outputs=True)
        with self.loc, ir.InsertionPoint(block):
            func.ReturnOp([inner._import_argument(self.loc, result) for result in results])
        return name

    def operands(self) -> list[ir.Value]:
        """The tensors to pass, as builtin tensors; at the current insertion point."""
        return [self.plain(self.inputs[number]) for number in self.order]

    def plain(self, node: fx.Node) -> ir.Value:
        """Returns the value of a node as a builtin tensor."""
        value, type_ = self._value(node), builtin_type(node.meta["val"])
        return ir.Operation.create("torch_c.to_builtin_tensor", results=[type_], operands=[value]).result

    def result_types(self) -> list[ir.Type]:
        """The builtin types of what the node gives."""
        return [builtin_type(value) for value in self._values()]

    def bind_results(self, results: Sequence[ir.Value]) -> None:
        """Lets the results of the op be what the node gives, in the node's own order."""
        importer, values = self.importer, self._values()
        order = self._result_order() if self.carried else range(len(values))
        importer._multi_result_nodes.add(self.node)
        with self.loc, ir.InsertionPoint(importer._b):
            for index, result in zip(order, results, strict=True):
                type_ = importer._cc.get_vtensor_type(values[index].shape, values[index].dtype)
                value = ir.Operation.create("torch_c.from_builtin_tensor", results=[type_], operands=[result]).result
                importer.bind_node_value(self.node, value, index)

    def _value(self, node: fx.Node) -> ir.Value:
        with self.loc, ir.InsertionPoint(self.importer._b):
            return self.importer._import_argument(self.loc, node)

    def _values(self) -> list[torch.Tensor]:
        values = self.node.meta["val"]
        return list(values) if isinstance(values, (tuple, list)) else [values]

    def _result_order(self) -> list[int]:
        return self.order[: self.carried]

    def _type(self, number: int) -> ir.Type:
        return self.importer._cc.node_val_to_type(self.inputs[number])

    def _weight(self, weight: ir.Operation) -> ir.Value:
        """A reference of the body's own to a weight of the caller."""
        copy = weight.clone().operation
        source = weight.results[0].uses
        outer = next(use.owner.operation for use in source if use.owner.operation.name == "torch_c.from_builtin_tensor")
        return ir.Operation.create(
            "torch_c.from_builtin_tensor", results=[outer.results[0].type], operands=[copy.results[0]]
        ).result

    def _size(self, number: int, places: Sequence[fx.Node], inner: NodeImporter) -> ir.Value:
        wanted = self.inputs[number].meta["val"].node.expr
        if wanted.is_Integer:
            return _integer(int(wanted))
        for other in self.order:
            for axis, extent in enumerate(self.inputs[other].meta["val"].shape):
                if not is_static(extent) and extent.node.expr == wanted:
                    operands = [inner.resolve_node_value(places[other]), _integer(axis)]
                    integer = ir.Type.parse("!torch.int")
                    return ir.Operation.create("torch.aten.size.int", results=[integer], operands=operands).result
        raise _refused(self.node, f"the size {wanted} is that of no tensor it takes")


def _integer(number: int) -> ir.Value:
    value = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    kind = ir.Type.parse("!torch.int")
    return ir.Operation.create("torch.constant.int", results=[kind], attributes={"value": value}).result


def _placeholders(body: fx.GraphModule) -> list[fx.Node]:
    return list(body.graph.find_nodes(op="placeholder"))


def _returned(body: fx.GraphModule) -> list[Any]:
    (returned,) = next(iter(body.graph.find_nodes(op="output"))).args
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def _body(node: fx.Node, body: Any) -> fx.GraphModule:
    found = getattr(node.graph.owning_module, str(body.target))
    for result in _returned(found):
        if not isinstance(result, fx.Node) or not isinstance(result.meta.get("val"), torch.Tensor):
            raise _refused(node, f"its body {body.target} gives {result}, which is no tensor")
    return found


def _weight_behind(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "torch_c.from_builtin_tensor":
        return None
    source = owner.operation.operands[0].owner
    found = None if isinstance(source, ir.Block) else source.operation
    return found if found is not None and found.name == "lk.weight" else None


def _is_dynamic(value: torch.Tensor) -> bool:
    return not all(is_static(extent) for extent in value.shape)


def _refused(node: fx.Node, why: str) -> UnsupportedError:
    return UnsupportedError(
        "LK4001",
        f"control flow {node.name} is not supported: {why}",
        hint="pass tensors into the bodies and out of them",
    )


IMPORTERS: dict[str, Callable[[NodeImporter, ir.Location, fx.Node], None]] = {
    "cond": import_cond,
    "while_loop": import_while,
}
