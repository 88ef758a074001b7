"""A slice of ``tools/fuzz/refusals.py``: what PyTorch's operator tests call errors of operators that have contracts."""

from __future__ import annotations

from tests.support.truth_table.refusals import refusals

OPERATORS = (
    *("amax", "amin", "aminmax", "gather", "index_add", "index_select", "kthvalue", "scatter", "scatter_add"),
    *("take", "nn.functional.embedding", "nn.functional.multi_margin_loss", "nn.functional.adaptive_avg_pool2d"),
)


def test_what_eager_refuses_is_refused() -> None:
    found = [call for name in OPERATORS for call in refusals(name) if call.eager]
    assert len(found) >= 45
    assert [f"{call.name}: {call.eager}" for call in found if not call.code] == []
    unnamed = [call for call in found if not (call.op and call.location)]
    assert len(unnamed) <= len(found) // 4, unnamed
