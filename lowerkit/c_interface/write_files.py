"""Writes what ``emit-c`` made: ``NAME.o``, ``NAME.h`` and ``example.c``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lowerkit.artifact.atomic_file import replace_file
from lowerkit.c_interface.emit import EmittedC
from lowerkit.errors import InputError


@dataclass(frozen=True)
class CFiles:
    """Where they are."""

    object_file: Path
    header: Path
    example: Path


def write_c(emitted: EmittedC, folder: Path) -> CFiles:
    """Writes the files into ``folder``, which is made where it is missing; each appears whole or not at all.

    Raises:
        InputError: LK1005, the folder cannot be written.
        ResourceError: LK7001, the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("LK1005", f"{folder} cannot be made: {error.strerror or error}") from error
    files = CFiles(folder / f"{emitted.name}.o", folder / f"{emitted.name}.h", folder / "example.c")
    contents = (emitted.object_file, emitted.header.encode(), emitted.example.encode())
    for path, content in zip((files.object_file, files.header, files.example), contents, strict=True):
        with replace_file(path) as file:
            file.write(content)
    return files
