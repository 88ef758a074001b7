"""How large terms can be at most, where it is known that they are not negative.

Numbers that a kernel is launched with, extents and addresses, are below 2^62, and a block's number below the blocks.
All else follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.support.cuda.equivalence.terms import Terms

_LAUNCHED = 1 << 62


class Ranges:
    """The largest values of terms, as far as they are known, where launches have at most ``blocks`` blocks."""

    def __init__(self, terms: Terms, blocks: int) -> None:
        self._terms, self._blocks = terms, blocks
        self._known: dict[int, int | None] = {}

    def most(self, term: int) -> int | None:
        """Returns what a term is at most; None: it may be negative, or nothing is known."""
        if term not in self._known:
            found = self._found(term)
            self._known[term] = found if found is not None and found < 1 << 63 else None
        return self._known[term]

    def shifts_all_away(self, opcode: str, arguments: tuple[int, ...]) -> bool:
        """Returns whether a shift to the right leaves nothing of its first argument."""
        kind = re.fullmatch(r"shr\.([sub])(32|64)", opcode)
        if kind is None:
            return False
        most, by = self.most(arguments[0]), self._terms.value(arguments[1])
        if most is None or by is None:
            return False
        return most >> by == 0 and most < 1 << (int(kind[2]) - (kind[1] == "s"))

    def _found(self, term: int) -> int | None:
        match self._terms.nodes[term]:
            case ("constant", int(value)):
                return value
            case ("leaf", "outside", str(name)):
                return self._blocks - 1 if name == "%ctaid.x" else _LAUNCHED if name.startswith("[") else None
            case ("pack", int(low), int(high), 32) if self._terms.value(high) == 0 and self.most(low) is not None:
                return self.most(low)
            case ("pack", _, int(high), 32) if self._terms.value(high) == 0:
                return (1 << 32) - 1
            case ("add.s64" | "add.u64", int(left), int(right)):
                return self._both(left, right, lambda a, b: a + b)
            case ("mul.hi.s64" | "mul.hi.u64", int(left), int(right)):
                return self._both(left, right, lambda a, b: a * b >> 64)
            case ("mul.hi.u32", int(left), int(right)):
                return self._both(left, right, lambda a, b: a * b >> 32)
            case ("shr.s64" | "shr.u64" | "shr.u32", int(left), int(by)):
                return self._both(left, by, lambda a, b: a >> b)
            case _:
                return None

    def _both(self, left: int, right: int, how: Callable[[int, int], int]) -> int | None:
        first, second = self.most(left), self.most(right)
        return None if first is None or second is None else how(first, second)
