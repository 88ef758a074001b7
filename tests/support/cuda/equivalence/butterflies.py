"""The argument that a butterfly of shuffles combines the same lanes."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.cuda.mutants import Line, Mutant, split_operands


class Butterflies:
    """The butterflies of a kernel: shuffles whose result is combined with what was shuffled, one after another."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def argument(self, mutant: Mutant) -> str | None:
        """Returns why a mutant is equivalent: distances still reach the same lanes, each once, in any order."""
        if mutant.changed is None or mutant.line.name != "shfl" or mutant.changed.name != "shfl":
            return None
        before, after = split_operands(mutant.line.operands), split_operands(mutant.changed.operands)
        if "bfly" not in mutant.line.opcode or [*before[:2], *before[3:]] != [*after[:2], *after[3:]]:
            return None
        chain = self._butterfly(mutant.line)
        distances = [int(split_operands(line.operands)[2]) for line in chain]
        changed = [
            int(after[2]) if line is mutant.line else distance for line, distance in zip(chain, distances, strict=True)
        ]
        if _reached(distances) == _reached(changed) and len(_reached(changed)) == 1 << len(chain):
            return "the butterfly combines the same lanes, each once"
        return None

    def _butterfly(self, line: Line) -> Sequence[Line]:
        """Returns the shuffles that together combine lanes: each takes what the one before was combined into."""
        chain = [line]
        while (before := self._shuffle_behind(split_operands(chain[0].operands)[1])) is not None:
            chain.insert(0, before)
        while (after := self._shuffle_of(chain[-1])) is not None:
            chain.append(after)
        return chain

    def _shuffle_behind(self, name: str) -> Line | None:
        """Returns the shuffle of x, where ``name`` is x combined with it."""
        for shuffle in self._lines:
            if shuffle.name == "shfl" and "bfly" in shuffle.opcode and self._combined(shuffle) == name:
                return shuffle
        return None

    def _shuffle_of(self, shuffle: Line) -> Line | None:
        name = self._combined(shuffle)
        for line in self._lines:
            if name and line.name == "shfl" and "bfly" in line.opcode and split_operands(line.operands)[1] == name:
                return line
        return None

    def _combined(self, shuffle: Line) -> str | None:
        """Returns the register that holds x combined with its shuffle, by an operation that takes either first."""
        target, source = split_operands(shuffle.operands)[:2]
        for line in self._lines:
            operands = split_operands(line.operands)
            if line.name in ("add", "max", "min") and sorted(operands[1:]) == sorted([target, source]):
                return operands[0]
        return None


def _reached(distances: Sequence[int]) -> set[int]:
    """Returns the lanes that a butterfly combines with lane 0."""
    lanes = {0}
    for distance in distances:
        lanes |= {lane ^ distance for lane in lanes}
    return lanes
