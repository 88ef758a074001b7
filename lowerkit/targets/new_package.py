"""Writes the package that a vendor starts from: a target and a device that work, with their tests."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from pathlib import Path

from lowerkit.errors import InputError, UsageError
from lowerkit.targets.registry import HOST_TARGET
from lowerkit.version import __version__

TEMPLATE = Path(__file__).parent / "template"
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "@NAME@/__init__.py": "__init__.py",
    "@NAME@/py.typed": "",
    "@NAME@/target.py": "target.py",
    "@NAME@/device.py": "device.py",
    "tests/test_@NAME@.py": "test.py",
    ".github/workflows/test.yml": "test.yml",
    ".gitignore": "gitignore",
}
"""Path in the package -> file of the template, whose name ends in ``.in``; an empty file where there is none."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TAKEN = {HOST_TARGET, "cuda", "lowerkit", "numpy", "tests", "torch"} | sys.stdlib_module_names


def write_package(name: str, folder: Path) -> list[Path]:
    """Writes the package of target ``name`` into ``folder``, which must not exist or be empty.

    Returns:
        the files, in the order of the table above.

    Raises:
        UsageError: LK1009, the name cannot be that of a target and of a Python package.
        InputError: LK1005, the folder holds something, or cannot be written; nothing is left behind then.
    """
    _require_name(name)
    words = {"@NAME@": name, "@CLASS@": _class_name(name), "@VERSION@": __version__}
    files = {
        folder / _filled(path, words): _filled((TEMPLATE / f"{source}.in").read_text(), words) if source else ""
        for path, source in _FILES.items()
    }
    is_new = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(
                "LK1005", f"the folder {folder} is not empty", hint="name a folder that does not exist, or an empty one"
            )
        _write(files, folder, is_new)
    except OSError as error:
        hint = "create the folder that it is to stand in, or choose another with --folder"
        raise InputError("LK1005", f"the folder {folder} cannot be written: {error.strerror}", hint=hint) from error
    return list(files)


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            "LK1009",
            f"{name!r} cannot be the name of a target",
            hint="small letters, digits and underscores, a letter first, 63 at most: acme_npu",
        )
    if name in _TAKEN or keyword.iskeyword(name):
        raise UsageError(
            "LK1009",
            f"{name!r} cannot be the name of a target: Python or lowerkit has something of that name",
            hint="choose another one, such as " + f"{name}_npu",
        )


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _filled(text: str, words: dict[str, str]) -> str:
    for marker, word in words.items():
        text = text.replace(marker, word)
    return text


def _write(files: dict[Path, str], folder: Path, is_new: bool) -> None:
    """Writes all files or, where that ends early for whatever reason, none."""
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except BaseException:
        for child in folder.iterdir():
            if child.is_dir():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink(missing_ok=True)
        if is_new:
            folder.rmdir()
        raise
