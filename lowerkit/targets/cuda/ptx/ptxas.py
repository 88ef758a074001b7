"""Machine code of PTX, where NVIDIA's assembler is found: ``ptxas`` on the path, or in its usual folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import msgspec

from lowerkit.errors import CodegenError
from lowerkit.reproducers import file_name, write_reproducer

_USUAL = Path("/usr/local/cuda/bin/ptxas")
_SECONDS = 600
_SHOWN = 5
_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill stores")
_SHARED = re.compile(r"(\d+) bytes smem")


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


class MachineCode(msgspec.Struct, frozen=True):
    """What the assembler made of a module of one kernel.

    Attributes:
        cubin: the machine code.
        registers: of a thread.
        spills: bytes that a thread stores because registers ran out.
        shared: bytes of static shared memory of a block.
        serialized: whether products of warp groups wait for one another, since ptxas could not follow their registers.
    """

    cubin: bytes
    registers: int
    spills: int
    shared: int
    serialized: bool = False


def assemble(ptxas: Path, ptx: str, level: str) -> MachineCode:
    """Compiles a module of one kernel.

    Raises:
        CodegenError: LK5001, the assembler does not take it; names the file with the text.
    """
    bound = re.search(r"^\.target (sm_\w+)", ptx, re.MULTILINE)
    name = bound[1] if bound is not None and bound[1].rstrip("af") == level else level
    with tempfile.TemporaryDirectory(prefix="lowerkit-ptx-") as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [str(ptxas), "--verbose", f"--gpu-name={name}", str(source), "--output-file", str(target)]
        try:
            done = subprocess.run(  # noqa: S603 (the user's assembler)
                command, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CodegenError("LK5001", f"{ptxas} could not be run: {error}") from error
        if done.returncode == 0 and target.is_file():
            said = done.stdout + done.stderr
            registers, spills, shared = (_number(pattern, said) for pattern in (_REGISTERS, _SPILLS, _SHARED))
            return MachineCode(
                target.read_bytes(), registers, spills, shared, "wgmma.mma_async instructions are" in said
            )
    lines = [line.replace(str(source), "kernel.ptx") for line in (done.stderr or done.stdout).splitlines() if line]
    try:
        where = write_reproducer(file_name(f"kernel-{level}", ptx).removesuffix(".mlir") + ".ptx", ptx, None)
        hint = f"the text is in {where}; please report it"
    except OSError as error:
        hint = f"the text could not be written: {error}"
    raise CodegenError(
        "LK5001", f"ptxas {version(ptxas)} does not take a kernel for {level}", details=lines[:_SHOWN], hint=hint
    )


def _number(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.search(text)
    return int(match[1]) if match else 0
