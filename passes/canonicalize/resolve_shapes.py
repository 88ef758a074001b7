"""Traces extents to where they come from, so that shapes of unknown extent get in the way of nothing.

    tensor.dim       of a computed value is read at the input that the extent is copied from, in the end an argument of
                     ``@main``: then nobody reads a value for its shape, and it can be fused away.
    comparisons      of extents, and selections and clamps by them, are decided where ranges allow it.
    tensor.reshape   with extents that are not known becomes views (collapse, expand) where the known extents and the
                     origins of the unknown ones show how dimensions split and join. A reshape is a copy, views are not.

How dimensions correspond: the products of the leading extents of source and result are compared, unknown extents by
their origin; wherever both have the same product, dimensions before and after do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.canonicalize.index_ranges import IndexRanges
from lowerkit.passes.canonicalize.origins import Origin, origin
from lowerkit.passes.rewriting import (
    DYNAMIC,
    constant_index,
    constant_int,
    defined_by,
    dimension,
    element_of,
    erase_dead,
    main_block,
    operations,
    replace,
    shape_of,
)


@dataclass(frozen=True)
class ResolveShapes(Pass):
    """Reads extents at their origin and turns reshapes of unknown extents into views.

    Precondition: stage raised, canonical or layout (no regions yet).
    """

    name: ClassVar[str] = "resolve-shapes"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        ranges = IndexRanges(context.extent_ranges)
        changed = False
        for op in operations(block):
            rewrite = _REWRITES.get(op.name)
            if rewrite is None:
                continue
            with ir.InsertionPoint(op), op.location:
                value = rewrite(op, ranges)
            if value is not None:
                replace(op, [value])
                changed = True
        return erase_dead(block) > 0 or changed


def _resolve_dim(op: ir.Operation, ranges: IndexRanges) -> ir.Value | None:
    axis = constant_int(op.operands[1])
    if axis is None:
        return None
    value, origin_axis = origin(op.operands[0], axis)
    extent = shape_of(value)[origin_axis]
    if extent != DYNAMIC:
        return constant_index(extent)
    return None if value == op.operands[0] else dimension(value, origin_axis)


# Reshapes.

Product: TypeAlias = tuple[int, tuple[object, ...]]
"""A product of extents: the known ones multiplied, the origins of the unknown ones."""


def _views_of_reshape(op: ir.Operation, ranges: IndexRanges) -> ir.Value | None:
    """Writes ``tensor.reshape`` as a collapse and an expansion; None where the dimensions cannot be matched."""
    source = op.operands[0]
    sizes = defined_by(op.operands[1], "tensor.from_elements")
    old, new = shape_of(source), shape_of(op.results[0])
    if sizes is None or not old or not new or len(sizes.operands) != len(new):
        return None
    symbols = [origin(source, axis) for axis in range(len(old))]
    new_symbols: list[object] = [_origin_of_scalar(scalar) or scalar for scalar in sizes.operands]
    factors = _factors(old, symbols)
    new_factors = _with_left_over(_factors(new, new_symbols), factors)
    groups = _match(_prefixes(factors), _prefixes(new_factors))
    middle = [_joined([old[axis] for axis in source_group]) for source_group, _ in groups]
    for extent, (_, target_group) in zip(middle, groups, strict=True):
        if (extent == DYNAMIC) != any(new[axis] == DYNAMIC for axis in target_group):
            return None  # a view cannot learn or forget an extent
    value = source
    if len(groups) < len(old):
        kind = ir.RankedTensorType.get(middle, element_of(source))
        value = tensor.CollapseShapeOp(kind, value, [group for group, _ in groups]).result
    if len(groups) < len(new):
        dynamic = [_as_index(sizes.operands[axis]) for axis, extent in enumerate(new) if extent == DYNAMIC]
        kind = ir.RankedTensorType.get(new, element_of(source))
        value = tensor.ExpandShapeOp(kind, value, [group for _, group in groups], dynamic, new).result
    return value


def _origin_of_scalar(scalar: ir.Value) -> Origin | None:
    cast = defined_by(scalar, "arith.index_cast")
    dim = defined_by(scalar if cast is None else cast.operands[0], "tensor.dim")
    axis = None if dim is None else constant_int(dim.operands[1])
    return None if dim is None or axis is None else origin(dim.operands[0], axis)


def _as_index(scalar: ir.Value) -> ir.Value:
    return scalar if isinstance(scalar.type, ir.IndexType) else arith.IndexCastOp(ir.IndexType.get(), scalar).result


def _known(shape: list[int]) -> int:
    product = 1
    for extent in shape:
        product *= 1 if extent == DYNAMIC else extent
    return product


def _joined(extents: list[int]) -> int:
    return DYNAMIC if DYNAMIC in extents else _known(extents)


def _factors(shape: list[int], symbols: Sequence[object]) -> list[Product]:
    """Returns each extent as a product."""
    return [
        (1, (symbol,)) if extent == DYNAMIC else (extent, ()) for extent, symbol in zip(shape, symbols, strict=True)
    ]


def _with_left_over(new: list[Product], old: list[Product]) -> list[Product]:
    """Writes the one extent whose origin is not among the old ones as what the others leave of the equal total."""
    number, unknown = _total(old)
    foreign = [axis for axis, (_, symbols) in enumerate(new) if any(symbol not in unknown for symbol in symbols)]
    if len(foreign) != 1:
        return new
    stated, known = _total([product for axis, product in enumerate(new) if axis != foreign[0]])
    left = list(unknown)
    for symbol in known:
        if symbol not in left:
            return new
        left.remove(symbol)
    if stated == 0 or number % stated:
        return new
    return [(number // stated, _sorted(left)) if axis == foreign[0] else one for axis, one in enumerate(new)]


def _total(factors: Sequence[Product]) -> Product:
    number, unknown = 1, list[object]()
    for own, symbols in factors:
        number *= own
        unknown += symbols
    return number, _sorted(unknown)


def _sorted(symbols: list[object]) -> tuple[object, ...]:
    return tuple(sorted(symbols, key=hash))


def _prefixes(factors: Sequence[Product]) -> list[Product]:
    """Returns the products of the first 1, 2, ... extents."""
    return [_total(factors[: position + 1]) for position in range(len(factors))]


def _match(old: list[Product], new: list[Product]) -> list[tuple[list[int], list[int]]]:
    """Cuts both shapes where their leading products agree; the last group takes what is left."""
    cuts: list[tuple[int, int]] = []
    for position, product in enumerate(old[:-1]):
        if product in new[:-1]:
            target = new.index(product)
            if not cuts or (position > cuts[-1][0] and target > cuts[-1][1]):
                cuts.append((position, target))
    cuts.append((len(old) - 1, len(new) - 1))
    groups: list[tuple[list[int], list[int]]] = []
    start, target_start = 0, 0
    for position, target in cuts:
        groups.append((list(range(start, position + 1)), list(range(target_start, target + 1))))
        start, target_start = position + 1, target + 1
    return groups


# Comparisons, selections and clamps of extents.


def _fold_comparison(op: ir.Operation, ranges: IndexRanges) -> ir.Value | None:
    if isinstance(op.operands[0].type, ir.ShapedType):
        return None
    outcome = ranges.compare(op)
    if outcome is None:
        return None
    kind = ir.IntegerType.get_signless(1)
    return arith.ConstantOp(kind, ir.IntegerAttr.get(kind, int(outcome))).result


def _fold_selection(op: ir.Operation, ranges: IndexRanges) -> ir.Value | None:
    condition = constant_int(op.operands[0])
    return None if condition is None else op.operands[1 if condition else 2]


def _fold_clamp(op: ir.Operation, ranges: IndexRanges) -> ir.Value | None:
    if isinstance(op.operands[0].type, ir.ShapedType):
        return None
    first, second = op.operands
    one, other = ranges.range(first), ranges.range(second)
    smaller, larger = (first, second) if op.name == "arith.minsi" else (second, first)
    if one[1] is not None and other[0] is not None and one[1] <= other[0]:
        return smaller
    if other[1] is not None and one[0] is not None and other[1] <= one[0]:
        return larger
    return None


_REWRITES: dict[str, Callable[[ir.Operation, IndexRanges], ir.Value | None]] = {
    "arith.cmpi": _fold_comparison,
    "arith.select": _fold_selection,
    "arith.minsi": _fold_clamp,
    "arith.maxsi": _fold_clamp,
    "tensor.dim": _resolve_dim,
    "tensor.reshape": _views_of_reshape,
}
