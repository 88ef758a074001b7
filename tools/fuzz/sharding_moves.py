"""Steps of random programs without weights: elementwise ops, views, joins, reductions, and ops that are run whole."""

from __future__ import annotations

from math import prod

from lowerkit.dialect import CumulativeOp, ReduceOp, SortOp
from lowerkit.mlir import arith, ir, math, tensor
from lowerkit.passes.elementwise import IndexMap, identity_map
from lowerkit.passes.layout.transposes import build_transpose
from lowerkit.passes.rewriting import shape_of
from sharding_maker import MOST_ELEMENTS, Maker, Step


def unary(maker: Maker) -> ir.Value | None:
    value = maker.value()
    assert value is not None, "there is an input"
    operation = maker.rng.choice((math.TanhOp, math.AbsFOp, arith.NegFOp))
    return maker.map(
        [value], [identity_map(len(shape_of(value)))], shape_of(value), lambda scalars: [operation(*scalars).result]
    )


def binary(maker: Maker) -> ir.Value | None:
    value = maker.value()
    assert value is not None, "there is an input"
    shape = shape_of(value)
    other = maker.value(lambda each: _broadcasts(each, shape))
    operation = maker.rng.choice((arith.AddFOp, arith.SubFOp, arith.MulFOp, arith.MaximumFOp))
    assert other is not None, "the value itself fits"
    pad = len(shape) - len(shape_of(other))
    own: IndexMap = tuple(
        None if extent == 1 and shape[place + pad] > 1 else place + pad for place, extent in enumerate(shape_of(other))
    )
    maps = [identity_map(len(shape)), own]
    return maker.map([value, other], maps, shape, lambda scalars: [operation(*scalars).result])


def residual(maker: Maker) -> ir.Value | None:
    value = maker.value()
    assert value is not None, "there is an input"
    others = [other for other in maker.values if other != value and shape_of(other) == shape_of(value)]
    if not others:
        return None
    shape = shape_of(value)
    maps = [identity_map(len(shape))] * 2
    inputs = [value, maker.rng.choice(others)]
    return maker.map(inputs, maps, shape, lambda scalars: [arith.AddFOp(*scalars).result])


def transposed(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) >= 2)
    if value is None:
        return None
    order = list(range(len(shape_of(value))))
    maker.rng.shuffle(order)
    return build_transpose(value, order)


def expanded(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) <= 3 and any(extent in (4, 6, 8, 12, 16) for extent in shape))
    if value is None:
        return None
    shape = shape_of(value)
    axis = maker.rng.choice([place for place, extent in enumerate(shape) if extent in (4, 6, 8, 12, 16)])
    outer = maker.rng.choice([part for part in (1, 2, 3, 4) if shape[axis] % part == 0])
    apart = [*shape[:axis], outer, shape[axis] // outer, *shape[axis + 1 :]]
    kind = ir.RankedTensorType.get(apart, ir.F32Type.get())
    return tensor.ExpandShapeOp(kind, value, _groups(len(shape), axis), [], apart).result


def collapsed(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) >= 3)
    if value is None:
        return None
    shape = shape_of(value)
    axis = maker.rng.randrange(len(shape) - 1)
    joined = [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]
    kind = ir.RankedTensorType.get(joined, ir.F32Type.get())
    return tensor.CollapseShapeOp(kind, value, _groups(len(joined), axis)).result


def sliced(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: max(shape, default=0) > 1)
    if value is None:
        return None
    shape = shape_of(value)
    axis = maker.rng.choice([place for place, extent in enumerate(shape) if extent > 1])
    size = maker.rng.randint(1, shape[axis])
    if maker.rng.random() < 0.5 and shape[axis] % 2 == 0:
        size = shape[axis] // 2
    offsets, sizes, ones = [0] * len(shape), list(shape), [1] * len(shape)
    offsets[axis], sizes[axis] = maker.rng.randint(0, shape[axis] - size), size
    kind = ir.RankedTensorType.get(sizes, ir.F32Type.get())
    return tensor.ExtractSliceOp(kind, value, [], [], [], offsets, sizes, ones).result


def joined(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: bool(shape) and 2 * prod(shape) <= MOST_ELEMENTS)
    if value is None:
        return None
    shape = shape_of(value)
    axis = maker.rng.randrange(len(shape))
    rest = shape[:axis] + shape[axis + 1 :]
    other = maker.value(lambda each: len(each) == len(shape) and each[:axis] + each[axis + 1 :] == rest)
    assert other is not None, "the value itself fits"
    joined = list(shape)
    joined[axis] += shape_of(other)[axis]
    return tensor.ConcatOp(ir.RankedTensorType.get(joined, ir.F32Type.get()), axis, [value, other]).result


def reduced(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) >= 2)
    if value is None:
        return None
    axes = maker.rng.sample(range(len(shape_of(value))), maker.rng.choice((1, 1, 2)))
    kind = maker.rng.choice(("sum", "sum", "max", "min", "mean"))
    return ReduceOp.build(value, kind=kind, axes=axes, keep_dims=maker.rng.random() < 0.5)


def whole(maker: Maker) -> ir.Value | None:
    value = maker.value(bool)
    if value is None:
        return None
    axis = maker.rng.randrange(len(shape_of(value)))
    if maker.rng.random() < 0.7:
        return CumulativeOp.build(value, axis=axis)
    return SortOp.build(value, axis=axis)[0]


def _groups(rank: int, axis: int) -> list[list[int]]:
    """Returns the groups of a reassociation that joins dimensions ``axis`` and ``axis + 1`` into one of ``rank``."""
    return [[place] if place < axis else [place, place + 1] if place == axis else [place + 1] for place in range(rank)]


def _broadcasts(shape: list[int], to: list[int]) -> bool:
    pad = len(to) - len(shape)
    return pad >= 0 and all(extent in (1, to[place + pad]) for place, extent in enumerate(shape))


MOVES: dict[str, tuple[int, Step]] = {
    "unary": (2, unary), "binary": (4, binary), "residual": (4, residual), "transposed": (2, transposed),
    "expanded": (2, expanded), "collapsed": (2, collapsed), "sliced": (2, sliced), "joined": (2, joined),
    "reduced": (2, reduced), "whole": (1, whole),
}  # fmt: skip
"""By name, how often a step is taken, and the step."""
