"""add.cc, addc, sub.cc, subc, mad.cc and madc: sums of more words than one, with the carry flag between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.integer_arithmetic import high_product
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, computed, stored

_WORDS = ("u32", "s32", "u64", "s64")


def _added(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """Returns the sum of unsigned words, and what it carries."""
    first = a + b
    total = first + carry.astype(a.dtype)
    return total, (first < a) | (total < first)


def _subtracted(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """Returns the difference of unsigned words, and what it borrows."""
    first = a - b
    rest = first - borrow.astype(a.dtype)
    return rest, (a < b) | (first < rest)


def build_carrying(read: InstructionReader) -> Step:
    """Returns the step of an instruction that reads the carry flag, writes it, or both."""
    opcode = read.instruction.opcode
    reads, writes = opcode in ("addc", "subc", "madc"), read.flag("cc")
    multiplies = opcode in ("mad", "madc")
    part = read.required("lo", "hi") if multiplies else None
    kind = read.kind(*_WORDS)
    read.finish()
    read.count(4 if multiplies else 3)
    sources = [read.source(number, kind) for number in range(1, 4 if multiplies else 3)]
    target, flag = read.target(read.operand(0), kind), read.slots.carry()
    combine = _subtracted if opcode in ("sub", "subc") else _added
    none = np.zeros((1, 1), np.bool_)
    signed, word = computed(kind), stored(kind)

    def run(batch: Batch) -> None:
        values = [batch.registers[slot] for slot in sources]
        if part is not None:
            a, b = values[0].view(signed), values[1].view(signed)
            values = [(np.multiply(a, b) if part == "lo" else high_product(a, b)).view(word), values[2]]
        total, carry = combine(values[0], values[1], batch.registers[flag] if reads else none)
        batch.write(target, total)
        if writes:
            batch.write(flag, carry)

    return run


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {
    "addc": build_carrying,
    "subc": build_carrying,
    "madc": build_carrying,
}
