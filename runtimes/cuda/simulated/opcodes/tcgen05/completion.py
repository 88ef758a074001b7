"""tcgen05.commit and fence: an mbarrier that counts when products are complete, and what orders threads.

``tcgen05.fence`` orders operations of several threads around a barrier, beside what barriers order; operations of the
simulated device are in order already. Where it is missing is not looked for: Triton leaves it out everywhere, and
ptxas makes no instruction of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lowerkit.runtimes.cuda.simulated.access import Access
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.memory_barrier import RELEASE
from lowerkit.runtimes.cuda.simulated.opcodes.tcgen05.warps import check_group
from lowerkit.runtimes.cuda.simulated.tensor_memory.pipelines import Pipelines

_BYTES = 8  # of an mbarrier


def _commit(read: InstructionReader) -> Step:
    """``commit [mbarrier]``: an arrival when all products that the thread has begun are complete."""
    check_group(read)
    read.required("mbarrier::arrive::one")
    read.required("shared::cluster")  # a cluster is one block here
    read.required("b64")
    read.finish()
    read.count(1)
    place = Access(read, 0, "shared", _BYTES, "changes", RELEASE)

    def run(batch: Batch) -> None:
        threads = batch.active_threads()
        for store, offsets, _ in place.places(batch, threads):
            place.tell_change(batch, store, offsets, threads)
            for thread, offset in zip(threads.tolist(), offsets.tolist(), strict=True):
                batch.state(Pipelines).commit(thread, offset)

    return run


def _fence(read: InstructionReader) -> Step:
    read.finish()
    read.count(0)
    return lambda batch: None


FORMS: Mapping[str, Callable[[InstructionReader], Step]] = {
    "commit": _commit,
    "fence::before_thread_sync": _fence,
    "fence::after_thread_sync": _fence,
}
