"""The collectives from C: the header is C, and the example runs every operation without Python and C++."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lowerkit.runtimes import _collective
from tests.support.ranks import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "runtimes/native/collective/lowerkit_collective.h"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wstrict-prototypes", "-Werror"]

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.mark.parametrize("standard", ["c11", "c17"])
def test_the_header_is_c(standard: str, tmp_path: Path) -> None:
    source = tmp_path / "includes.c"
    source.write_text('#include "lowerkit_collective.h"\n#include "lowerkit_collective.h"\nint none;\n')
    subprocess.run(
        ["cc", f"-std={standard}", *STRICT, "-I", HEADER.parent, "-c", source, "-o", tmp_path / "includes.o"],
        check=True,
    )


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = Path(_collective.__file__).parent
    program = tmp_path_factory.mktemp("ranks") / "ranks"
    command = [
        "cc", "-std=c11", *STRICT, ROOT / "docs/distributed/ranks.c", "-I", HEADER.parent, "-L", library,
        "-llowerkit_collective", f"-Wl,-rpath,{library}", "-o", program,
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize("transport", ["memory", "tcp"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_operation_runs_from_c(size: int, transport: str, ranks: Path) -> None:
    done = subprocess.run([ranks, str(size), transport], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{size} ranks over {transport}: all operations")


def test_the_example_calls_every_operation() -> None:
    """A new operation of the header needs a call in the example."""
    names = re.search(r"typedef enum lk_operation \{(.*?)\}", HEADER.read_text(), re.DOTALL)
    assert names is not None
    example = (ROOT / "docs/distributed/ranks.c").read_text()
    operations = re.findall(r"(LK_\w+) =", names[1])
    assert len(operations) == 11
    assert [name for name in operations if f"call_of({name}," not in example] == []
