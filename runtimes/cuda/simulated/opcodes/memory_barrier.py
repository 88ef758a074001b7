"""mbarrier: barriers in shared memory that count arrivals and bytes, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

import numpy as np

from lowerkit.runtimes.cuda.simulated.access import Access, flat
from lowerkit.runtimes.cuda.simulated.async_proxy.memory_barriers import MOST_ARRIVALS, BadBarrier, MemoryBarriers
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.races.keys import Order
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.text.syntax import SINK, Name
from lowerkit.runtimes.cuda.simulated.waiting import Waiting

RELEASE = Order(True, False, True, True)
_ACQUIRE = Order(True, True, False, True)
_BYTES = 8
_SCOPES = ("cta", "cluster")  # a cluster is one block here


@contextmanager
def faults_of(read: InstructionReader, batch: Batch, threads: Array) -> Generator[None]:
    """Makes faults of what an mbarrier cannot do for ``threads``, in whose order the places are."""
    try:
        yield
    except BadBarrier as error:
        thread = int(threads[int(np.argmax(error.bad))]) if error.bad.size == threads.size else int(threads[0])
        raise read.fault(f"{batch.thread_name(thread)} {error.problem}") from None


class _Place:
    """The mbarriers that an instruction names."""

    def __init__(self, read: InstructionReader, operand: int, verb: str, order: Order | None = None) -> None:
        self._access = Access(read, operand, "shared", _BYTES, verb, *(() if order is None else (order,)))
        self.read = read

    def offsets(self, batch: Batch, threads: Array) -> Array:
        """Returns where the mbarrier of each thread lies."""
        return next(iter(self._access.places(batch, threads)))[1]

    def tell_written(self, batch: Batch, offsets: Array, threads: Array) -> None:
        """Tells whoever looks for races of a write that must be ordered."""
        self._access.tell_write(batch, batch.shared.store, offsets, threads)

    def tell_changed(self, batch: Batch, offsets: Array, threads: Array) -> None:
        """Tells of an arrival."""
        self._access.tell_change(batch, batch.shared.store, offsets, threads)

    def tell_read(self, batch: Batch, offsets: Array, threads: Array) -> None:
        """Tells of a wait that was successful."""
        self._access.tell_read(batch, batch.shared.store, offsets, threads)


def _mbarrier(read: InstructionReader) -> Step:
    name = read.required(*_FORMS)
    return _FORMS[name](read)


def _finish(read: InstructionReader) -> None:
    read.choice("shared", "shared::cta")
    read.required("b64")
    read.finish()


def _init(read: InstructionReader) -> Step:
    _finish(read)
    read.count(2)
    place, count = _Place(read, 0, "writes"), read.source(1, "b32")

    def run(batch: Batch) -> None:
        threads = batch.active_threads()
        counts = flat(batch, batch.registers[count], threads).astype(np.int64)
        bad = (counts == 0) | (counts > MOST_ARRIVALS)
        if bad.any():
            thread = int(threads[int(np.argmax(bad))])
            raise read.fault(f"{batch.thread_name(thread)} makes an mbarrier of {int(counts[bad][0])} arrivals")
        offsets = place.offsets(batch, threads)
        place.tell_written(batch, offsets, threads)
        batch.state(MemoryBarriers).begin(offsets, counts)

    return run


def _end(read: InstructionReader) -> Step:
    _finish(read)
    read.count(1)
    place = _Place(read, 0, "writes")

    def run(batch: Batch) -> None:
        threads = batch.active_threads()
        offsets = place.offsets(batch, threads)
        place.tell_written(batch, offsets, threads)
        with faults_of(read, batch, threads):
            batch.state(MemoryBarriers).end(offsets)

    return run


def _arrive(read: InstructionReader) -> Step:
    """``arrive state, [addr], count`` and ``arrive.expect_tx state, [addr], bytes``; the state may be left out."""
    expects = read.flag("expect_tx")
    read.drop("release", "relaxed", *_SCOPES)
    _finish(read)
    read.count(*((3,) if expects else (2, 3)))
    sink = read.operand(0) == Name(SINK)
    target = None if sink else read.target(read.operand(0), "b64")
    place = _Place(read, 1, "changes", RELEASE)
    value = read.source(2, "b32") if len(read.instruction.operands) == 3 else None

    def run(batch: Batch) -> None:
        threads = batch.active_threads()
        offsets = place.offsets(batch, threads)
        ones = np.ones(threads.size, np.int64)
        given = ones if value is None else flat(batch, batch.registers[value], threads).astype(np.int64)
        counts, nbytes = (ones, given) if expects else (given, 0 * ones)
        place.tell_changed(batch, offsets, threads)  # belongs to the phase that it may end
        with faults_of(read, batch, threads):
            before = batch.state(MemoryBarriers).arrive(offsets, counts, nbytes)
        if target is not None:
            states = np.zeros(batch.shape, np.uint64)
            states.reshape(-1)[threads] = before
            batch.write(target, states)

    return run


def _expect(read: InstructionReader) -> Step:
    read.drop("relaxed", *_SCOPES)
    _finish(read)
    read.count(2)
    place, value = _Place(read, 0, "changes", RELEASE), read.source(1, "b32")

    def run(batch: Batch) -> None:
        threads = batch.active_threads()
        offsets = place.offsets(batch, threads)
        nbytes = flat(batch, batch.registers[value], threads).astype(np.int64)
        with faults_of(read, batch, threads):
            batch.state(MemoryBarriers).arrive(offsets, 0 * nbytes, nbytes)

    return run


def _tell_lanes(batch: Batch, threads: Array) -> None:
    """Tells whoever looks for races of warps whose lanes have all waited: what one of them did before is ordered."""
    if batch.races is None:
        return
    waited = np.zeros(batch.shape, np.bool_)
    waited.reshape(-1)[threads] = True
    lanes = batch.warps(waited)
    whole = lanes.any(1) & (lanes == batch.warps(batch.alive)).all(1)
    if whole.any():
        batch.races.gather((lanes & whole[:, None]).reshape(batch.shape))


def _endless(read: InstructionReader, batch: Batch, thread: int, offset: int) -> KernelFault:
    start = batch.shared.offsets(np.array([0]), np.array([thread // batch.shape[1]]), 1)
    return read.fault(
        f"{batch.thread_name(thread)} waits for ever at the mbarrier at shared address {offset - int(start[0])}: "
        f"{batch.state(MemoryBarriers).describe(offset)}, which never come"
    )


def _wait(read: InstructionReader) -> Step:
    """``test_wait p, [addr], state`` and ``.parity p, [addr], parity``. A time limit (``try_wait``) changes nothing."""
    by_parity = read.flag("parity")
    read.drop("acquire", "relaxed", *_SCOPES)
    _finish(read)
    read.count(3, 4)
    target = read.target(read.operand(0), "pred")
    place = _Place(read, 1, "reads", _ACQUIRE)
    value = read.source(2, "b32" if by_parity else "b64")

    def run(batch: Batch) -> None:
        threads = batch.active_threads()
        offsets = place.offsets(batch, threads)
        given = flat(batch, batch.registers[value], threads)
        parities = given.astype(np.int64) & 1 if by_parity else MemoryBarriers.parity_of(given)
        barriers = batch.state(MemoryBarriers)
        with faults_of(read, batch, threads):
            complete = barriers.poll(offsets, parities)
        if complete.any():
            place.tell_read(batch, offsets[complete], threads[complete])
            _tell_lanes(batch, threads[complete])
        if not complete.all():
            at = int(np.argmin(complete))
            batch.state(Waiting).fail(lambda: _endless(read, batch, int(threads[at]), int(offsets[at])))
        values = np.zeros(batch.shape, np.bool_)
        values.reshape(-1)[threads] = complete
        batch.write(target, values)

    return run


_FORMS: Mapping[str, Callable[[InstructionReader], Step]] = {
    "init": _init,
    "inval": _end,
    "arrive": _arrive,
    "expect_tx": _expect,
    "try_wait": _wait,
    "test_wait": _wait,
}
OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"mbarrier": _mbarrier}
