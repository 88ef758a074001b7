"""What the witness found, kept on disk: a verdict holds until the op, what lowers it or PyTorch changes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from lowerkit.disk_cache import DiskCache

VerdictName = Literal["same", "known", "differs", "refused", "left out"]
"""``same`` as the witness; ``known``: differs where eager itself is wrong; ``refused``: not lowered alone, so that
nothing was compared; ``left out``: not run, for a reason that is said."""

_LIMIT = 1 << 26


class Difference(msgspec.Struct, frozen=True):
    """One case in which ours is not what the witness gives: the case, and both values in a line."""

    case: str
    text: str


class Witnessed(msgspec.Struct, frozen=True):
    """The verdict on one op or kernel.

    Attributes:
        name: ``aten.add.Tensor``, or the kind of a region.
        operands: element types and extents; open ones are names.
        verdict: see :data:`VerdictName`.
        cases: how many were compared, by kind: ``values``, ``extents``, ``special``.
        differences: the first of each kind.
        reason: of what is known, refused or left out.
        places: lines of the model, or nodes, at which it stands.
    """

    name: str
    operands: str
    verdict: VerdictName
    cases: dict[str, int] = {}
    differences: list[Difference] = []
    reason: str = ""
    places: list[str] = []


class VerdictCache(DiskCache):
    """Verdicts by op, or kernel, and version."""

    def __init__(self, folder: Path | None = None, limit: int = _LIMIT) -> None:
        super().__init__("verdict", folder, limit)

    def find(self, key: str) -> Witnessed | None:
        """Returns a verdict that holds still."""
        data = self.get(_digest(key))
        return None if data is None else msgspec.json.decode(data, type=Witnessed)

    def keep(self, key: str, verdict: Witnessed) -> None:
        """Stores a verdict."""
        self.put(_digest(key), msgspec.json.encode(verdict))


def _digest(key: str) -> str:
    return hashlib.sha256(f"{version()}\0{key}".encode()).hexdigest()


@cache
def version() -> str:
    """Sha-256 (hex) of everything that a verdict hangs on: our sources, and the versions of what they call."""
    package = Path(__file__).resolve().parents[2]
    hasher = hashlib.sha256(sys.version.encode())
    for name in ("torch", "torch-mlir", "numpy", "onnx"):
        try:
            hasher.update(f"{name} {importlib.metadata.version(name)}\0".encode())
        except importlib.metadata.PackageNotFoundError:
            continue
    folders = ("capture", "codegen", "dialect", "parity", "program", "quantization", "targets", "passes")
    inner = (path for folder in folders for path in (package / folder).glob("**/*.py"))
    for source in sorted([*package.glob("*.py"), *inner]):
        hasher.update(f"{source.relative_to(package)}\0".encode() + source.read_bytes())
    return hasher.hexdigest()
