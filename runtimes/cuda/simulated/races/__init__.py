"""Races: accesses to one place, one of them a write, that nothing orders. Found by order, not by luck.

Every access has a time, the number of its instruction's run in the launch. A place (a *granule*: the smallest access
that the kernel makes to the space) remembers who wrote it last and who read it since, and when. An access is checked
against these: it is ordered behind an earlier one of

    its own thread,
    its own warp,  where an instruction lies between that the warp runs together (``bar.warp.sync``, ``shfl.sync``),
    its block,     where a barrier or a release and an acquire lead from one warp to the other (``clocks``),
    another block, where releases and acquires of atomics lead from one to the other (``sync_graph``).

``shadow`` is what places remember, ``detector`` the door. A launch orders all that was before it.
"""
