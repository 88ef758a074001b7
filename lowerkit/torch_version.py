"""Which versions of PyTorch capture is tested with; every other is refused by name before anything else fails."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache

from lowerkit.errors import UsageError

OLDEST: tuple[int, int] = (2, 10)
"""Older ones load pickles unsafely: CVE-2025-32434, CVE-2026-24747."""

NEWEST: tuple[int, int] = (2, 15)
"""The last that ``tools/torch_versions.py`` was run with."""


def torch_problem() -> str | None:
    """Returns what is wrong with the installed torch; None where nothing is."""
    try:
        text = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch is missing: capture"
    numbers = re.match(r"(\d+)\.(\d+)", text)
    found = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if OLDEST <= found <= NEWEST:
        return None
    return f"torch {text} is not supported: this lowerkit is tested with {_text(OLDEST)} to {_text(NEWEST)}"


@cache
def require_torch() -> None:
    """Makes sure that the installed torch is one that capture is tested with.

    Raises:
        UsageError: LK1007, it is older, newer, or not there.
    """
    problem = torch_problem()
    if problem is not None:
        newest = (NEWEST[0], NEWEST[1] + 1)
        raise UsageError("LK1007", problem, hint=f"pip install 'torch>={_text(OLDEST)},<{_text(newest)}'")


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
