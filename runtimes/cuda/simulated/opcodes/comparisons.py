"""setp, set, selp and what joins predicates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.rounding import flush, from_bf16
from lowerkit.runtimes.cuda.simulated.scalar_types import BITS, SIGNED, UNSIGNED, Array, computed, is_float, pairwise

_ORDERED: Mapping[str, Function] = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_OPPOSITE = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_SCALARS = (*SIGNED, *UNSIGNED, *BITS, "f16", "bf16", "f32", "f64")
# What set gives for true: the bits of 1.0, or all of them.
_SET_TO: Mapping[str, int] = {
    "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000,
    "f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80,
}  # fmt: skip
_JOINS: Mapping[str, Function] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _is_number(a: Array, b: Array) -> Array:
    return ~(np.isnan(a) | np.isnan(b))


def _float_comparison(name: str) -> Function:
    """A comparison is false when an operand is NaN, one with u in front of the end is true."""
    if name in _ORDERED:
        return _ORDERED[name]
    if name == "ne":
        return lambda a, b: (a < b) | (a > b)
    if name in _OPPOSITE:
        opposite = _float_comparison(_OPPOSITE[name])
        return lambda a, b: ~opposite(a, b)
    return _is_number if name == "num" else lambda a, b: ~_is_number(a, b)


def _comparison(read: InstructionReader) -> tuple[str, Function]:
    """Takes the modifiers that say what is compared and how."""
    name = read.required(*_ORDERED, "ne", *_UNSIGNED_NAMES, *_OPPOSITE, "num", "nan")
    ftz = read.flag("ftz")
    kind = read.kind(*_SCALARS)
    return kind, _comparison_by_name(read, kind, name, ftz)


def _comparison_by_name(read: InstructionReader, kind: str, name: str, ftz: bool) -> Function:
    if not is_float(kind):
        allowed = ("eq", "ne") if kind in BITS else (*_ORDERED, "ne", *(_UNSIGNED_NAMES if kind in UNSIGNED else ()))
        if name not in allowed or ftz:
            raise read.unknown(f"modifier .{name}")
        return np.not_equal if name == "ne" else _ORDERED[_UNSIGNED_NAMES.get(name, name)]
    if name in _UNSIGNED_NAMES or (ftz and kind not in ("f32", "f16")):
        raise read.unknown("a modifier")
    return _comparison_of(kind, name, ftz)


def _comparison_of(kind: str, name: str, ftz: bool) -> Function:
    compare = _float_comparison(name)
    if kind == "bf16":
        return lambda a, b: compare(from_bf16(a), from_bf16(b))
    return (lambda a, b: compare(flush(a), flush(b))) if ftz else compare


def _set_predicate(read: InstructionReader) -> Step:
    """``setp p|q, a, b, c``: p is the comparison joined with c, q its opposite joined with c."""
    join = _JOINS.get(read.choice(*_JOINS) or "")
    if {"f16x2", "bf16x2"} & set(read.instruction.modifiers):
        if join is not None:
            raise read.unknown("joining")
        return _set_two_predicates(read)
    kind, compare = _comparison(read)
    read.finish()
    read.count(3 if join is None else 4)
    a, b = read.source(1, kind), read.source(2, kind)
    first, second = read.pair(read.operand(0))
    target = read.target(first, "pred")
    if join is None and second is None:
        return read.step(compare, [a, b], [kind, kind], target)
    other = None if second is None else read.target(second, "pred")
    joined, negated = (None, False) if join is None else read.predicate(3)
    view = computed(kind)

    def run(batch: Batch) -> None:
        registers = batch.registers
        result = compare(registers[a].view(view), registers[b].view(view))
        opposite = ~result
        if join is not None and joined is not None:
            c = ~registers[joined] if negated else registers[joined]
            result, opposite = join(result, c), join(opposite, c)
        batch.write(target, result)
        if other is not None:
            batch.write(other, opposite)

    return run


def _set_two_predicates(read: InstructionReader) -> Step:
    """``setp.f16x2 p|q, a, b``: p compares the low halves, q the high ones."""
    half = read.required("f16x2", "bf16x2").removesuffix("x2")
    ftz = read.flag("ftz") and half == "f16"
    compare = _comparison_of(half, read.required(*_ORDERED, "ne", *_OPPOSITE, "num", "nan"), ftz)
    read.finish()
    read.count(3)
    a, b = read.source(1, "b32"), read.source(2, "b32")
    first, second = read.pair(read.operand(0))
    if second is None:
        raise read.unknown("one result")
    targets = read.target(first, "pred"), read.target(second, "pred")
    view = computed(half)

    def run(batch: Batch) -> None:
        x, y = (batch.registers[slot] for slot in (a, b))
        for shift, target in zip((0, 16), targets, strict=True):
            low, other = ((value >> np.uint32(shift)).astype(np.uint16).view(view) for value in (x, y))
            batch.write(target, compare(low, other))

    return run


def _set(read: InstructionReader) -> Step:
    """``set.lt.f16x2.f16x2 d, a, b``: 1.0 or 0.0 of a float type, all bits or none of an integer type."""
    name = read.required(*_ORDERED, "ne", *_UNSIGNED_NAMES, *_OPPOSITE, "num", "nan")
    ftz = read.flag("ftz")
    to = read.kind(*_SET_TO)
    kind = read.kind(*_SCALARS, "f16x2", "bf16x2")
    half = kind.removesuffix("x2")
    if to not in (kind, "u32", "s32", "f32") or kind not in (half, to):
        raise read.unknown("the types")
    compare = _comparison_by_name(read, half, name, ftz)
    word = computed("u32") if to in ("u32", "s32", "f32") else computed("u16")
    one, zero = word.type(_SET_TO[to]), word.type(0)

    def function(a: Array, b: Array) -> Array:
        return np.where(compare(a, b), one, zero)

    return read.compute(pairwise(function, kind) if kind != half else function, [kind, kind], to)


def _select(read: InstructionReader) -> Step:
    kind = read.kind(*SIGNED, *UNSIGNED, *BITS, "f32", "f64")
    bits = f"b{kind[1:]}"
    return read.compute(lambda a, b, p: np.where(p, a, b), [bits, bits, "pred"], bits)


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"setp": _set_predicate, "set": _set, "selp": _select}
