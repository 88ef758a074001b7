"""ldmatrix and stmatrix: matrices of 8 by 8 numbers of 16 bits, between shared memory and the registers of a warp.

Thread 8 j + r has the address of row r of matrix j. Register j of thread t holds the two numbers 2 (t % 4) and
2 (t % 4) + 1 of row t / 4 of matrix j, of its transpose with ``.trans``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import numpy as np

from lowerkit.runtimes.cuda.simulated.access import Access
from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.warp_exchange import require_whole_warps
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.text.syntax import Operand

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_ROW = 16  # bytes
_WORD = np.dtype(np.uint64)


def _modifiers(read: InstructionReader) -> tuple[int, bool, str]:
    """Takes the modifiers; returns the number of matrices, whether they are transposed, and the space."""
    read.required("sync")
    read.required("aligned")
    read.required("m8n8")
    count = _COUNTS[read.required(*_COUNTS)]
    transposed = read.flag("trans")
    space = read.required("shared", "shared::cta")
    read.kind("b16")
    read.finish()
    read.count(2)
    return count, transposed, space


def _registers(read: InstructionReader, operand: Operand, count: int) -> Operand:
    if len(read.parts(operand)) != count:
        raise read.unknown(f"a vector of {len(read.parts(operand))}")
    return operand


@contextmanager
def _addressing(batch: Batch, count: int) -> Generator[None]:
    """Lets only the threads access that have the address of a row."""
    active = batch.active
    if count < 4:
        lanes = np.broadcast_to(np.arange(batch.shape[1]) % WARP < 8 * count, batch.shape)
        batch.active = np.array(lanes) if active is None else active & lanes
    try:
        yield
    finally:
        batch.active = active


def _load(read: InstructionReader) -> Step:
    count, transposed, space = _modifiers(read)
    targets = [read.target(part, "b32") for part in read.parts(_registers(read, read.operand(0), count))]
    access = Access(read, 1, space, _ROW, "reads")

    def run(batch: Batch) -> None:
        require_whole_warps(read, batch)
        with _addressing(batch, count):
            rows = access.load(batch, _WORD, 2)
        rows = np.ascontiguousarray(np.broadcast_to(rows, (*batch.shape, 2)))
        matrices = rows.view(np.uint16).reshape(-1, 4, 8, 8)
        for number, target in enumerate(targets):
            batch.write(target, _exchanged(matrices[:, number], transposed).reshape(batch.shape))

    return run


def _exchanged(matrices: Array, transposed: bool) -> Array:
    """Returns matrices [warps, 8, 8] of 16 bits as pairs in 32 bits, [warps, 32]."""
    matrices = np.ascontiguousarray(matrices.swapaxes(1, 2) if transposed else matrices)
    return matrices.view(np.uint32).reshape(-1, WARP)


def _store(read: InstructionReader) -> Step:
    count, transposed, space = _modifiers(read)
    sources = [read.value(part, "b32") for part in read.parts(_registers(read, read.operand(1), count))]
    access = Access(read, 0, space, _ROW, "writes")

    def run(batch: Batch) -> None:
        require_whole_warps(read, batch)
        rows = np.zeros((batch.blocks * batch.shape[1] // WARP, 4, 8, 8), np.uint16)
        for number, source in enumerate(sources):
            pairs = np.ascontiguousarray(batch.warps(batch.registers[source]))
            matrix = pairs.view(np.uint16).reshape(-1, 8, 8)
            rows[:, number] = matrix.swapaxes(1, 2) if transposed else matrix
        words = rows.view(_WORD).reshape(*batch.shape, 2)
        with _addressing(batch, count):
            access.store(batch, [words[..., 0], words[..., 1]])

    return run


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"ldmatrix": _load, "stmatrix": _store}
