"""The representative regions of all families."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.cuda.proofs import attentions, movements, products, rows, tma_products, windows
from tests.support.cuda.proofs.case import LEVELS, Case

__all__ = ["LEVELS", "all_cases"]


def all_cases() -> Mapping[str, Case]:
    """Returns every case by its title."""
    modules = (products, tma_products, attentions, windows, rows, movements)
    found = {case.title: case for module in modules for case in module.CASES}
    assert len(found) == sum(len(module.CASES) for module in modules), "a title is there twice"
    return found
