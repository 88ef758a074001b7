"""Bad input: the documented exit code, one diagnostic, no traceback, an earlier output untouched, nothing left over."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.cli.conftest import Outcome, RunCommand

EARLIER = b"an artifact from before"


def write_exported(path: Path) -> None:
    module = torch.nn.Linear(8, 4).eval()
    torch.export.save(torch.export.export(module, (torch.randn(2, 8),)), path)


def cut(path: Path, part: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])


def state_dict(path: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, path)


class Payload:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., int], tuple[list[str]]]:
        return (subprocess.call, (["touch", os.environ["LOWERKIT_TEST_MARK"]],))


def pickle_payload(path: Path) -> None:
    path.write_bytes(pickle.dumps(Payload()))


def torch_payload(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Payload()))
        archive.writestr("model/version", "3")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("this is no model\n")


def cut_exported(path: Path) -> None:
    write_exported(path)
    cut(path, 0.6)


def cut_onnx(path: Path) -> None:
    import onnx

    graph = onnx.parser.parse_graph("g (float[2,8] x) => (float[2,8] y) { y = Relu(x) }")
    onnx.save(onnx.helper.make_model(graph), path)
    cut(path, 0.7)


def foreign_png(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))


BAD_FILES = {
    "empty.pt2": empty,
    "empty.pt": empty,
    "empty.onnx": empty,
    "text.pt2": text,
    "text.pt": text,
    "text.onnx": text,
    "image.onnx": foreign_png,
    "image.pt2": foreign_png,
    "cut.pt2": cut_exported,
    "cut.onnx": cut_onnx,
    "weights.pt": state_dict,
    "payload.pt": pickle_payload,
    "payload2.pt": torch_payload,
    "foreign.xyz": text,
}


def require_clean(outcome: Outcome, codes: tuple[int, ...], folder: Path, before: set[str]) -> None:
    assert outcome.code in codes, (outcome.code, outcome.err)
    assert outcome.err.count("error[") == 1, outcome.err
    assert "Traceback" not in outcome.err
    left = {path.name for path in folder.iterdir()} - before
    assert not left, f"left over: {left}"


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_model_files(
    name: str, tmp_path: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    monkeypatch.setenv("LOWERKIT_TEST_MARK", str(mark))
    path = tmp_path / name
    BAD_FILES[name](path)
    output = tmp_path / "earlier.lk"
    output.write_bytes(EARLIER)
    before = {entry.name for entry in tmp_path.iterdir()}
    outcome = lowerkit_command("compile", path, "--input", "x:2x8:f32", "-o", output)
    require_clean(outcome, (2, 3), tmp_path, before)
    assert output.read_bytes() == EARLIER
    assert not mark.exists(), "a pickle in the file was executed"


def test_missing_file(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("compile", tmp_path / "none.pt2", "--input", "x:2x8:f32")
    require_clean(outcome, (3,), tmp_path, set())
    assert "LK1001" in outcome.err and "none.pt2" in outcome.err


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (["input:2xq:f32"], "takes 2x8"),
        (["input:2x8:f99"], "f99"),
        (["input=@missing.npy"], "missing.npy"),
        (["x"], "x"),
        (["input:2x9:f32"], "2x9"),
        (["no_such:2x8:f32"], "no_such"),
        (["input:2x8:i64"], "i64"),
    ],
)
def test_bad_input_options(inputs: list[str], said: str, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    path = tmp_path / "m.pt2"
    write_exported(path)
    before = {"m.pt2"}
    options = [argument for text_ in inputs for argument in ("--input", text_)]
    outcome = lowerkit_command("compile", path, *options, "-o", tmp_path / "m.lk")
    require_clean(outcome, (2, 3), tmp_path, before)
    assert said in outcome.err


def test_unsupported_ops_are_all_listed_with_their_lines(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    source = tmp_path / "model.py"
    source.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        a = torch.special.bessel_j0(x)\n"
        "        b = torch.special.gammainc(x, x)\n"
        "        return a, b\n"
        "def make():\n"
        "    return Model(), (torch.randn(4, 4),)\n"
    )
    before = {"model.py"}
    outcome = lowerkit_command("compile", f"{source}:make", "-o", tmp_path / "m.lk")
    left = {path.name for path in tmp_path.iterdir()} - before - {"__pycache__"}
    assert outcome.code == 4, outcome.err
    assert outcome.err.count("error[LK4001]") == 1 and not left
    assert "model.py:4" in outcome.err and "model.py:5" in outcome.err


def test_output_problems(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    path = tmp_path / "m.pt2"
    write_exported(path)
    data = path.read_bytes()
    same = lowerkit_command("compile", path, "--input", "input:2x8:f32", "-o", path)
    assert same.code == 2 and "LK1006" in same.err and path.read_bytes() == data
    folder = lowerkit_command("compile", path, "--input", "input:2x8:f32", "-o", tmp_path)
    assert folder.code == 3 and "LK1005" in folder.err
    nowhere = lowerkit_command("compile", path, "--input", "input:2x8:f32", "-o", tmp_path / "no/m.lk")
    assert nowhere.code == 3 and "LK1005" in nowhere.err


def test_unknown_cpu_level_lists_the_known(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    path = tmp_path / "m.pt2"
    write_exported(path)
    outcome = lowerkit_command(
        "compile", path, "--input", "input:2x8:f32", "--target", "cpu:pentium", "-o", tmp_path / "m.lk"
    )
    assert outcome.code == 4 and "LK4003" in outcome.err and "x86-64-v3" in outcome.err


def test_full_disk(tmp_path: Path, lowerkit_command: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    path, output = tmp_path / "m.pt2", tmp_path / "m.lk"
    write_exported(path)
    output.write_bytes(EARLIER)
    before = {"m.pt2", "m.lk"}

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    outcome = lowerkit_command("compile", path, "--input", "input:2x8:f32", "-o", output)
    require_clean(outcome, (7,), tmp_path, before)
    assert output.read_bytes() == EARLIER


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import lowerkit

    folder = tmp_path_factory.mktemp("artifact")
    lowerkit.compile(torch.nn.Linear(8, 4).eval(), (torch.randn(2, 8),)).save(folder / "m.lk")
    return folder / "m.lk"


def test_damaged_and_foreign_artifacts(artifact: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 8), np.float32))
    data = artifact.read_bytes()
    damaged = tmp_path / "damaged.lk"
    cases = [data[: len(data) // 2], b"", b"PK\x05\x06" + bytes(18), data[:-1], bytes(len(data))]
    for case in cases:
        damaged.write_bytes(case)
        outcome = lowerkit_command("run", damaged, "--input", f"input=@{tmp_path}/x.npy")
        assert outcome.code == 3 and "error[LK" in outcome.err and "Traceback" not in outcome.err, outcome


def test_wrong_inputs_of_an_artifact_are_all_listed(artifact: Path, lowerkit_command: RunCommand) -> None:
    outcome = lowerkit_command("run", artifact, "--input", "wrong:2x8:f32")
    assert outcome.code == 2 and "'wrong'" in outcome.err and "'input'" in outcome.err
    shape = lowerkit_command("run", artifact, "--input", "input:3x9:f32")
    assert shape.code in (2, 3, 8) and "LK8004" in shape.err


def test_interrupt_ends_with_130_and_leaves_the_earlier_output(tmp_path: Path) -> None:
    path, output = tmp_path / "m.pt2", tmp_path / "m.lk"
    write_exported(path)
    output.write_bytes(EARLIER)
    # A job in the background of a shell ignores interrupts, and so would a process that it starts.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heed}; from lowerkit.cli.main import main; print('ready', flush=True); main()"
    command = [sys.executable, "-c", code, "compile", str(path), "--input", "input:2x8:f32", "-o", str(output)]
    process = subprocess.Popen([*command, "--no-cache"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)  # the command loads torch and compiles for longer than that
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert output.read_bytes() == EARLIER
    assert {entry.name for entry in tmp_path.iterdir()} == {"m.pt2", "m.lk"}
