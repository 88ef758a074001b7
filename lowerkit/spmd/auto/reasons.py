"""Says why a plan is as it is, a line for each choice."""

from __future__ import annotations

from lowerkit.spmd.auto.trial import Estimate

_WITHOUT_WEIGHTS = ("batch", "sequence")


def why_split(label: str, choice: str, ranks: int, own: Estimate, whole: Estimate | None) -> str:
    """Says what a choice is better in than the same weights whole on every rank.

    Args:
        label: of the modules.
        choice: theirs.
        ranks: that share the weights.
        own: with the choice.
        whole: the same plan without it; None where that cannot be.
    """
    if whole is None:
        return f"({label}) {choice}: the rest of the plan needs it"
    held = (whole.weight_bytes - own.weight_bytes) / (ranks - 1)
    weights = f", {amount(held)}/rank" if held > 0 and choice not in _WITHOUT_WEIGHTS else ""
    return f"({label}) {choice}: {_collectives(own, whole)}, {_time(own, whole)}{weights}"


def why_whole(label: str, own: Estimate, split: Estimate | None, choice: str) -> str:
    """Says what the best split of weights that stay whole is worse in."""
    if split is None:
        return f"({label}) replicate: it cannot be split"
    return f"({label}) replicate: {choice} takes {duration(split.seconds - own.seconds)} more"


def _collectives(own: Estimate, whole: Estimate) -> str:
    saved = whole.collectives - own.collectives
    if not saved:
        return "as many collectives as replicate"
    return f"{abs(saved)} collective{'s' if abs(saved) > 1 else ''} {'fewer' if saved > 0 else 'more'} than replicate"


def _time(own: Estimate, whole: Estimate) -> str:
    saved = whole.seconds - own.seconds
    return f"{duration(abs(saved))} {'faster' if saved >= 0 else 'slower'}"


def amount(held: float) -> str:
    """Returns bytes for people: ``4.2 MB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if held >= size:
            return f"{held / size:.1f} {unit}"
    return f"{held:.0f} B"


def duration(seconds: float) -> str:
    """Returns a time for people: ``3.1 ms``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 1e-9:.1f} ns"
