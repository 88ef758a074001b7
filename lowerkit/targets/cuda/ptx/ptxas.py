"""Machine code of PTX, where NVIDIA's assembler is found: ``ptxas`` on the path, or in its usual folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from lowerkit.errors import CodegenError
from lowerkit.reproducers import write_reproducer

_USUAL = Path("/usr/local/cuda/bin/ptxas")
_SECONDS = 600
_SHOWN = 5


def find_ptxas() -> Path | None:
    """Returns the assembler; None where there is none."""
    found = shutil.which("ptxas")
    return Path(found) if found else _USUAL if _USUAL.is_file() else None


@lru_cache(maxsize=4)
def version(ptxas: Path) -> str:
    """Returns its version, such as ``13.0``; ``unknown`` where it does not say."""
    try:
        text = subprocess.run(  # noqa: S603 (the user's assembler)
            [str(ptxas), "--version"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    match = re.search(r"release ([\d.]+)", text)
    return match[1] if match else "unknown"


def knows(ptxas: Path, level: str) -> bool:
    """Returns whether the assembler compiles for a level: old ones do not know new cards, nor new ones old cards."""
    return level in _levels(ptxas)


@lru_cache(maxsize=4)
def _levels(ptxas: Path) -> frozenset[str]:
    try:
        text = subprocess.run(  # noqa: S603 (the user's assembler)
            [str(ptxas), "--help"], capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return frozenset()
    return frozenset(re.findall(r"sm_\d+", text))


def assemble(ptxas: Path, ptx: str, level: str) -> bytes:
    """Compiles a module.

    Raises:
        CodegenError: LK5001, the assembler does not take it; names the file with the text.
    """
    with tempfile.TemporaryDirectory(prefix="lowerkit-ptx-") as folder:
        source, target = Path(folder) / "kernels.ptx", Path(folder) / "kernels.cubin"
        source.write_text(ptx)
        command = [str(ptxas), f"--gpu-name={level}", str(source), "--output-file", str(target)]
        try:
            done = subprocess.run(  # noqa: S603 (the user's assembler)
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CodegenError("LK5001", f"{ptxas} could not be run: {error}") from error
        if done.returncode == 0 and target.is_file():
            return target.read_bytes()
    lines = [line.replace(str(source), "kernels.ptx") for line in (done.stderr or done.stdout).splitlines() if line]
    try:
        name = f"lowerkit-kernels-{level}.ptx"
        hint = f"the text is in {write_reproducer(name, ptx, None)}; please report it"
    except OSError as error:
        hint = f"the text could not be written: {error}"
    raise CodegenError(
        "LK5001", f"ptxas {version(ptxas)} does not take the kernels for {level}", details=lines[:_SHOWN], hint=hint
    )
