"""tcgen05.ld, st and wait: words between tensor memory and the registers of a warp.

The registers of a load have their values at once, since a card lets whoever uses one wait for it; ``wait::ld`` frees
what was read for others to overwrite. What was stored is there behind ``wait::st``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.tcgen05.warps import faults_of, leaders, same_in_warps
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_memory.cells import TensorMemory, cells_of
from lowerkit.runtimes.cuda.simulated.tensor_memory.shapes import REGISTERS, SHAPES, Shape
from lowerkit.runtimes.cuda.simulated.text.syntax import Address


class _Waits:
    """The loads, and the stores, of each warp that it has not waited for: numbers of operations."""

    def __init__(self, _: Batch) -> None:
        self.loads: dict[int, list[int]] = {}
        self.stores: dict[int, list[int]] = {}


class _Place:
    """The words that an instruction names."""

    def __init__(self, read: InstructionReader, operand: int, shape: Shape) -> None:
        address = read.operand(operand)
        if not isinstance(address, Address):
            raise read.unknown("the address")
        self._read, self._shape = read, shape
        self._slot, self._offset = read.value(address.base, "b32"), address.offset

    def of(self, batch: Batch) -> tuple[Array, tuple[Array, Array, Array], Array]:
        """Returns for each warp its first thread, block, lane and column of each word, and its cells.

        Raises:
            KernelFault: LK8017, a warp names lanes that it cannot reach, or its threads name several places.
        """
        read, shape = self._read, self._shape
        threads = leaders(read, batch)
        addresses = same_in_warps(read, batch, self._slot, threads) + self._offset
        lanes, columns = addresses >> 16 & 0xFFFF, addresses & 0xFFFF
        width = batch.shape[1]
        for thread, lane in zip(threads.tolist(), lanes.tolist(), strict=True):
            problem = shape.problem_of(thread % width // WARP, lane)
            if problem:
                raise read.fault(f"{batch.thread_name(thread)} accesses {problem}")
        blocks = threads // width
        lane, column = shape.words
        words = blocks[:, None, None], lanes[:, None, None] + lane, columns[:, None, None] + column
        cell_lane, cell_column = shape.cells
        with faults_of(read, batch, threads):
            cells = cells_of(blocks[:, None], lanes[:, None] + cell_lane, columns[:, None] + cell_column)
        return threads, words, cells


def _take_shape(read: InstructionReader, split: int) -> Shape:
    """Takes the modifiers; ``split`` is the number of the operand with the split, where there is one."""
    read.required("sync")
    read.required("aligned")
    lanes = SHAPES[read.required(*SHAPES)]
    registers = int(read.required(*(f"x{each}" for each in REGISTERS))[1:])
    read.kind("b32")
    read.finish()
    halves = lanes < WARP
    read.count(3 if halves else 2)
    return Shape(lanes, registers, read.immediate(split) if halves else 0)


def _load(read: InstructionReader) -> Step:
    """``ld {registers}, [address]``, with the split behind."""
    shape = _take_shape(read, split=2)
    parts = read.parts(read.operand(0))
    if len(parts) != shape.registers:
        raise read.unknown("the number of registers")
    targets = [read.target(part, "b32") for part in parts]
    place = _Place(read, 1, shape)

    def run(batch: Batch) -> None:
        threads, words, cells = place.of(batch)
        memory, waits = batch.state(TensorMemory), batch.state(_Waits)
        with faults_of(read, batch, threads):
            numbers = memory.begin(
                read,
                threads,
                reads=cells,
                writes=cells[:, :0],
                awaited_by="no tcgen05.wait::ld lies between",
                reads_garbage=True,
            )
        for thread, number in zip(threads.tolist(), numbers, strict=True):
            waits.loads.setdefault(thread, []).append(number)
        values = memory.words(*words)
        whole = np.zeros((shape.registers, batch.blocks * batch.shape[1] // WARP, WARP), np.uint32)
        whole[:, threads // WARP] = values.transpose(2, 0, 1)
        for target, value in zip(targets, whole, strict=True):
            batch.write(target, value.reshape(batch.shape))

    return run


def _store(read: InstructionReader) -> Step:
    """``st [address], {registers}``, with the split between."""
    shape = _take_shape(read, split=1)
    parts = read.parts(read.operand(len(read.instruction.operands) - 1))
    if len(parts) != shape.registers:
        raise read.unknown("the number of registers")
    sources = [read.value(part, "b32") for part in parts]
    place = _Place(read, 0, shape)

    def run(batch: Batch) -> None:
        threads, words, cells = place.of(batch)
        memory, waits = batch.state(TensorMemory), batch.state(_Waits)
        with faults_of(read, batch, threads):
            numbers = memory.begin(
                read, threads, reads=cells[:, :0], writes=cells, awaited_by="no tcgen05.wait::st lies between"
            )
        for thread, number in zip(threads.tolist(), numbers, strict=True):
            waits.stores.setdefault(thread, []).append(number)
        values = np.stack([batch.warps(batch.registers[slot])[threads // WARP] for slot in sources], -1)
        memory.put(*words, values)

    return run


def _wait(kind: str, read: InstructionReader) -> Step:
    read.required("sync")
    read.required("aligned")
    read.finish()
    read.count(0)

    def run(batch: Batch) -> None:
        waits = batch.state(_Waits)
        begun = waits.loads if kind == "ld" else waits.stores
        for thread in leaders(read, batch).tolist():
            batch.state(TensorMemory).end(begun.pop(thread, []))

    return run


FORMS: Mapping[str, Callable[[InstructionReader], Step]] = {
    "ld": _load,
    "st": _store,
    "wait::ld": partial(_wait, "ld"),
    "wait::st": partial(_wait, "st"),
}
