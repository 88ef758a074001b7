"""Which products the user keeps in floats: patterns of names, and the words ``auto`` and ``none``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lowerkit.errors import UsageError
from lowerkit.quantization.sites import Site

AUTO, NONE = "auto", "none"
_SHOWN = 8


@dataclass(frozen=True)
class KeepFloat:
    """What ``--keep-float`` says.

    Attributes:
        asked: places of the products that a pattern names, ascending.
        automatic: whether further products may be kept in floats for gate B to hold.
    """

    asked: list[int]
    automatic: bool


def resolve(words: Sequence[str], sites: Sequence[Site]) -> KeepFloat:
    """Finds the products that ``words`` name.

    Args:
        words: ``auto``, ``none`` and patterns (``*``, ``?``, ``[0-3]``) of node names or module paths; a pattern that
            names a module names the products inside it too.
        sites: the products that can be quantized.

    Raises:
        UsageError: LK1009, ``none`` stands beside others, or patterns name no product; all of them at once.
    """
    patterns = [word for word in words if word not in (AUTO, NONE)]
    if NONE in words and (patterns or AUTO in words):
        raise UsageError("LK1009", f"{NONE!r} keeps no product in floats, and other values were given beside it")
    unknown = [pattern for pattern in patterns if not any(_names(pattern, site) for site in sites)]
    if unknown:
        known = [f"{site.name}, {site.module_path}" if site.module_path else site.name for site in sites]
        rest = [f"... ({len(known) - _SHOWN} more)"] if len(known) > _SHOWN else []
        raise UsageError(
            "LK1009",
            "no product to be kept in floats matches",
            details=[f"pattern {pattern!r}" for pattern in unknown],
            hint=f"products are known by node and module: {'; '.join([*known[:_SHOWN], *rest])}",
        )
    asked = [place for place, site in enumerate(sites) if any(_names(pattern, site) for pattern in patterns)]
    return KeepFloat(asked, AUTO in words)


def _names(pattern: str, site: Site) -> bool:
    path = site.module_path
    return fnmatchcase(site.name, pattern) or fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")
