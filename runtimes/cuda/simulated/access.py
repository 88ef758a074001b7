"""Where the accesses of an instruction lie, in which space, and what is said of one that is not allowed."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.block_memory import LOCAL_BASE, SHARED_BASE, WINDOW
from lowerkit.runtimes.cuda.simulated.byte_store import BadAccess, ByteStore
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.races.keys import WEAK, Order
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, DType
from lowerkit.runtimes.cuda.simulated.text.syntax import Address, Name

GENERIC = "generic"
SPACES = ("global", "const", "shared", "shared::cta", "local")
_SEMANTICS = ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel")
_SCOPES = ("cta", "gpu", "sys")
_OF_DEVICE = ("global", "const", GENERIC)  # generic addresses of device memory are its own
_WINDOWS = (("local", LOCAL_BASE), ("shared", SHARED_BASE))

# A space, the addresses in it, the numbers of their threads (None: the shapes say it), which ones of all (None: all).
Part = tuple[str, Array, Array | None, Array | None]
# Bytes, the offsets in them, which addresses these are (None: all).
Place = tuple[ByteStore, Array, Array | None]


def take_order(read: InstructionReader, default: str = "weak") -> Order:
    """Takes the modifiers that say how an access is ordered.

    They change no value: the threads of a batch run an instruction at once, batches one after another. What they order
    counts where races are looked for.
    """
    semantics = read.choice(*_SEMANTICS) or default
    scope = read.choice(*_SCOPES)
    if semantics == "weak":
        return WEAK
    acquires, releases = semantics in ("acquire", "acq_rel"), semantics in ("release", "acq_rel")
    return Order(True, acquires, releases, scope == "cta" and semantics != "volatile")


class Access:
    """The accesses of one instruction: ``width`` bytes for each active thread, read or written."""

    def __init__(
        self, read: InstructionReader, address: int, space: str, width: int, verb: str, order: Order = WEAK
    ) -> None:
        """``address`` is the number of the operand with the address, ``verb`` what messages say: reads or writes."""
        operand = read.operand(address)
        if not isinstance(operand, Address):
            raise read.unknown("the address")
        self.width = width
        self._space = space.removesuffix("::cta")
        self._verb = verb
        self._read = read
        self._order = order
        read.slots.use.note(self._space, width)
        if abs(operand.offset) >= 1 << 32:
            raise read.unknown(f"the offset {operand.offset}")
        self._offset = operand.offset
        narrow = (
            self._space in ("shared", "local") and isinstance(operand.base, Name) and _is_narrow(read, operand.base)
        )
        self._slot = read.value(operand.base, "b32" if narrow else "b64")

    def load(self, batch: Batch, dtype: DType, count: int) -> Array:
        """Returns ``count`` values of ``dtype`` for each thread: a shape that broadcasts to the batch's, then count.

        Threads that are not active have the values of an active one.

        Raises:
            KernelFault: LK8017, an access is not allowed.
        """
        addresses = batch.repeat_active(self._addresses(batch))
        if self._space in _OF_DEVICE and not batch.memory.track_written:
            holder = batch.memory.holder(addresses, self.width)
            if holder is not None and batch.races is not None:
                self._tell_read(batch, holder.store, addresses - holder.origin, None)
            if holder is not None:  # the way of nearly all loads, without what only faults and other spaces need
                return holder.store.load(addresses - holder.origin, dtype, count)
        parts = list(self._parts(batch, addresses, None))
        if parts[0][3] is None:
            return self._load_part(batch, parts[0], dtype, count)
        values = np.empty((batch.blocks * batch.shape[1], count), dtype)
        for part in parts:
            values[part[3]] = self._load_part(batch, part, dtype, count)
        return values.reshape(*batch.shape, count)

    def _load_part(self, batch: Batch, part: Part, dtype: DType, count: int) -> Array:
        with self._faults_of(batch, part):
            places = list(self._places(batch, part))
            if batch.races is not None:
                for place in places:
                    self._tell_read_of(batch, part, place)
            if places[0][2] is None:
                return places[0][0].load(places[0][1], dtype, count)
            values = np.empty((*part[1].shape, count), dtype)
            for store, offsets, which in places:
                with _among(which):
                    values[which] = store.load(offsets, dtype, count)
            return values

    def store(self, batch: Batch, columns: Sequence[Array]) -> None:
        """Writes for each active thread the values that ``columns`` have for it, one after another.

        Raises:
            KernelFault: LK8017, an access is not allowed.
        """
        threads = None if batch.active is None else batch.active_threads()
        flats = [flat(batch, column, threads) for column in columns]
        values = flats[0][:, None] if len(flats) == 1 else np.stack(flats, 1)
        races = batch.races
        numbers = batch.active_threads() if races is not None and threads is None else threads
        if self._space in _OF_DEVICE:
            addresses = flat(batch, self._addresses(batch), threads)
            holder = batch.memory.holder(addresses, self.width)
            if holder is not None and holder.writable:
                offsets = addresses - holder.origin
                if races is not None and numbers is not None:
                    races.write(holder.store, offsets, self.width, numbers, self._read, self._order, values)
                holder.store.store(offsets, values)
                return
        for store, offsets, which in self.places(batch, threads):
            mine = values if which is None else values[which]
            if races is not None and numbers is not None:
                whose = numbers if which is None else numbers[which]
                races.write(store, offsets, self.width, whose, self._read, self._order, mine)
            store.store(offsets, mine)

    def tell_change(
        self, batch: Batch, store: ByteStore, offsets: Array, threads: Array, wrote: Array | None = None
    ) -> None:
        """Tells whoever looks for races that ``threads`` change what is at ``offsets``, one after another.

        Raises:
            KernelFault: LK8017, an access that is no atomic is not ordered before.
        """
        if batch.races is not None:
            batch.races.change(store, offsets, self.width, threads, self._read, self._order, wrote)

    def tell_write(
        self, batch: Batch, store: ByteStore, offsets: Array, threads: Array, values: Array | None = None
    ) -> None:
        """Tells whoever looks for races that ``threads`` write at ``offsets``, before they do.

        Raises:
            KernelFault: LK8017, an access of another thread is not ordered before.
        """
        if batch.races is not None:
            batch.races.write(store, offsets, self.width, threads, self._read, self._order, values)

    def tell_read(self, batch: Batch, store: ByteStore, offsets: Array, threads: Array) -> None:
        """Tells whoever looks for races that ``threads`` read at ``offsets``.

        Raises:
            KernelFault: LK8017, a write of another thread is not ordered before.
        """
        if batch.races is not None:
            batch.races.read(store, offsets, self.width, threads, self._read, self._order)

    def _tell_read(self, batch: Batch, store: ByteStore, offsets: Array, threads: Array | None) -> None:
        if batch.races is not None:
            batch.races.read(store, offsets, self.width, threads, self._read, self._order)

    def _tell_read_of(self, batch: Batch, part: Part, place: Place) -> None:
        (_, addresses, threads, _), (store, offsets, which) = part, place
        if which is None or threads is not None:
            self._tell_read(batch, store, offsets, threads if which is None or threads is None else threads[which])
            return
        everywhere = np.zeros(addresses.shape, np.int64)
        everywhere[which] = offsets
        numbers = np.flatnonzero(batch.full(which) & batch.mask(batch.active))
        self._tell_read(batch, store, batch.full(everywhere).reshape(-1)[numbers], numbers)

    def places(self, batch: Batch, threads: Array | None) -> Iterator[Place]:
        """Yields where the accesses of ``threads`` (None: all) lie; offsets are flat, in the order of the threads.

        Raises:
            KernelFault: LK8017, an access is not allowed.
        """
        numbers = np.arange(batch.blocks * batch.shape[1]) if threads is None else threads
        for part in self._parts(batch, flat(batch, self._addresses(batch), threads), numbers):
            with self._faults_of(batch, part):
                places = list(self._places(batch, part))
            for store, offsets, which in places:
                yield store, offsets, _which_of_all(part[3], which)

    def require_written(self, batch: Batch, threads: Array | None) -> None:
        """Checks for an access that reads and writes that its bytes were written, where that is tracked.

        Raises:
            KernelFault: LK8017, one was not.
        """
        numbers = np.arange(batch.blocks * batch.shape[1]) if threads is None else threads
        for part in self._parts(batch, flat(batch, self._addresses(batch), threads), numbers):
            with self._faults_of(batch, part):
                for store, offsets, which in self._places(batch, part):
                    with _among(which):
                        store.require_written(offsets, self.width)

    def _addresses(self, batch: Batch) -> Array:
        """Returns the addresses, int64, in a shape that broadcasts to the batch's."""
        base = batch.registers[self._slot]
        if base.dtype.itemsize == 8:
            base = base.view(np.int64)
            return base + self._offset if self._offset else base
        # Addresses of 32 bits wrap around: compilers put what a negative base lacks into the offset.
        return base.astype(np.int64) + self._offset & 0xFFFFFFFF if self._offset else base.astype(np.int64)

    def _parts(self, batch: Batch, addresses: Array, threads: Array | None) -> Iterable[Part]:
        """Splits generic addresses by the space that they lie in; those of another space are one part."""
        if self._space != GENERIC:
            return [(self._space, addresses, threads, None)]
        low, high = int(addresses.min()), int(addresses.max())
        if high < LOCAL_BASE or low >= SHARED_BASE + WINDOW:
            return [("global", addresses, threads, None)]
        for space, base in _WINDOWS:
            if base <= low and high < base + WINDOW:
                return [(space, addresses - base, threads, None)]
        if threads is None:
            addresses = batch.full(addresses).reshape(-1)
            threads = np.arange(addresses.size)
        return _split(addresses, threads)

    def _places(self, batch: Batch, part: Part) -> Iterator[Place]:
        """Yields where a part lies; raises BadAccess where that is nowhere."""
        space, addresses, threads, _ = part
        if space in ("global", "const"):
            yield from batch.memory.pieces(addresses, self.width, self._verb != "reads")
            return
        memory = batch.shared if space == "shared" else batch.local
        if threads is None:  # who is not active reads what the active thread reads, of the same owner
            owners = batch.repeat_active(batch.block_numbers if space == "shared" else batch.threads)
        else:
            owners = threads // batch.shape[1] if space == "shared" else threads
        yield memory.store, memory.offsets(addresses, owners, self.width), None

    @contextmanager
    def _faults_of(self, batch: Batch, part: Part) -> Generator[None]:
        try:
            yield
        except BadAccess as error:
            raise self._fault(batch, part, error) from None

    def _fault(self, batch: Batch, part: Part, error: BadAccess) -> KernelFault:
        space, addresses, threads, _ = part
        if threads is None:
            bad = batch.full(error.bad) & batch.mask(batch.active)
            at = int(np.argmax(bad))
            thread, address = at, int(batch.full(addresses).reshape(-1)[at])
        else:
            at = int(np.argmax(error.bad))
            thread, address = int(threads[at]), int(addresses[at])
        where = f"0x{address & (1 << 64) - 1:x}" if space in ("global", "const") else f"{space} address {address}"
        return self._read.fault(
            f"{batch.thread_name(thread)} {self._verb} {self.width} bytes at {where}: {error.problem}"
        )


def flat(batch: Batch, array: Array, threads: Array | None) -> Array:
    """Returns the values that ``threads`` (None: all) have in an array that broadcasts to the shape of the batch."""
    values = batch.full(array).reshape(-1)
    return values if threads is None else values[threads]


def _split(addresses: Array, threads: Array) -> Iterator[Part]:
    rest = np.ones(addresses.shape, np.bool_)
    for space, base in _WINDOWS:
        mine = (addresses >= base) & (addresses < base + WINDOW)
        rest &= ~mine
        if mine.any():
            yield space, addresses[mine] - base, threads[mine], mine
    if rest.any():
        yield "global", addresses[rest], threads[rest], rest


def _which_of_all(outer: Array | None, inner: Array | None) -> Array | None:
    """Returns the mask of what ``inner`` selects of what ``outer`` selects."""
    if outer is None or inner is None:
        return inner if outer is None else outer
    mask = outer.copy()
    mask[outer] = inner
    return mask


@contextmanager
def _among(which: Array | None) -> Generator[None]:
    """Says of a bad access among some addresses which of all it is."""
    try:
        yield
    except BadAccess as error:
        if which is None:
            raise
        bad = np.zeros(which.shape, np.bool_)
        bad[which] = error.bad
        raise BadAccess(error.problem, bad) from None


def _is_narrow(read: InstructionReader, name: Name) -> bool:
    slot = read.slots.register(name.text, read.instruction.scope)
    return slot is not None and read.slots.template[slot].dtype.itemsize == 4
