"""shfl, vote, redux, match and activemask: what the threads of a warp tell each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.float_arithmetic import extreme
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, computed

_LANES = np.arange(WARP)


_EVERY_LANE = np.uint32(0xFFFFFFFF)


def members_of(read: InstructionReader, batch: Batch, slot: int) -> Array | None:
    """Returns which lanes the member mask of each thread names, bool [warps, lanes of the thread, lanes named].

    None: all of them do, in whole warps.

    Raises:
        KernelFault: LK8017, an active thread does not name itself, or names a thread that is not active.
    """
    active = batch.warps(batch.mask(batch.active))
    if (batch.registers[slot] == _EVERY_LANE).all() and (active.all(1) == active.any(1)).all():
        return None
    named = (batch.warps(batch.registers[slot])[..., None] >> _LANES.astype(np.uint32)) & np.uint32(1) == 1
    absent = named & ~active[:, None]
    alone = ~named[:, _LANES, _LANES]
    bad = active & (absent.any(-1) | alone)
    if bad.any():
        thread = int(np.argmax(bad))
        raise read.fault(
            f"{batch.thread_name(thread)} names lanes in its member mask that do not run this instruction with it, "
            "or leaves itself out"
        )
    return named


def require_whole_warps(read: InstructionReader, batch: Batch) -> Array | None:
    """Returns which warps run an instruction that all lanes of a warp run together, bool [warps]; None for all.

    Raises:
        KernelFault: LK8017, some lanes of a warp do not.
    """
    if batch.active is None:
        return None
    active = batch.warps(batch.active)
    some = np.asarray(active.any(1))
    partly = active & (some & ~active.all(1))[:, None]
    if partly.any():
        raise read.fault(f"{batch.thread_name(int(np.argmax(partly)))} runs this without all lanes of its warp")
    return None if some.all() else some


def _shuffle(read: InstructionReader) -> Step:
    read.drop("sync")
    mode = read.required("up", "down", "bfly", "idx")
    kind = read.kind("b32")
    read.finish()
    read.count(5)
    first, second = read.pair(read.operand(0))
    target = read.target(first, kind)
    inside = None if second is None else read.target(second, "pred")
    value, lane, clamp, member = (read.source(number, "b32") for number in range(1, 5))

    def run(batch: Batch) -> None:
        named = members_of(read, batch, member)
        registers = batch.registers
        by = (batch.warps(registers[lane]) & np.uint32(31)).astype(np.int64)
        limits = batch.warps(registers[clamp])
        bound = (limits & np.uint32(31)).astype(np.int64)
        segment = ((limits >> np.uint32(8)) & np.uint32(31)).astype(np.int64)
        highest = (_LANES & segment) | (bound & ~segment)
        lowest = _LANES & segment
        source = {
            "up": _LANES - by,
            "down": _LANES + by,
            "bfly": _LANES ^ by,
            "idx": lowest | (by & ~segment),
        }[mode]
        valid = source >= highest if mode == "up" else source <= highest
        source = np.where(valid, source, _LANES)
        if named is not None:
            lost = ~np.take_along_axis(named, source[..., None], -1)[..., 0] & batch.warps(batch.mask(batch.active))
            if lost.any():
                thread = int(np.argmax(lost))
                lane_read = int(source.reshape(-1)[thread])
                raise read.fault(
                    f"{batch.thread_name(thread)} reads from lane {lane_read}, which its member mask leaves out"
                )
        batch.write(target, np.take_along_axis(batch.warps(registers[value]), source, 1).reshape(batch.shape))
        if inside is not None:
            batch.write(inside, valid.reshape(batch.shape))

    return run


def _vote(read: InstructionReader) -> Step:
    read.drop("sync")
    mode = read.required("all", "any", "uni", "ballot")
    read.kind(*(("b32",) if mode == "ballot" else ("pred",)))
    read.finish()
    read.count(3)
    target = read.target(read.operand(0), "b32" if mode == "ballot" else "pred")
    (source, negated), member = read.predicate(1), read.source(2, "b32")

    def run(batch: Batch) -> None:
        members = members_of(read, batch, member)
        named = np.ones((1, WARP, WARP), np.bool_) if members is None else members
        said = batch.warps(batch.registers[source]) != negated
        yes, every = (named & said[:, None]).any(-1), (~named | said[:, None]).all(-1)
        if mode == "ballot":
            bits = np.uint32(1) << _LANES.astype(np.uint32)
            result = np.where(named & said[:, None], bits, np.uint32(0)).sum(-1, dtype=np.uint32)
        elif mode == "uni":
            result = every | ~yes
        else:
            result = yes if mode == "any" else every
        batch.write(target, result.reshape(batch.shape))

    return run


_REDUCTIONS: Mapping[str, tuple[Function, tuple[str, ...]]] = {
    "add": (np.add, ("u32", "s32")),
    "min": (np.minimum, ("u32", "s32")),
    "max": (np.maximum, ("u32", "s32")),
    "and": (np.bitwise_and, ("b32",)),
    "or": (np.bitwise_or, ("b32",)),
    "xor": (np.bitwise_xor, ("b32",)),
}


def _reduce(read: InstructionReader) -> Step:
    """redux.sync: one value of those of the threads that the member mask names."""
    read.required("sync")
    name = read.required(*_REDUCTIONS)
    if "f32" in read.instruction.modifiers:
        return _reduce_floats(read, largest=name == "max", known=name in ("min", "max"))
    function, kinds = _REDUCTIONS[name]
    kind = read.kind(*kinds)
    limits = np.iinfo(computed(kind))
    neutral = {"min": limits.max, "max": limits.min, "and": limits.max}.get(name, 0)
    return _reduction(read, kind, function, neutral)


def _reduce_floats(read: InstructionReader, *, largest: bool, known: bool) -> Step:
    """A number wins over a NaN, with .NaN a NaN wins; .abs compares sizes."""
    sizes, nan_wins = read.flag("abs"), read.flag("NaN")
    kind = read.kind(*(("f32",) if known else ()))
    function = extreme(kind, largest=largest, nan_wins=nan_wins)
    neutral = (-np.inf if largest else np.inf) if nan_wins else np.nan
    return _reduction(read, kind, function, neutral, np.abs if sizes else None)


def _reduction(
    read: InstructionReader, kind: str, function: Function, neutral: float, before: Function | None = None
) -> Step:
    """Returns the step of a reduction; ``neutral`` stands for lanes that are left out, ``before`` is of each value."""
    read.finish()
    read.count(3)
    target, source, member = read.target(read.operand(0), kind), read.source(1, kind), read.source(2, "b32")
    view = computed(kind)

    def run(batch: Batch) -> None:
        named = members_of(read, batch, member)
        values = np.ascontiguousarray(batch.warps(batch.registers[source])).view(view)
        values = values if before is None else before(values)
        if named is None:
            result = np.broadcast_to(_folded(function, values)[:, None], values.shape)
        else:
            result = _folded(function, np.where(named, values[:, None], view.type(neutral)))
        batch.write(target, np.ascontiguousarray(result).view(np.uint32).reshape(batch.shape))

    return run


def _folded(function: Function, values: Array) -> Array:
    """Returns the values of the last axis (32) put together by a function of two."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = function(values[..., :half], values[..., half:])
    return values[..., 0]


def _match(read: InstructionReader) -> Step:
    """match.sync: the lanes that have the same value (any), or all of them if all have it (all)."""
    read.required("sync")
    everyone = read.required("any", "all") == "all"
    kind = read.kind("b32", "b64")
    read.finish()
    read.count(3)
    first, second = read.pair(read.operand(0))
    if second is not None and not everyone:
        raise read.unknown("the second result")
    target = read.target(first, "b32")
    agree = None if second is None else read.target(second, "pred")
    source, member = read.source(1, kind), read.source(2, "b32")

    def run(batch: Batch) -> None:
        members = members_of(read, batch, member)
        named = np.ones((1, WARP, WARP), np.bool_) if members is None else members
        values = batch.warps(batch.registers[source])
        same = (values[:, :, None] == values[:, None]) & named
        every = (same == named).all(-1)
        chosen = same & every[..., None] if everyone else same
        bits = np.uint32(1) << _LANES.astype(np.uint32)
        batch.write(target, np.where(chosen, bits, np.uint32(0)).sum(-1, dtype=np.uint32).reshape(batch.shape))
        if agree is not None:
            batch.write(agree, every.reshape(batch.shape))

    return run


def _active_mask(read: InstructionReader) -> Step:
    read.kind("b32")
    read.finish()
    read.count(1)
    target = read.target(read.operand(0), "b32")

    def run(batch: Batch) -> None:
        active = batch.warps(batch.mask(batch.active))
        bits = np.uint32(1) << _LANES.astype(np.uint32)
        mask = np.where(active, bits, np.uint32(0)).sum(-1, dtype=np.uint32, keepdims=True)
        batch.write(target, np.broadcast_to(mask, active.shape).reshape(batch.shape))

    return run


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {
    "shfl": _shuffle,
    "vote": _vote,
    "redux": _reduce,
    "match": _match,
    "activemask": _active_mask,
}
