"""Runs the core of the test suite on the oldest, the pinned and the newest PyTorch: python tools/torch_versions.py.

Each version gets an environment of its own in FOLDER/VERSION that borrows every other package, and lowerkit itself,
from the environment that runs this script. What an index calls ``torch`` may be the CUDA build; it is installed without
its four gigabytes of CUDA libraries, and empty ones take their place, in which every function finds no device.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

VERSIONS = ("2.10.0", "2.13.0", "2.15.0")
CORE = (
    "tests/unit/capture/torch_export/test_capture.py", "tests/unit/capture/torch_export/test_load_pt2.py",
    "tests/unit/capture/test_load_model.py", "tests/unit/capture/torch_export/test_functionalize.py",
    "tests/unit/capture/torchscript/test_capture.py", "tests/unit/capture/torch_export/test_operators.py",
    "tests/distributed/torch_backend/test_functions.py",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[1]
_CUDA = re.compile(r"(__cuda|cu|nccl|nvrtc|nvshmem|nvJit)")
_NO_DEVICE = 100  # cudaErrorNoDevice, and CUDA_ERROR_NO_DEVICE


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="such as 2.10.0 2.15.0")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/torch", help="where the environments lie")
    parser.add_argument("--tests", nargs="+", default=CORE, help="what pytest runs")
    arguments = parser.parse_args()
    failed: list[str] = []
    for version in arguments.versions:
        python = environment(arguments.folder / version, version)
        print(f"== torch {version}", flush=True)
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments.tests]
        cache = {"XDG_CACHE_HOME": str(arguments.folder / version / "cache"), "OMP_NUM_THREADS": "1"}
        if subprocess.run(command, cwd=ROOT, env={**os.environ, **cache}, check=False).returncode:
            failed.append(version)
    print("failed: " + ", ".join(failed) if failed else f"passed: {', '.join(arguments.versions)}")
    return len(failed)


def environment(folder: Path, version: str) -> Path:
    """Makes the environment of one version, unless it is there; returns its interpreter."""
    python = folder / "bin/python"
    if (folder / "ready").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, f"torch=={version}"], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    borrow(packages, Path(sysconfig.get_path("purelib")))
    stand_in_for_missing(packages / "torch/lib")
    (folder / "ready").touch()
    return python


def borrow(packages: Path, own: Path) -> None:
    """Lets ``packages`` find those of ``own`` behind its own; the hook of an editable lowerkit is copied."""
    for path in own.glob("*lowerkit*"):
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, packages / path.name)
    (packages / "zz_borrowed.pth").write_text(
        "".join(f"{place}\n" for place in sys.path if place.endswith("-packages"))
    )


def stand_in_for_missing(folder: Path) -> None:
    """Writes a library for each that torch's own need and that is not there; every function in it finds no device."""
    libraries = list(folder.glob("*.so*"))
    installed = _output("ldconfig", "-p")
    needed = {found for path in libraries for found in re.findall(r"NEEDED.*\[(.*)\]", _output("readelf", "-d", path))}
    missing = sorted(needed - {path.name for path in libraries} - set(re.findall(r"^\t(\S+) ", installed, re.M)))
    owners = _owners_of_versions(libraries, missing)
    defined, undefined = _symbols(libraries)
    symbols: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in missing}
    for symbol in undefined - defined:
        name, _, version = symbol.partition("@")
        if version in owners:
            symbols[owners[version]][version].add(name)
        elif missing and not version and name not in defined and _CUDA.match(name):
            symbols[missing[0]][""].add(name)
    for name, versions in symbols.items():
        _build(folder, name, versions)


def _output(*command: object) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def _owners_of_versions(libraries: Sequence[Path], missing: Sequence[str]) -> dict[str, str]:
    """Which missing library defines each symbol version that torch's own ask for."""
    owners: dict[str, str] = {}
    for path in libraries:
        file = ""
        for kind, name in re.findall(r"(File|Name): (\S+)", _output("readelf", "-V", path)):
            file = name if kind == "File" else file
            if kind == "Name" and file in missing:
                owners[name] = file
    return owners


def _symbols(libraries: Sequence[Path]) -> tuple[set[str], set[str]]:
    defined: set[str] = set()
    undefined: set[str] = set()
    for path in libraries:
        for line in _output("nm", "-D", path).splitlines():
            kind, name = line.split()[-2:]
            if kind in "Uw":
                undefined.add(name)
            else:
                defined.add(name.partition("@")[0])
    return defined, undefined


def _build(folder: Path, name: str, versions: dict[str, set[str]]) -> None:
    names = sorted({symbol for group in versions.values() for symbol in group})
    source, script = folder / "stand_in.c", folder / "stand_in.map"
    functions = [
        f"void *{one}(void) {{ return token; }}"
        if one.startswith("__cudaRegister")
        else f"int {one}(void) {{ return {_NO_DEVICE}; }}"
        for one in names
    ]
    source.write_text("\n".join(["static char token[64];", *functions, ""]))
    versioned = {version: group for version, group in versions.items() if version}
    script.write_text(
        "".join(
            f"{version} {{ global: {' '.join(f'{one};' for one in sorted(group))} }};\n"
            for version, group in versioned.items()
        )
    )
    further = [f"-Wl,--version-script={script}"] if versioned else []
    command = ["cc", "-w", "-shared", "-fPIC", "-fno-builtin", str(source), "-o", str(folder / name), *further]
    subprocess.run([*command, f"-Wl,-soname,{name}"], check=True)


if __name__ == "__main__":
    raise SystemExit(main())
