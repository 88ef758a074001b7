"""The modules of ``tools/fuzz``, which is no package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[2] / "tools" / "fuzz")


def fuzz_tool(name: str) -> Any:
    """Imports ``tools/fuzz/<name>.py``."""
    sys.path.insert(0, FOLDER)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(FOLDER)
