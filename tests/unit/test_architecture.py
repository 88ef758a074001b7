"""The arrows between folders hold, passes are where their names say, and nothing heavy is imported early."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from lowerkit.passes.registry import find_pass, pass_names

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "capture": ROOT / "lowerkit/capture",
    "dialect": ROOT / "lowerkit/dialect",
    "artifact": ROOT / "lowerkit/artifact",
    "codegen": ROOT / "lowerkit/codegen",
    "targets": ROOT / "lowerkit/targets",
    "parity": ROOT / "lowerkit/parity",
    "bench": ROOT / "lowerkit/bench",
    "distributed": ROOT / "lowerkit/distributed",
    "passes": ROOT / "passes",
    "runtimes": ROOT / "runtimes",
}
# Folder -> folders that it must not import.
FORBIDDEN = {
    "runtimes": [
        "capture",
        "dialect",
        "artifact",
        "codegen",
        "targets",
        "parity",
        "bench",
        "passes",
        "cli",
        "distributed",
    ],
    "distributed": ["capture", "dialect", "artifact", "codegen", "targets", "parity", "bench", "passes", "cli"],
    "dialect": ["capture", "artifact", "codegen", "targets", "parity", "bench", "passes", "cli"],
    "capture": ["artifact", "codegen", "targets", "parity", "bench", "cli"],
    "passes": ["artifact", "codegen", "targets", "parity", "bench", "cli"],
    "codegen": ["artifact", "parity", "bench", "cli"],
    "targets": ["artifact", "parity", "bench", "cli"],
    "artifact": ["capture", "passes", "parity", "bench", "cli"],
    "parity": ["bench", "cli"],
    "bench": ["cli"],
}
FOREIGN_TO_RUNTIMES = {"torch", "torch_mlir", "onnx", "onnxruntime", "llvmlite", "click", "rich"}


@cache
def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("folder", sorted(FORBIDDEN))
def test_arrows_between_folders(folder: str) -> None:
    offending: list[str] = []
    files = list(FOLDERS[folder].rglob("*.py"))
    assert files
    for path in files:
        for name in imported_modules(path):
            if any(name == f"lowerkit.{other}" or name.startswith(f"lowerkit.{other}.") for other in FORBIDDEN[folder]):
                offending.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not offending, "\n".join(sorted(set(offending)))


def test_runtimes_import_nothing_heavy() -> None:
    for path in FOLDERS["runtimes"].rglob("*.py"):
        roots = {name.partition(".")[0] for name in imported_modules(path)}
        assert not roots & FOREIGN_TO_RUNTIMES, path


def test_passes_and_runtimes_are_imported_through_lowerkit() -> None:
    for path in [*ROOT.glob("lowerkit/**/*.py"), *FOLDERS["passes"].rglob("*.py"), *FOLDERS["runtimes"].rglob("*.py")]:
        roots = {name.partition(".")[0] for name in imported_modules(path)}
        assert not roots & {"passes", "runtimes"}, path


def test_only_one_door_to_the_mlir_bindings() -> None:
    allowed = {ROOT / "lowerkit/mlir.py"}
    for path in [*ROOT.glob("lowerkit/**/*.py"), *FOLDERS["passes"].rglob("*.py")]:
        if path in allowed or ("passes" in path.parts[:-1] and path.is_relative_to(ROOT / "lowerkit")):
            continue
        direct = {name for name in imported_modules(path) if name.split(".")[0] == "torch_mlir"}
        # The importers of torch_mlir.extras are front ends, not bindings: capture subclasses them.
        direct = {name for name in direct if not name.startswith("torch_mlir.extras")}
        assert not direct, f"{path}: {direct}"


def test_every_pass_has_its_name_its_file_and_its_test() -> None:
    assert len(pass_names()) >= 10
    for name in pass_names():
        pass_class = find_pass(name)
        stem = name.replace("-", "_")
        assert pass_class.__module__.rpartition(".")[2] == stem
        assert (ROOT / f"tests/filecheck/test_{stem}.py").exists(), f"pass {name} has no FileCheck test"
        assert (pass_class.__doc__ or "").strip(), name


def test_help_imports_no_heavy_module() -> None:
    heavy = "{'torch', 'torch_mlir', 'numpy', 'onnx', 'llvmlite', 'rich'}"
    code = (
        "import sys; sys.argv = ['lowerkit', '--help']\n"
        "from lowerkit.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as error: assert error.code == 0, error.code\n"
        f"assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "compile" in result.stdout
