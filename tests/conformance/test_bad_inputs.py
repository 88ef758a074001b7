"""Every bad input: the documented exit code, one diagnostic, no traceback, bounded memory and time, an earlier output
byte-identical, no temporary files.

1 empty file; 2 cut at every 1/16; 3 wrong extension or magic; 4 pickle payload in a .pt; 5 pickle bombs; 6 a global
that the safe unpickler rejects; 7 storage sizes; 8 TorchScript is code; 9 .pt2 with use_pickle; 10 .pt2 with native code;
11 zip bomb; 12 duplicate, overlapping or ../ entries; 13 local headers; 14 to 20 ONNX external data; 21 protobuf over
2 GB; 22 dimension products; 23 negative dims, ranks; 24 a terabyte while folding; 25 cycles; 26 duplicate names;
27 dangling names; 28 If 10,000 deep; 29 a million nodes; 30 opsets; 31 unknown ops; 32 raw_data; 33 dtypes; 34 int4;
35 scales and zero points; 36 names; 37 big-endian data; 39 flipped bits; 40 newer version, other target; 41 full disk,
read-only output; 42 SIGKILL at each write; 43 sixteen writers of one cache entry; 44 poisoned cache entries; 45 Ctrl-C;
50 an input that changes; 51 clock skew; 52 output = input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bad_inputs import archives, artifacts, onnx_files, onnx_graphs
from tests.support.bad_inputs.case import OUTPUT, BadInput
from tests.support.bad_inputs.commands import CommandServer, Outcome

CASES: list[BadInput] = [*archives.CASES, *onnx_files.CASES, *onnx_graphs.CASES, *artifacts.CASES]
EARLIER = b"an artifact from before"


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    server = CommandServer()
    yield server
    server.close()


def contents(folder: Path) -> dict[str, str]:
    """Returns every file below a folder with a digest of what is in it; the bytes of special files are not read."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 30
        found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest() if plain else "special"
    return found


def require_refusal(outcome: Outcome, case: BadInput, arguments: list[str]) -> None:
    shown = f"{arguments}: exit {outcome.code} after {outcome.seconds:.1f} s\n{outcome.err[:2000]}"
    assert outcome.code == case.exit_code, shown
    assert "Traceback" not in outcome.err, shown
    if case.exit_code:
        assert outcome.err.count("error[LK") == 1 and outcome.err.startswith("error[LK"), shown
        assert any(f"error[{code}]" in outcome.err for code in case.says), shown
        assert len(outcome.err) < 20_000, shown
    assert outcome.seconds < case.seconds, shown


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_refused(case: BadInput, tmp_path: Path, server: CommandServer) -> None:
    folder, logs = tmp_path / "work", tmp_path / "logs"
    folder.mkdir()
    commands = case.make(folder)
    (folder / OUTPUT).write_bytes(EARLIER)
    before = contents(folder)
    for number, arguments in enumerate(commands):
        limits = {"megabytes": case.megabytes, "seconds": case.seconds, "file_bytes": case.file_bytes}
        (outcome,) = server.run([arguments], folder, logs / str(number), **limits)
        require_refusal(outcome, case, arguments)
        left = contents(folder)
        if case.exit_code == 0:
            left[OUTPUT] = before[OUTPUT]  # it was compiled
        assert left == before, arguments
        assert not list((logs / str(number) / "temporary").iterdir()), arguments
        assert not (folder / archives.MARK).exists(), "a pickle was executed"


def test_the_numbers_are_all_there() -> None:
    here = {case.number for case in CASES} | {41, 42, 43, 44, 45, 50, 51, 52}
    assert here == {*range(1, 38), *range(39, 46), 50, 51, 52}
