"""Which conditions on sizes the code of a module takes for granted: they become guards of the signature.

The loops of a structured op run over extents that several of its operands share, and a kernel takes each extent from
one of them. Where shapes are symbolic, capture need not have proven that the others agree: ONNX declares the dims of
``x[a, 3] + y[b, 3]`` apart, and lets ``b`` be 1 at a call. What is compiled does not broadcast at run time, so it is
right where ``a == b`` alone, and must not run elsewhere.

Rules
    linalg                extents that operands (destinations included) have in one loop are equal
    tensor.insert_slice   the source has the sizes of the slice
    tensor.concat         extents off the axis are equal
    tensor.expand_shape   the product of a group is the extent it came from
    tensor.reshape        the number of elements stays
    tensor.cast           an extent that becomes static has that value
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from lowerkit.codegen.lower_lk import lower_lk_ops
from lowerkit.codegen.shapes import ShapeTable
from lowerkit.codegen.step_place import step_place
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir, run_pipeline, walk
from lowerkit.runtimes.conditions import Condition, condition_text, holds, simplify_condition
from lowerkit.runtimes.expression_bounds import decided, ranges_of
from lowerkit.runtimes.expressions import Expr, ExpressionError, simplify
from lowerkit.runtimes.manifest import Guard, Signature
from lowerkit.targets.region_view import RegionView

_SAMPLES = 512
_SCALES = (4, 32, 1024, 2**20, 2**40)
_ENOUGH_SAMPLES = 64

Equality = tuple[Expr, Expr]


class ExtentConditions:
    """What the steps of a program take for granted of sizes, each condition with the line that it was met first."""

    def __init__(self) -> None:
        self._found: dict[Condition, str] = {}
        self._regions: dict[tuple[object, ...], list[Condition]] = {}

    def add_region(self, view: RegionView, shapes: Sequence[Sequence[Expr]], location: str) -> None:
        """Adds those of a region whose operands have ``shapes``; equal regions are looked at once."""
        if all(isinstance(extent, int) for shape in shapes for extent in shape):
            return
        key = view.text, *map(tuple, shapes)
        if key not in self._regions:
            self._regions[key] = region_conditions(view, shapes)
        self._add(self._regions[key], location)

    def add_view(self, op: ir.Operation, table: ShapeTable) -> None:
        """Adds those of a cast or reshape between regions."""
        self._add(op_conditions(op, table), step_place(op)[1])

    def add_results(self, signature: Signature, shapes: Sequence[Sequence[Expr]], location: str) -> None:
        """Adds that results have the shapes that the signature states."""
        for spec, shape in zip(signature.outputs, shapes, strict=False):
            self._add((("eq", one, other) for one, other in zip(shape, spec.shape, strict=True)), location)

    def added_guards(self, signature: Signature) -> list[Guard]:
        """See :func:`added_guards`."""
        return added_guards(signature, self._found.items())

    def _add(self, conditions: Iterable[Condition], location: str) -> None:
        for condition in conditions:
            if condition[1] != condition[2]:
                self._found.setdefault(condition, location)


def region_conditions(view: RegionView, operands: Sequence[Sequence[Expr]]) -> list[Condition]:
    """Returns what the body of a region takes for granted, given the shapes of its operands; each condition once."""
    module = view.clone_module()
    with module.context, ir.Location.unknown():
        lower_lk_ops(module)
        run_pipeline(module, "builtin.module(func.func(linalg-generalize-named-ops))")
        block = module.body.operations[0].operation.regions[0].blocks[0]
        table = ShapeTable(dict(zip(block.arguments, operands, strict=True)))
        found: list[ir.Operation] = []
        walk(module.operation, found.append)
        return list(dict.fromkeys(condition for op in found for condition in op_conditions(op, table)))


def refuse_tables_of_extents(region: ir.Operation) -> None:
    """Refuses a region that makes a table of extents: what is reshaped by it has no shape before the call.

    Raises:
        UnsupportedError: LK4002, with the line.
    """
    if any(str(ir.RankedTensorType(result.type).element_type) == "index" for result in region.results):
        name, location = step_place(region)
        raise UnsupportedError(
            "LK4002",
            f"{name} reshapes to sizes that are computed at a call, and nothing proves that they fit",
            location=location or None,
            hint="give the inputs fixed shapes with --input NAME:SHAPE, or let one size be -1",
        )


def op_conditions(op: ir.Operation, table: ShapeTable) -> Iterator[Condition]:
    """Yields what one op takes for granted; nothing where its shapes depend on data."""
    try:
        equalities = list(_equalities(op, table))
    except UnsupportedError:
        return
    for one, other in equalities:
        condition = simplify_condition(("eq", one, other))
        if condition is False:
            condition = ("eq", one, other)
        if condition is not True:
            yield condition


def added_guards(signature: Signature, conditions: Iterable[tuple[Condition, str]]) -> list[Guard]:
    """Returns guards for those conditions that the ranges and guards of a signature do not imply.

    A condition that holds at several hundred sizes of all magnitudes at which the guards hold is taken as implied:
    most are one extent written in two ways.

    Args:
        signature: of the program.
        conditions: each with ``file:line`` of what depends on it, or ``""``.

    Raises:
        UnsupportedError: LK4002, a condition holds for no sizes.
    """
    known: set[Condition] = {guard.condition for guard in signature.guards}
    ranges = ranges_of(signature.dims)
    samples: list[dict[str, int]] | None = None
    found: list[Guard] = []
    for condition, location in conditions:
        mirrored = (condition[0], condition[2], condition[1])
        outcome = decided(condition, ranges)
        if outcome or condition in known or mirrored in known:
            continue
        if outcome is False:
            raise _impossible(condition, location)
        samples = _samples(signature) if samples is None else samples
        if not _holds_everywhere(condition, samples):
            found.append(Guard(condition, location))
        known.add(condition)
    return found


def _impossible(condition: Condition, location: str) -> UnsupportedError:
    return UnsupportedError(
        "LK4002",
        f"the model holds under the condition {condition_text(condition)}, which no sizes fulfil",
        location=location or None,
        hint="the shapes of two operands do not fit each other: mend the model, or the ranges of its dims",
    )


def _samples(signature: Signature) -> list[dict[str, int]]:
    """Sizes at which the guards of a signature hold."""
    random = Random(0)  # noqa: S311  (sizes to try, the same each time)
    found: list[dict[str, int]] = []
    for number in range(_SAMPLES):
        scale = _SCALES[number % len(_SCALES)]
        sizes = {
            name: random.randint(low, min(high, low + scale)) for name, (low, high) in ranges_of(signature.dims).items()
        }
        try:
            if all(holds(guard.condition, sizes) for guard in signature.guards):
                found.append(sizes)
        except ExpressionError:
            continue
    return found


def _holds_everywhere(condition: Condition, samples: Sequence[dict[str, int]]) -> bool:
    count = 0
    for sizes in samples:
        try:
            if not holds(condition, sizes):
                return False
        except ExpressionError:
            continue
        count += 1
    return count >= _ENOUGH_SAMPLES


def _equalities(op: ir.Operation, table: ShapeTable) -> Iterator[Equality]:
    if op.name.startswith("linalg."):
        yield from _of_loops(op, table)
    elif op.name == "tensor.insert_slice":
        source = [extent for extent in table.shape(op.operands[0]) if extent != 1]
        sizes = [extent for extent in table.slice_sizes(op) if extent != 1]
        if len(source) == len(sizes):
            yield from zip(source, sizes, strict=True)
    elif op.name == "tensor.concat":
        axis = ir.IntegerAttr(op.attributes["dim"]).value
        first, *others = [table.shape(operand) for operand in op.operands]
        for other in others:
            yield from ((a, b) for number, (a, b) in enumerate(zip(first, other, strict=True)) if number != axis)
    elif op.name == "tensor.expand_shape":
        source, result = table.shape(op.operands[0]), table.shape(op.results[0])
        for extent, group in zip(source, ir.ArrayAttr(op.attributes["reassociation"]), strict=True):
            yield extent, _product(result[ir.IntegerAttr(axis).value] for axis in ir.ArrayAttr(group))
    elif op.name == "tensor.reshape":
        yield _product(table.shape(op.operands[0])), _product(table.shape(op.results[0]))
    elif op.name == "tensor.cast":
        yield from zip(table.shape(op.operands[0]), table.shape(op.results[0]), strict=True)


def _product(extents: Iterable[Expr]) -> Expr:
    product: Expr = 1
    for extent in extents:
        product = simplify(("mul", product, extent))
    return product


def _of_loops(op: ir.Operation, table: ShapeTable) -> Iterator[Equality]:
    """Extents of one loop of a structured op, as its operands give them."""
    if "indexing_maps" not in op.attributes:
        return
    maps = [ir.AffineMapAttr(entry).value for entry in ir.ArrayAttr(op.attributes["indexing_maps"])]
    extents: dict[int, Expr] = {}
    for operand, indexing in zip(op.operands, maps, strict=True):
        if not isinstance(operand.type, ir.RankedTensorType):
            continue
        for result, extent in zip(indexing.results, table.shape(operand), strict=True):
            if isinstance(result, ir.AffineDimExpr):
                yield extents.setdefault(result.position, extent), extent
