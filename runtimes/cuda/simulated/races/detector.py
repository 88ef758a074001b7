"""The door: every access of a launch is told here, and checked against what its place remembers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch, Geometry
from lowerkit.runtimes.cuda.simulated.byte_store import ByteStore
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.device_memory import DeviceMemory
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.memory_use import MemoryUse
from lowerkit.runtimes.cuda.simulated.races import keys as key
from lowerkit.runtimes.cuda.simulated.races.clocks import BlockClocks
from lowerkit.runtimes.cuda.simulated.races.demand import Demand
from lowerkit.runtimes.cuda.simulated.races.keys import WEAK, Order
from lowerkit.runtimes.cuda.simulated.races.ordering import Ordering
from lowerkit.runtimes.cuda.simulated.races.pieces import watched_pieces
from lowerkit.runtimes.cuda.simulated.races.report import Access, Meeting, race
from lowerkit.runtimes.cuda.simulated.races.same_values import of_other_values, twins
from lowerkit.runtimes.cuda.simulated.races.shadow import Shadow
from lowerkit.runtimes.cuda.simulated.scalar_types import Array

_COLUMNS = 4  # reads of so many warps are remembered for a place in global memory
_IDENTITY = ((1 << 30) - 1) << 32  # lane and warp


class Races:
    """The races of one launch. Every method belongs to the current batch."""

    def __init__(
        self, geometry: Geometry, memory: DeviceMemory, use: MemoryUse, readers: Sequence[InstructionReader]
    ) -> None:
        """``readers`` are the instructions of the kernel, ``use`` is what they say of memory."""
        self._demand = Demand(readers)
        self._use = use
        self._warps = geometry.width // WARP
        self._now = 0
        self._log: list[Access] = []  # by time, from 1
        warps = geometry.blocks * self._warps
        assert warps <= key.MOST_WARPS, "a grid that can be simulated"
        self._ordering = Ordering(warps, self._warps, fences=use.fences)
        self._one_block = geometry.blocks == 1
        columns = min(warps, _COLUMNS)
        self._pieces: dict[int, Sequence[Shadow]] = watched_pieces(memory, use.granule("global"), columns)

    def begin(self, batch: Batch) -> None:
        """Begins a batch; what the one before had in shared memory is gone."""
        self._batch = batch
        self._clocks = BlockClocks(batch)
        self._first_warp = batch.first_block * self._warps
        self._ordering.begin(self._first_warp, batch.blocks * self._warps, self._clocks)
        numbers = batch.threads.reshape(-1)
        self._keys: Array = key.keys_of(self._first_warp + numbers // WARP, numbers % WARP)
        store = batch.shared.store
        granule = self._use.granule("shared")
        shadow = Shadow(0, store.size, granule, self._warps, "shared memory", 0, shared=True)
        self._own = [store]  # that its blocks alone have
        self._pieces[id(store)] = [shadow] if store.size else []

    def watch(self, store: ByteStore, name: str, granule: int) -> None:
        """Looks from now to the end of the batch for races in other memory that belongs to its blocks alone."""
        self._own.append(store)
        self._pieces[id(store)] = [Shadow(0, store.size, granule, self._warps, name, 0, shared=True)]

    def end(self) -> None:
        """Ends a batch."""
        for store in self._own:
            for shadow in self._pieces.pop(id(store)):
                self._ordering.end(shadow)

    # --- what orders accesses ---------------------------------------------------------------------------------

    def gather(self, active: Array | None) -> None:
        """The lanes of warps run an instruction together."""
        self._clocks.gather(active, self._now)

    def meet(self, active: Array | None) -> None:
        """Threads meet at a barrier, in each block by itself; None for all."""
        self._ordering.meet(self._clocks.meet(active, self._now))

    def fence(self) -> None:
        """The active threads run a fence."""
        self._ordering.fence(np.unique(self._batch.active_threads() // WARP), self._now)

    def end_phase(self, store: ByteStore, offsets: Array, width: int) -> None:
        """Phases of mbarriers at offsets end: who sees that learns what arrivals have released so far, and no more."""
        shadow = self._piece(store, offsets)
        if shadow is not None:
            rows, count = shadow.rows(offsets, width)
            self._ordering.end_phase(shadow, shadow.size, rows * count)

    # --- accesses ---------------------------------------------------------------------------------------------

    def read(
        self,
        store: ByteStore,
        offsets: Array,
        width: int,
        threads: Array | None,
        instruction: InstructionReader,
        order: Order = WEAK,
    ) -> None:
        """Active threads read ``width`` bytes.

        Args:
            store: where.
            offsets: int64; one for each of ``threads``, or in a shape that broadcasts to the batch's.
            width: a power of two.
            threads: numbers in the batch; None: the active ones, and the shape of the offsets says whose they are.
            instruction: for messages.
            order: what the access says of its order.

        Raises:
            KernelFault: LK8017, a write of another thread is not ordered before.
        """
        shadow = self._piece(store, offsets)
        if shadow is None:
            return
        offsets, keys = self._whose(offsets, threads)
        keys = self._stamped(keys, Access(instruction, "read", "reads", order))
        rows, count = shadow.rows(offsets, width)
        floor = self._clocks.floor if shadow.shared or self._one_block else 0
        if shadow.last_write > floor:
            hot = self._unordered(shadow.writes(rows, count), keys, floor, order)
            if hot is not None:
                hot = self._demand.counting(self._batch, self._first_warp, hot, keys, self._log, reads=True)
            if hot is not None:
                raise self._race(shadow, rows, count, keys, hot)
        shadow.last_read = self._now
        columns = key.warps(keys) % shadow.columns
        places, there = shadow.set_read(rows, count, keys, columns)
        others = there != keys
        if others.any():
            others &= key.warps(there) == key.warps(keys)
            shadow.replace_read(places[others], count, key.of_whole_warps(keys[others]))
        if order.strong:
            self._ordering.load(shadow, rows * count, self._local_warps(keys), order, within_block=shadow.shared)

    def write(
        self,
        store: ByteStore,
        offsets: Array,
        width: int,
        threads: Array,
        instruction: InstructionReader,
        order: Order = WEAK,
        values: Array | None = None,
    ) -> None:
        """Threads write ``width`` bytes; the store still holds what was there before.

        Args:
            store: where.
            offsets: int64, one for each thread.
            width: a power of two.
            threads: numbers in the batch.
            instruction: for messages.
            order: what the access says of its order.
            values: what is written, a row for each thread: to write what is there already is no race. None: not known.

        Raises:
            KernelFault: LK8017, a read or a write of another thread is not ordered before, or two threads write
                different values to one place.
        """
        shadow = self._piece(store, offsets)
        if shadow is None:
            return
        keys = self._stamped(self._keys[threads], Access(instruction, "wrote", "writes", order))
        rows, count = shadow.rows(offsets, width)
        self._check_write(shadow, rows, count, width, keys, order, store, offsets, values)
        shadow.last_write = self._now
        there = shadow.set_written(rows, count, keys)
        others = there != keys
        if others.any() and not order.strong:
            pair = twins(rows, values)
            if pair is not None:
                meeting = Meeting(np.array(pair[1:]), np.zeros(1, np.int64), keys[pair[0] : pair[0] + 1])
                raise self._race(shadow, rows, count, keys, meeting)
        if order.strong or self._ordering.holds(shadow):
            self._tell_store(shadow, rows, count, keys, order)

    def change(
        self,
        store: ByteStore,
        offsets: Array,
        width: int,
        threads: Array,
        instruction: InstructionReader,
        order: Order,
        wrote: Array | None = None,
    ) -> None:
        """Threads change what is there, atomically, one after another.

        Args:
            store, offsets, width, threads, instruction, order: as for :meth:`write`.
            wrote: bool, whose change took place; None: all.

        Raises:
            KernelFault: LK8017, an access of another thread that is no atomic is not ordered before.
        """
        shadow = self._piece(store, offsets)
        if shadow is None:
            return
        keys = self._stamped(self._keys[threads], Access(instruction, "changed", "changes", order))
        rows, count = shadow.rows(offsets, width)
        self._check_write(shadow, rows, count, width, keys, order, store, offsets, None)
        shadow.last_write = self._now
        there = shadow.set_written(rows, count, keys)
        apart = np.flatnonzero((there != keys) & self._out_of_scope(there, keys, order))
        if apart.size:
            raise self._race(shadow, rows, count, keys, Meeting(apart, np.zeros_like(apart), there[apart]))
        self._ordering.change(shadow, shadow.size, rows * count, self._local_warps(keys), order, self._now, wrote)

    def _tell_store(self, shadow: Shadow, rows: Array, count: int, keys: Array, order: Order) -> None:
        cells = (rows[:, None] * count + np.arange(count)).reshape(-1)
        warps = np.repeat(self._local_warps(keys), count)
        self._ordering.store(shadow, shadow.size, cells, warps, order, self._now)

    # --- the checks -------------------------------------------------------------------------------------------

    def _piece(self, store: ByteStore, offsets: Array) -> Shadow | None:
        """Returns the piece that accesses lie in, all in one; None where it cannot have races."""
        pieces = self._pieces.get(id(store))
        if not pieces:
            return None
        if len(pieces) == 1 and pieces[0].shared:
            return pieces[0]
        first = int(offsets.reshape(-1)[0])
        return next((piece for piece in pieces if piece.start <= first < piece.end), None)

    def _stamped(self, keys: Array, access: Access) -> Array:
        self._now += 1
        self._log.append(access)
        return keys | (self._now | key.STRONG if access.order.strong else self._now)

    def _local_warps(self, keys: Array) -> Array:
        return key.warps(keys) - self._first_warp

    def _whose(self, offsets: Array, threads: Array | None) -> tuple[Array, Array]:
        """Returns offsets and who accesses them, flat; a warp whose lanes all access one place is there once."""
        batch = self._batch
        if threads is not None:
            return offsets, self._keys[threads]
        if offsets.ndim == 2 and offsets.shape[1] == 1 and batch.shape[1] > 1:
            lanes = batch.mask(batch.active).reshape(batch.blocks, self._warps, WARP).sum(-1)
            whole = np.where(lanes > 1, key.of_whole_warps(self._keys[::WARP]).reshape(lanes.shape), 0)
            if batch.active is not None and (lanes == 1).any():
                first = batch.active.reshape(-1, WARP).argmax(1) + np.arange(0, self._keys.size, WARP)
                whole = np.where(lanes == 1, self._keys[first].reshape(lanes.shape), whole)
            here = lanes > 0
            return np.broadcast_to(offsets, here.shape)[here], whole[here]
        flat = batch.full(offsets).reshape(-1)
        if batch.active is None:
            return flat, self._keys
        active = batch.active.reshape(-1)
        return flat[active], self._keys[active]

    def _check_write(
        self, shadow: Shadow, rows: Array, count: int, width: int, keys: Array, order: Order,
        store: ByteStore, offsets: Array, values: Array | None,
    ) -> None:  # fmt: skip
        floor = self._clocks.floor if shadow.shared or self._one_block else 0
        if shadow.last_write > floor:
            past = shadow.writes(rows, count)
            hot = self._unordered(past, keys, floor, order)
            if hot is not None and values is not None:
                hot = of_other_values(hot, store, offsets, values, width, count)
            if hot is not None:
                raise self._race(shadow, rows, count, keys, hot)
        if shadow.last_read > floor:
            hot = self._unordered(shadow.reads(rows, count), keys, floor, order)
            if hot is not None:
                hot = self._demand.counting(self._batch, self._first_warp, hot, keys, self._log, reads=False)
            if hot is not None:
                raise self._race(shadow, rows, count, keys, hot)

    def _unordered(self, past: Array, keys: Array, floor: int, order: Order) -> Meeting | None:
        """Returns the accesses of ``past``, [accesses, any], that nothing orders before those of ``keys``."""
        at, column = np.nonzero((past & key.TIME) > floor)
        if not at.size:
            return None
        before, mine = past[at, column], keys[at]
        hot = (before ^ mine) & _IDENTITY != 0
        if order.strong:
            hot &= (before & key.STRONG == 0) | self._out_of_scope(before, mine, order)
        if not hot.any():
            return None
        at, column, before, mine = at[hot], column[hot], before[hot], mine[hot]
        warp, other, when = key.warps(mine), key.warps(before), key.times(before)
        local = warp - self._first_warp
        known = self._clocks.known.reshape(-1, self._warps)[local, other % self._warps]
        gathered = self._clocks.gathered.reshape(-1)[local]
        known = np.where(other == warp, gathered, np.where(other // self._warps == warp // self._warps, known, 0))
        hot = when > known
        if hot.any() and not self._ordering.graph.is_empty:
            for learner in np.unique(local[hot & (other != warp)]).tolist():
                node = int(self._ordering.nodes[learner])
                asks = hot & (local == learner) & (other != warp)
                hot[asks] = when[asks] > self._ordering.graph.knowledge(node)[other[asks]]
        return Meeting(at[hot], column[hot], before[hot]) if hot.any() else None

    def _out_of_scope(self, before: Array, mine: Array, order: Order) -> Array:
        """Returns which accesses are of another block than the scope of one of the two atomics."""
        apart = key.warps(before) // self._warps != key.warps(mine) // self._warps
        if not apart.any() or order.block_only:
            return apart
        for when in np.unique(key.times(before[apart])).tolist():
            if not self._log[when - 1].order.block_only:
                apart = apart & (key.times(before) != when)
        return apart

    def _race(self, shadow: Shadow, rows: Array, count: int, keys: Array, hot: Meeting) -> KernelFault:
        at = int(hot.at[0])
        granule = int(hot.column[0]) % count
        byte = shadow.byte(int(rows[at]), count, granule)
        mine, before = self._log[-1], self._log[int(key.times(hot.before[:1])[0]) - 1]
        return race(self._batch, self._first_warp, shadow, byte, (int(keys[at]), mine), (int(hot.before[0]), before))
