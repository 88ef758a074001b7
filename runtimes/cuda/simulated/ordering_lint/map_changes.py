"""A tensor map that was written must be fenced before a bulk copy takes it."""

from __future__ import annotations

from collections.abc import Iterator

from lowerkit.runtimes.cuda.simulated.ordering_lint.operands import Origin
from lowerkit.runtimes.cuda.simulated.ordering_lint.rule import Gap, PendingRule
from lowerkit.runtimes.cuda.simulated.text.syntax import Address, TensorAddress


class MapChanges(PendingRule):
    """``tensormap.cp_fenceproxy`` and ``tensormap.replace`` in global memory, up to ``fence.proxy.tensormap``.

    Two addresses are taken for two maps where they are known to differ: at different distances from one register.
    """

    name = "map_changes"

    def step(self, number: int, state: frozenset[int]) -> frozenset[int]:
        """See :meth:`Rule.step`."""
        instruction = self.instructions[number]
        modifiers = instruction.modifiers
        if instruction.opcode == "tensormap" and ("cp_fenceproxy" in modifiers or "shared::cta" not in modifiers):
            return state | {number}
        if instruction.opcode == "fence" and "tensormap::generic" in modifiers and "acquire" in modifiers:
            here = self._place(number)
            return self.ended(number, state, frozenset(each for each in state if self._place(each) == here))
        return state

    def gaps(self, number: int, state: frozenset[int]) -> Iterator[Gap]:
        """See :meth:`Rule.gaps`."""
        instruction = self.instructions[number]
        if instruction.opcode != "cp" or "tensor" not in instruction.modifiers:
            return
        here = self._place(number)
        for change in sorted(state):
            if _may_be_one(self._place(change), here):
                yield change, "fence.proxy.tensormap is missing before a tensor map is used, behind its change"

    def _place(self, number: int) -> Origin:
        """Returns where the tensor map of an instruction lies."""
        instruction = self.instructions[number]
        for operand in instruction.operands:
            if isinstance(operand, TensorAddress) or (isinstance(operand, Address) and instruction.opcode != "cp"):
                return self.origins.of(operand.base, instruction.scope, operand.offset)
        return Origin(f"instruction {number}", 0, False)


def _may_be_one(first: Origin, second: Origin) -> bool:
    return first.base != second.base or first.offset == second.offset
