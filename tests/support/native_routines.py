"""Code images of the tests, loaded by the runtime's own loader; and its support routines as functions."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from lowerkit.runtimes import _native
from tests.support.handmade_code import PAGE, HandmadeImage


def load(tmp_path: Path, image: HandmadeImage, offset: int = 0, from_file: bool = False) -> _native.CodeImage:
    path = tmp_path / "code.bin"
    path.write_bytes(bytes(offset) + image.data)
    with path.open("rb") as file:
        loaded = _native.CodeImage(file.fileno(), offset, len(image.data))
        assert loaded.bytes().tobytes() == image.data
        loaded.link(file.fileno(), image.imports, image.import_table_offset, from_file)
    return loaded


class Routines:
    """Support routines, called through an import table as compiled code does."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        # One thunk a routine: jmp [rip + disp] into the table on the second page.
        code = b"".join(b"\xff\x25" + (PAGE + 8 * i - (6 * i + 6)).to_bytes(4, "little") for i in range(len(names)))
        image = HandmadeImage(code.ljust(PAGE, b"\xcc") + bytes(PAGE), (), tuple(names), PAGE)
        self.image = load(folder, image)
        self.offsets = {name: 6 * i for i, name in enumerate(names)}

    def get(self, name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(self.image.entry(self.offsets[name]))
