"""mma.sync: products of small matrices, whose elements lie in the registers of a warp.

Lane 4 g + t has of A (16 by k) the rows g and g + 8, of B (k by 8) the column g, of C and D (16 by 8) the columns 2 t
and 2 t + 1 of both rows. A register has n elements: n t to n t + n - 1 of a stretch of 4 n columns of A, or rows of B.
Of f64 (8 by 8, k = 4) lane 4 g + t has A[g, t], B[t, g] and C[g, 2 t] and C[g, 2 t + 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.warp_exchange import require_whole_warps
from lowerkit.runtimes.cuda.simulated.rounding import fma_f64
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_core.rules import sum_rule
from lowerkit.runtimes.cuda.simulated.tensor_core.sums import exact_sum_of_products, sum_of_products
from lowerkit.runtimes.cuda.simulated.tensor_core.terms import terms_of

_SIZES = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_EIGHT_BITS = ("e4m3", "e5m2")
# The products of one instruction, for each size of an element.
_LENGTHS = {4: ("m16n8k4", "m16n8k8"), 2: ("m16n8k8", "m16n8k16"), 1: ("m16n8k16", "m16n8k32")}

Multiply = Callable[[Batch, Array, Array, Array], Array]


def _multiply(read: InstructionReader) -> Step:
    read.required("sync")
    read.required("aligned")
    shape = read.required("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32")
    read.required("row")
    read.required("col")
    satfinite = read.flag("satfinite")
    types = [modifier for modifier in read.instruction.modifiers if modifier in (*_SIZES, "f32", "s32", "f64")]
    read.drop(*types)
    read.finish()
    read.count(4)
    if len(types) != 4 or types[0] != types[3]:
        raise read.unknown("the types")
    result, a, b, _ = types
    if types == ["f64"] * 4 and shape == "m8n8k4" and not satfinite:
        return _multiply_f64(read)
    mixed = (a in _EIGHT_BITS and b in _EIGHT_BITS) or (a in ("s8", "u8") and b in ("s8", "u8"))
    if a not in _SIZES or b not in _SIZES or (a != b and not mixed) or shape not in _LENGTHS[_SIZES[a]]:
        raise read.unknown("the types")
    if a in ("s8", "u8"):
        if result != "s32":
            raise read.unknown("the result")
        return _step(read, shape, (a, b), result, _integer_product(a, b, satfinite))
    if satfinite or result not in (("f32", "f16") if a in ("f16", *_EIGHT_BITS) else ("f32",)):
        raise read.unknown("the result")
    return _step(read, shape, (a, b), result, _float_product(read, a, b, result))


def _float_product(read: InstructionReader, a_kind: str, b_kind: str, result: str) -> Multiply:
    def multiply(batch: Batch, a: Array, b: Array, c: Array) -> Array:
        how = batch.arithmetic
        x, y = terms_of(a, a_kind), terms_of(b, b_kind)
        if how.tensor_cores == "float64":
            return exact_sum_of_products(x, y, c)
        rule = None if how.generation is None else sum_rule(how.generation, a_kind, result)
        if rule is None:
            raise read.fault(
                f"how tensor cores of {how.generation or 'this target'} add products of {a_kind} is not known",
                hint="make the device with a generation whose arithmetic is known, or with tensor_cores=float64",
            )
        return sum_of_products(x, y, c, rule)

    return multiply


def _integer_product(a_kind: str, b_kind: str, satfinite: bool) -> Multiply:
    views = {"s8": np.int8, "u8": np.uint8}

    def multiply(_: Batch, a: Array, b: Array, c: Array) -> Array:
        total = np.zeros(c.shape, np.int32)
        for x, y in zip(a.view(views[a_kind]).astype(np.int32), b.view(views[b_kind]).astype(np.int32), strict=True):
            total += x * y
        if not satfinite:
            return c + total
        return np.clip(c.astype(np.int64) + total, -(1 << 31), (1 << 31) - 1).astype(np.int32)

    return multiply


def _step(read: InstructionReader, shape: str, kinds: tuple[str, str], result: str, multiply: Multiply) -> Step:
    size, length = _SIZES[kinds[0]], int(shape.rpartition("k")[2])
    per = 4 // size
    stretches = length // (4 * per)
    outputs = 2 if result == "f16" else 4
    targets = [read.target(part, "b32") for part in read.parts(read.operand(0))]
    a, b, c = ([read.value(part, "b32") for part in read.parts(read.operand(number))] for number in (1, 2, 3))
    if [len(each) for each in (targets, a, b, c)] != [outputs, 2 * stretches, stretches, outputs]:
        raise read.unknown("the number of registers")
    element = np.dtype(f"u{size}")
    accumulator = np.dtype({"f32": np.float32, "f16": np.float16, "s32": np.int32}[result])
    halves = 4 // accumulator.itemsize  # accumulators in a register

    def run(batch: Batch) -> None:
        warps = require_whole_warps(read, batch)

        def fragment(slots: Sequence[int], dtype: np.dtype, *shape: int) -> Array:
            lanes = [batch.warps(batch.registers[slot]) for slot in slots]
            return np.stack(lanes if warps is None else [each[warps] for each in lanes]).view(dtype).reshape(shape)

        # [stretch, half of the rows, warp, g, t, element] -> [k, row, 1, warp]
        left = fragment(a, element, stretches, 2, -1, 8, 4, per).transpose(0, 4, 5, 1, 3, 2)
        left = np.ascontiguousarray(left).reshape(length, 16, 1, -1)
        # [stretch, warp, g, t, element] -> [k, 1, column, warp]
        right = fragment(b, element, stretches, -1, 8, 4, per).transpose(0, 3, 4, 2, 1)
        right = np.ascontiguousarray(right).reshape(length, 1, 8, -1)
        # [half of the rows, column of two, warp, g, t] -> [row, column, warp]
        if halves == 1:
            old = fragment(c, accumulator, 2, 2, -1, 8, 4).transpose(0, 3, 4, 1, 2)
        else:
            old = fragment(c, accumulator, 2, -1, 8, 4, 2).transpose(0, 2, 3, 4, 1)
        new = multiply(batch, left, right, np.ascontiguousarray(old).reshape(16, 8, -1)).reshape(2, 8, 4, 2, -1)
        order = (0, 3, 4, 1, 2) if halves == 1 else (0, 4, 1, 2, 3)
        words = np.ascontiguousarray(new.transpose(order)).view(np.uint32).reshape(outputs, -1, WARP)
        for target, word in zip(targets, words, strict=True):
            _write(batch, target, word, warps)

    return run


def _multiply_f64(read: InstructionReader) -> Step:
    """Each element is a chain of fma, in the order of k."""
    targets = [read.target(part, "b64") for part in read.parts(read.operand(0))]
    a, b, c = ([read.value(part, "b64") for part in read.parts(read.operand(number))] for number in (1, 2, 3))
    if [len(each) for each in (targets, a, b, c)] != [2, 1, 1, 2]:
        raise read.unknown("the number of registers")

    def run(batch: Batch) -> None:
        warps = require_whole_warps(read, batch)

        def values(slot: int) -> Array:
            lanes = np.ascontiguousarray(batch.warps(batch.registers[slot])).view(np.float64)
            return (lanes if warps is None else lanes[warps]).reshape(-1, 8, 4)

        left, right = values(a[0]), values(b[0])
        total = np.stack([values(slot) for slot in c], -1).reshape(-1, 8, 8)
        for k in range(4):
            total = fma_f64(left[:, :, k, None], right[:, None, :, k], total)
        pairs = total.reshape(-1, WARP, 2)
        for number, target in enumerate(targets):
            _write(batch, target, np.ascontiguousarray(pairs[..., number]).view(np.uint64), warps)

    return run


def _write(batch: Batch, target: int, lanes: Array, warps: Array | None) -> None:
    """Writes what the lanes of some warps (None: all) get."""
    if warps is not None:
        some, lanes = lanes, np.zeros((batch.blocks * batch.shape[1] // WARP, WARP), lanes.dtype)
        lanes[warps] = some
    batch.write(target, lanes.reshape(batch.shape))


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"mma": _multiply}
