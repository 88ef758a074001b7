"""Random numbers that are fresh with every change of the code and the same for the same code.

``RANDOM`` is restarted before each test, as Python's, numpy's and torch's own generators are, from the run's seed and
the test's name: a test draws the same numbers alone, in the suite and beside any other. The seed is a hash of the
sources unless ``pytest --seed NUMBER`` gives one, so each change is tried with other numbers, and what passed for one
state of the code does not fail for it elsewhere. ``--seed 0`` draws a new one.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("passes", "runtimes", "lowerkit", "tests", "tools")

RANDOM = np.random.default_rng(0)


def seed_of_sources() -> int:
    """Returns a number that changes with any Python or C++ file of the repository."""
    digest = hashlib.sha256()
    paths = {path.resolve() for folder in SOURCES for path in (ROOT / folder).rglob("*.*")}
    for path in sorted(path for path in paths if path.suffix in {".py", ".cpp", ".h"}):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4], "little") or 1


def restart(seed: int, name: str) -> None:
    """Restarts every generator from ``seed`` and ``name``; torch's only where a test has imported it."""
    drawn = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:4], "little")
    RANDOM.bit_generator.state = np.random.default_rng(drawn).bit_generator.state
    random.seed(drawn)
    np.random.seed(drawn)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(drawn)
