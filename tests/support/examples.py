"""The examples of docs/distributed as modules. Loads nothing else: ranks that need no torch import this too."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/distributed"


def example(name: str) -> ModuleType:
    """Returns a new module of ``docs/distributed/NAME.py``."""
    specification = importlib.util.spec_from_file_location(f"distributed_{name}", EXAMPLES / f"{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
