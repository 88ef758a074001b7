"""The arrows between folders hold, passes are where their names say, and nothing heavy is imported early."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from lowerkit.passes.registry import find_pass, pass_names

ROOT = Path(__file__).resolve().parents[2]
# From top to bottom: no file imports what stands higher. A file belongs to the longest path that fits it.
LAYERS = (
    ("lowerkit/cli", "lowerkit/__main__.py"),
    ("lowerkit/torch_backend", "lowerkit/serving"),  # users of the whole path
    ("lowerkit/__init__.py",),
    ("lowerkit/bench", "lowerkit/conformance", "lowerkit/quantization"),
    ("lowerkit/parity",),
    ("lowerkit/compiler.py",),
    ("lowerkit/compiled.py",),
    ("lowerkit/spmd/sharding.py", "lowerkit/spmd/auto"),  # drive the passes that split a program
    ("lowerkit/pipeline.py",),
    ("lowerkit/c_interface",),
    ("lowerkit/spmd",),
    ("lowerkit/targets/cuda",),  # the kernel text of its floor is that of the CPU's generic family
    ("lowerkit/targets/cpu",),
    ("lowerkit/codegen",),
    ("lowerkit/targets",),  # the contract: what a target is asked and answers
    ("lowerkit/capture",),
    ("passes",),
    ("lowerkit/program",),
    ("lowerkit/dialect",),
    ("lowerkit/artifact", "lowerkit/distributed", "lowerkit/launching"),
    ("runtimes",),
    ("lowerkit",),  # errors, the door to MLIR, worker processes, caches
)
FOLDERS = ("lowerkit", "passes", "runtimes", "tests", "tools", "docs")
MOST_FILES = 25
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


def source_files() -> list[str]:
    """Returns every Python file of the package, each once, from the root."""
    roots = (ROOT / "lowerkit", ROOT / "passes", ROOT / "runtimes")
    return sorted({str(path.resolve().relative_to(ROOT)) for root in roots for path in root.rglob("*.py")})


def layer(path: str) -> int:
    fitting = [(len(part), -number) for number, parts in enumerate(LAYERS) for part in parts if _is_in(path, part)]
    return -max(fitting)[1]


def _is_in(path: str, part: str) -> bool:
    return path == part or path.startswith(f"{part}/")


@cache
def imported_files(path: str) -> set[str]:
    """Returns the files of the package that a file imports, wherever in it."""
    found: set[str | None] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found |= {file_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {file_of(f"{node.module}.{alias.name}") or file_of(node.module) for alias in node.names}
    return {file for file in found if file is not None} - {path}


def file_of(module: str) -> str | None:
    stem = module.replace(".", "/")
    candidates = [ROOT / name for name in (f"{stem}.py", f"{stem}/__init__.py") if stem.startswith("lowerkit")]
    return next((str(path.resolve().relative_to(ROOT)) for path in candidates if path.is_file()), None)


def test_no_file_imports_what_stands_higher() -> None:
    files = source_files()
    upward = {(file, other) for file in files for other in imported_files(file) if layer(other) < layer(file)}
    assert not upward


def test_no_circle_of_imports_beyond_a_pair_of_files() -> None:
    graph = {file: set(imported_files(file)) for file in source_files()}
    reached: dict[str, set[str]] = {}
    for file in graph:
        seen, todo = set[str](), [file]
        while todo:
            new = graph[todo.pop()] - seen
            seen |= new
            todo += new
        reached[file] = seen
    circles = {tuple(sorted(other for other in reached[file] if file in reached[other])) for file in graph}
    assert not [circle for circle in circles if len(circle) > 2]


def test_no_folder_holds_too_many_files() -> None:
    files = {path.resolve() for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()}
    folders = Counter(path.parent.relative_to(ROOT) for path in files if path.parent.name != "__pycache__")
    assert not {str(folder): count for folder, count in folders.items() if count > MOST_FILES}


def test_runtimes_import_nothing_heavy() -> None:
    for path in (ROOT / "runtimes").rglob("*.py"):
        roots = {name.partition(".")[0] for name in imported_modules(path)}
        assert not roots & FOREIGN_TO_RUNTIMES, path
        ours = {file for file in imported_files(str(path.relative_to(ROOT))) if not file.startswith("runtimes/")}
        assert ours <= {"lowerkit/errors.py"}, path


def test_passes_and_runtimes_are_imported_through_lowerkit() -> None:
    for path in map(ROOT.joinpath, source_files()):
        roots = {name.partition(".")[0] for name in imported_modules(path)}
        assert not roots & {"passes", "runtimes"}, path


def test_only_one_door_to_the_mlir_bindings() -> None:
    allowed = {ROOT / "lowerkit/mlir.py"}
    for path in map(ROOT.joinpath, source_files()):
        if path in allowed:
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
        group = "/".join(pass_class.__module__.split(".")[2:-1])
        assert (ROOT / f"tests/filecheck/{group}/test_{stem}.py").exists(), f"pass {name} has no FileCheck test"
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
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "compile" in result.stdout
