"""cp.async: copies from global to shared memory that a thread begins, commits in groups, and waits for.

The source is read when a copy begins; the destination holds what memory is that nothing has written until the thread
waits, so that a wait that is missing is seen in the values.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from lowerkit.runtimes.cuda.simulated.access import Access
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.pending_copies import Copy
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, DType, unsigned

_SIZES = {"ca": (4, 8, 16), "cg": (16,)}
_SHARED = ("shared", "shared::cta")


def build_async_copy(read: InstructionReader) -> Step:
    """Returns the step of ``cp.async`` without ``.bulk``."""
    read.required("async")
    if read.flag("commit_group"):
        return _commit(read)
    if read.flag("wait_group"):
        return _wait(read)
    if read.flag("wait_all"):
        return _wait_for_all(read)
    cache = read.required(*_SIZES)
    space = read.required(*_SHARED)
    read.required("global")
    hint = read.flag("L2::cache_hint")
    read.drop_hints()
    read.finish()
    count = read.count(*((4, 5) if hint else (3, 4)))
    size = read.immediate(2)
    if size not in _SIZES[cache]:
        raise read.unknown(f"a copy of {size} bytes")
    # The last operand but the hint says how many bytes to read; zeros fill the rest.
    given = read.source(3, "b32") if count - hint == 4 else None
    return _begin(read, Access(read, 0, space, size, "writes"), Access(read, 1, "global", size, "reads"), size, given)


def _begin(read: InstructionReader, to: Access, of: Access, size: int, given: int | None) -> Step:
    dtype = unsigned(min(size, 8))
    words = size // dtype.itemsize

    def run(batch: Batch) -> None:
        threads = None if batch.active is None else batch.active_threads()
        values = _read_source(read, batch, of, size, given, dtype, words)
        numbers = np.arange(batch.blocks * batch.shape[1]) if threads is None else threads
        for store, offsets, which in to.places(batch, threads):
            copied = values if threads is None else values[threads]
            mine = numbers if which is None else numbers[which]
            copy = Copy(store, offsets, mine, copied if which is None else copied[which], partial(_tell, batch, to))
            _tell(batch, to, copy)
            batch.copies.begin(copy)

    return run


def _tell(batch: Batch, to: Access, copy: Copy) -> None:
    """A copy writes from its beginning to its arrival: races with either are found."""
    to.tell_write(batch, copy.store, copy.offsets, copy.threads, copy.values)


def _read_source(
    read: InstructionReader, batch: Batch, of: Access, size: int, given: int | None, dtype: DType, words: int
) -> Array:
    """Returns what every thread of the batch copies, [threads, words]; of threads that are not active anything."""
    if given is not None:
        asked = batch.registers[given]
        if not (asked == size).all():
            if (batch.full((asked != 0) & (asked != size)) & batch.mask(batch.active)).any():
                raise read.fault(f"a copy of some of its {size} bytes: all or none are simulated")
            reads = batch.full(asked != 0)
            active = batch.active
            batch.active = np.array(reads) if active is None else active & reads
            try:
                values = np.zeros((*batch.shape, words), dtype)
                if batch.active.any():
                    values = np.where(batch.active[..., None], of.load(batch, dtype, words), values)
            finally:
                batch.active = active
            return values.reshape(-1, words)
    return np.broadcast_to(of.load(batch, dtype, words), (*batch.shape, words)).reshape(-1, words)


def _commit(read: InstructionReader) -> Step:
    read.finish()
    read.count(0)
    return lambda batch: batch.copies.commit(batch.active)


def _wait(read: InstructionReader) -> Step:
    read.finish()
    read.count(1)
    keep = read.immediate(0)

    def run(batch: Batch) -> None:
        batch.copies.wait(batch.active, keep)

    return run


def _wait_for_all(read: InstructionReader) -> Step:
    read.finish()
    read.count(0)

    def run(batch: Batch) -> None:
        batch.copies.wait_for_all(batch.active)

    return run
