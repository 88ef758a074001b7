"""Slices of ``tools/fuzz``: ``resized.py``, operators whose extents are open at other extents than those of the export;
``refusals.py``, what PyTorch's operator tests call errors of operators that have contracts.
"""

from __future__ import annotations

import pytest

from tests.support.truth_table.operator_cells import operator_cell
from tests.support.truth_table.refusals import refusals
from tests.support.truth_table.resized import outcomes
from tests.support.truth_table.suite import FAILED

_ONCE_WRONG = ("_upsample_bilinear2d_aa#6", "trapezoid#0", "kthvalue#4", "amax#9", "slice_scatter#4")
_OTHERS = ("topk#6", "diff#23", "unfold#10", "tril#3", "nn.functional.adaptive_avg_pool1d#2", "diagonal#7")
_WITH_CONTRACTS = (
    *("amax", "amin", "aminmax", "gather", "index_add", "index_select", "kthvalue", "scatter", "scatter_add"),
    *("take", "nn.functional.embedding", "nn.functional.multi_margin_loss", "nn.functional.adaptive_avg_pool2d"),
)


@pytest.mark.parametrize("name", [*_ONCE_WRONG, *_OTHERS])
def test_operators_at_other_extents(name: str) -> None:
    found = outcomes(operator_cell(f"{name}[f32]/drawn"))
    assert [result for result in found if result.verdict in FAILED] == []
    assert any(result.verdict == "passed" for result in found), found


def test_what_eager_refuses_is_refused() -> None:
    found = [call for name in _WITH_CONTRACTS for call in refusals(name) if call.eager]
    assert len(found) >= 45
    assert [f"{call.name}: {call.eager}" for call in found if not call.code] == []
    unnamed = [call for call in found if not (call.op and call.location)]
    assert len(unnamed) <= len(found) // 4, unnamed
