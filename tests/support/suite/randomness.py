"""Random numbers that are the same in every run, unless another seed is asked for.

``RANDOM`` is restarted before each test, as Python's, numpy's and torch's own generators are, from the run's seed and
the test's name: a test draws the same numbers alone, in the suite and beside any other. ``pytest --seed NUMBER`` gives
others and ``--seed 0`` new ones: a sweep, whose failures are repeated by the number that it prints.
"""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np

SEED = 1702471819
"""Any number would do."""

RANDOM = np.random.default_rng(0)


def restart(seed: int, name: str) -> None:
    """Restarts every generator from ``seed`` and ``name``; torch's only where a test has imported it."""
    drawn = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:4], "little")
    RANDOM.bit_generator.state = np.random.default_rng(drawn).bit_generator.state
    random.seed(drawn)
    np.random.seed(drawn)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(drawn)
