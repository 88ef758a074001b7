"""Steps of random programs with a state: a value is kept between runs, and the state is read behind its update."""

from __future__ import annotations

from math import prod

import numpy as np

from lowerkit.dialect import ScatterOp, StateReadOp, StateWriteOp
from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.elementwise import identity_map
from lowerkit.passes.rewriting import shape_of
from sharding_maker import MOST_ELEMENTS, Maker, Step


def kept(maker: Maker) -> ir.Value | None:
    value = maker.value(lambda shape: len(shape) >= 2 and prod(shape) <= MOST_ELEMENTS / 4)
    if value is None:
        return None
    return maker.rng.choice((_added, rows_set, _rolled, _inserted))(maker, value, maker.rng.randrange(2))


def rows_set(maker: Maker, value: ir.Value, axis: int) -> ir.Value:
    """Sets neighbouring rows of a longer state, as a cache does."""
    shape = shape_of(value)
    longer = [*shape[:axis], shape[axis] + 2, *shape[axis + 1 :]]
    old = _read(maker, longer)
    places = np.arange(shape[axis], dtype=np.int64) + maker.rng.randrange(3)
    kind = ir.RankedTensorType.get([shape[axis]], ir.IntegerType.get_signless(64))
    indices = arith.ConstantOp(kind, ir.DenseElementsAttr.get(places)).result
    return _write(maker, ScatterOp.build(old, indices, value, axis=axis, kind="set"))


def _added(maker: Maker, value: ir.Value, axis: int) -> ir.Value:
    del axis
    shape = shape_of(value)
    maps = [identity_map(len(shape))] * 2
    old = _read(maker, shape)
    return _write(maker, maker.map([old, value], maps, shape, lambda scalars: [arith.AddFOp(*scalars).result]))


def _rolled(maker: Maker, value: ir.Value, axis: int) -> ir.Value:
    shape = shape_of(value)
    longer = [*shape[:axis], shape[axis] + 2, *shape[axis + 1 :]]
    left, offsets = [*shape[:axis], 2, *shape[axis + 1 :]], [0] * len(shape)
    offsets[axis] = shape[axis]
    old = _read(maker, longer)
    kind = ir.RankedTensorType.get(left, ir.F32Type.get())
    rest = tensor.ExtractSliceOp(kind, old, [], [], [], offsets, left, [1] * len(shape)).result
    return _write(maker, tensor.ConcatOp(ir.RankedTensorType.get(longer, ir.F32Type.get()), axis, [rest, value]).result)


def _inserted(maker: Maker, value: ir.Value, axis: int) -> ir.Value:
    shape = shape_of(value)
    longer, offsets = [*shape[:axis], shape[axis] + 2, *shape[axis + 1 :]], [0] * len(shape)
    offsets[axis] = maker.rng.randrange(3)
    ones = [1] * len(shape)
    return _write(maker, tensor.InsertSliceOp(value, _read(maker, longer), [], [], [], offsets, shape, ones).result)


def _read(maker: Maker, shape: list[int]) -> ir.Value:
    name = f"state{len(maker.states)}"
    maker.states[name] = np.empty(shape, np.float32)
    return StateReadOp.build(name, ir.RankedTensorType.get(shape, ir.F32Type.get()))


def _write(maker: Maker, value: ir.Value) -> ir.Value:
    StateWriteOp.build(value, symbol=f"state{len(maker.states) - 1}")
    return value


STATES: dict[str, tuple[int, Step]] = {"kept": (6, kept)}
"""By name, how often a step is taken, and the step."""
