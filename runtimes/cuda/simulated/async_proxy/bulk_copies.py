"""Bulk copies between shared and global memory that are under way, and the pieces that they move.

A copy to shared memory reads global memory at once; its bytes arrive when the mbarrier that it completes at is polled,
and until then nothing is known of the bytes where they go. A copy from shared memory reads when the thread that began
it waits for that (``wait_group.read``), and writes when that thread waits for the whole, or leaves: as late as may be,
so that a wait that is missing shows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.async_proxy.memory_barriers import MemoryBarriers
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.byte_store import BadAccess
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.queues.grid_dependency import NOT_WAITED, GridDependency
from lowerkit.runtimes.cuda.simulated.races.keys import Order
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, unsigned

_OPEN = -1  # the group of a copy that is in none
_NEXT = Order(True, False, True, True)  # the completion at an mbarrier orders the copy before a wait
Operation = Callable[[Array, Array], Array]


@dataclass(frozen=True)
class Pieces:
    """What one thread moves, in pieces of ``width`` bytes.

    Attributes:
        thread: its number in the batch.
        shared: where each piece lies in the bytes of shared memory, int64 [pieces].
        inside: which of them lie in global memory, bool [pieces]; the others are zeros, or left out.
        places: where the pieces inside lie in global memory, int64.
        width: 1, 2, 4, 8 or 16.
    """

    thread: int
    shared: Array
    inside: Array
    places: Array
    width: int

    @property
    def words(self) -> np.dtype[np.unsignedinteger]:
        """The type that a piece is moved as."""
        return unsigned(min(self.width, 8))


class BulkCopies:
    """The bulk copies of a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._stores: list[_Store] = []
        self._committed = np.zeros(batch.blocks * batch.shape[1], np.int64)
        batch.leaving.append(self.leave)

    def load(self, read: InstructionReader, pieces: Pieces, barrier: int) -> None:
        """Begins a copy to shared memory that completes at the mbarrier at offset ``barrier``.

        Raises:
            KernelFault: LK8017, global memory is not there or not written.
        """
        batch, store = self._batch, self._batch.shared.store
        words, count = pieces.words, max(1, pieces.width // 8)
        values = np.zeros((pieces.shared.size, count), words)
        if pieces.inside.any():
            values[pieces.inside] = self._read_global(read, pieces)
        threads = np.full(pieces.shared.size, pieces.thread)

        def tell() -> None:
            if batch.races is not None:
                batch.races.write(store, pieces.shared, pieces.width, threads, read, values=values)

        def arrive() -> int:
            tell()
            if batch.races is not None:
                batch.races.change(store, np.array([barrier]), 8, threads[:1], read, _NEXT)
            store.store(pieces.shared, values)
            return values.nbytes

        tell()
        store.forget_at(pieces.shared, pieces.width)
        batch.state(MemoryBarriers).bring(barrier, arrive)

    def _read_global(self, read: InstructionReader, pieces: Pieces) -> Array:
        batch, words = self._batch, pieces.words
        count = max(1, pieces.width // 8)
        values = np.empty((pieces.places.size, count), words)
        with bulk_faults(read, batch, pieces.thread, pieces.places, "copies from"):
            for store, offsets, which in batch.memory.pieces(pieces.places, pieces.width, False):
                if batch.races is not None:
                    batch.races.read(store, offsets, pieces.width, np.full(offsets.size, pieces.thread), read)
                values[slice(None) if which is None else which] = store.load(offsets, words, count)
        return values

    def store(self, read: InstructionReader, pieces: Pieces, operation: Operation | None) -> None:
        """Begins a copy to global memory; with ``operation``, of what is there and the pieces.

        Raises:
            KernelFault: LK8017, the launch is an early one, and the thread has not waited.
        """
        batch = self._batch
        if batch.state(GridDependency).hinders:
            raise read.fault(f"{batch.thread_name(pieces.thread)} begins a copy to global memory: {NOT_WAITED}")
        self._stores.append(_Store(read, pieces, operation))

    def commit(self) -> None:
        """Makes a group of what each active thread has begun since its last group."""
        active = self._batch.mask(self._batch.active).reshape(-1)
        for copy in self._stores:
            if copy.group == _OPEN and active[copy.pieces.thread]:
                copy.group = int(self._committed[copy.pieces.thread])
        self._committed += active

    def wait(self, keep: int, *, only_reads: bool) -> None:
        """Lets all but the ``keep`` latest groups of each active thread read shared memory, and write unless
        ``only_reads``.

        Raises:
            KernelFault: LK8017, memory is not there, or shared memory is not written.
        """
        active = self._batch.mask(self._batch.active).reshape(-1)
        left: list[_Store] = []
        for copy in self._stores:
            thread = copy.pieces.thread
            if not active[thread] or copy.group == _OPEN or copy.group >= self._committed[thread] - keep:
                left.append(copy)
                continue
            copy.read_shared(self._batch)
            if only_reads:
                left.append(copy)
            else:
                copy.write_global(self._batch)
        self._stores = left

    def leave(self, gone: Array) -> None:
        """Lets the copies of threads that leave write.

        Raises:
            KernelFault: LK8017, one still reads shared memory, which ends with the block.
        """
        if not self._stores:
            return
        goes = gone.reshape(-1)
        left: list[_Store] = []
        for copy in self._stores:
            if not goes[copy.pieces.thread]:
                left.append(copy)
                continue
            if copy.values is None:
                raise copy.instruction.fault(
                    f"{self._batch.thread_name(copy.pieces.thread)} leaves while this copy may still read shared "
                    "memory: no cp.async.bulk.wait_group waits for it"
                )
            copy.write_global(self._batch)
        self._stores = left


class _Store:
    """A copy to global memory.

    Attributes:
        group: the number of its group among those of its thread.
        values: what it has read, [pieces inside, words]; None before.
    """

    def __init__(self, read: InstructionReader, pieces: Pieces, operation: Operation | None) -> None:
        self.instruction = read
        self.pieces = pieces
        self.group = _OPEN
        self.values: Array | None = None
        self._operation = operation

    def read_shared(self, batch: Batch) -> None:
        if self.values is not None:
            return
        pieces, store = self.pieces, batch.shared.store
        offsets = pieces.shared[pieces.inside]
        with bulk_faults(self.instruction, batch, pieces.thread, offsets, "copies from shared memory:"):
            self.values = store.load(offsets, pieces.words, max(1, pieces.width // 8))
        if batch.races is not None and offsets.size:
            batch.races.read(store, offsets, pieces.width, np.full(offsets.size, pieces.thread), self.instruction)

    def write_global(self, batch: Batch) -> None:
        pieces, values = self.pieces, self.values
        assert values is not None, "reads come first"
        if not pieces.places.size:
            return
        with bulk_faults(self.instruction, batch, pieces.thread, pieces.places, "copies to"):
            for store, offsets, which in batch.memory.pieces(pieces.places, pieces.width, True):
                mine = values if which is None else values[which]
                threads = np.full(offsets.size, pieces.thread)
                if self._operation is None:
                    if batch.races is not None:
                        batch.races.write(store, offsets, pieces.width, threads, self.instruction, values=mine)
                    store.store(offsets, mine)
                    continue
                if batch.races is not None:
                    order = Order(strong=True)
                    batch.races.change(store, offsets, pieces.width, threads, self.instruction, order)
                there = store.load(offsets, pieces.words, 1)
                store.store(offsets, self._operation(there, mine))


@contextmanager
def bulk_faults(read: InstructionReader, batch: Batch, thread: int, addresses: Array, verb: str) -> Generator[None]:
    """Makes faults of bad accesses of one thread; ``addresses`` are those that the accesses lie at."""
    try:
        yield
    except BadAccess as error:
        at = int(np.argmax(error.bad)) if error.bad.shape == addresses.shape else 0
        raise read.fault(
            f"{batch.thread_name(thread)} {verb} 0x{int(addresses.reshape(-1)[at]):x}: {error.problem}"
        ) from None
