"""Which family reads an opcode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes import (
    atomics,
    bit_operations,
    carry_arithmetic,
    comparisons,
    conversions,
    float_arithmetic,
    integer_arithmetic,
    memory_access,
    moves,
    warp_exchange,
)
from lowerkit.runtimes.cuda.simulated.scalar_types import is_float

Build = Callable[[InstructionReader], Step]


def _trap(read: InstructionReader) -> Step:
    def run(batch: Batch) -> None:
        raise read.fault(f"{batch.thread_name(int(batch.active_threads()[0]))} traps")

    return run


_OPCODES: Mapping[str, Build] = {
    **integer_arithmetic.OPCODES,
    **carry_arithmetic.OPCODES,
    **bit_operations.OPCODES,
    **comparisons.OPCODES,
    **conversions.OPCODES,
    **moves.OPCODES,
    **memory_access.OPCODES,
    **atomics.OPCODES,
    **warp_exchange.OPCODES,
    "trap": _trap,
}
# Opcodes that need the threads of a warp at one place.
WARP_OPCODES = frozenset(warp_exchange.OPCODES)


def find_opcode(read: InstructionReader) -> Build:
    """Returns what makes a step of the instruction.

    Raises:
        UnknownPtx: LK8018, the opcode is not known.
    """
    instruction = read.instruction
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode in ("add", "sub", "mad") and "cc" in modifiers:
        return carry_arithmetic.build_carrying
    floats = opcode in float_arithmetic.OPCODES and any(map(is_float, modifiers))
    build = float_arithmetic.OPCODES[opcode] if floats else _OPCODES.get(opcode)
    if build is None:
        raise read.unknown("the opcode")
    return build
