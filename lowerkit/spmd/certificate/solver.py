"""The door to z3, which decides what normal forms leave open: it is asked for a counterexample, and has none.

z3 is imported when it is asked for the first time: most proofs need normal forms alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from lowerkit.errors import UsageError

Integer: TypeAlias = Any
"""An integer, or an integer term of z3; ``a / b`` of terms is the floor for a positive ``b``."""

_MILLISECONDS = 10_000


class Solver:
    """Asks z3, and remembers its answers.

    Attributes:
        asked: how many questions z3 has answered.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._known: dict[str, bool] = {}

    def never(self, counts: Mapping[str, int | None], condition: Callable[[Callable[[str], Integer]], Integer]) -> bool:
        """Whether no values of some variables meet a condition; False also where z3 cannot say.

        Args:
            counts: variable -> how many values it takes, from 0; None: any number of them.
            condition: makes the condition, given what makes the term of a variable.

        Raises:
            UsageError: LK1007, z3 is not installed.
        """
        z3 = load_z3()
        terms = {name: z3.Int(name) for name in counts}
        limits = [term >= 0 for term in terms.values()]
        limits += [terms[name] < count for name, count in counts.items() if count is not None]
        return self.refuted([*limits, condition(terms.__getitem__)])

    def refuted(self, conditions: list[Any]) -> bool:
        """Whether conditions of z3 contradict each other; False also where z3 cannot say within ten seconds."""
        z3 = load_z3()
        solver = z3.Solver()
        solver.set("timeout", _MILLISECONDS)
        solver.add(*conditions)
        text = solver.sexpr()
        if text not in self._known:
            self.asked += 1
            self._known[text] = solver.check() == z3.unsat
        return self._known[text]


def load_z3() -> Any:
    """Returns the module z3.

    Raises:
        UsageError: LK1007, it is not installed.
    """
    try:
        import z3
    except ImportError as error:
        raise UsageError(
            "LK1007", "index arithmetic of a proof needs z3, which is not installed", hint="pip install z3-solver"
        ) from error
    return z3
