"""The ledger of an artifact is data of somebody else: what is not of its form is refused."""

from __future__ import annotations

from typing import Any

import pytest

from lowerkit.cli.tables.ledger import print_ledger, read_placements
from lowerkit.errors import ArtifactError

ENTRY: dict[str, Any] = {
    "op": "lk.softmax", "node": "softmax", "location": "m.py:3", "flops": 100, "crossing_bytes": 8, "target": "",
    "function": "", "refusals": [["npu", "no lk.softmax"]],
}  # fmt: skip


@pytest.mark.parametrize(
    "placements",
    ["text", {"a": 1}, [1], [{"op": "lk.softmax"}], [{**ENTRY, "flops": "many"}], [{**ENTRY, "refusals": [["npu"]]}],
     [{**ENTRY, "node": "\x1b[2J"}], [{**ENTRY, "refusals": [["npu", "\x07"]]}]],
)  # fmt: skip
def test_what_is_not_of_the_form_is_refused(placements: Any) -> None:
    with pytest.raises(ArtifactError, match="LK8001"):
        read_placements({"placements": placements})


def test_a_row_for_each_op_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    product = {**ENTRY, "op": "lk.matmul", "flops": 900, "target": "npu", "function": "npu_0", "refusals": []}
    print_ledger(read_placements({"placements": [product, ENTRY]}))
    text = capsys.readouterr().out
    assert "90.0%" in text and "npu: no lk.softmax" in text and "m.py:3" in text and "lk.matmul" not in text


def test_nobody_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    print_ledger(read_placements({}))
    assert "no accelerator was asked" in capsys.readouterr().out
