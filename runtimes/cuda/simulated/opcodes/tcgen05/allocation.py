"""tcgen05.alloc, dealloc and relinquish_alloc_permit: a warp allocates columns of tensor memory for its block."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.access import GENERIC, Access
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.tcgen05.warps import check_group, faults_of, leaders, same_in_warps
from lowerkit.runtimes.cuda.simulated.tensor_memory.cells import TensorMemory

_BYTES = 4  # of an address


def _finish(read: InstructionReader, *, typed: bool) -> None:
    check_group(read)
    read.required("sync")
    read.required("aligned")
    if typed:
        read.kind("b32")
    read.finish()


def _allocate(read: InstructionReader) -> Step:
    """``alloc [shared address], columns``: the address of the columns goes to shared memory."""
    space = read.choice("shared::cta") or GENERIC
    _finish(read, typed=True)
    read.count(2)
    place, count = Access(read, 0, space, _BYTES, "writes"), read.source(1, "b32")

    def run(batch: Batch) -> None:
        threads = leaders(read, batch)
        counts = same_in_warps(read, batch, count, threads)
        memory = batch.state(TensorMemory)
        starts = np.empty((threads.size, 1), np.uint32)
        for item, thread in enumerate(threads.tolist()):
            with faults_of(read, batch, threads[item : item + 1]):
                starts[item] = memory.allocate(thread // batch.shape[1], int(counts[item]), read)
        for store, offsets, which in place.places(batch, threads):
            mine = slice(None) if which is None else which
            place.tell_write(batch, store, offsets, threads[mine], starts[mine])
            store.store(offsets, starts[mine])

    return run


def _deallocate(read: InstructionReader) -> Step:
    """``dealloc address, columns``."""
    _finish(read, typed=True)
    read.count(2)
    address, count = read.source(0, "b32"), read.source(1, "b32")

    def run(batch: Batch) -> None:
        threads = leaders(read, batch)
        addresses = same_in_warps(read, batch, address, threads)
        counts = same_in_warps(read, batch, count, threads)
        memory = batch.state(TensorMemory)
        for item, thread in enumerate(threads.tolist()):
            with faults_of(read, batch, threads[item : item + 1]):
                memory.free(thread, int(addresses[item]), int(counts[item]), read)

    return run


def _relinquish(read: InstructionReader) -> Step:
    _finish(read, typed=False)
    read.count(0)

    def run(batch: Batch) -> None:
        memory = batch.state(TensorMemory)
        for thread in leaders(read, batch).tolist():
            memory.relinquish(thread // batch.shape[1])

    return run


FORMS: Mapping[str, Callable[[InstructionReader], Step]] = {
    "alloc": _allocate,
    "dealloc": _deallocate,
    "relinquish_alloc_permit": _relinquish,
}
