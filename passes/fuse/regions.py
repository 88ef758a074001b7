"""Moves ops of ``@main`` into an isolated ``lk.region``.

A region's body reads block arguments, one for each operand, and what is computed inside. Constants, shapes and empty
destinations are cheaper to repeat than to pass: they are cloned into the body. The destination of an elementwise op
takes its extents from the op's own inputs, so that no tensor is passed for its shape alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lowerkit.dialect import RegionOp, YieldOp
from lowerkit.dialect.ragged import RESULT_RUNS, fits
from lowerkit.errors import PassError
from lowerkit.mlir import ir, tensor
from lowerkit.passes.elementwise import Elementwise, as_elementwise
from lowerkit.passes.rewriting import (
    DYNAMIC,
    OpMap,
    OpSet,
    captured_values,
    clone_op,
    defining_op,
    dimension,
    element_of,
    remap_operands,
)

_SCALAR_DIALECTS = ("arith.", "math.", "affine.", "index.", "tensor.extract")


def is_repeatable(op: ir.Operation) -> bool:
    """Whether cloning ``op`` into a body costs nothing: constants, destinations, shapes and scalars made of them."""
    if op.name in ("tensor.empty", "tensor.dim", "arith.constant"):
        return True
    if op.name == "linalg.fill":  # starts a reduction, or is a constant
        return all((source := defining_op(value)) is not None and is_repeatable(source) for value in op.operands)
    is_scalar = not any(isinstance(result.type, ir.ShapedType) for result in op.results)
    return is_scalar and op.name.startswith(_SCALAR_DIALECTS) and op.name != "tensor.extract_slice"


def make_region(members: Sequence[ir.Operation], kind: str) -> ir.Operation:
    """Wraps ``members`` (ops of one block, in program order) into a region in place of the last of them.

    Every reader of a result must come after the last member. The region takes the last member's location.

    Raises:
        PassError: LK3004, a member reads a scalar that cannot be repeated inside.
    """
    inside = OpSet(members)
    last = members[-1]
    outputs = _outputs(members, inside)
    if not fits([value.type for value, _ in outputs], RESULT_RUNS):  # such as floats and truths by turns
        outputs = sorted(outputs, key=lambda output: str(output[0].type))
    destinations = [view for op in members if (view := as_elementwise(op)) is not None and _owns_shape(view)]
    own_shapes = OpMap[range]()
    for view in destinations:
        own_shapes[view.op] = _init_numbers(view)
    reads: list[ir.Value] = []
    for op in members:
        skipped = own_shapes.get(op) or range(0)
        reads += [value for number, value in enumerate(op.operands) if number not in skipped]
        reads += captured_values(op)
    repeated = _to_repeat(reads, inside)
    operands = _operands(reads, repeated, inside)
    with ir.InsertionPoint(last), last.location:
        region = RegionOp.build(operands, kind, [value.type for value, _ in outputs])
        mapping: dict[ir.Value, ir.Value] = dict(zip(operands, region.block.arguments, strict=True))
        with ir.InsertionPoint(region.block):
            for op in repeated:
                clone_op(op, mapping)
            end = YieldOp.build([value for value, _ in outputs]).operation
    for op in members:
        op.move_before(end)
        remap_operands(op, mapping)
    for (_, uses), result in zip(outputs, region.operation.results, strict=True):
        for owner, number in uses:
            owner.operands[number] = result
    for view in destinations:
        _write_destinations(view.op)
    return region.operation


def _outputs(members: Sequence[ir.Operation], inside: OpSet) -> list[tuple[ir.Value, list[tuple[ir.Operation, int]]]]:
    """Returns the results that somebody outside reads, with those uses."""
    found: list[tuple[ir.Value, list[tuple[ir.Operation, int]]]] = []
    for member in members:
        for result in member.results:
            uses = [(use.owner.operation, use.operand_number) for use in result.uses]
            uses = [(owner, number) for owner, number in uses if not _is_within(owner, inside)]
            if uses:
                found.append((result, uses))
    return found


def _is_within(op: ir.Operation, ancestors: OpSet) -> bool:
    current: ir.Operation | None = op
    while current is not None and current not in ancestors:
        parent = current.parent
        current = None if parent is None else parent.operation
    return current is not None


def _to_repeat(reads: Iterable[ir.Value], inside: OpSet) -> list[ir.Operation]:
    """Returns the ops to clone into the body, operands first."""
    ordered: list[ir.Operation] = []
    seen = OpSet()

    def visit(value: ir.Value) -> None:
        op = defining_op(value)
        if op is None or op in seen or op in inside or not is_repeatable(op):
            return
        for operand in op.operands:
            visit(operand)
        seen.add(op)
        ordered.append(op)

    for value in reads:
        visit(value)
    return ordered


def _operands(reads: Sequence[ir.Value], repeated: Sequence[ir.Operation], inside: OpSet) -> list[ir.Value]:
    """Returns the tensors to pass in, in order of first use by the members, then by what is repeated."""
    copied = OpSet(repeated)
    found: dict[ir.Value, None] = {}
    from_members = [value for value in reads if defining_op(value) not in inside]
    for value in (*from_members, *(operand for op in repeated for operand in op.operands)):
        producer = defining_op(value)
        if producer in copied:
            continue
        if producer in inside or not isinstance(value.type, ir.RankedTensorType):
            origin = "an argument" if producer is None else producer.name
            raise PassError(
                "LK3004",
                f"a region reads the {value.type} of {origin}, which cannot be repeated inside it",
                location=None if producer is None else str(producer.location),
                hint="make the scalar a tensor of rank 0",
            )
        found[value] = None
    return list(found)


def _init_numbers(view: Elementwise) -> range:
    count = len(view.op.operands)
    return range(count - len(view.inits), count)


def _shape_source(view: Elementwise, loop: int) -> tuple[int, int] | None:
    """Returns (input number, dimension) whose extent is that of a loop."""
    for number, index_map in enumerate(view.maps):
        if loop in index_map:
            return number, index_map.index(loop)
    return None


def _owns_shape(view: Elementwise) -> bool:
    """Whether the extents of the loops follow from the inputs (or are static)."""
    return all(extent != DYNAMIC or _shape_source(view, loop) is not None for loop, extent in enumerate(view.shape))


def _write_destinations(op: ir.Operation) -> None:
    """Gives an op inside a body destinations made from its own inputs, one for each element type."""
    view = as_elementwise(op)
    assert view is not None
    made: dict[str, ir.Value] = {}
    with ir.InsertionPoint(op), op.location:
        for number, result in zip(_init_numbers(view), op.results, strict=True):
            element = element_of(result)
            if str(element) not in made:
                sizes: list[int | ir.Value] = list(view.shape)
                for loop, extent in enumerate(view.shape):
                    if extent == DYNAMIC:
                        source = _shape_source(view, loop)
                        assert source is not None
                        sizes[loop] = dimension(view.inputs[source[0]], source[1])
                made[str(element)] = tensor.EmptyOp(sizes, element).result
            op.operands[number] = made[str(element)]
