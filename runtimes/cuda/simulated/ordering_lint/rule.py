"""What a rule is, and what all of them do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from lowerkit.runtimes.cuda.simulated.ordering_lint.flow import Paths
from lowerkit.runtimes.cuda.simulated.ordering_lint.operands import Origins
from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction

State = TypeVar("State")
# The number of the instruction that a use must be ordered behind (None: the start), and what is missing.
Gap = tuple[int | None, str]


class Rule(ABC, Generic[State]):
    """Facts that instructions make, end and need."""

    name: ClassVar[str]

    def __init__(self, instructions: Sequence[Instruction], origins: Origins) -> None:
        self.instructions = instructions
        self.origins = origins

    @abstractmethod
    def start(self) -> State:
        """Returns what holds at the entry."""

    @abstractmethod
    def merge(self, first: State, second: State) -> State:
        """Returns what holds where two paths meet."""

    @abstractmethod
    def step(self, number: int, state: State) -> State:
        """Returns what holds behind an instruction."""

    def exchange(self, paths: Paths, states: Mapping[int, State]) -> bool:
        """Takes over what other warps hold where they meet; returns whether that was anything new.

        Args:
            paths: through the kernel.
            states: what holds before each instruction that is reached.
        """
        return False

    @abstractmethod
    def gaps(self, number: int, state: State) -> Iterator[Gap]:
        """Yields what an instruction needs, and ``state`` leaves open."""


class PendingRule(Rule[frozenset[int]]):
    """A rule whose facts are numbers of instructions that are not ordered yet."""

    def start(self) -> frozenset[int]:
        """See :meth:`Rule.start`."""
        return frozenset()

    def merge(self, first: frozenset[int], second: frozenset[int]) -> frozenset[int]:
        """See :meth:`Rule.merge`."""
        return first | second

    def ended(self, number: int, state: frozenset[int], of: frozenset[int] | None = None) -> frozenset[int]:
        """Returns ``state`` without the facts (``of``: only those) that an instruction ends.

        One with a predicate in front ends what was made under the same predicate alone.
        """
        guard = self.instructions[number].guard
        ends = state if of is None else of
        if guard is not None:
            ends = frozenset(each for each in ends if self.instructions[each].guard == guard)
        return state - ends
