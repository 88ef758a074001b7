"""mov, with packing and unpacking, and cvta between the generic addresses and those of one space."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.block_memory import LOCAL_BASE, PARAMETER_BASE, SHARED_BASE
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.scalar_types import BITS, BYTES, SIGNED, UNSIGNED, stored
from lowerkit.runtimes.cuda.simulated.text.syntax import Vector

_BASES: Mapping[str, int] = {
    "shared": SHARED_BASE, "shared::cta": SHARED_BASE, "local": LOCAL_BASE, "param": PARAMETER_BASE,
}  # fmt: skip


def _move(read: InstructionReader) -> Step:
    kind = read.kind("pred", *BITS, *SIGNED, *UNSIGNED, "f32", "f64", "f16", "bf16")
    read.finish()
    read.count(2)
    result, source = read.operand(0), read.operand(1)
    if isinstance(result, Vector):
        return _unpack(read, result, kind)
    if isinstance(source, Vector):
        return _pack(read, source, kind)
    same = "pred" if kind == "pred" else f"b{8 * BYTES[kind]}"
    target, slot = read.target(result, same), read.source(1, same)

    def run(batch: Batch) -> None:
        batch.write(target, batch.registers[slot])

    return run


def _part_kind(read: InstructionReader, vector: Vector, kind: str) -> str:
    size, count = BYTES[kind], len(vector.parts)
    if kind not in BITS or count not in (2, 4) or size % count:
        raise read.unknown(f"a vector of {count}")
    return f"b{8 * size // count}"


def _unpack(read: InstructionReader, vector: Vector, kind: str) -> Step:
    """The lowest bits go to the first part."""
    part = _part_kind(read, vector, kind)
    targets = [read.target(operand, part) for operand in vector.parts]
    slot, size, dtype = read.source(1, kind), BYTES[part], stored(part)

    def run(batch: Batch) -> None:
        value = batch.registers[slot]
        for number, target in enumerate(targets):
            batch.write(target, (value >> value.dtype.type(8 * size * number)).astype(dtype))

    return run


def _pack(read: InstructionReader, vector: Vector, kind: str) -> Step:
    part = _part_kind(read, vector, kind)
    sources = [read.value(operand, part) for operand in vector.parts]
    target, size, whole = read.target(read.operand(0), kind), BYTES[part], stored(kind)

    def run(batch: Batch) -> None:
        value = batch.registers[sources[0]].astype(whole)
        for number, slot in enumerate(sources[1:], 1):
            value = value | batch.registers[slot].astype(whole) << whole.type(8 * size * number)
        batch.write(target, value)

    return run


def _convert_address(read: InstructionReader) -> Step:
    """Global and constant memory have the same addresses in both; the other ones begin at 0 in their own."""
    to_space = read.flag("to")
    space = read.required("global", "const", "shared", "shared::cta", "local", "param")
    read.kind("u64")
    base = np.uint64(_BASES.get(space, 0))
    return read.compute((lambda a: a - base) if to_space else (lambda a: a + base), ["u64"], "u64")


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"mov": _move, "cvta": _convert_address}
