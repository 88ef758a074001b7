"""The paths through the instructions of a kernel, and facts that are carried along all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction, Name, Scope
from lowerkit.runtimes.cuda.simulated.text.tokens import shown

State = TypeVar("State")


class Paths:
    """Which instructions follow which.

    Attributes:
        instructions: of the kernel.
        successors: by number; what leaves has none.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        """Raises UnknownPtx, LK8018, where a label is not known."""
        self.instructions = instructions
        self.successors = [self._successors(number) for number in range(len(instructions))]
        entries = {0} | {follower for each in self.successors if len(each) != 1 for follower in each}
        entries |= {each[0] for number, each in enumerate(self.successors) if each and each[0] != number + 1}
        self._entries = entries
        self._reached: dict[int, frozenset[int]] = {}

    def _successors(self, number: int) -> tuple[int, ...]:
        instruction = self.instructions[number]
        behind = (number + 1,) if number + 1 < len(self.instructions) else ()
        targets: list[int] = []
        if instruction.opcode == "bra":
            targets = [_label(instruction, instruction.operands[0])]
        elif instruction.opcode == "brx":
            targets = [_label(instruction, Name(each)) for each in _table(instruction)]
        elif instruction.opcode not in ("ret", "exit", "trap"):
            return behind
        inside = tuple(target for target in targets if target < len(self.instructions))
        return inside if instruction.guard is None else (*inside, *behind)

    def reached(self, number: int) -> frozenset[int]:
        """Returns the instructions that some path from behind an instruction meets."""
        if number not in self._reached:
            found: set[int] = set()
            left = list(self.successors[number])
            while left:
                follower = left.pop()
                if follower not in found:
                    found.add(follower)
                    left += self.successors[follower]
            self._reached[number] = frozenset(found)
        return self._reached[number]

    def states(
        self, start: State, merge: Callable[[State, State], State], step: Callable[[int, State], State]
    ) -> Iterator[tuple[int, State]]:
        """Yields each instruction that some path reaches, with what holds before it on any of them.

        Args:
            start: what holds at the entry.
            merge: of what holds on two paths; it must come to an end.
            step: what an instruction makes of what holds before it. States are compared with ``==``.
        """
        before: dict[int, State] = {0: start}
        left = [0]
        while left:
            number = left.pop()
            for follower, state in self._run(number, before[number], step):
                merged = merge(before[follower], state) if follower in before else state
                if follower not in before or merged != before[follower]:
                    before[follower] = merged
                    left.append(follower)
        for entry in sorted(before):
            number, state = entry, before[entry]
            while True:
                yield number, state
                followers = self.successors[number]
                if len(followers) != 1 or followers[0] in self._entries:
                    break
                number, state = followers[0], step(number, state)

    def _run(self, number: int, state: State, step: Callable[[int, State], State]) -> Iterator[tuple[int, State]]:
        """Follows a path from an entry to the next ones."""
        while True:
            state = step(number, state)
            followers = self.successors[number]
            if len(followers) == 1 and followers[0] not in self._entries:
                number = followers[0]
                continue
            for follower in followers:
                yield follower, state
            return


def _scopes(instruction: Instruction) -> Iterator[Scope]:
    scope: Scope | None = instruction.scope
    while scope is not None:
        yield scope
        scope = scope.parent


def _label(instruction: Instruction, operand: object) -> int:
    name = operand.text if isinstance(operand, Name) else ""
    for scope in _scopes(instruction):
        if name in scope.labels:
            return scope.labels[name]
    raise UnknownPtx(f"label {shown(name)} is not known", instruction.place.line)


def _table(instruction: Instruction) -> Sequence[str]:
    operand = instruction.operands[1]
    name = operand.text if isinstance(operand, Name) else ""
    for scope in _scopes(instruction):
        if name in scope.tables:
            return scope.tables[name]
    raise UnknownPtx(f"table of labels {shown(name)} is not known", instruction.place.line)
