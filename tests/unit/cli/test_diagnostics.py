"""Every exception becomes one diagnostic and its documented exit code."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import torch

import lowerkit
from lowerkit import errors
from lowerkit.cli.diagnostics import exit_with_diagnostic
from tests.unit.cli.conftest import RunCommand


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.UsageError("LK1004", "cannot be parsed"), 2, "error[LK1004]: cannot be parsed"),
        (errors.InputError("LK1002", "cut"), 3, "LK1002"),
        (errors.CaptureError("LK2001", "no"), 3, "LK2001"),
        (errors.UnsupportedError("LK4001", "ops", details=["aten.foo at m.py:3"]), 4, "aten.foo at m.py:3"),
        (errors.CodegenError("LK5001", "kernel"), 5, "LK5001"),
        (errors.ParityError("LK6001", "differs"), 6, "LK6001"),
        (errors.ResourceError("LK7001", "disk"), 7, "LK7001"),
        (errors.RuntimeFault("LK8003", "cpu"), 8, "LK8003"),
        (OSError(errno.ENOSPC, "No space left on device"), 7, "LK7001"),
        (MemoryError(), 7, "LK7002"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.UsageError("no such option"), 2, "no such option"),
    ],
)
def test_exit_codes(error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        exit_with_diagnostic(error)
    assert caught.value.code == code
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err
    assert captured.out == ""


def test_an_unexpected_exception_is_internal_and_keeps_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        exit_with_diagnostic(ZeroDivisionError("division by zero"))
    assert caught.value.code == 5
    text = capsys.readouterr().err
    assert "LK5002" in text and "Traceback" not in text
    path = Path(text.split("report it with ")[1].strip())
    assert "ZeroDivisionError" in path.read_text()


def test_render_has_op_location_details_and_hint() -> None:
    error = errors.UnsupportedError(
        "LK4001", "two ops", op="aten.foo (f32)", location="model.py:7", details=["one", "two"], hint="rewrite it"
    )
    assert error.render().splitlines() == [
        "error[LK4001]: two ops",
        "  op: aten.foo (f32)",
        "  at: model.py:7",
        "  - one",
        "  - two",
        "  hint: rewrite it",
    ]


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&- 2>&-"])
def test_standard_streams_may_be_closed(closed: str) -> None:
    """Printing goes nowhere then, and not into the first file that is opened."""
    code = "from lowerkit.cli.main import main; import sys; sys.argv = ['lowerkit', 'targets']; main()"
    done = subprocess.run(
        ["bash", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_a_terminal_takes_for_commands_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        exit_with_diagnostic(errors.InputError("LK1002", "entry \x1b]0;title\x07 is cut"))
    assert "entry ?]0;title? is cut" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["complie", "x"], 2, "There is no command 'complie'. Did you mean 'compile'?"),
        (["xyzzy"], 2, "Run 'lowerkit --help' for the list of commands."),
        (["compile", "MODEL.py"], 3, "those without parameters are MODEL.py:make"),
        (["compile", "MODEL.py:nothing"], 3, "its functions are make"),
        (["compile", "MODEL.py:make", "-o", "MODEL.py"], 2, "would overwrite the model"),
        (["compile", "model.tflite"], 3, "model.tflite is a TensorFlow Lite model, not a model in a format that"),
        (["compile", "MODEL.py:make", "--dynamic", "y:0=1..4"], 3, "'y', but the model has no such input"),
        (["run", "missing.lk"], 3, "missing.lk does not exist\n  hint: check the path; artifacts are made by"),
        (["quantize", "MODEL.py:make", "--calib", ".", "-o", "q.lk"], 3, "the calibration file . is a folder"),
    ],
)
def test_common_mistakes_are_answered_in_plain_words(
    words: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lowerkit_command: RunCommand,
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "import torch\n\n\ndef make():\n    return torch.nn.ReLU(), (torch.ones(2, 3),)\n"
    (tmp_path / "MODEL.py").write_text(source)
    (tmp_path / "model.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(64))
    outcome = lowerkit_command(*words)
    assert (outcome.code, said in outcome.err) == (code, True), outcome.err
    assert (tmp_path / "MODEL.py").read_text() == source


def test_a_tensor_in_the_place_of_example_inputs_is_refused_with_the_way_out() -> None:
    x: Any = torch.ones(2, 3)
    with pytest.raises(errors.UsageError, match=r"LK1003.*example_inputs is a Tensor(.|\n)*write \(x,\)"):
        lowerkit.compile(torch.nn.ReLU(), x)


def test_errors_are_an_attribute_of_the_package() -> None:
    code = "import sys, lowerkit; assert lowerkit.errors.LowerkitError; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
