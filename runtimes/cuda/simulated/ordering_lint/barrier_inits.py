"""An mbarrier that one thread has made must be ordered before others, and bulk copies, use it."""

from __future__ import annotations

from collections.abc import Iterator

from lowerkit.runtimes.cuda.simulated.ordering_lint.rule import Gap, PendingRule

_USES = ("arrive", "try_wait", "test_wait", "expect_tx")


class BarrierInits(PendingRule):
    """``mbarrier.init``, up to a barrier of the block or a fence that orders it."""

    name = "barrier_inits"

    def step(self, number: int, state: frozenset[int]) -> frozenset[int]:
        """See :meth:`Rule.step`."""
        instruction = self.instructions[number]
        opcode, modifiers = instruction.opcode, instruction.modifiers
        if opcode == "mbarrier" and modifiers[0] == "init":
            return state | {number}
        fence = opcode == "fence" and (modifiers[0] == "mbarrier_init" or modifiers[:2] == ("proxy", "async"))
        if fence or (opcode in ("bar", "barrier") and "warp" not in modifiers):
            return self.ended(number, state)
        return state

    def gaps(self, number: int, state: frozenset[int]) -> Iterator[Gap]:
        """See :meth:`Rule.gaps`."""
        instruction = self.instructions[number]
        modifiers = instruction.modifiers
        copies = instruction.opcode == "cp" and "mbarrier::complete_tx::bytes" in modifiers
        commits = instruction.opcode == "tcgen05" and modifiers[0] == "commit"
        if copies or commits or (instruction.opcode == "mbarrier" and modifiers[0] in _USES):
            for init in sorted(state):
                yield (
                    init,
                    "a barrier or fence.mbarrier_init is missing before an mbarrier is used, behind mbarrier.init",
                )
