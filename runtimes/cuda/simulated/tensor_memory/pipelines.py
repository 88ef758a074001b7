"""Products that threads have begun by tcgen05.mma, and when they are complete.

Results stand in tensor memory at once, where nobody may see them before somebody has polled the mbarrier that
``tcgen05.commit`` names. The products of a thread are complete in their order. Shared memory must hold what it held
when a product was begun until that is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.simulated.async_proxy.matrix_descriptors import Layout, elements_of, tile_addresses
from lowerkit.runtimes.cuda.simulated.async_proxy.memory_barriers import MemoryBarriers
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import PIECE
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.byte_store import BadAccess
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, unsigned
from lowerkit.runtimes.cuda.simulated.tensor_memory.cells import BadTensorMemory, TensorMemory


class SharedTiles:
    """One operand in shared memory, of several blocks: where it lies and what was there."""

    def __init__(
        self,
        read: InstructionReader,
        batch: Batch,
        threads: Array,
        layout: Layout,
        shape: tuple[int, int, int],
        *,
        transposed: bool,
    ) -> None:
        """Reads it for each of ``threads``, one of a block; see ``tile_addresses`` for the others.

        Raises:
            BadTensorMemory: it is not there or not written.
        """
        self._batch = batch
        self._size, self._transposed = shape[2], transposed
        addresses = tile_addresses(layout, shape, transposed=transposed)
        blocks = (threads // batch.shape[1])[:, None, None]
        try:
            self._offsets = batch.shared.offsets(addresses, blocks, PIECE)
            self._words = batch.shared.store.load(self._offsets, unsigned(8), PIECE // 8)
        except BadAccess as error:
            at = int(np.argmax(np.broadcast_to(error.bad, addresses.shape)))
            item = at // (addresses.size // threads.size)
            raise BadTensorMemory(
                f"multiplies what is at shared address 0x{int(addresses.reshape(-1)[at]):x}: {error.problem}", item
            ) from None
        if batch.races is not None:
            readers = np.broadcast_to(threads[:, None, None], addresses.shape).reshape(-1)
            batch.races.read(batch.shared.store, self._offsets.reshape(-1), PIECE, readers, read)

    @property
    def elements(self) -> Array:
        """Unsigned of their size, [blocks, rows, k]."""
        return elements_of(self._words, self._size, transposed=self._transposed)

    def changed(self, item: int) -> bool:
        """Returns whether the bytes of one block are others than when they were read."""
        there = self._batch.shared.store.data.view(np.uint64).reshape(-1, PIECE // 8)[self._offsets[item] // PIECE]
        return not np.array_equal(there, self._words[item])


@dataclass(frozen=True)
class _Product:
    """A product of one thread: its number, those of its operation and of its block, its operands, its instruction."""

    number: int
    operation: int
    item: int
    tiles: Sequence[SharedTiles]
    read: InstructionReader


class Pipelines:
    """The products of a batch that were begun and are not complete, thread by thread."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._memory = batch.state(TensorMemory)
        self._barriers = batch.state(MemoryBarriers)
        self._products: dict[int, list[_Product]] = {}
        self._begun = 0

    def begin(
        self, read: InstructionReader, threads: Array, operations: list[int], tiles: Sequence[SharedTiles]
    ) -> None:
        """Takes note of a product of each of ``threads``."""
        self._begun += 1
        for item, (thread, operation) in enumerate(zip(threads.tolist(), operations, strict=True)):
            self._products.setdefault(thread, []).append(_Product(self._begun, operation, item, tiles, read))

    def commit(self, thread: int, barrier: int) -> None:
        """Lets the mbarrier at offset ``barrier`` count an arrival when all products of a thread so far are done."""
        last = self._begun

        def arrive() -> int:
            self._complete(thread, last)
            self._barriers.arrive(np.array([barrier]), np.array([1]), np.array([0]))
            return 0

        self._barriers.bring(barrier, arrive)

    def _complete(self, thread: int, last: int) -> None:
        products = self._products.get(thread, [])
        done = [each for each in products if each.number <= last]
        self._products[thread] = products[len(done) :]
        for each in done:
            if any(tile.changed(each.item) for tile in each.tiles):
                raise each.read.fault(
                    f"{self._batch.thread_name(thread)} began this product, and shared memory that it reads was "
                    "overwritten before it was complete: nobody had waited at the mbarrier of its tcgen05.commit"
                )
        self._memory.end([each.operation for each in done])
