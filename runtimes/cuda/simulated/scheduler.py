"""Runs the basic blocks of a kernel on a batch, with divergence, reconvergence and barriers.

The group of threads at the smallest instruction goes first; groups that meet at an instruction become one. Compilers
print a block where threads meet again behind what lies between, so that this order brings them together early; nothing
depends on it. In front of an instruction that a warp runs together, the threads that came first wait for the others of
their warp; at a barrier those of a block do. Threads of whom nobody is left that could come are a fault.

Threads that poll and fail (``Waiting``) rest until all others rest too, or leave; then they poll once more. If nothing
has happened in between that they could look for, they wait for ever: a fault as well.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.control_flow import BasicBlock, BlockBarrier, IndexedJump, Jump, Leave
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.waiting import Waiting

_PATIENCE = 256  # jumps back, while others could run, until those get turns: whom a spinning thread waits for
_FAIR_TURNS = 2048  # basic blocks that groups then run one after another: a lock may go from hand to hand many times


class Scheduler:
    """One batch on its way through a kernel.

    Attributes:
        issued: instructions that ran, once for each group.
        thread_instructions: the same, once for each thread.
    """

    def __init__(self, blocks: Mapping[int, BasicBlock], batch: Batch, limit: int) -> None:
        """``limit`` is how many instructions may be issued."""
        self.issued = 0
        self.thread_instructions = 0
        self._blocks = blocks
        self._batch = batch
        self._limit = limit
        self._ready: dict[int, Array | None] = {}
        self._gathering: dict[int, Array] = {}  # threads that wait for others of their warp, by instruction
        self._barriers: dict[int, dict[int, Array]] = {}  # threads at a barrier, by its number and by instruction
        self._met: dict[int, BlockBarrier] = {}  # the instruction that came last to a barrier
        self._resting: dict[int, Array | None] = {}  # threads whose poll has failed, by where they try again
        self._waiting = batch.state(Waiting)
        self._polled = -1  # the progress that those at rest have seen
        self._impatience = 0
        self._fair_turns = 0
        self._turn = 0

    def run(self) -> None:
        """Runs all threads to their end.

        Raises:
            KernelFault: LK8017, a thread does what it must not, waits for ever, or the limit is reached.
        """
        alive = self._batch.alive
        self._add(0, None if alive.all() else alive.copy())
        while self._ready or self._release():
            start = self._next()
            self._run_block(start, self._ready.pop(start))

    def _next(self) -> int:
        if self._impatience <= _PATIENCE:
            return min(self._ready)
        if self._fair_turns == 0:
            self._fair_turns = _FAIR_TURNS
            self._wake()
        self._fair_turns -= 1
        if self._fair_turns == 0:
            self._impatience = 0
        self._turn = min((start for start in self._ready if start > self._turn), default=min(self._ready))
        return self._turn

    def _add(self, start: int, mask: Array | None) -> None:
        """Lets threads (None: all) go on at an instruction."""
        if start not in self._blocks:  # behind the last instruction
            self._leave(self._batch.mask(mask))
            return
        if start in self._ready:
            there = self._ready[start]
            mask = None if there is None or mask is None else there | mask
        self._ready[start] = None if mask is None or mask.all() else mask

    def _run_block(self, start: int, mask: Array | None, *, gathered: bool = False) -> None:
        block, batch = self._blocks[start], self._batch
        if block.gathers and mask is not None and not gathered:
            mask = self._gather(start, mask, block.gathers)
            if mask is None:
                return
            mask = None if mask.all() else mask
        alone = not (self._ready or self._gathering or self._barriers or self._resting)
        batch.active, batch.merge = mask, None if alone else mask
        if block.gathers and batch.races is not None:
            batch.races.gather(mask)
        if batch.coverage is not None:
            batch.coverage.enter(block)
        count = block.end - block.start
        self.issued += count
        self.thread_instructions += count * (batch.alive.size if mask is None else int(np.count_nonzero(mask)))
        if self.issued > self._limit:
            raise block.first.fault(f"the launch was ended after {self._limit} instructions of one batch")
        for step in block.steps:
            step(batch)
        self._end(block, mask)

    def _end(self, block: BasicBlock, mask: Array | None) -> None:
        ending = block.ending
        if self._batch.coverage is not None:
            self._batch.coverage.end(block, self._batch, mask)
        if ending is None:
            self._add(block.end, mask)
        elif isinstance(ending, Jump):
            if ending.target <= block.start and self._ready:
                self._impatience += 1
            rests = ending.target <= block.start and self._waiting.failed
            self._branch(ending, block.end, mask, rests=rests)
        elif isinstance(ending, Leave):
            gone = self._batch.mask(mask)
            if ending.guard is not None:
                stays = gone & ~ending.guard.value(self._batch)
                gone = gone & ~stays
                if stays.any():
                    self._add(block.end, stays)
            self._leave(gone)
        elif isinstance(ending, IndexedJump):
            self._branch_by_index(ending, block, mask)
        else:
            self._arrive(ending, block.end, mask)

    def _leave(self, gone: Array) -> None:
        for check in self._batch.leaving:
            check(gone)
        self._batch.alive &= ~gone

    def _branch(self, jump: Jump, behind: int, mask: Array | None, *, rests: bool) -> None:
        go_to_target = self._add
        if rests:
            self._waiting.failed = False
            go_to_target = self._rest
        if jump.guard is None:
            go_to_target(jump.target, mask)
            return
        value = jump.guard.value(self._batch)
        if value.all():
            go_to_target(jump.target, mask)
        elif not value.any():
            self._add(behind, mask)
        else:
            full = self._batch.full(value)
            for go, start, goes in ((go_to_target, jump.target, full), (self._add, behind, ~full)):
                group = goes if mask is None else goes & mask
                if group.any():
                    go(start, group)

    def _rest(self, start: int, mask: Array | None) -> None:
        """Holds threads (None: all) whose poll has failed."""
        there = self._resting.get(start)
        self._resting[start] = there | mask if there is not None and mask is not None else mask

    def _wake(self) -> None:
        """Lets the threads at rest poll once more."""
        resting, self._resting = self._resting, {}
        self._polled = self._waiting.progress
        for start, mask in resting.items():
            self._add(start, mask)

    def _branch_by_index(self, jump: IndexedJump, block: BasicBlock, mask: Array | None) -> None:
        index = self._batch.full(self._batch.registers[jump.slot])
        group = self._batch.mask(mask)
        if (group & (index >= len(jump.targets))).any():
            raise block.first.fault(f"a branch by an index beyond its {len(jump.targets)} labels")
        for number in np.unique(index[group]):
            self._add(jump.targets[number], group & (index == number))

    def _gather(self, start: int, mask: Array, width: int) -> Array | None:
        """Returns the threads whose ``width`` neighbours (a warp, a group of warps) are all here; the others wait."""
        mask = mask | self._gathering.pop(start, False)
        width = width if mask.shape[1] % width == 0 else WARP
        here, alive = mask.reshape(-1, width), self._batch.alive.reshape(-1, width)
        whole = ((here == alive) | ~here.any(1, keepdims=True)).all(1, keepdims=True)
        if whole.all():
            return mask
        self._gathering[start] = (here & ~whole).reshape(mask.shape)
        complete = (here & whole).reshape(mask.shape)
        return complete if complete.any() else None

    def _arrive(self, barrier: BlockBarrier, behind: int, mask: Array | None) -> None:
        if mask is None and barrier.count is None:
            self._meet(None)
            self._add(behind, None)
            return
        waiting = self._barriers.setdefault(barrier.number, {})
        waiting[behind] = waiting.get(behind, False) | self._batch.mask(mask)
        self._met[barrier.number] = barrier
        self._open_barrier(barrier.number)

    def _open_barrier(self, number: int) -> bool:
        """Lets the blocks go on whose threads are all there; returns whether there were some."""
        waiting, count = self._barriers[number], self._met[number].count
        arrived = np.logical_or.reduce(list(waiting.values())).sum(1)
        opens = (arrived == (self._batch.alive.sum(1) if count is None else count)) & (arrived > 0)
        if not opens.any():
            return False
        self._meet(np.logical_or.reduce(list(waiting.values())) & opens[:, None])
        del self._barriers[number]
        left = {start: mask & ~opens[:, None] for start, mask in waiting.items()}
        if any(mask.any() for mask in left.values()):
            self._barriers[number] = {start: mask for start, mask in left.items() if mask.any()}
        for start, mask in waiting.items():
            if (mask & opens[:, None]).any():
                self._add(start, mask & opens[:, None])
        return True

    def _meet(self, mask: Array | None) -> None:
        if self._batch.races is not None:
            self._batch.races.meet(mask)

    def _release(self) -> bool:
        """Nobody can go on: opens barriers that the last threads have left without, and lets those at rest poll; then
        gives up waiting for lanes.

        Returns whether somebody can go on now.
        """
        if any(self._open_barrier(number) for number in list(self._barriers)):
            return True
        if self._resting and self._polled != self._waiting.progress:
            self._wake()
            return True
        if self._gathering:
            start = min(self._gathering)
            self._run_block(start, self._gathering.pop(start), gathered=True)
            return True
        if self._resting:
            assert self._waiting.fault is not None, "who rests has polled"
            raise self._waiting.fault()
        if self._barriers:
            raise self._endless_wait()
        return False

    def _endless_wait(self) -> KernelFault:
        number, waiting = next(iter(self._barriers.items()))
        thread = self._batch.thread_name(int(np.argmax(next(iter(waiting.values())))))
        return self._met[number].read.fault(
            f"{thread} waits for ever at barrier {number}: other threads of its block never come"
        )
