"""div, rcp, sqrt, rsqrt, ex2, lg2, sin, cos and tanh: what is rounded once, and what only approximates.

``.rn``, ``.rz``, ``.rm`` and ``.rp`` are rounded once. An approximation gives the nearest value, unless the device was
made with a seed for them: then it gives a value within the error that the PTX manual (section "Floating Point
Instructions") states for it, another one for other operands, always the same one for the same operands. Where an
operand is zero or not finite, or the result is, the manual states the result itself.

What the manual states, beside the table at the end of this file: ``div.approx`` by a divisor above 2**126 gives 0, and
NaN for an infinite dividend. ``rcp.approx.ftz.f64`` and ``rsqrt.approx.ftz.f64`` look at the high half of their
operand, and their result has a high half alone; of ``rsqrt.approx.f64`` no error is stated: it gives the nearest value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.exact_rounding import Operation, exactly
from lowerkit.runtimes.cuda.simulated.opcodes.float_arithmetic import widened
from lowerkit.runtimes.cuda.simulated.rounding import flush, narrow
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, computed, pairwise

_MANTISSA_BITS = {"f32": 23, "f16": 10, "bf16": 7}
_LEAST_EXPONENT = {"f32": -126, "f16": -14, "bf16": -126}
_HIGH_HALF = np.uint64(0xFFFFFFFF00000000)
# From operands and the exact result, all f64, and the distance of two neighbours at it: how far off a result may be.
Bound = Callable[[list[Array], Array, Array], Array]


def _ulps(count: float) -> Bound:
    return lambda _, result, ulp: count * ulp


def _relative(exponent: float) -> Bound:
    return lambda _, result, ulp: np.abs(result) * 2.0**exponent


def _absolute(exponent: float) -> Bound:
    return lambda _, result, ulp: np.full(result.shape, 2.0**exponent)


def _of_logarithm(operands: list[Array], result: Array, ulp: Array) -> Array:
    near_one = (operands[0] > 0.5) & (operands[0] < 2.0)
    return np.where(near_one, 2.0**-22, np.abs(result) * 2.0**-22)


def _of_wave(operands: list[Array], result: Array, ulp: Array) -> Array:
    """Of sin and cos; nothing is stated beyond 100 pi: there it is the nearest value."""
    size = np.abs(operands[0])
    return np.where(size <= 2 * np.pi, 2.0**-20.5, np.where(size <= 100 * np.pi, 2.0**-14.7, 0.0))


@dataclass(frozen=True)
class _Form:
    """An opcode with one way to round: its error for each type; None for none."""

    bounds: Mapping[str, Bound | None]


def _spacing(result: Array, kind: str) -> Array:
    """Returns the distance of two neighbours of a narrow type at f64 values."""
    exponent = np.maximum(np.frexp(result)[1] - 1, _LEAST_EXPONENT[kind])
    return np.ldexp(1.0, exponent - _MANTISSA_BITS[kind])


def _mixed(state: Array) -> Array:
    """Returns 64 bits that depend on all bits of the given ones (the finalizer of splitmix64)."""
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _allowed(seed: int, opcode: str, operands: list[Array], exact: Array, kind: str, bound: Bound) -> Array:
    """Returns results of type ``kind`` that are off ``exact`` (f64) by no more than ``bound``."""
    state = np.full(exact.shape, seed & (1 << 64) - 1, np.uint64)
    for operand in [np.float64(sum(map(ord, opcode))), *operands]:
        state = _mixed(state + np.asarray(operand).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    ulp = _spacing(exact, kind)
    allowed = bound(operands, exact, ulp)
    room = np.maximum(allowed - ulp / 2, 0.0)
    moved = exact + room * (state.astype(np.float64) * 2.0**-63 - 1.0)
    stated = ~np.isfinite(exact) | (exact == 0)
    for operand in operands:
        stated = stated | ~np.isfinite(operand) | (operand == 0)
    # Beyond the next power of two, neighbours are twice as far from each other.
    result = narrow(moved, kind)
    return np.where(stated | ~(np.abs(widened(result) - exact) <= allowed), narrow(exact, kind), result)


def _build(function: Function, modes: Mapping[str, _Form]) -> Callable[[InstructionReader], Step]:
    def build(read: InstructionReader) -> Step:
        opcode = read.instruction.opcode
        mode = read.required(*modes)
        ftz = read.flag("ftz")
        bounds = modes[mode].bounds
        kind = read.kind(*bounds)
        half = kind.removesuffix("x2")
        read.finish()
        read.count(3 if opcode == "div" else 2)
        if ftz and kind == "f64" and mode != "approx":
            raise read.unknown("modifier .ftz")
        if mode in ("rz", "rm", "rp"):
            return read.compute(
                _in_direction(opcode, function, mode, kind, ftz), [kind] * (2 if opcode == "div" else 1), kind
            )
        if ftz and kind == "f64":
            return read.compute(_in_high_half(function), [kind], kind)
        if kind == "f64":
            if mode == "approx" and opcode != "rsqrt":
                raise read.unknown("an approximation in f64")
            return read.compute(function, [kind] * (len(read.instruction.operands) - 1), kind)
        sources = [read.source(number, kind) for number in range(1, len(read.instruction.operands))]
        target = read.target(read.operand(0), kind)
        # ex2.approx.ftz.bf16 has no other form; 2 to the power of a subnormal value is 1 either way
        flushes = ftz and kind == "f32"
        inner = _divided_by_any if opcode == "div" and mode == "approx" else function
        bound, view = bounds[kind], computed(kind)

        def run(batch: Batch) -> None:
            seed = batch.arithmetic.approximate

            def value(*operands: Array) -> Array:
                wide = [widened(flush(operand) if flushes else operand) for operand in operands]
                exact = inner(*wide)
                if seed is None or bound is None:
                    result = narrow(exact, half)
                else:
                    wide = [np.ascontiguousarray(each) for each in np.broadcast_arrays(*wide)]
                    result = _allowed(seed, opcode, wide, exact, half, bound)
                return flush(result) if flushes else result

            whole = pairwise(value, kind) if kind != half else value
            result = whole(*[batch.registers[source].view(view) for source in sources])
            batch.write(target, result.view(batch.registers[target].dtype))

        return run

    return build


def _in_direction(opcode: str, function: Function, mode: str, kind: str, ftz: bool) -> Function:
    operation = _DIRECTED[opcode]
    if kind == "f64":
        return lambda *operands: exactly(operation, function, mode, *operands)

    def directed(*operands: Array) -> Array:
        wide = [widened(flush(operand) if ftz else operand) for operand in operands]
        result = narrow(exactly(operation, function, "odd", *wide), kind, mode)
        return flush(result) if ftz else result

    return directed


def _in_high_half(function: Function) -> Function:
    def of_high_half(a: Array) -> Array:
        high = _flushed((a.view(np.uint64) & _HIGH_HALF).view(np.float64))
        result = _flushed(function(high))
        cut = (result.view(np.uint64) & _HIGH_HALF).view(np.float64)
        return np.where(np.isnan(result), np.nan, cut)

    return of_high_half


def _flushed(x: Array) -> Array:
    return np.where(np.abs(x) < 2.0**-1022, np.copysign(0.0, x), x)


def _divided_by_any(a: Array, b: Array) -> Array:
    quotient = a / b
    beyond = np.where(np.isinf(a), np.nan, np.copysign(0.0, quotient))
    return np.where((np.abs(b) > 2.0**126) & np.isfinite(b) & ~np.isnan(a), beyond, quotient)


_ROUNDED = _Form({"f32": None, "f64": None})
_ALL_DIRECTIONS = dict.fromkeys(("rn", "rz", "rm", "rp"), _ROUNDED)
_DIRECTED: Mapping[str, Operation] = {"div": "div", "rcp": "rcp", "sqrt": "sqrt"}

OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {
    "div": _build(np.divide, {**_ALL_DIRECTIONS, "approx": _Form({"f32": _ulps(2)}), "full": _Form({"f32": _ulps(2)})}),
    "rcp": _build(lambda x: 1.0 / x, {**_ALL_DIRECTIONS, "approx": _Form({"f32": _ulps(1), "f64": None})}),
    "sqrt": _build(np.sqrt, {**_ALL_DIRECTIONS, "approx": _Form({"f32": _relative(-23)})}),
    "rsqrt": _build(lambda x: 1.0 / np.sqrt(x), {"approx": _Form({"f32": _relative(-22.9), "f64": None})}),
    "ex2": _build(
        np.exp2,
        {
            "approx": _Form(
                {
                    "f32": _relative(-22),
                    "f16": _relative(-9.9),
                    "f16x2": _relative(-9.9),
                    "bf16": _relative(-7),
                    "bf16x2": _relative(-7),
                }
            )
        },
    ),
    "tanh": _build(
        np.tanh,
        {
            "approx": _Form(
                {
                    "f32": _relative(-11),
                    "f16": _absolute(-10.987),
                    "f16x2": _absolute(-10.987),
                    "bf16": _absolute(-8),
                    "bf16x2": _absolute(-8),
                }
            )
        },
    ),
    "lg2": _build(np.log2, {"approx": _Form({"f32": _of_logarithm})}),
    "sin": _build(np.sin, {"approx": _Form({"f32": _of_wave})}),
    "cos": _build(np.cos, {"approx": _Form({"f32": _of_wave})}),
}
