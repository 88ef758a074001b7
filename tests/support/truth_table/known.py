"""Cells that are known to differ, each class with its reason: the table counts them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping

_CLASSES: Mapping[str, str] = {
    r"^(add|sub)\.Tensor\(alpha=": "eager multiplies and adds in one rounding; our product may overflow",
    r"^lerp\.Tensor": "eager multiplies and adds in one rounding",
    r"^(var|std)_mean.*/-?inf$": "eager's mean beside a variance is NaN where the mean is infinite",
    r"^(special_)?polygamma.*n=1\)": "eager's own series: 1e-9 off in f64, and finite at the poles -1, -2, ...",
}


def known_reason(name: str) -> str | None:
    """Returns why the cell of a name may differ; None for all others."""
    return next((reason for pattern, reason in _CLASSES.items() if re.search(pattern, name)), None)
