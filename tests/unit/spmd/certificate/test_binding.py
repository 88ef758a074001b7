"""The certificate in an artifact is that of its steps: other collectives, another order or other parts are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from click.testing import CliRunner
from msgspec.structs import replace
from torch import nn

import lowerkit
from lowerkit.artifact.writer import CERTIFICATE_ENTRY
from lowerkit.cli.main import cli
from lowerkit.errors import ArtifactError, ParityError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.manifest import JUMP_KERNEL, Manifest, ProgramSpec, Step
from lowerkit.spmd.certificate.binding import certificate_bytes, check_artifact, check_certificate, read_certificate
from lowerkit.spmd.certificate.certificate import Certificate
from tests.support.ranks import PATIENCE


class Twice(nn.Module):
    """Two sums of terms, and a result in slices."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.out = nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(torch.relu(self.up(x)))
        x = torch.softmax(x, -1)
        return self.out(x + self.down(torch.relu(self.up(x))))


PLAN = {"up": "column", "down": "row", "out": "column"}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("certified") / "twice.lk"
    lowerkit.compile(Twice().eval(), (torch.randn(3, 8),), mesh="tp=2", shard=PLAN).save(path)
    return path


@pytest.fixture(scope="module")
def parts(artifact: Path) -> tuple[Certificate, Manifest]:
    opened = open_artifact(artifact)
    try:
        return read_certificate(opened.entry_bytes(CERTIFICATE_ENTRY).tobytes()), opened.manifest
    finally:
        opened.close()


def test_the_certificate_of_an_artifact_holds(artifact: Path) -> None:
    report = check_artifact(artifact, required=True)
    assert report is not None
    assert (report.collectives, report.ranks, report.mesh, report.invariant) == (3, 2, "tp=2", False)
    assert "3 collectives in one order on 2 ranks (tp=2);" in report.render()


def collectives(program: ProgramSpec) -> list[int]:
    return [number for number, step in enumerate(program.steps) if step.collective is not None]


def on_step(which: int, change: Callable[[Step], Step]) -> Callable[[ProgramSpec], ProgramSpec]:
    """Changes a collective step."""

    def apply(program: ProgramSpec) -> ProgramSpec:
        steps = list(program.steps)
        number = collectives(program)[which]
        steps[number] = change(steps[number])
        return replace(program, steps=steps)

    return apply


def called(**changes: object) -> Callable[[Step], Step]:
    def change(step: Step) -> Step:
        assert step.collective is not None
        return replace(step, collective=replace(step.collective, **changes))

    return change


def without(program: ProgramSpec) -> ProgramSpec:
    first = collectives(program)[0]
    return replace(program, steps=[step for number, step in enumerate(program.steps) if number != first])


def twice(program: ProgramSpec) -> ProgramSpec:
    first = collectives(program)[0]
    return replace(program, steps=[*program.steps[: first + 1], *program.steps[first:]])


def swapped(program: ProgramSpec) -> ProgramSpec:
    steps = list(program.steps)
    one, other = collectives(program)[0], collectives(program)[-1]
    steps[one], steps[other] = steps[other], steps[one]
    return replace(program, steps=steps)


def jumped_over(program: ProgramSpec) -> ProgramSpec:
    first = collectives(program)[0]
    jump = Step(JUMP_KERNEL, [], target=first + 2)
    return replace(program, steps=[*program.steps[:first], jump, *program.steps[first:]])


def smaller(program: ProgramSpec) -> ProgramSpec:
    step = program.steps[collectives(program)[0]]
    buffers = list(program.buffers)
    for number in step.buffers:
        buffers[number] = replace(buffers[number], size=32)
    return replace(program, buffers=buffers)


def unshared(program: ProgramSpec) -> ProgramSpec:
    return replace(program, buffers=[replace(buffer, shard="") for buffer in program.buffers])


CHANGES: list[tuple[Callable[[ProgramSpec], ProgramSpec], str]] = [
    (without, "collective 1 of the program"),
    (twice, "collective 2 of the program|4 collectives, 3 were proved"),
    (swapped, "collective 0 of the program"),
    (jumped_over, "jumps across the collective"),
    (smaller, "32 bytes of operand"),
    (unshared, "is shared along no axis"),
    (on_step(0, called(axis="dp")), "has the axis 'dp'"),
    (on_step(0, called(reduction="max")), "has the reduction 'max'"),
    (on_step(1, called(dtype="bf16")), "has the element type 'bf16'"),
    (on_step(2, called(operation="all_to_all")), "has the kind 'all_to_all'"),
    (lambda program: replace(program, mesh=[]), "for other axes than one device"),
    (lambda program: replace(program, place={"tp": 1}), "nothing of the ranks at tp=1"),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_other_steps_are_refused(
    parts: tuple[Certificate, Manifest], change: Callable[[ProgramSpec], ProgramSpec], reason: str
) -> None:
    """Also where whoever changed them has told the certificate so."""
    certificate, manifest = parts
    other = replace(manifest, programs=[change(program) for program in manifest.programs])
    assert other != manifest
    with pytest.raises(ParityError, match="other programs than the artifact holds"):
        check_certificate(msgspec.json.encode(certificate), other)
    with pytest.raises(ParityError, match=reason) as error:
        certificate_bytes(certificate, other)
    assert error.value.code == "LK6004"


def test_the_collectives_that_are_stated_are_those_of_the_programs(parts: tuple[Certificate, Manifest]) -> None:
    certificate, manifest = parts
    (place,) = certificate.meetings
    fewer = replace(certificate, meetings=[replace(place, meetings=place.meetings[1:])])
    with pytest.raises(ParityError, match="collective 0 is"):
        check_certificate(msgspec.json.encode(fewer), manifest)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"mesh": 1}'])
def test_what_is_no_certificate_is_refused(parts: tuple[Certificate, Manifest], data: bytes) -> None:
    with pytest.raises(ParityError, match="cannot be read"):
        check_certificate(data, parts[1])


def test_the_command_says_what_was_proved(artifact: Path) -> None:
    result = CliRunner().invoke(cli, ["verify", str(artifact), "--certificate-only"])
    assert result.exit_code == 0
    assert "ops proved, 3 collectives in one order on 2 ranks" in result.stdout
    result = CliRunner().invoke(cli, ["verify", str(artifact), "--json"])
    document = json.loads(result.stdout)
    assert document["certificate"]["collectives"] == 3
    assert document["passed"]


def test_an_artifact_of_one_device_holds_none(tmp_path: Path) -> None:
    path = tmp_path / "one.lk"
    lowerkit.compile(Twice().eval(), (torch.randn(3, 8),)).save(path)
    assert check_artifact(path, required=False) is None
    result = CliRunner().invoke(cli, ["verify", str(path), "--certificate-only"])
    assert isinstance(result.exception, ParityError)
    assert "holds no certificate" in result.exception.message


def test_a_changed_entry_is_damage(artifact: Path, tmp_path: Path) -> None:
    data = artifact.read_bytes()
    at = data.index(b'"reduction":"sum"')
    changed = tmp_path / "changed.lk"
    changed.write_bytes(data[:at] + data[at:].replace(b'"reduction":"sum"', b'"reduction":"max"', 1))
    result = CliRunner().invoke(cli, ["verify", str(changed), "--certificate-only"])
    assert isinstance(result.exception, ArtifactError)
    assert result.exception.code == "LK8001"


def test_neither_the_compiler_nor_the_weights_are_needed(artifact: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from lowerkit.runtimes.artifact_reader import Artifact\n"
        "def refuse(self): raise AssertionError('the weights are read')\n"
        "Artifact.weights = property(refuse)\n"
        "from lowerkit.spmd.certificate.binding import check_artifact\n"
        f"print(check_artifact(Path({str(artifact)!r}), required=True).render())\n"
        "heavy = {'torch', 'torch_mlir', 'onnx', 'llvmlite', 'lowerkit.passes', 'lowerkit.mlir'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert result.returncode == 0, result.stderr
    assert "3 collectives in one order" in result.stdout
