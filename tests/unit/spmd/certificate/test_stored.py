"""What a certificate states of weights is checked in the bytes of the artifact, where it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from msgspec.structs import replace
from torch import nn

import lowerkit
from lowerkit.artifact.writer import CERTIFICATE_ENTRY
from lowerkit.cli.main import cli
from lowerkit.errors import ParityError
from lowerkit.runtimes.artifact_reader import Artifact, open_artifact
from lowerkit.spmd.certificate.binding import check_artifact, read_certificate
from lowerkit.spmd.certificate.stored.in_bytes import check_facts
from tests.support.mesh.certified import changed

Array = np.ndarray[Any, Any]
PLAN = {"dp": {"ids": "batch"}, "tp": {"table": "vocabulary", "head": "vocabulary", "down": "row"}}


class Words(nn.Module):
    """A table of 13 rows, and a product with 13 outputs: neither divides by two. Nor do 20 features by eight."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.down, self.head = nn.Embedding(13, 20), nn.Linear(20, 16), nn.Linear(16, 13, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.down(self.table(ids))))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("stored") / "m.lk"
    ids = torch.tensor([[1, 12, 3], [0, 7, 11]])
    lowerkit.compile(Words().eval(), (ids,), mesh="dp=2,tp=2", shard=PLAN, invariant=True).save(path)
    return path


def with_bytes(artifact: Path, name: str, change: Callable[[Array], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the facts where a stored weight, the first whose name begins so, holds other numbers."""
    opened = open_artifact(artifact)
    tensor = next(tensor for key, tensor in opened.weights.items() if key.startswith(name))
    certificate = read_certificate(opened.entry_bytes(CERTIFICATE_ENTRY).tobytes())
    read = Artifact.weight_bytes

    def other(own: Artifact, offset: int, size: int) -> Array:
        data = read(own, offset, size)
        if offset != tensor.begin:
            return data
        copy = np.array(data)
        change(copy.view({"I64": np.int64, "F32": np.float32}[tensor.dtype]))
        return copy

    monkeypatch.setattr(Artifact, "weight_bytes", other)
    check_facts(certificate, opened)


def test_tables_and_padding_are_checked(artifact: Path) -> None:
    report = check_artifact(artifact, required=True, reads_weights=True)
    assert report is not None
    assert report.checked is not None
    assert report.checked == report.facts > 5
    assert f"the bytes of {report.checked} of {report.facts} weights are what is stated" in report.render()
    assert check_artifact(artifact, required=True) == replace(report, checked=None)


def test_a_table_with_another_row_is_refused(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(data: Array) -> None:
        data[1] = 6

    with pytest.raises(ParityError, match=r"'first_row@tp' of rank 1 has 6 at 0, stated is 7") as caught:
        with_bytes(artifact, "first_row@tp", change, monkeypatch)
    assert caught.value.code == "LK6004"


@pytest.mark.parametrize("name", ["table.weight@tp", "head.weight@tp", "down.weight@chunks"])
def test_padding_that_is_no_zeros_is_refused(artifact: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the layout of a kernel, too: what is padded there is known by the facts alone."""

    def change(data: Array) -> None:
        data[data == 0] = 1.0

    with pytest.raises(ParityError, match=f"the weight '{name}.* other numbers than zeros"):
        with_bytes(artifact, name, change, monkeypatch)


@pytest.mark.parametrize("name", ["table.weight@tp", "head.weight@tp", "down.weight@chunks"])
def test_parts_of_another_weight_are_refused(artifact: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(data: Array) -> None:
        data[np.flatnonzero(data)[:2]] = data[np.flatnonzero(data)[1::-1]]

    root = name.partition("@")[0]
    with pytest.raises(ParityError, match=f"the parts '{name}.*' put together are not the weight '{root}'"):
        with_bytes(artifact, name, change, monkeypatch)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("axes.{step}.facts.{fact}.source", "head.weight@tp.0", "a part of itself"),
        ("axes.{step}.facts.{fact}.kind", "f32[99999999,16]", "put together|stated are"),
        ("axes.{step}.facts.{fact}.axis", 7, "does not fit"),
        ("axes.{step}.ranks", 1 << 40, "stated are"),
    ],
)
def test_facts_that_do_not_fit_are_refused(artifact: Path, path: str, value: Any, reason: str) -> None:
    """The proof is asked before; nothing is trusted all the same."""
    opened = open_artifact(artifact)
    certificate = read_certificate(opened.entry_bytes(CERTIFICATE_ENTRY).tobytes())
    (place,) = (
        (step, fact)
        for step, each in enumerate(certificate.axes)
        for fact, known in enumerate(each.facts)
        if known.symbol == "head.weight@tp.0"
    )
    other = changed(certificate, path.format(step=place[0], fact=place[1]), value)
    with pytest.raises(ParityError, match=reason) as caught:
        check_facts(other, opened)
    assert caught.value.code == "LK6004"


def test_the_command_says_what_is_not_checked(artifact: Path) -> None:
    alone = CliRunner().invoke(cli, ["verify", str(artifact), "--certificate-only"], catch_exceptions=False)
    assert "not checked: what is stated of the bytes of" in alone.output
    both = CliRunner().invoke(cli, ["verify", str(artifact)], catch_exceptions=False)
    assert "weights are what is stated" in both.output
    assert "not checked" not in both.output
