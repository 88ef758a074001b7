"""Models split among ranks, also along several axes and in stages: the certificate in the artifact is proved again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.artifact.writer import CERTIFICATE_ENTRY
from lowerkit.capture.capture import capture
from lowerkit.compiled import Compiled, CompileOptions
from lowerkit.compiler import compile_program
from lowerkit.errors import ParityError
from lowerkit.parity.check import check_program
from lowerkit.program.program import Program
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.spmd.certificate.binding import check_artifact, read_certificate
from lowerkit.spmd.certificate.certificate import Certificate, CertificateReport, prove_again
from lowerkit.spmd.certificate.facts import Cut
from lowerkit.spmd.sharding import sharding_of
from tests.support.mesh.certified import changed
from tests.support.mesh.quantized import QUANTIZED, quantized
from tests.support.models import symbolic_program, tiny_program


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x + self.down(nn.functional.gelu(self.up(x))), dim=-1)


MLP = {"up": "column", "down": "row"}
GPT2 = {
    "*.c_attn": "column",
    "*.attn.c_proj": "row",
    "*.c_fc": "column",
    "*.mlp.c_proj": "row",
    "*.wte": "vocabulary",
    "*.lm_head": "vocabulary",
}
LLAMA = {
    "*.[qkv]_proj": "column",
    "*.o_proj": "row",
    "*.gate_proj": "column",
    "*.up_proj": "column",
    "*.down_proj": "row",
    "*.embed_tokens": "vocabulary",
    "*.lm_head": "vocabulary",
}
MOBILENET = {
    "*.expand_1x1.convolution": "column",
    "*.conv_3x3.convolution": "column",
    "*.reduce_1x1.convolution": "row",
}
STAGES = {"*.layers.0*": 0, "*.layers.1*": 1, "*.lm_head": 1}


def compiled(name: str, mesh: str, plan: Any, **options: Any) -> Compiled:
    if name == "mlp":
        return lowerkit.compile(Mlp().eval(), (torch.randn(4, 16),), mesh=mesh, shard=plan, **options)
    if name == "int8":
        return lowerkit.compile(*quantized(), mesh=mesh, shard=plan, **options)
    program = tiny_program(name)
    return compile_program(program, CompileOptions(sharding=sharding_of(mesh, plan, program, **options)))


def proved(made: Compiled, path: Path) -> tuple[CertificateReport, Certificate]:
    made.save(path)
    report = check_artifact(path, required=True)
    assert report is not None
    opened = open_artifact(path)
    try:
        return report, read_certificate(opened.entry_bytes(CERTIFICATE_ENTRY).tobytes())
    finally:
        opened.close()


CASES: list[Any] = [
    ("mlp", "tp=2", MLP, {"all_reduce": 1}),
    pytest.param("mlp", "tp=4", MLP, {"all_reduce": 1}, marks=pytest.mark.exhaustive),
    ("mlp", "dp=2,tp=2", {"dp": {"x": "batch"}, "tp": MLP}, {"all_reduce": 1, "all_gather": 1}),
    ("gpt2", "tp=2", GPT2, {"all_reduce": 5, "all_gather": 1}),
    pytest.param("llama", "tp=2", LLAMA, {"all_reduce": 5, "all_gather": 1}, marks=pytest.mark.exhaustive),
    ("llama", "tp=4", LLAMA, {"all_reduce": 5, "all_gather": 5}),
    pytest.param(
        *("llama", "dp=2,tp=2", {"dp": {"*ids": "batch"}, "tp": LLAMA}, {"all_reduce": 5, "all_gather": 2}),
        marks=pytest.mark.exhaustive,
    ),
    ("mobilenet_v2", "dp=2", {"*": "batch"}, {"all_gather": 1}),
    ("mobilenet_v2", "tp=2", MOBILENET, {"all_reduce": 17}),
    ("int8", "tp=2", QUANTIZED, {"all_reduce": 1, "all_gather": 1}),
    ("int8", "dp=2,tp=2", {"dp": {"x": "batch"}, "tp": QUANTIZED}, {"all_reduce": 1, "all_gather": 2}),
]


@pytest.mark.parametrize(("name", "mesh", "plan", "kinds"), CASES)
def test_what_the_ranks_compute_is_proved(
    name: str, mesh: str, plan: Any, kinds: dict[str, int], tmp_path: Path
) -> None:
    report, certificate = proved(compiled(name, mesh, plan), tmp_path / "m.lk")
    assert report.mesh == mesh
    assert not report.invariant
    (place,) = certificate.meetings
    assert Counter(meeting.kind for meeting in place.meetings) == kinds
    assert report.collectives == sum(kinds.values())
    assert all(meeting.place for meeting in place.meetings)
    places = {place for graph in certificate.graphs for place in graph.places}
    assert any(".py:" in place for place in places)
    assert not any(place.startswith("/") for place in places), "nothing is said of the machine"


def test_stages_are_proved(tmp_path: Path) -> None:
    plan = {"dp": {"*ids": "batch"}, "pp": STAGES, "tp": LLAMA}
    report, certificate = proved(compiled("llama", "dp=2,pp=2,tp=2", plan), tmp_path / "m.lk")
    assert report.ranks == 8
    assert certificate.stages is not None
    assert [place.place for place in certificate.meetings] == [{"pp": 0}, {"pp": 1}]
    assert certificate.stages.order[0] == "0 -> 1"
    assert certificate.stages.order[-1] == "1 -> all"
    kinds = [Counter(meeting.kind for meeting in place.meetings) for place in certificate.meetings]
    assert kinds[0]["send"] == kinds[1]["receive"] > 0
    assert {meeting.axis for place in certificate.meetings for meeting in place.meetings} == {"dp", "pp", "tp"}


def test_micro_batches_are_proved(tmp_path: Path) -> None:
    """The program is written once for each part of the batch, which is a step of the proof."""
    plan = {"pp": {"up": 0, "down": 1, "micro-batches": 2}}
    report, certificate = proved(compiled("mlp", "pp=2", plan), tmp_path / "m.lk")
    assert [(step.axis, step.ranks) for step in certificate.axes] == [("", 1)]
    assert "take" in certificate.axes[0].lemmas
    assert certificate.stages is not None
    assert certificate.stages.order == ["0 -> 1", "0 -> 1", "1 -> all"]
    assert report.collectives == 3


def test_micro_batches_of_a_weight_as_long_as_the_batch_are_proved(tmp_path: Path) -> None:
    """ViT's class token and its mask are constants with a row for each image: each micro-batch reads its rows."""
    stages = {"*.embeddings*": 0, "*.layers.0*": 0, "*.layers.1*": 1, "*.layernorm": 1, "*.classifier": 1}
    plan = {"pp": {**stages, "micro-batches": 2}}
    checked = check_program(tiny_program("vit_b16"), per_op=False, sharding=sharding_of("pp=2", plan))
    assert checked.passed, [row.verdict.reason for row in checked.outputs]
    _, certificate = proved(compiled("vit_b16", "pp=2", plan), tmp_path / "m.lk")
    (step,) = certificate.axes
    cuts = [(number, fact) for number, fact in enumerate(step.facts) if isinstance(fact, Cut)]
    assert step.lemmas.count("cut") == len(cuts) > 0
    tokens = [(number, cut) for number, cut in cuts if "cls_token" in cut.source]
    assert [cut.starts for _, cut in tokens] == [[0, 0, 0], [1, 0, 0]]
    (first, cut), (second, _) = tokens
    swapped = changed(certificate, f"axes.0.facts.{first}.starts", [1, 0, 0])
    for other in (swapped, changed(swapped, f"axes.0.facts.{second}.starts", [0, 0, 0])):
        with pytest.raises(ParityError, match="LK6004"):
            prove_again(other)
    shared = {**certificate.shared, cut.symbol: [""]}
    with pytest.raises(ParityError, match="to be the same for all ranks, and to be shared"):
        prove_again(changed(certificate, "shared", shared))


class Biased(nn.Module):
    """Each row of the batch has a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 16))
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(x + self.bias)


@pytest.mark.parametrize("mesh", ["pp=2", "pp=2,tp=2"])
@pytest.mark.parametrize("parts", [2, 4])
def test_rows_of_a_weight_that_differ_reach_their_micro_batch(mesh: str, parts: int, tmp_path: Path) -> None:
    module, inputs = Biased().eval(), (torch.randn(4, 16),)
    plan: dict[str, Any] = {"pp": {"mlp.up": 0, "mlp.down": 1, "micro-batches": parts}}
    if "tp" in mesh:
        plan["tp"] = {"mlp.up": "column", "mlp.down": "row"}
    checked = check_program(capture(module, inputs), per_op=False, sharding=sharding_of(mesh, plan))
    assert checked.passed, [row.verdict.reason for row in checked.outputs]
    _, certificate = proved(lowerkit.compile(module, inputs, mesh=mesh, shard=plan), tmp_path / "m.lk")
    starts = [fact.starts for fact in certificate.axes[0].facts if isinstance(fact, Cut)]
    assert starts == [[part * 4 // parts, 0] for part in range(parts)]


def test_checks_of_token_ids_in_each_micro_batch_are_proved(tmp_path: Path) -> None:
    """The check of all ids becomes one of each part; the ranks along tp make each of them on whole parts."""
    ends = {"*.embed_tokens": 0, "*.norm": 1}
    plan = {"pp": {**STAGES, **ends, "micro-batches": 2}, "tp": LLAMA}
    _, certificate = proved(compiled("llama", "pp=2,tp=2", plan), tmp_path / "m.lk")
    assert [(step.axis, step.ranks) for step in certificate.axes] == [("", 1), ("tp", 2)]
    lemmas: list[list[str]] = []
    for step in certificate.axes:
        graph = certificate.graphs[step.after]
        names = [graph.forms[op.form].name for op in graph.ops]
        lemmas.append([how for name, how in zip(names, step.lemmas, strict=False) if name == "lk.check_indices"])
    assert lemmas == [["part", "part"], ["alike", "alike"]]


def test_weights_that_later_stages_compute_of_parts_are_bound(tmp_path: Path) -> None:
    _, certificate = proved(compiled("int8", "tp=2", QUANTIZED), tmp_path / "m.lk")
    shared = [name for name, sources in certificate.derived.items() if any(map(certificate.shared.get, sources))]
    assert shared
    for name in shared:
        assert all(source in certificate.graphs[-1].weights for source in certificate.derived[name])


def test_sums_in_one_order_are_proved(tmp_path: Path) -> None:
    report, certificate = proved(compiled("mlp", "tp=2", MLP, invariant=True), tmp_path / "m.lk")
    assert report.invariant
    assert [(step.axis, len(step.trees)) for step in certificate.axes] == [("", 1), ("tp", 0)]
    said = "(tp=2); 1 sum is that of one device but for the order of additions, which is the same on every mesh"
    assert said in report.render()


def symbolic_mlp() -> Program:
    """Captures a model of batches and sequences of any size."""
    dims = {0: torch.export.Dim("batch", min=1, max=8), 1: torch.export.Dim("length", min=2, max=32)}
    return capture(Mlp().eval(), (torch.randn(2, 5, 16),), dynamic_shapes=(dims,))


@pytest.mark.parametrize(("name", "collectives"), [("mlp", 1), pytest.param("llama", 6, marks=pytest.mark.exhaustive)])
def test_a_symbolic_batch_and_length_are_proved(name: str, collectives: int, tmp_path: Path) -> None:
    """The bytes of collectives are compared with the steps for all sizes."""
    program, plan = (symbolic_mlp(), MLP) if name == "mlp" else (symbolic_program(name), LLAMA)
    made = compile_program(program, CompileOptions(sharding=sharding_of("tp=2", plan)))
    report, certificate = proved(made, tmp_path / "m.lk")
    assert report.collectives == collectives
    first = certificate.meetings[0].meetings[0]
    assert not isinstance(first.given, int)


def test_each_op_that_is_left_out_is_missed(tmp_path: Path) -> None:
    """A collective, a weight and a product of the program of the ranks become the op in front of them of their type."""
    _, certificate = proved(compiled("llama", "tp=2", LLAMA), tmp_path / "m.lk")
    graph = certificate.graphs[1]
    refused = 0
    for number, op in enumerate(graph.ops):
        kind = graph.forms[op.form].name
        if kind not in ("lk.collective_done", "lk.matmul", "lk.attention", "linalg.generic"):
            continue
        value = graph.starts[number]
        same = [each for each in range(value) if graph.value_types[each] == graph.value_types[value]]
        readers = [
            (place, where)
            for place, reader in enumerate(graph.ops)
            for where, operand in enumerate(reader.operands)
            if operand == value
        ]
        if not same or not readers:
            continue
        other = certificate
        for place, where in readers:
            other = changed(other, f"graphs.1.ops.{place}.1.{where}", same[-1])
        with pytest.raises(ParityError):
            prove_again(other)
        refused += 1
    assert refused >= 20
    assert prove_again(msgspec.json.decode(msgspec.json.encode(certificate), type=Certificate)) == certificate.meetings
