"""Weights that later stages compute of proved ones are shared as these are, or the certificate does not hold."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import lowerkit
from lowerkit.artifact.writer import CERTIFICATE_ENTRY
from lowerkit.errors import ParityError
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.manifest import Manifest
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.certificate.binding import certificate_bytes, check_certificate, read_certificate
from lowerkit.spmd.certificate.certificate import AxisStep, Certificate
from lowerkit.spmd.certificate.derived import SharedAxes, sources_of
from lowerkit.spmd.certificate.graph import Form, Graph, Op
from tests.support.mesh.quantized import QUANTIZED, quantized


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Certificate, Manifest]:
    path: Path = tmp_path_factory.mktemp("derived") / "int8.lk"
    module, inputs = quantized()
    lowerkit.compile(module, inputs, mesh="tp=2", shard=QUANTIZED).save(path)
    opened = open_artifact(path)
    try:
        return read_certificate(opened.entry_bytes(CERTIFICATE_ENTRY).tobytes()), opened.manifest
    finally:
        opened.close()


def derived_and_shared(certificate: Certificate) -> list[str]:
    return [name for name in certificate.derived if SharedAxes(certificate).of(name)]


def test_a_weight_that_is_computed_of_parts_is_shared(parts: tuple[Certificate, Manifest]) -> None:
    certificate, manifest = parts
    names = derived_and_shared(certificate)
    assert names
    assert all(SharedAxes(certificate).of(name) == ["tp"] for name in names)
    stored = {b.weight.partition("|")[0] for program in manifest.programs for b in program.buffers if b.shard}
    assert stored & set(names), "one of them lies in the artifact"
    assert check_certificate(msgspec.json.encode(certificate), manifest).collectives == 2


def test_what_it_is_computed_of_is_told_truly(parts: tuple[Certificate, Manifest]) -> None:
    certificate, manifest = parts
    name = derived_and_shared(certificate)[0]
    changes: dict[str, dict[str, list[str]]] = {
        "is shared along tp, proved is no axis": {**certificate.derived, name: []},
        "is said to be computed of itself": {**certificate.derived, name: ["other"], "other": [name]},
        "nothing is said of the weight 'other'": {**certificate.derived, name: ["other"]},
        f"nothing is said of the weight '{name}'": {
            key: sources for key, sources in certificate.derived.items() if key != name
        },
    }
    for reason, derived in changes.items():
        with pytest.raises(ParityError, match=reason) as error:
            check_certificate(msgspec.json.encode(replace(certificate, derived=derived)), manifest)
        assert error.value.code == "LK6004"


def test_a_part_that_every_rank_would_read_is_refused(parts: tuple[Certificate, Manifest]) -> None:
    """The steps take the stored parts, one behind the other, for a weight that all ranks have."""
    certificate, manifest = parts
    names = derived_and_shared(certificate)
    programs = [
        replace(
            program,
            buffers=[
                replace(each, shard="") if each.weight.partition("|")[0] in names else each for each in program.buffers
            ],
        )
        for program in manifest.programs
    ]
    assert programs != manifest.programs
    with pytest.raises(ParityError, match=r"is shared along no axis, proved is \['tp'\]"):
        certificate_bytes(certificate, replace(manifest, programs=programs))


def certificate_of(weights: list[str], shared: dict[str, list[str]]) -> Certificate:
    forms = [Form("lk.weight", {"symbol": name}) for name in weights]
    graph = Graph(["f32[2]"], forms, ["net.py:1"], [], [Op(at, [], [0]) for at in range(len(weights))], [])
    step = AxisStep("tp", 2, 0, 0, [], [], [])
    return Certificate([MeshAxis("tp", 2)], [], [graph], [step], None, [], shared)


def test_the_axes_are_those_of_all_that_it_is_computed_of() -> None:
    """Through other derived weights, in the order of the sources; a weight that was proved is not looked behind."""
    store = WeightStore()
    for name in ("whole", "model"):
        store.add(name, np.zeros(2, np.float32))
    store.derive("rows", ["model"], lambda x: x)
    store.derive("both", ["model"], lambda x: x)
    store.derive("sum", ["whole", "rows"], np.add)
    store.derive("all", ["sum", "both"], np.add)
    certificate = certificate_of(["whole", "rows", "both"], {"rows": ["tp"], "both": ["dp", "tp"]})
    derived = sources_of(certificate, ["all", "literal", "rows"], store)
    assert derived == {"literal": [], "all": ["sum", "both"], "sum": ["whole", "rows"]}
    axes = SharedAxes(replace(certificate, derived=derived))
    assert [axes.of(name) for name in ("all", "sum", "whole", "literal", "both")] == [
        ["tp", "dp"], ["tp"], [], [], ["dp", "tp"],
    ]  # fmt: skip
    # A name that was proved stays what was proved, whatever is said of it.
    assert SharedAxes(replace(certificate, derived={"rows": []})).of("rows") == ["tp"]
