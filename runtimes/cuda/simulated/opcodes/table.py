"""Which family reads an opcode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lowerkit.runtimes.cuda.simulated.batch import WARP, WARPGROUP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes import (
    approximations,
    async_copy,
    atomics,
    bit_operations,
    bulk_copy,
    carry_arithmetic,
    comparisons,
    conversions,
    float_arithmetic,
    grid_control,
    integer_arithmetic,
    matrix_memory,
    matrix_multiply,
    memory_access,
    memory_barrier,
    memory_hints,
    moves,
    tensor_maps,
    warp_control,
    warp_exchange,
    warpgroup_multiply,
)
from lowerkit.runtimes.cuda.simulated.opcodes.tcgen05 import forms as tensor_memory
from lowerkit.runtimes.cuda.simulated.scalar_types import is_float
from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction

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
    **memory_hints.OPCODES,
    **atomics.OPCODES,
    **warp_exchange.OPCODES,
    **matrix_memory.OPCODES,
    **matrix_multiply.OPCODES,
    **memory_barrier.OPCODES,
    **tensor_maps.OPCODES,
    **warp_control.OPCODES,
    **grid_control.OPCODES,
    **warpgroup_multiply.OPCODES,
    **tensor_memory.OPCODES,
    "cp": async_copy.build_async_copy,
    "trap": _trap,
}
# Opcodes of floats, most of which integers have too.
_FLOATS: Mapping[str, Build] = {**float_arithmetic.OPCODES, **approximations.OPCODES}
_WARP_OPCODES = frozenset(
    {**warp_exchange.OPCODES, **warp_control.OPCODES, **matrix_memory.OPCODES, **matrix_multiply.OPCODES}
)


def threads_together(instruction: Instruction) -> int:
    """Returns how many neighbouring threads an instruction needs at one place: 0, a warp, or a group of warps."""
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode in warpgroup_multiply.OPCODES:
        return WARPGROUP
    whole = opcode in _WARP_OPCODES or "cp_fenceproxy" in modifiers
    whole = whole or (opcode in tensor_memory.OPCODES and "sync" in modifiers)
    return WARP if whole or (opcode == "bar" and "warp" in modifiers) else 0


def find_opcode(read: InstructionReader) -> Build:
    """Returns what makes a step of the instruction.

    Raises:
        UnknownPtx: LK8018, the opcode is not known.
    """
    instruction = read.instruction
    opcode, modifiers = instruction.opcode, instruction.modifiers
    if opcode in ("add", "sub", "mad") and "cc" in modifiers:
        return carry_arithmetic.build_carrying
    if opcode == "cp" and "bulk" in modifiers:
        return bulk_copy.build_bulk
    build = (_FLOATS if any(map(is_float, modifiers)) and opcode in _FLOATS else _OPCODES).get(opcode)
    if build is None:
        raise read.unknown("the opcode")
    return build


def known_opcodes() -> frozenset[str]:
    """Returns the opcodes that have a family; control_flow has those that branch, wait or order."""
    return frozenset({**_OPCODES, **_FLOATS, **carry_arithmetic.OPCODES})
