"""Steps of random programs with weights or long loops: products, convolutions, norms, attention, look-ups."""

from __future__ import annotations

from math import prod

import numpy as np

from lowerkit.dialect import (
    AttentionOp,
    AvgPoolOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    GroupNormOp,
    IntegerMatmulOp,
    LayerNormOp,
    MatmulOp,
    MaxPoolOp,
    RmsNormOp,
    RopeOp,
    SoftmaxOp,
)
from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.elementwise import identity_map
from lowerkit.passes.layout.transposes import build_transpose
from lowerkit.passes.rewriting import element_of, shape_of
from lowerkit.program.locations import make_location
from sharding_maker import FEATURES, MOST_ELEMENTS, Maker, Step
from sharding_states import rows_set


def product(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) >= 2)
    if value is None:
        return None
    depth, columns = shape_of(value)[-1], maker.rng.choice(FEATURES)
    swapped = maker.rng.random() < 0.5
    weight = maker.weight(*((columns, depth) if swapped else (depth, columns)))
    made = MatmulOp.build(value, weight, transpose_rhs=swapped)
    return _biased(maker, made, -1) if maker.rng.random() < 0.5 else made


def _biased(maker: Maker, value: ir.Value, axis: int) -> ir.Value:
    shape = shape_of(value)
    axis %= len(shape)
    bias = maker.weight(shape[axis])
    maps = [identity_map(len(shape)), (axis,)]
    return maker.map([value, bias], maps, shape, lambda scalars: [arith.AddFOp(*scalars).result])


def batched(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) >= 3)
    if value is None:
        return None
    other = maker.value(lambda shape: shape[:-2] == shape_of(value)[:-2] and shape[-1] == shape_of(value)[-1])
    return MatmulOp.build(value, other or value, transpose_rhs=True)


def experts(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) == 3)
    if value is None:
        return None
    batches, _, depth = shape_of(value)
    return MatmulOp.build(value, maker.weight(batches, depth, maker.rng.choice(FEATURES)))


def convolution(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) == 4 and min(shape[2:]) >= 3)
    if value is None:
        return None
    channels = shape_of(value)[1]
    groups = maker.rng.choice([1, 1, channels, *(each for each in (2, 4) if channels % each == 0)])
    outputs = groups * maker.rng.choice((1, 2, 4)) if groups > 1 else maker.rng.choice(FEATURES)
    size, stride = maker.rng.choice((1, 3)), maker.rng.choice((1, 1, 2))
    filter_ = maker.weight(outputs, channels // groups, size, size)
    made = ConvOp.build(value, filter_, padding=size // 2, strides=stride, groups=groups)
    return _biased(maker, made, 1) if maker.rng.random() < 0.5 else made


def spread(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) == 4 and prod(shape) <= MOST_ELEMENTS / 8)
    if value is None:
        return None
    channels = shape_of(value)[1]
    groups = maker.rng.choice([1, 1, *(each for each in (2, 4) if channels % each == 0)])
    filter_ = maker.weight(channels, maker.rng.choice((1, 2, 4, 6)), 2, 2)
    return ConvTransposeOp.build(value, filter_, strides=maker.rng.choice((1, 2)), groups=groups)


def integers(maker: Maker) -> ir.Value | None:
    """A product of bytes; its inputs and sums are small enough to be exact as floats."""
    value = maker.value(lambda shape: len(shape) >= 2)
    if value is None:
        return None
    shape, maps = shape_of(value), [identity_map(len(shape_of(value)))]
    byte, word = ir.IntegerType.get_signless(8), ir.IntegerType.get_signless(32)

    def stored(scalars: list[ir.Value]) -> list[ir.Value]:
        limit, low = (arith.ConstantOp(ir.F32Type.get(), ir.FloatAttr.get_f32(each)).result for each in (7.0, -7.0))
        clamped = arith.MaximumFOp(arith.MinimumFOp(scalars[0], limit).result, low).result
        return [arith.FPToSIOp(byte, clamped).result]

    weight = maker.weight(maker.rng.choice(FEATURES), shape[-1], dtype=np.int8)
    sums = IntegerMatmulOp.build(maker.map([value], maps, shape, stored, byte), weight, transpose_rhs=True)
    assert element_of(sums) == word

    def real(scalars: list[ir.Value]) -> list[ir.Value]:
        scale = arith.ConstantOp(ir.F32Type.get(), ir.FloatAttr.get_f32(0.0625)).result
        return [arith.MulFOp(arith.SIToFPOp(ir.F32Type.get(), scalars[0]).result, scale).result]

    return maker.map([sums], maps, shape_of(sums), real, ir.F32Type.get())


def pooled(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) == 4 and min(shape[2:]) >= 2)
    if value is None:
        return None
    return maker.rng.choice((MaxPoolOp, AvgPoolOp)).build(value, kernel=2, strides=maker.rng.choice((1, 2)))


def norm(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) >= 2 and shape[-1] > 1)
    if value is None:
        return None
    shape = shape_of(value)
    kind = maker.rng.random()
    if kind < 0.4:
        scale = maker.weight(shape[-1])
        return LayerNormOp.build(value, scale, maker.weight(shape[-1]) if kind < 0.2 else None)
    if kind < 0.8 or len(shape) != 4:
        return RmsNormOp.build(value, maker.weight(shape[-1]))
    groups = maker.rng.choice([each for each in (1, 2, 4) if shape[1] % each == 0])
    return GroupNormOp.build(value, maker.weight(shape[1]), maker.weight(shape[1]), groups=groups)


def softmax(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) >= 2)
    return None if value is None else SoftmaxOp.build(value, axis=maker.rng.randrange(len(shape_of(value))))


def attention(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) == 3)
    if value is None:
        return None
    batch, length, depth = shape_of(value)
    heads, features = maker.rng.choice((2, 4, 4, 6)), maker.rng.choice((2, 4))
    key_heads = maker.rng.choice([each for each in (1, 2, 4, heads) if heads % each == 0])
    query, key, own = (
        _heads(maker, value, depth, each, features, name)
        for each, name in ((heads, "q_proj"), (key_heads, "k_proj"), (key_heads, "v_proj"))
    )
    if maker.rng.random() < 0.4:
        cos, sin = maker.weight(1, 1, length, features), maker.weight(1, 1, length, features)
        query, key = (RopeOp.build(each, cos, sin) for each in (query, key))
    if maker.rng.random() < 0.4:
        key, own = (rows_set(maker, each, 2) for each in (key, own))
        made = AttentionOp.build(query, key, own)
    else:
        mask = maker.weight(1, 1, length, length) if maker.rng.random() < 0.3 else None
        made = AttentionOp.build(query, key, own, mask, causal=mask is None and maker.rng.random() < 0.5)
    joined = build_transpose(made, [0, 2, 1, 3])
    kind = ir.RankedTensorType.get([batch, length, heads * features], ir.F32Type.get())
    flat = tensor.CollapseShapeOp(kind, joined, [[0], [1], [2, 3]]).result
    return MatmulOp.build(flat, maker.weight(depth, heads * features), transpose_rhs=True)


def _heads(maker: Maker, value: ir.Value, depth: int, heads: int, features: int, name: str) -> ir.Value:
    batch, length, _ = shape_of(value)
    path, maker.path = maker.path, f"{maker.path}.{name}"
    maker.inside[0].append(maker.path)
    with make_location(name, maker.path, [], ir.Context.current):
        made = MatmulOp.build(value, maker.weight(heads * features, depth), transpose_rhs=True)
    maker.path = path
    kind = ir.RankedTensorType.get([batch, length, heads, features], ir.F32Type.get())
    apart = tensor.ExpandShapeOp(kind, made, [[0], [1], [2, 3]], [], list(kind.shape)).result
    return build_transpose(apart, [0, 2, 1, 3])


def looked_up(maker: Maker) -> ir.Value | None:
    assert maker.ids is not None, "the ids are the last argument"
    return GatherOp.build(maker.weight(maker.rng.choice((6, 7, 8, 12)), maker.rng.choice(FEATURES)), maker.ids)


def picked(maker: Maker) -> ir.Value | None:
    assert maker.ids is not None, "the ids are the last argument"
    value = maker.value(lambda shape: len(shape) in (2, 3) and max(shape) >= 6 and prod(shape) <= MOST_ELEMENTS / 8)
    if value is None:
        return None
    axis = maker.rng.choice([place for place, extent in enumerate(shape_of(value)) if extent >= 6])
    return GatherOp.build(value, maker.ids, axis=axis)


LAYERS: dict[str, tuple[int, Step]] = {
    "product": (8, product), "batched": (2, batched), "experts": (2, experts), "convolution": (5, convolution),
    "spread": (1, spread), "integers": (2, integers),
    "pooled": (2, pooled), "norm": (3, norm), "softmax": (1, softmax), "attention": (2, attention),
    "looked_up": (2, looked_up), "picked": (1, picked),
}  # fmt: skip
"""By name, how often a step is taken, and the step."""
