"""The line that says how much of a model was witnessed."""

from __future__ import annotations

from typing import Any


def describe(witness: dict[str, Any]) -> str:
    """Returns the line for people: ``witnessed: 14 of 14 ops, 61 of 61 kernels, 2026-12-01``."""
    ops, kernels = (f"{witness[f'witnessed_{name}']} of {witness[name]} {name}" for name in ("ops", "kernels"))
    return f"witnessed: {ops}, {kernels}, {witness['date']}"
