"""Which level of an artifact a card runs: ``sm_90`` is compute capability 9.0.

Machine code runs on the level that it was compiled for and on later minor versions of the same major one. PTX runs on
whatever comes later, but for PTX that is bound to its architecture (``sm_90a``): that runs there alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from lowerkit.errors import RuntimeFault


def capability_of(level: str) -> tuple[int, int]:
    """Returns the compute capability of a level: ``sm_90`` is 9.0; that of none is 0.0."""
    digits = level.removeprefix("sm_").rstrip("af")
    return (int(digits[:-1]), int(digits[-1])) if len(digits) > 1 and digits.isdigit() else (0, 0)


def levels_of(text: str) -> tuple[str, ...]:
    """Returns the levels that a text names: those of ``sm_90,sm_80``."""
    return tuple(level for level in text.split(",") if level)


def choose_level(bound: Mapping[str, bool], capability: tuple[int, int] | None) -> str:
    """Returns the level whose code a card runs best: the latest one that it can run.

    Args:
        bound: each level of the artifact, and whether some PTX of it is bound to its architecture.
        capability: of the card; None takes the first level.

    Raises:
        RuntimeFault: LK8020, it can run none.
    """
    if capability is None:
        return next(iter(bound))
    fits = [
        level
        for level, alone in bound.items()
        if capability_of(level) <= capability and (capability_of(level) == capability if alone else True)
    ]
    if fits:
        return max(fits, key=capability_of)
    major, minor = capability
    raise RuntimeFault(
        "LK8020",
        f"the artifact has code for {', '.join(bound)}, which a card of sm_{major}{minor} does not run",
        hint=f"compile it for this card, too: --target cuda:{','.join([*bound, f'sm_{major}{minor}'])}",
    )
