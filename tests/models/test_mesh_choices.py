"""Models split along their batch, their channels and their sequence, against eager on one device by gate A."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lowerkit.errors import UsageError
from lowerkit.parity.check import check_program
from lowerkit.spmd.sharding import sharding_of
from tests.support.models import tiny_program

BERT = {
    "*.query": "column",
    "*.key": "column",
    "*.value": "column",
    "*.attention.output.dense": "row",
    "*.intermediate.dense": "column",
    "*.output.dense": "row",
    "*.LayerNorm": "sequence",
}
LLAMA = {
    "*.[qkv]_proj": "column",
    "*.o_proj": "row",
    "*.gate_proj": "column",
    "*.up_proj": "column",
    "*.down_proj": "row",
    "*.embed_tokens": "vocabulary",
    "*.lm_head": "vocabulary",
    "*norm": "sequence",
}
RESNET = {
    "*layer.0.convolution": "column",
    "*layer.1.convolution": "column",
    "*layer.2.convolution": "row",
}


@pytest.mark.parametrize(
    ("name", "mesh", "plan", "collectives"),
    [
        ("resnet50", "dp=2", {"pixel_values": "batch"}, [{"all_gather": 1}]),
        ("resnet50", "tp=2", RESNET, [{"all_gather": 4, "all_reduce": 4}]),
        pytest.param("vit_b16", "dp=2", {"*": "batch"}, [{"all_gather": 1}], marks=pytest.mark.exhaustive),
        ("bert_base", "tp=2", BERT, [{"all_gather": 5, "reduce_scatter": 4}]),
        (
            "llama",
            "dp=2,tp=2",
            {"dp": {"*": "batch"}, "tp": LLAMA},
            [{"all_gather": 1}, {"all_gather": 6, "reduce_scatter": 5}],
        ),
    ],
)
def test_choices(name: str, mesh: str, plan: dict[str, Any], collectives: list[dict[str, int]]) -> None:
    program = tiny_program(name)
    if "pixel_values" in plan:
        plan = {program.signature.inputs[0].name: "batch"}
    sharding = sharding_of(mesh, plan)
    report = check_program(program, sharding=sharding)
    failing = [row for row in [*report.ops, *report.outputs] if not row.verdict.passed]
    assert report.passed, "\n".join(f"{row.name} {row.kind}: {row.verdict.reason}" for row in failing)
    assert sharding is not None
    found = [Counter(each.kind for each in axis.report.collectives) for axis in sharding.axes]
    assert found == collectives


def test_an_input_that_there_is_not() -> None:
    program = tiny_program("vit_b16")
    with pytest.raises(UsageError, match="'pixles' names no input of the model; there are:") as caught:
        check_program(program, sharding=sharding_of("dp=2", {"pixles": "batch"}))
    assert caught.value.code == "LK1011"
