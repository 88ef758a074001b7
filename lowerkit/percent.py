"""Shares as people read them."""

from __future__ import annotations


def share_text(share: float) -> str:
    """Returns a share, 0 to 1, in percent: a part that is not all, or not nothing, never reads as if it were."""
    for digits in (1, 2):
        text = f"{share:.{digits}%}"
        if float(text[:-1]) not in (0, 100):
            return text
    if share in (0, 1):
        return f"{share:.0%}"
    return "less than 0.01%" if share < 0.5 else "more than 99.99%"
