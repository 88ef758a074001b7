"""The words of tensor memory, and what may be done to them while others are not done yet.

All accesses take 16 lanes of a column together: a *cell*. A cell is written when ``tcgen05.wait::st`` was reached
behind a store, or when the completion of a product was seen; until then nobody may read or write it, but products that
follow one another in one accumulator. A load keeps what it reads until ``tcgen05.wait::ld``: registers are there
earlier (who uses one waits for it), but nothing else says that the cell may be overwritten.

A product needs what it reads to be written. A load does not: compilers load in front of a loop that makes no trip, and
use nothing of it. What nothing has written is NaN, so that a result made of it is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.byte_store import GARBAGE, ByteStore
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.scalar_types import Array

LANES, COLUMNS = 128, 512
CELL_LANES = 16
UNIT_COLUMNS = 32  # of an allocation
_UNITS = LANES // CELL_LANES
_WORD = 4
_GARBAGE = GARBAGE * 0x01010101


class BadTensorMemory(Exception):
    """Something cannot be done to tensor memory. It never leaves the package: a KernelFault is made of it.

    Attributes:
        problem: what is wrong, behind the name of the thread.
        at: the number of the item that it is wrong with.
    """

    def __init__(self, problem: str, at: int = 0) -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = at


@dataclass(frozen=True)
class Operations:
    """What one run of an instruction began, for each of some threads.

    Attributes:
        instruction: that began it.
        first: the number of the first one; the others follow.
        awaited_by: what says that one is done, for messages.
        reads, writes: cells, int64 [items, cells].
        pipelines: of each, what operations have in common that follow one another without a wait; None: nothing.
    """

    instruction: InstructionReader
    first: int
    awaited_by: str
    reads: Array
    writes: Array
    pipelines: Sequence[object] | None

    def pipeline(self, number: int) -> object | None:
        """Returns what an operation has in common with those that it may follow."""
        return None if self.pipelines is None else self.pipelines[number - self.first]

    def __str__(self) -> str:
        whole = ".".join((self.instruction.instruction.opcode, *self.instruction.instruction.modifiers[:1]))
        return f"{whole} of PTX line {self.instruction.instruction.place.line}"


@dataclass
class _Block:
    """What a block has of tensor memory: the first column and the instruction of each allocation, by columns."""

    allocations: dict[int, tuple[int, InstructionReader]] = field(
        default_factory=dict[int, tuple[int, InstructionReader]]
    )
    smallest: int = COLUMNS
    relinquished: bool = False


class TensorMemory:
    """Tensor memory of the blocks of a batch; see the module."""

    def __init__(self, batch: Batch) -> None:
        cells = batch.blocks * _UNITS * COLUMNS
        self._batch = batch
        self._words: Array = np.full(batch.blocks * LANES * COLUMNS, _GARBAGE, np.uint32)
        self._allocated = np.zeros(cells, np.bool_)
        self._written = np.zeros(cells, np.bool_)
        self._writing = np.zeros(cells, np.int64)  # numbers of operations; 0 for none
        self._reading = np.zeros(cells, np.int64)
        self._operations: dict[int, Operations] = {}  # by number
        self._begun = 0
        self._blocks = [_Block() for _ in range(batch.blocks)]
        # Stands for the cells where races are looked for: a word each.
        self._places = ByteStore(_WORD * cells, False)
        if batch.races is not None:
            batch.races.watch(self._places, "tensor memory", _WORD)
        batch.leaving.append(self._leave)

    # --- allocation -------------------------------------------------------------------------------------------

    def allocate(self, block: int, count: int, read: InstructionReader) -> int:
        """Returns the first of ``count`` columns that are a block's from now on; the last ones that are free.

        A card gives the first ones: who takes address 0 for granted is found here.

        Raises:
            BadTensorMemory: that many cannot be allocated, or not any more.
        """
        own = self._blocks[block]
        _check_count(count)
        if own.relinquished:
            raise BadTensorMemory("allocates tensor memory behind tcgen05.relinquish_alloc_permit")
        if count > own.smallest:
            raise BadTensorMemory(f"allocates {count} columns of tensor memory, behind an allocation of {own.smallest}")
        free = ~self._allocated.reshape(-1, _UNITS, COLUMNS)[block, 0]
        starts = [start for start in range(0, COLUMNS - count + 1, UNIT_COLUMNS) if free[start : start + count].all()]
        if not starts:
            raise BadTensorMemory(
                f"waits for ever for {count} columns of tensor memory: {int(free.sum())} of {COLUMNS} are free"
            )
        start = starts[-1]
        self._allocated.reshape(-1, _UNITS, COLUMNS)[block, :, start : start + count] = True
        own.allocations[start] = count, read
        own.smallest = count
        return start

    def free(self, thread: int, address: int, count: int, read: InstructionReader) -> None:
        """Ends an allocation of the block of a thread.

        Raises:
            BadTensorMemory: there is none of this address and size, or somebody still uses it.
        """
        block = thread // self._batch.shape[1]
        own = self._blocks[block]
        _check_count(count)
        if own.allocations.get(address, (0,))[0] != count:
            raise BadTensorMemory(
                f"deallocates {count} columns of tensor memory at {place_of(address)}, where no such allocation is"
            )
        part = np.s_[block, :, address : address + count]
        shape = -1, _UNITS, COLUMNS
        for busy, does in ((self._writing, "write"), (self._reading, "read")):
            numbers = busy.reshape(shape)[part]
            if numbers.any():
                operation = self._operations[int(numbers[numbers != 0][0])]
                raise BadTensorMemory(
                    f"deallocates tensor memory that {operation} may still {does}: {operation.awaited_by}"
                )
        cells = np.arange(self._allocated.size).reshape(shape)[part].reshape(1, -1)
        self._tell(read, np.array([thread]), cells[:, :0], cells)  # whoever used them must be ordered before
        self._allocated.reshape(shape)[part] = False
        self._written.reshape(shape)[part] = False
        self._words.reshape(-1, LANES, COLUMNS)[part] = _GARBAGE
        del own.allocations[address]

    def relinquish(self, block: int) -> None:
        """Gives up the right of a block to allocate."""
        self._blocks[block].relinquished = True

    def _leave(self, gone: Array) -> None:
        stays = (self._batch.alive & ~gone).any(1)
        for block in np.flatnonzero(gone.any(1) & ~stays).tolist():
            for count, read in self._blocks[block].allocations.values():
                thread = block * self._batch.shape[1] + int(np.argmax(gone[block]))
                raise read.fault(
                    f"{self._batch.thread_name(thread)} leaves as the last of its block, whose {count} columns of "
                    "tensor memory were never deallocated"
                )

    # --- accesses ---------------------------------------------------------------------------------------------

    def words(self, blocks: Array, lanes: Array, columns: Array) -> Array:
        """Returns what lies in words, uint32 in the shape that the three numbers broadcast to."""
        return self._words[(blocks * LANES + lanes) * COLUMNS + columns]

    def put(self, blocks: Array, lanes: Array, columns: Array, values: Array) -> None:
        """Puts words; what is said of cells is not looked at."""
        self._words[(blocks * LANES + lanes) * COLUMNS + columns] = values

    def begin(
        self,
        read: InstructionReader,
        threads: Array,
        *,
        reads: Array,
        writes: Array,
        awaited_by: str,
        pipelines: Sequence[object] | None = None,
        adds: Array | None = None,
        reads_garbage: bool = False,
    ) -> list[int]:
        """Begins an operation for each of some threads.

        Args:
            read: the instruction.
            threads: who begins it, int64 [items].
            reads, writes: cells, int64 [items, cells].
            awaited_by: what says that it is done, for messages.
            pipelines: of each, what it has in common with operations that it may follow without a wait.
            adds: bool [items], which ones read, as a part of a pipeline, what they write.
            reads_garbage: whether cells that are read need not be written.

        Returns:
            The number of each.

        Raises:
            BadTensorMemory: cells are not allocated, not written, or in use.
        """
        for cells in (reads, writes):
            self._require(self._allocated[cells], cells, "accesses", "is not allocated")
        self._check_read(reads, needs_written=not reads_garbage)
        self._check_write(writes, pipelines)
        if adds is not None:
            there = self._written[writes] | (self._writing[writes] != 0) | ~adds[:, None]
            self._require(there, writes, "adds to")
        self._tell(read, threads, reads, writes)
        first = self._begun + 1
        self._begun += threads.size
        numbers = list(range(first, first + threads.size))
        begun = Operations(read, first, awaited_by, reads, writes, pipelines)
        self._operations.update(dict.fromkeys(numbers, begun))
        column = np.array(numbers)[:, None]
        self._reading[reads] = column
        self._writing[writes] = column
        return numbers

    def end(self, numbers: Sequence[int]) -> None:
        """Operations are done: what they have written is there."""
        if not numbers:
            return
        done = [(number, self._operations.pop(number)) for number in numbers]
        for busy, cells in (
            (self._reading, [each.reads[number - each.first] for number, each in done]),
            (self._writing, [each.writes[number - each.first] for number, each in done]),
        ):
            all_cells = np.concatenate(cells)
            mine = all_cells[busy[all_cells] == np.repeat(numbers, [each.size for each in cells])]
            busy[mine] = 0
            if busy is self._writing:
                self._written[mine] = True

    def _check_read(self, cells: Array, *, needs_written: bool) -> None:
        writing = self._writing[cells]
        if writing.any():
            item = int(np.argmax(writing.any(1)))
            operation = self._operations[int(writing[item].max())]
            raise BadTensorMemory(f"reads tensor memory that {operation} may still write: {operation.awaited_by}", item)
        if needs_written:
            self._require(self._written[cells], cells, "reads")

    def _check_write(self, cells: Array, pipelines: Sequence[object] | None) -> None:
        for busy, does in ((self._reading, "read"), (self._writing, "write")):
            numbers = busy[cells]
            if not numbers.any():
                continue
            for item, row in enumerate(numbers):
                one = row[:1] if (row == row[0]).all() else np.unique(row)
                for number in one[one != 0].tolist():
                    operation = self._operations[number]
                    mine = None if pipelines is None else pipelines[item]
                    if does == "read" or mine is None or operation.pipeline(number) != mine:
                        raise BadTensorMemory(
                            f"overwrites tensor memory that {operation} may still {does}: {operation.awaited_by}", item
                        )

    @staticmethod
    def _require(holds: Array, cells: Array, verb: str, problem: str = "nothing has written there") -> None:
        """Raises BadTensorMemory where something does not hold of cells, both [items, cells]."""
        if not holds.all():
            item = int(np.argmin(holds.all(1)))
            cell = int(cells[item, int(np.argmin(holds[item]))])
            lane, column = cell // COLUMNS % _UNITS * CELL_LANES, cell % COLUMNS
            raise BadTensorMemory(f"{verb} tensor memory at lane {lane}, column {column}: {problem}", item)

    def _tell(self, read: InstructionReader, threads: Array, reads: Array, writes: Array) -> None:
        races = self._batch.races
        if races is None:
            return
        for cells, tell in ((reads, races.read), (writes, races.write)):
            if cells.size:
                whose = np.repeat(threads, cells.shape[1])
                tell(self._places, _WORD * cells.reshape(-1), _WORD, whose, read)


def cells_of(blocks: Array, lanes: Array, columns: Array) -> Array:
    """Returns the numbers of cells, int64 in the shape that the three broadcast to; ``lanes`` are those of any word.

    Raises:
        BadTensorMemory: a column is none.
    """
    if int(columns.max()) >= COLUMNS:
        item = int(np.argmax((columns >= COLUMNS).reshape(columns.shape[0], -1).any(1)))
        raise BadTensorMemory(f"accesses column {int(columns[item].max())} of tensor memory: it has {COLUMNS}", item)
    return (blocks * _UNITS + lanes // CELL_LANES) * COLUMNS + columns


def place_of(address: int) -> str:
    """Returns the words for an address."""
    return f"lane {address >> 16}, column {address & 0xFFFF}"


def _check_count(count: int) -> None:
    if not UNIT_COLUMNS <= count <= COLUMNS or count & (count - 1):
        raise BadTensorMemory(f"names {count} columns of tensor memory: a power of two from 32 to 512 is needed")
