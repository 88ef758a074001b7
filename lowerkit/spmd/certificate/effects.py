"""The effects of a program in their order, and which of them the program after has had so far.

Vocabulary
    check     ``lk.check_indices``: it ends the run or does nothing. Neighbouring checks commute: whichever comes first,
              the run ends where one of them fails, with all other effects as they were
    stretch   of a check before: the elements that one op after, on all ranks together, checks. It is all of them, or
              those from one place up to another one along a dimension

Steps: an effect must be the next one. A check may be any of those up to the next effect of another kind, and may have
had a stretch only; before that effect, and in the end, each element of each of these checks must have been checked as
often as before, or oftener, as by each micro-batch: then the ranks' checks fail where the check before fails, and
nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lowerkit.spmd.certificate.graph import Form

CHECK = "lk.check_indices"
Effect: TypeAlias = tuple[Form, tuple[int, ...]]


@dataclass(frozen=True)
class Stretch:
    """See the module; without a loop it is all that there is.

    Attributes:
        loop: along which.
        first, end: its first turn, and that behind its last one.
        extent: how many turns there are.
    """

    loop: str = ""
    first: int = 0
    end: int = 1
    extent: int = 1


@dataclass
class _Checked:
    """What has been checked of a check: of each loop, how many more stretches begin than end at a turn."""

    ends: dict[str, Counter[int]] = field(default_factory=dict[str, Counter[int]])
    extents: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, stretch: Stretch) -> None:
        ends = self.ends.setdefault(stretch.loop, Counter())
        ends[stretch.first] += 1
        ends[stretch.end] -= 1
        self.extents[stretch.loop] = stretch.extent

    def holds(self, times: int) -> bool:
        """Whether each element has been checked so often at least: the stretches join to rows from end to end."""
        found = 0
        for loop, ends in self.ends.items():
            rows = ends[0]
            left = {turn: count for turn, count in ends.items() if count}
            if left != ({0: rows, self.extents[loop]: -rows} if rows else {}):
                return False
            found += rows
        return found >= times


class Effects:
    """The effects of a program, as far as they have been had."""

    def __init__(self, effects: Sequence[Effect]) -> None:
        """Takes those of the program before."""
        self._effects = list(effects)
        self._done = 0
        self._begun: dict[int, _Checked] = {}

    @property
    def version(self) -> int:
        """How many effects there have been, not counting checks that are not complete."""
        return self._done

    def missing(self) -> str:
        """Returns what is left of the effects, for people; ``""``: nothing.

        Checks that are complete are left behind.
        """
        self._leave_checks()
        if self._done == len(self._effects):
            return ""
        name = self._effects[self._done][0].name
        return f"a part of {name}" if self._begun else name

    def next(self, effect: Effect) -> str:
        """Has an effect; returns why it cannot come now, ``""`` where it can."""
        if effect[0].name == CHECK:
            return self.check(effect, Stretch())
        wanted = self.following()
        if wanted is None or wanted != effect:
            return _other_order(wanted)
        self._done += 1
        return ""

    def following(self) -> Effect | None:
        """Returns the next effect; that of an incomplete check where there is one, None where none is left."""
        self._leave_checks()
        return self._effects[self._done] if self._done < len(self._effects) else None

    def check(self, effect: Effect, stretch: Stretch) -> str:
        """Has a stretch of a check; returns why it cannot come now, ``""`` where it can."""
        first = self._run().index(effect) if effect in self._run() else -1
        if first < 0:
            return _other_order(self.following())
        self._begun.setdefault(first, _Checked()).add(stretch)
        return ""

    def _run(self) -> list[Effect]:
        """Returns the checks up to the next effect of another kind."""
        found: list[Effect] = []
        for effect in self._effects[self._done :]:
            if effect[0].name != CHECK:
                break
            found.append(effect)
        return found

    def _leave_checks(self) -> None:
        """Goes on behind checks all of which are complete."""
        run = self._run()
        times = Counter(run.index(effect) for effect in run)
        if all(self._begun.get(number, _Checked()).holds(count) for number, count in times.items()):
            self._done += len(run)
            self._begun.clear()


def _other_order(wanted: Effect | None) -> str:
    return f"effects come in another order than before: {'none is left' if wanted is None else wanted[0].name}"
