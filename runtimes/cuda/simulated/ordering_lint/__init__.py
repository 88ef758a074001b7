"""What must be ordered and shows in no value: fences between the threads, the TMA unit and the tensor cores.

Accesses of threads go one way (the *generic proxy*), those of bulk copies, of wgmma and of tcgen05.mma another one (the
*async proxy*), and tensor maps a third. Where the same bytes or registers go two ways, an instruction has to stand
between. A simulated device, which does one thing after the other, gives the same numbers without it; a card need not.

The text of a kernel is looked at along all of its paths, those too that no launch takes: what one path leaves open is
found where it is used. ``check`` is the door; each rule is one file:

    shared_writes     what threads wrote to shared memory reaches a tensor core or a bulk copy: ``fence.proxy.async``
    product_registers registers of wgmma are used around it: ``wgmma.fence`` before, ``commit_group`` and ``wait_group``
                      behind
    barrier_inits     an mbarrier is used that was just made: a barrier of the block, or ``fence.mbarrier_init``
    map_changes       a tensor map is used that was just written: ``fence.proxy.tensormap``

A path is that of one thread. Between warps with tasks of their own, writes to shared memory are carried over where
they meet, as long as neither text leads to the other one.
"""

from lowerkit.runtimes.cuda.simulated.ordering_lint.findings import Finding
from lowerkit.runtimes.cuda.simulated.ordering_lint.lint import check

__all__ = ["Finding", "check"]
