"""IR surgery that several passes need. Everything here works on snapshots: no quadratic scans, no stale iterators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from lowerkit.dialect.ops.collective import MESSAGES
from lowerkit.errors import PassError
from lowerkit.mlir import arith, ir, tensor

T = TypeVar("T")

DYNAMIC: int = ir.ShapedType.get_dynamic_size()
"""How the bindings spell an extent that is not known at compile time."""

# Ops that stay although nobody reads their results.
_EFFECTS = frozenset(
    {
        "func.return",
        "lk.yield",
        "linalg.yield",
        "tensor.yield",
        "lk.state_write",
        "lk.check_indices",
        "lk.call",
        "cf.assert",
    }
)


class OpMap(Generic[T]):
    """A map from ops that may change while it is in use.

    ``ir.Operation`` hashes by content: an op used as the key of a dict is lost once an operand of it is replaced.
    Values hash by identity, so the first result stands for its op; the few ops without results are compared.
    """

    def __init__(self) -> None:
        self._by_result: dict[ir.Value, T] = {}
        self._others: list[tuple[ir.Operation, T]] = []

    def __setitem__(self, op: ir.Operation, item: T) -> None:
        if len(op.results):
            self._by_result[op.results[0]] = item
        else:
            self._others = [(other, kept) for other, kept in self._others if other != op]
            self._others.append((op, item))

    def get(self, op: ir.Operation) -> T | None:
        """Returns what is known of ``op``, or None."""
        if len(op.results):
            return self._by_result.get(op.results[0])
        return next((item for other, item in self._others if other == op), None)

    def __getitem__(self, op: ir.Operation) -> T:
        item = self.get(op)
        if item is None:
            raise KeyError(op.name)
        return item

    def __contains__(self, op: ir.Operation | None) -> bool:
        return op is not None and self.get(op) is not None


class OpSet:
    """A set of ops that may change while it is in use (see :class:`OpMap`)."""

    def __init__(self, ops: Iterable[ir.Operation] = ()) -> None:
        self._map = OpMap[bool]()
        for op in ops:
            self.add(op)

    def add(self, op: ir.Operation) -> None:
        """Adds an op."""
        self._map[op] = True

    def __contains__(self, op: ir.Operation | None) -> bool:
        return op in self._map


def positions(ops: Sequence[ir.Operation]) -> OpMap[int]:
    """Returns the index of each op."""
    found = OpMap[int]()
    for index, op in enumerate(ops):
        found[op] = index
    return found


def main_block(module: ir.Module) -> ir.Block:
    """Returns the only block of ``@main``, or of the only function.

    Raises:
        PassError: LK3004, there is no such function or it has several blocks.
    """
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    named = [op for op in functions if ir.StringAttr(op.attributes["sym_name"]).value == "main"]
    chosen = named or functions
    if len(chosen) != 1 or len(chosen[0].regions[0].blocks) != 1:
        raise PassError(
            "LK3004",
            f"the module must hold one function @main of one block, found {len(functions)} functions",
            hint="run the pass on a module of one lowerkit stage",
        )
    return chosen[0].regions[0].blocks[0]


def operations(block: ir.Block) -> list[ir.Operation]:
    """Returns a snapshot of the ops of a block, in order."""
    return [op.operation for op in block.operations]


def defining_op(value: ir.Value) -> ir.Operation | None:
    """Returns the op that computes ``value``; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def defined_by(value: ir.Value, name: str) -> ir.Operation | None:
    """Returns the op that computes ``value`` if it is called ``name``."""
    op = defining_op(value)
    return op if op is not None and op.name == name else None


def users(value: ir.Value) -> list[ir.Operation]:
    """Returns the ops that read ``value``, each once. An op inside a body counts as itself, not as its parent."""
    found: list[ir.Operation] = []
    seen = OpSet()
    for use in value.uses:
        owner = use.owner.operation
        if owner not in seen:
            seen.add(owner)
            found.append(owner)
    return found


def is_used(value: ir.Value) -> bool:
    """Whether anything reads ``value``."""
    return next(iter(value.uses), None) is not None


def ancestor_in(block: ir.Block, op: ir.Operation) -> ir.Operation:
    """Returns the op of ``block`` that is ``op`` or holds it."""
    while op.block != block:
        op = op.parent.operation
    return op


def has_effects(op: ir.Operation) -> bool:
    """Whether the op must stay even when its results are unused: a message that one rank does not send, or does not
    take, leaves the other one waiting."""
    return op.name in _EFFECTS or _is_message(op)


def _is_message(op: ir.Operation) -> bool:
    if op.name == "lk.collective_done":
        owner = op.operands[0].owner
        return not isinstance(owner, ir.Block) and _is_message(owner.operation)
    return op.name == "lk.collective_start" and ir.StringAttr(op.attributes["kind"]).value in MESSAGES


def nested_operations(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yields the ops inside the regions of ``op``, parents first."""
    for region in op.regions:
        for block in region.blocks:
            for inner in operations(block):
                yield inner
                yield from nested_operations(inner)


def captured_values(op: ir.Operation) -> list[ir.Value]:
    """Returns the values that the regions of ``op`` read from outside ``op``, each once, in order of first use."""
    if not len(op.regions):
        return []
    inside: set[ir.Value] = set()
    read: dict[ir.Value, None] = {}
    for region in op.regions:
        for block in region.blocks:
            inside.update(block.arguments)
    for inner in nested_operations(op):
        inside.update(inner.results)
        for region in inner.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        read.update(dict.fromkeys(inner.operands))
    return [value for value in read if value not in inside]


def erase_dead(block: ir.Block, only: Collection[str] | None = None) -> int:
    """Erases ops without effects whose results nobody reads, bottom up; returns how many.

    Args:
        block: where to look; bodies inside are left alone.
        only: names of ops to consider; None considers all.
    """
    erased = 0
    for op in reversed(operations(block)):
        if only is not None and op.name not in only:
            continue
        if not has_effects(op) and not any(is_used(result) for result in op.results):
            op.erase()
            erased += 1
    return erased


def replace(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Lets ``values`` take the place of the results of ``op`` and erases it.

    A value that knows more of its extents, or less, than what it replaces is cast to the type of that.
    """
    for result, value in zip(op.results, values, strict=True):
        if value.type != result.type:
            with ir.InsertionPoint(op), op.location:
                value = tensor.CastOp(result.type, value).result  # noqa: PLW2901
        result.replace_all_uses_with(value)
    op.erase()


def remap_operands(op: ir.Operation, mapping: Mapping[ir.Value, ir.Value]) -> None:
    """Replaces operands of ``op`` and of the ops inside it."""
    for current in (op, *nested_operations(op)):
        for index, operand in enumerate(current.operands):
            replacement = mapping.get(operand)
            if replacement is not None:
                current.operands[index] = replacement


def clone_op(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> ir.Operation:
    """Clones ``op`` at the current insertion point, operands replaced by ``mapping``, which learns the results."""
    copy = op.clone().operation
    remap_operands(copy, mapping)
    mapping.update(zip(op.results, copy.results, strict=True))
    return copy


def fused_location(ops: Iterable[ir.Operation]) -> ir.Location:
    """Returns one location that names where each of ``ops`` came from."""
    locations = list(dict.fromkeys(op.location for op in ops))
    return locations[0] if len(locations) == 1 else ir.Location.fused(locations)


def tensor_type(value: ir.Value) -> ir.RankedTensorType | None:
    """Returns the type of ``value`` if it is a ranked tensor."""
    return ir.RankedTensorType(value.type) if isinstance(value.type, ir.RankedTensorType) else None


def shape_of(value: ir.Value) -> list[int]:
    """Returns the extents of a ranked tensor, DYNAMIC where unknown."""
    return list(ir.RankedTensorType(value.type).shape)


def element_of(value: ir.Value) -> ir.Type:
    """Returns the element type of a ranked tensor."""
    return ir.RankedTensorType(value.type).element_type


def constant_index(value: int) -> ir.Value:
    """Builds an index constant at the current insertion point."""
    return arith.ConstantOp(ir.IndexType.get(), value).result


def dimension(value: ir.Value, axis: int) -> ir.Value:
    """Builds ``tensor.dim`` at the current insertion point."""
    return tensor.DimOp(value, constant_index(axis)).result


def empty_like(value: ir.Value, axes: Sequence[int], element: ir.Type) -> ir.Value:
    """Builds a ``tensor.empty`` whose dimension i has the extent of dimension ``axes[i]`` of ``value``."""
    shape = shape_of(value)
    sizes = [dimension(value, axis) if shape[axis] == DYNAMIC else shape[axis] for axis in axes]
    return tensor.EmptyOp(sizes, element).result


def constant_of(value: ir.Value) -> ir.Attribute | None:
    """Returns the attribute of the ``arith.constant`` that defines ``value``."""
    op = defined_by(value, "arith.constant")
    return None if op is None else op.attributes["value"]


def constant_int(value: ir.Value) -> int | None:
    """Returns the integer or index constant that defines ``value``."""
    attribute = constant_of(value)
    return ir.IntegerAttr(attribute).value if attribute is not None and isinstance(attribute, ir.IntegerAttr) else None


def weight_symbol(value: ir.Value) -> str | None:
    """Returns the name of the weight that ``value`` is."""
    op = defined_by(value, "lk.weight")
    return None if op is None else ir.StringAttr(op.attributes["symbol"]).value


def scalar_tensor(number: float, element: ir.Type) -> ir.Value:
    """Builds a constant tensor of rank 0 at the current insertion point."""
    floating = isinstance(element, (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type))
    value = ir.FloatAttr.get(element, number) if floating else ir.IntegerAttr.get(element, int(number))
    kind = ir.RankedTensorType.get([], element)
    return arith.ConstantOp(kind, ir.DenseElementsAttr.get_splat(kind, value)).result
