"""Where an op came from: the name of its node, its module and the user's source line, out of an MLIR location.

A captured op carries ``NameLoc("node@module.path", child)``; the child is the Python call stack as nested call sites.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lowerkit.mlir import ir

_FRAME = re.compile(r'File "([^"]+)", line ([0-9]+)')


MAXIMUM_LINE = (1 << 31) - 1
_CAPTURE = Path(__file__).parents[1] / "capture"


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
        """The innermost line that is not PyTorch's own, as ``file:line``."""
        for file, line in reversed(self.frames):
            if f"{os.sep}torch{os.sep}" not in file:
                return f"{file}:{line}"
        return f"{self.frames[-1][0]}:{self.frames[-1][1]}" if self.frames else None


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


def is_users_file(file: str) -> bool:
    """Tells whether a frame's file is neither PyTorch's nor generated nor ours."""
    return "/torch/" not in file and not file.startswith("<") and _CAPTURE not in Path(file).parents


def users_line(stack_trace: str | None) -> str:
    """Returns ``file:line`` of the innermost frame that is the user's, ``""`` where there is none."""
    frames = [frame for frame in frames_of_trace(stack_trace) if is_users_file(frame[0])]
    return f"{frames[-1][0]}:{frames[-1][1]}" if frames else ""


def _frames(location: ir.Location) -> list[tuple[str, int]]:
    if isinstance(location, ir.CallSiteLoc):
        return [*_frames(location.caller), *_frames(location.callee)]
    if isinstance(location, ir.FileLineColLoc):
        return [(location.filename, location.start_line)]
    if isinstance(location, ir.NameLoc):
        return _frames(location.child_loc)
    return []
