"""Every bad input: the documented exit code, one diagnostic, no traceback, bounded memory and time, an earlier output
byte-identical, no temporary files.

1 empty file; 2 cut at every 1/16; 3 wrong extension or magic; 4 pickle payload in a .pt; 5 pickle bombs; 6 a global
that the safe unpickler rejects; 7 storage sizes; 8 TorchScript is code; 9 .pt2 with use_pickle; 10 .pt2 with native
code; 11 zip bomb; 12 duplicate, overlapping or ../ entries; 13 local headers; 14 to 20 ONNX external data; 21 protobuf
over 2 GB; 22 dimension products; 23 negative dims, ranks; 24 a terabyte while folding; 25 cycles; 26 duplicate names;
27 dangling names; 28 If 10,000 deep; 29 a million nodes; 30 opsets; 31 unknown ops; 32 raw_data; 33 dtypes; 34 int4;
35 scales and zero points; 36 names; 37 big-endian data; 39 flipped bits; 40 newer version, other target; 41 full disk,
read-only output; 42 SIGKILL at each write; 43 sixteen writers of one cache entry; 44 poisoned cache entries;
45 Ctrl-C; 50 an input that changes; 51 clock skew; 52 output = input; 53 a .pt2 that names code; 54
TorchScript that reaches beyond tensors; 55 such files in all commands; 56 ONNX functions that double; 57 trees of
arguments in artifacts.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bad_inputs import archives, artifacts, environment, hostile, onnx_files, onnx_graphs
from tests.support.bad_inputs.case import OUTPUT, BadInput
from tests.support.bad_inputs.commands import CommandServer, Outcome
from tests.support.bad_inputs.files import exported

CASES: list[BadInput] = [
    *(*archives.CASES, *onnx_files.CASES, *onnx_graphs.CASES),
    *(*artifacts.CASES, *environment.CASES, *hostile.CASES),
]
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
    shown = f"{arguments}: exit {outcome.code} after {outcome.seconds:.1f} s of processor time\n{outcome.err[:2000]}"
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
        limits = {"megabytes": case.megabytes, "file_bytes": case.file_bytes}
        (outcome,) = server.run([arguments], folder, logs / str(number), **limits)
        require_refusal(outcome, case, arguments)
        left = contents(folder)
        if case.exit_code == 0:
            left[OUTPUT] = before[OUTPUT]  # it was compiled
        assert left == before, arguments
        assert not list((logs / str(number) / "temporary").iterdir()), arguments
        assert not (folder / archives.MARK).exists(), "a pickle was executed"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a sound model and an earlier output."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "model.pt2").write_bytes(exported())
    (folder / OUTPUT).write_bytes(EARLIER)
    return folder


COMPILE = ["compile", "model.pt2", "-o", OUTPUT]


def test_42_killed_at_each_write(model: Path, tmp_path: Path, server: CommandServer) -> None:
    """The earlier output or the whole new one, and nothing else in the folder."""
    whole, kills, leftovers = artifact_of(model, tmp_path / "whole", server), 0, 0
    for point in range(1, 60):
        (model / OUTPUT).write_bytes(EARLIER)
        (outcome,) = server.run([[*COMPILE, "--no-cache"]], model, tmp_path / f"logs{point}", kill_at=point)
        assert outcome.code in (0, -9), outcome
        assert (model / OUTPUT).read_bytes() in (EARLIER, whole)
        left = sorted(path for path in model.iterdir() if path.name not in (OUTPUT, "model.pt2"))
        # Between the call that names the whole file and the one that renames it there is a hidden file, and no way out.
        leftovers += len(left)
        for path in left:
            assert path.name.startswith(f".{OUTPUT}.") and path.read_bytes() == whole
            path.unlink()
        if outcome.code == 0:
            break
        kills += 1
    assert kills >= 4, "opening, syncing, naming and renaming an artifact are four points at least"
    assert kills < 59 and leftovers <= 1


def artifact_of(folder: Path, logs: Path, server: CommandServer, *more: str) -> bytes:
    """Compiles and returns the artifact."""
    (outcome,) = server.run([[*COMPILE, *more]], folder, logs)
    assert outcome.code == 0, outcome.err
    return (folder / OUTPUT).read_bytes()


def test_43_sixteen_writers_of_one_cache_entry(model: Path, tmp_path: Path, server: CommandServer) -> None:
    commands = [["compile", "model.pt2", "-o", f"out{number}.lk"] for number in range(16)]
    outcomes = server.run(commands, model, tmp_path / "logs")
    assert [outcome.code for outcome in outcomes] == [0] * 16, [outcome.err for outcome in outcomes if outcome.code]
    assert len({(model / f"out{number}.lk").read_bytes() for number in range(16)}) == 1
    assert not list((tmp_path / "logs/cache").rglob("*.tmp"))
    assert not list((tmp_path / "logs/temporary").iterdir())


@pytest.mark.parametrize("poison", ["flip", "cut", "empty", "foreign", "swapped"])
def test_44_poisoned_cache_entries(poison: str, model: Path, tmp_path: Path, server: CommandServer) -> None:
    """They are dropped and made again, never used: the same bytes come out."""
    expected = artifact_of(model, tmp_path / "logs", server)
    entries = [path for path in (tmp_path / "logs/cache").rglob("*") if path.is_file()]
    assert entries
    sound = {path: path.read_bytes() for path in entries}
    for number, path in enumerate(entries):
        data = bytearray(sound[path])
        match poison:
            case "flip":
                data[len(data) // 2] ^= 1
            case "cut":
                data = data[:-1]
            case "empty":
                data.clear()
            case "foreign":
                data = bytearray(b"\x7fELF" + bytes(500))
            case _:  # whole, under another's name
                data = bytearray(sound[entries[number - 1]] if len(entries) > 1 else b"")
        path.write_bytes(data)
    assert artifact_of(model, tmp_path / "logs", server) == expected


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("delay", [0.1, 0.6])
def test_45_interrupted(times: int, delay: float, model: Path) -> None:
    # A job in the background of a shell ignores interrupts, and so would a process that it starts.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; from lowerkit.cli.main import main; print('ready', flush=True); main()"
    command = [sys.executable, "-c", code, *COMPILE, "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=model, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(times):
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        delay = 0.02
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert (model / OUTPUT).read_bytes() == EARLIER
    assert sorted(path.name for path in model.iterdir()) == [OUTPUT, "model.pt2"]


@pytest.mark.parametrize("change", ["truncate", "rewrite", "append", "replace", "remove"])
@pytest.mark.parametrize("kind", ["pt2", "external"])
def test_50_the_input_changes(kind: str, change: str, tmp_path: Path, server: CommandServer) -> None:
    """Once the model is captured, before its weights are read: they are mapped, so a cut file would end the process."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / OUTPUT).write_bytes(EARLIER)
    if kind == "pt2":
        (folder / "model.pt2").write_bytes(exported())
        name, changing = "model.pt2", "model.pt2"
    else:
        name, changing = onnx_files.external_model(folder), "w.bin"
    arguments = ["compile", name, "-o", OUTPUT, "--no-cache"]
    (outcome,) = server.run([arguments], folder, tmp_path / "logs", change=[change, changing])
    assert outcome.code == 3, outcome
    assert outcome.err.count("error[LK1002]") == 1 and "changed while" in outcome.err
    assert (folder / OUTPUT).read_bytes() == EARLIER
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_51_clock_skew(model: Path, tmp_path: Path, server: CommandServer) -> None:
    """Times of files, in the future or before 1980, change no byte and no decision of a cache."""
    expected = artifact_of(model, tmp_path / "logs", server)
    for moment in (4_102_444_800, 1, -10):  # 2100; 1970; 1969
        for path in [model / "model.pt2", model / OUTPUT, *(tmp_path / "logs/cache").rglob("*")]:
            os.utime(path, (moment, moment))
        assert artifact_of(model, tmp_path / "logs", server) == expected
        assert artifact_of(model, tmp_path / "logs", server, "--no-cache") == expected


def test_the_numbers_are_all_there() -> None:
    here = {case.number for case in CASES} | {42, 43, 44, 45, 50, 51}
    assert here == {*range(1, 38), *range(39, 46), *range(50, 58)}
