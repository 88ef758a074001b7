"""For tests of groups: collections that look only at what the tests made."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module")
def few_objects() -> None:
    """Has ``gc.collect()`` pass over all that was there before: torch alone takes half a second each time."""
    gc.collect()
    gc.freeze()
