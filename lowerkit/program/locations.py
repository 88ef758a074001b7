"""Where an op came from: the name of its node, its module and the user's source line, out of an MLIR location.

A captured op carries ``NameLoc("node@module.path", child)``; the child is the Python call stack as nested call sites.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from lowerkit.mlir import ir

MAXIMUM_LINE = (1 << 31) - 1
_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')
_INSTALLED = re.compile(r".*/(?:site|dist)-packages/(?P<inside>.+)", re.DOTALL)
_PACKAGE = Path(__file__).parents[1]
_CAPTURE = _PACKAGE / "capture"


@dataclass(frozen=True)
class Origin:
    """Where an op came from.

    Attributes:
        node: the name of the graph node, ``""`` where unknown.
        module: the path of the module in the model, ``"encoder.layer.0"``, ``""`` at the top or where unknown.
        frames: the Python call stack, outermost first.
    """

    node: str
    module: str
    frames: tuple[tuple[str, int], ...]

    @property
    def source_line(self) -> str | None:
        """The innermost line that is the user's, or else the innermost of all, as ``file:line``."""
        if not self.frames:
            return None
        file, line = _innermost_users(self.frames) or self.frames[-1]
        return f"{file}:{line}"


def origin_of(location: ir.Location) -> Origin:
    """Reads a location; of a fused one, the first part that says anything."""
    if isinstance(location, ir.FusedLoc):
        origins = [origin_of(part) for part in location.locations]
        return next((found for found in origins if found.node or found.frames), Origin("", "", ()))
    if isinstance(location, ir.NameLoc):
        node, _, module = location.name_str.partition("@")
        return Origin(node, module, tuple(_frames(location.child_loc)))
    return Origin("", "", tuple(_frames(location)))


def last_part(location: ir.Location) -> ir.Location:
    """Returns the last part of a fused location: passes fuse in program order."""
    while isinstance(location, ir.FusedLoc):
        location = location.locations[-1]
    return location


def make_location(node: str, module: str, frames: Sequence[tuple[str, int]], context: ir.Context) -> ir.Location:
    """Builds the location of a captured op; the inverse of :func:`origin_of`."""
    files = [ir.Location.file(file, line, col=0, context=context) for file, line in frames]
    if len(files) > 1:
        child = ir.Location.callsite(files[-1], files[-2::-1], context=context)
    else:
        child = files[0] if files else None
    return ir.Location.name(f"{node}@{module}", child, context=context)


def frames_of_trace(stack_trace: str | None) -> list[tuple[str, int]]:
    """Returns the frames of a formatted Python stack trace, outermost first. A model file may state any line."""
    return [(_printable(file), min(int(line[:12]), MAXIMUM_LINE)) for file, line in _FRAME.findall(stack_trace or "")]


def _printable(text: str) -> str:
    """A name without what a terminal would take for a command."""
    return text if text.isprintable() else "".join(part if part.isprintable() else "?" for part in text)


@lru_cache(maxsize=4096)
def is_users_file(file: str) -> bool:
    """Tells whether a frame's file is neither PyTorch's nor generated nor ours."""
    return not file.startswith("<") and inside_torch(file) is None and _CAPTURE not in Path(file).parents


def is_own_code(file: str) -> bool:
    """Tells whether a frame's file is the user's and in no installed package, nor in ours."""
    return is_users_file(file) and inside_packages(file) is None and _PACKAGE not in Path(file).parents


def inside_torch(file: str) -> str | None:
    """Returns the path of PyTorch's own file inside its package, ``"nn/modules/linear.py"``; None for any other file.

    The package is the one that this process imports, or one that is installed on another machine: a model file states
    the paths of the machine that wrote it. Neither is looked up on the disk.
    """
    file = file.replace("\\", "/")
    for folder in _torch_folders():
        if file.startswith(folder):
            return file.removeprefix(folder)
    inside = inside_packages(file) or ""
    return inside.removeprefix("torch/") if inside.startswith("torch/") else None


def inside_packages(file: str) -> str | None:
    """Returns the path of an installed package's file from the package on; None for a file that is not installed."""
    match = _INSTALLED.fullmatch(file.replace("\\", "/"))
    return match["inside"] if match else None


@cache
def _torch_folders() -> tuple[str, ...]:
    """Returns the folder of PyTorch as frames name it, and where links lead to. Imports nothing."""
    spec = find_spec("torch")
    folders = map(Path, (spec and spec.submodule_search_locations) or ())
    return tuple({f"{path.as_posix()}/" for folder in folders for path in (folder, folder.resolve())})


def users_line(stack_trace: str | None) -> str:
    """Returns ``file:line`` of the innermost frame that is the user's, ``""`` where there is none."""
    found = _innermost_users(frames_of_trace(stack_trace))
    return f"{found[0]}:{found[1]}" if found else ""


def _innermost_users(frames: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    return next((frame for frame in reversed(frames) if is_users_file(frame[0])), None)


def _frames(location: ir.Location) -> list[tuple[str, int]]:
    if isinstance(location, ir.CallSiteLoc):
        return [*_frames(location.caller), *_frames(location.callee)]
    if isinstance(location, ir.FileLineColLoc):
        return [(location.filename, location.start_line)]
    if isinstance(location, ir.NameLoc):
        return _frames(location.child_loc)
    return []
