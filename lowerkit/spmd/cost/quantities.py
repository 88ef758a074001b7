"""Numbers with units, as users write them: ``80GiB``, ``450GB/s``, ``2us``, ``990T``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from lowerkit.errors import UsageError

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([^0-9\s].*?)?\s*")

BYTES: Mapping[str, float] = {
    "B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
SECONDS: Mapping[str, float] = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_OPERATIONS: Mapping[str, float] = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BYTES_PER_SECOND: Mapping[str, float] = {f"{unit}/s": factor for unit, factor in BYTES.items()}
OPERATIONS_PER_SECOND: Mapping[str, float] = {
    f"{prefix}{suffix}": factor
    for prefix, factor in _OPERATIONS.items()
    for suffix in ("", "FLOP/s", "FLOPS")
    if prefix or suffix
}


def parse_bytes(text: str, what: str) -> int:
    """Reads a number of bytes, ``80GiB`` or ``80GB``; ``what`` names it in the error.

    Raises:
        UsageError: LK1009, the text is none, or the number is not positive.
    """
    return round(_parse(text, what, BYTES, "80GiB"))


def parse_rate(text: str, what: str) -> float:
    """Reads bytes per second, ``450GB/s``; as :func:`parse_bytes`."""
    return _parse(text, what, BYTES_PER_SECOND, "450GB/s")


def parse_seconds(text: str, what: str) -> float:
    """Reads seconds, ``2us``; as :func:`parse_bytes`."""
    return _parse(text, what, SECONDS, "2us")


def parse_operations(text: str, what: str) -> float:
    """Reads operations per second, ``990T`` or ``990TFLOP/s``; as :func:`parse_bytes`."""
    return _parse(text, what, OPERATIONS_PER_SECOND, "990T")


def _parse(text: str, what: str, units: Mapping[str, float], example: str) -> float:
    match = _NUMBER.fullmatch(text)
    unit = "" if match is None else (match[2] or "")
    if match is None or unit not in units:
        why = "no number" if match is None else f"without a unit that fits, {unit!r}" if unit else "without a unit"
        raise UsageError(
            "LK1009",
            f"{what} is {text!r}, {why}",
            hint=f"write it as {example}; the units are {', '.join(unit for unit in units if unit)}",
        )
    value = float(match[1]) * units[unit]
    if not 0 < value < math.inf:
        raise UsageError("LK1009", f"{what} is {text!r}, expected a positive number", hint=f"write it as {example}")
    return value
