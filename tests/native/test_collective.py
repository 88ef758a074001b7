"""The native tests of the collectives (ranks as threads, over the C interface): built here, and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "runtimes/native/collective"
TESTS = sorted((ROOT / "tests/native/collective").glob("*_test.cpp"))
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The library, compiled once for all tests."""
    folder = tmp_path_factory.mktemp("collective")

    def compile_one(source: Path) -> str:
        target = folder / f"{source.stem}.o"
        compile_with("-c", str(source), "-o", str(target))
        return str(target)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(compile_one, sorted(SOURCES.glob("*.cpp"))))


def compile_with(*arguments: str) -> None:
    assert COMPILER, "a C++ compiler is needed, as for lowerkit itself"
    command = [COMPILER, "-std=c++17", "-O2", "-g", "-Wall", "-Wextra", "-pthread", f"-I{SOURCES}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr


@pytest.mark.parametrize("source", TESTS, ids=lambda path: path.stem)
def test_native(source: Path, objects: list[str], tmp_path: Path) -> None:
    program = tmp_path / source.stem
    compile_with(str(source), *objects, "-o", str(program))
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
