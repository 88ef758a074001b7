"""The line on what an accelerator took: true to the last digit, in the words of the model."""

from __future__ import annotations

import pytest

from lowerkit.codegen.offload import summaries
from lowerkit.passes.partition.accelerator import Placement
from lowerkit.percent import share_text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100%"), (0.99996, "more than 99.99%"), (0.9998, "99.98%"), (0.992, "99.2%"), (0.5, "50.0%"),
        (0.006, "0.6%"), (0.0002, "0.02%"), (0.00002, "less than 0.01%"), (0.0, "0%"),
    ],
)  # fmt: skip
def test_shares(share: float, text: str) -> None:
    assert share_text(share) == text


def placement(op: str, node: str, line: int, flops: int, reason: str = "") -> Placement:
    taken = "" if reason else "npu"
    refusals = (("npu", reason),) if reason else ()
    return Placement(op, node, f"/home/me/m.py:{line}", flops, 8, taken, taken and "npu_0", refusals)


def test_what_is_missing_is_named_by_op_and_line_and_counted() -> None:
    placements = [
        placement("lk.conv", "conv2d", 3, 9980),
        placement("lk.max_pool", "max_pool2d", 4, 12, "no lk.max_pool"),
        placement("elementwise", "gelu", 5, 4, "elementwise math.erf"),
        placement("elementwise", "gelu", 5, 3, "3 FLOPs are not worth 16 bytes that would cross"),
        placement("elementwise", "gelu", 6, 1, "elementwise arith.mulf"),
    ]
    (summary,) = summaries(placements, ["npu"])
    assert summary.render() == (
        "npu: 1 of 5 ops in 1 function, 99.8% of FLOPs; 4 ops would bring 0.2% more: "
        "max_pool (m.py:4), math.erf (m.py:5), gelu (m.py:5), ..."
    )
    assert [each["op"] for each in summary.to_json()["missing"]] == [
        "lk.max_pool", "elementwise math.erf", "elementwise", "elementwise arith.mulf"
    ]  # fmt: skip


def test_what_costs_nothing_brings_nothing() -> None:
    placements = [placement("lk.matmul", "linear", 3, 100), placement("reshape", "flatten", 4, 0, "no reshape")]
    assert summaries(placements, ["npu"])[0].render() == (
        "npu: 1 of 2 ops in 1 function, 100% of FLOPs; 1 op would bring 0% more: reshape (m.py:4)"
    )
    assert summaries(placements[:1], ["npu"])[0].render() == "npu: 1 of 1 ops in 1 function, 100% of FLOPs"
