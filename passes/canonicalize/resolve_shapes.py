"""Traces extents to where they come from, so that shapes of unknown extent get in the way of nothing.

    tensor.dim       of a computed value is read at the input that the extent is copied from, in the end an argument of
                     ``@main``: then nobody reads a value for its shape, and it can be fused away.
    extent < 0       is false.
    tensor.reshape   with extents that are not known becomes views (collapse, expand) where the known extents and the
                     origins of the unknown ones show how dimensions split and join. A reshape is a copy, views are not.

How dimensions correspond: the products of the leading extents of source and result are compared, unknown extents by
their origin; wherever both have the same product, dimensions before and after do not mix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.passes.rewriting import (
    DYNAMIC,
    constant_index,
    constant_int,
    defined_by,
    defining_op,
    dimension,
    element_of,
    erase_dead,
    main_block,
    operations,
    replace,
    shape_of,
)

Origin: TypeAlias = tuple[ir.Value, int]
"""A dimension of a value."""

# Ops whose result has the extents of the first operand in every dimension.
_SHAPE_KEEPING = frozenset({"lk.softmax", "lk.layer_norm", "lk.rms_norm", "lk.group_norm", "lk.rope", "lk.cumulative"})
_WINDOWED = frozenset({"lk.conv", "lk.conv_transpose", "lk.max_pool", "lk.avg_pool", "lk.resize"})


@dataclass(frozen=True)
class ResolveShapes(Pass):
    """Reads extents at their origin and turns reshapes of unknown extents into views.

    Precondition: stage raised, canonical or layout (no regions yet).
    """

    name: ClassVar[str] = "resolve-shapes"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            rewrite = _REWRITES.get(op.name)
            if rewrite is None:
                continue
            with ir.InsertionPoint(op), op.location:
                value = rewrite(op)
            if value is not None:
                replace(op, [value])
                changed = True
        return erase_dead(block) > 0 or changed


def _resolve_dim(op: ir.Operation) -> ir.Value | None:
    axis = constant_int(op.operands[1])
    if axis is None:
        return None
    value, origin_axis = origin(op.operands[0], axis)
    extent = shape_of(value)[origin_axis]
    if extent != DYNAMIC:
        return constant_index(extent)
    return None if value == op.operands[0] else dimension(value, origin_axis)


def origin(value: ir.Value, axis: int) -> Origin:
    """Returns the dimension that the extent of a dimension is copied from, as far back as it can be traced."""
    while True:
        op = defining_op(value)
        step = None if op is None else _step(op, axis)
        if step is None:
            return value, axis
        value, axis = step


def _step(op: ir.Operation, axis: int) -> Origin | None:
    if op.name in _SHAPE_KEEPING:
        return op.operands[0], axis
    if op.name in _WINDOWED:
        return (op.operands[0], axis) if axis == 0 else None
    if op.name == "lk.matmul":
        return _matmul_step(op, axis)
    if op.name == "lk.attention":  # [B, H, M, D] x [B, Hk, T, D] x [B, Hk, T, Dv] -> [B, H, M, Dv]
        return (op.operands[2], 3) if axis == 3 else (op.operands[0], axis)
    if op.name == "lk.gather":
        return _gather_step(op, axis)
    if op.name == "lk.reduce":
        return _reduce_step(op, axis)
    if op.name == "tensor.concat":
        return (op.operands[0], axis) if axis != ir.IntegerAttr(op.attributes["dim"]).value else None
    if op.name in ("tensor.expand_shape", "tensor.collapse_shape"):
        return _view_step(op, axis)
    view = as_elementwise(op)
    if view is None:
        return None
    for operand, index_map in zip(view.inputs, view.maps, strict=True):
        if axis in index_map:
            return operand, index_map.index(axis)
    return None


def _matmul_step(op: ir.Operation, axis: int) -> Origin | None:
    rank = len(shape_of(op.results[0]))
    for number, own, flag in ((0, rank - 2, "transpose_lhs"), (1, rank - 1, "transpose_rhs")):
        if axis == own:
            last = len(shape_of(op.operands[number])) - 1
            swapped = ir.BoolAttr(op.attributes[flag]).value
            return op.operands[number], last - 1 if (number == 0) != swapped else last
    for operand in op.operands:  # batch dimensions are aligned at the end; one of extent one is broadcast
        shape = shape_of(operand)
        own = axis - (rank - len(shape))
        if own >= 0 and shape[own] == DYNAMIC and all(len(shape_of(other)) == 2 for other in op.operands[1:]):
            return operand, own
    return None


def _gather_step(op: ir.Operation, axis: int) -> Origin:
    at = ir.IntegerAttr(op.attributes["axis"]).value
    indices = len(shape_of(op.operands[1]))
    at += len(shape_of(op.operands[0])) if at < 0 else 0
    if axis < at:
        return op.operands[0], axis
    return (op.operands[1], axis - at) if axis < at + indices else (op.operands[0], axis - indices + 1)


def _reduce_step(op: ir.Operation, axis: int) -> Origin | None:
    rank = len(shape_of(op.operands[0]))
    reduced = {number % rank for number in ir.DenseI64ArrayAttr(op.attributes["axes"])}
    if ir.BoolAttr(op.attributes["keep_dims"]).value:
        return None if axis in reduced else (op.operands[0], axis)
    return op.operands[0], [number for number in range(rank) if number not in reduced][axis]


def _view_step(op: ir.Operation, axis: int) -> Origin | None:
    expands = op.name == "tensor.expand_shape"
    for number, group in enumerate(reassociation_of(op)):
        if len(group) == 1 and (group[0] if expands else number) == axis:
            return op.operands[0], number if expands else group[0]
    return None


# Reshapes.

Product: TypeAlias = tuple[int, tuple[object, ...]]
"""A product of extents: the known ones multiplied, the origins of the unknown ones."""


def _views_of_reshape(op: ir.Operation) -> ir.Value | None:
    """Writes ``tensor.reshape`` as a collapse and an expansion; None where the dimensions cannot be matched."""
    source = op.operands[0]
    sizes = defined_by(op.operands[1], "tensor.from_elements")
    old, new = shape_of(source), shape_of(op.results[0])
    if sizes is None or not old or not new or len(sizes.operands) != len(new):
        return None
    symbols = [origin(source, axis) for axis in range(len(old))]
    new_symbols: list[object] = [_origin_of_scalar(scalar) or scalar for scalar in sizes.operands]
    if old.count(DYNAMIC) == new.count(DYNAMIC) == 1 and _known(old) == _known(new):
        new_symbols[new.index(DYNAMIC)] = symbols[old.index(DYNAMIC)]  # what is left of equal totals is equal
    groups = _match(_prefixes(old, symbols), _prefixes(new, new_symbols))
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


def _prefixes(shape: list[int], symbols: list[Origin] | list[object]) -> list[Product]:
    """Returns the products of the first 1, 2, ... extents."""
    found: list[Product] = []
    number, unknown = 1, list[object]()
    for extent, symbol in zip(shape, symbols, strict=True):
        if extent == DYNAMIC:
            unknown = sorted([*unknown, symbol], key=hash)
        else:
            number *= extent
        found.append((number, tuple(unknown)))
    return found


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


def _extent_is_negative(op: ir.Operation) -> ir.Value | None:
    """Folds ``extent < 0``, by which conversions guard sizes that PyTorch allows to be negative."""
    signed_less = ir.IntegerAttr(op.attributes["predicate"]).value == 2
    if not signed_less or constant_int(op.operands[1]) != 0:
        return None
    cast = defined_by(op.operands[0], "arith.index_cast")
    if defined_by(op.operands[0] if cast is None else cast.operands[0], "tensor.dim") is None:
        return None
    kind = ir.IntegerType.get_signless(1)
    return arith.ConstantOp(kind, ir.IntegerAttr.get(kind, 0)).result


_REWRITES: dict[str, Callable[[ir.Operation], ir.Value | None]] = {
    "arith.cmpi": _extent_is_negative,
    "tensor.dim": _resolve_dim,
    "tensor.reshape": _views_of_reshape,
}
