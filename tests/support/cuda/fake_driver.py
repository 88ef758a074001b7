"""A libcuda of our own: compiled from ``fake_libcuda.cpp`` against NVIDIA's header, wherever one is found."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lowerkit.runtimes.cuda.libcuda import LibCuda

SOURCE = Path(__file__).parents[2] / "unit" / "runtimes" / "cuda" / "fake_libcuda.cpp"
_USUAL = Path("/usr/local/cuda/include")


def header() -> Path:
    """Returns cuda.h: the one that comes with Triton, or the usual one."""
    spec = importlib.util.find_spec("triton")
    places = [_USUAL]
    if spec is not None and spec.origin is not None:
        places.insert(0, Path(spec.origin).parent / "backends" / "nvidia" / "include")
    found = next((place / "cuda.h" for place in places if (place / "cuda.h").is_file()), None)
    if found is None:
        pytest.skip("there is no cuda.h")
    return found


def compile_fake(folder: Path) -> str:
    """Returns the path of the library; it does not compile where a function has another prototype than cuda.h says."""
    compiler = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    target = folder / "libfakecuda.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wmissing-declarations", "-Werror", f"-I{header().parent}"]
    subprocess.run([*command, "-o", str(target), str(SOURCE)], check=True)
    return str(target)


class Fake:
    """The library, and the driver that opens it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.library = ctypes.CDLL(path)
        self.library.fake_calls.restype = ctypes.c_char_p
        self.library.fake_reset()

    def calls(self) -> list[str]:
        """Returns what was called, in order."""
        text: Any = self.library.fake_calls()
        return text.decode().splitlines()

    def open(self, level: str = "sm_90") -> LibCuda:
        """Returns a driver."""
        return LibCuda(level, self.path)
