"""The witness flags what differs from eager or the interpreter, refuses it, and says in the file what it compared."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.compiled import CompileOptions
from lowerkit.compiler import lower_program
from lowerkit.dialect.ops.softmax import SoftmaxOp
from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import ParityError, UnsupportedError
from lowerkit.parity.judge.operators import PARTIAL_SUMS, judge_operator
from lowerkit.parity.witness.kernels import witness_kernels
from lowerkit.parity.witness.ops import witness_ops
from lowerkit.parity.witness.record import require_alike
from lowerkit.parity.witness.verdicts import VerdictCache, Witnessed


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(24, 12)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.inner(x), -1) + torch.cat([ids, ids + 1]).sum()


EXAMPLE = (torch.randn(3, 24), torch.tensor([250, 3], dtype=torch.uint8))


def exported(*, open_dims: bool = False) -> torch.export.ExportedProgram:
    shapes = ({0: Dim("n", min=0)}, None) if open_dims else None
    return torch.export.export(Small().eval(), EXAMPLE, dynamic_shapes=shapes)


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the interpreter's softmax one hundredth too large."""
    own = SoftmaxOp.reference

    def wrong(op: SoftmaxOp, value: Array) -> tuple[Array, ...]:
        return tuple(result * np.asarray(1.01, result.dtype) for result in own(op, value))

    monkeypatch.setattr(SoftmaxOp, "reference", wrong)


def test_each_distinct_op_is_compared_on_values_and_special_values() -> None:
    found = {each.name: each for each in witness_ops(exported(), None)}
    assert [each.verdict for each in found.values()] == ["same"] * len(found)
    assert {"aten.linear.default", "aten.softmax.int", "aten.cat.default", "aten.sum.default"} <= found.keys()
    assert found["aten.linear.default"].cases["special"] > 20
    assert found["aten.linear.default"].operands == "f32[3,9], f32[10,9], f32[10]"
    assert found["aten.linear.default"].places[0].startswith(f"{__file__}:")


def test_open_extents_are_tried_from_zero_on() -> None:
    found = {each.name: each for each in witness_ops(exported(open_dims=True), None)}
    assert found["aten.linear.default"].cases["extents"] == 7
    assert {each.verdict for each in found.values()} == {"same"}


def test_sizes_that_are_computed_of_open_extents() -> None:
    """Views whose extents are products of dims, and back, are run alone at other extents too."""

    class Heads(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            heads = x.reshape(batch * 2, length, 6)
            return torch.cat([heads * 2, heads], 1).reshape(2, batch, 2 * length, 6).transpose(0, 1).sum(-1)

    shapes = ({0: Dim("batch", min=1), 1: Dim("length", min=1)},)
    found = witness_ops(torch.export.export(Heads(), (torch.randn(3, 5, 12),), dynamic_shapes=shapes), None)
    assert [(each.name, each.operands, each.reason) for each in found if each.verdict != "same"] == []
    assert any("(n0 * 2)" in each.operands for each in found)
    assert all(each.cases["extents"] > 4 for each in found)


def test_a_wrong_number_is_flagged_with_both_values_and_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = witness_ops(exported(), None)
    assert [each.name for each in found if each.verdict == "differs"] == ["aten.softmax.int"]
    with pytest.raises(ParityError) as caught:
        require_alike(found, "eager")
    error = caught.value
    assert error.code == "LK6005" and error.location is not None and error.location.startswith(__file__)
    assert "error to float64" in error.details[0] and " for " in error.details[0]


def test_a_verdict_is_kept_until_what_it_hangs_on_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = VerdictCache(tmp_path)
    first = witness_ops(exported(), cache)
    monkeypatch.setattr("lowerkit.parity.witness.ops.witness", lambda _op: pytest.fail("it was known"))
    assert witness_ops(exported(), cache) == first
    monkeypatch.setattr("lowerkit.parity.witness.verdicts.version", lambda: "another")
    assert cache.find("aten.relu.default(f32[3]) ") is None


def test_each_kernel_is_compared_with_the_interpreter() -> None:
    program = capture_exported(exported())
    lower_program(program, "fused", CompileOptions())
    found = witness_kernels([program], CompileOptions(), None)
    assert found and {each.verdict for each in found} == {"same"}
    assert any(each.cases.get("special", 0) > 20 for each in found)


class Turned(nn.Module):
    """Regions that transpose, slice, look up and reduce, with extents that are sums and products of dims."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        y = nn.functional.gelu(self.inner(x))
        z, _ = self.attention(y, y, y, need_weights=False)
        joined = torch.cat([y + z, z], 1)
        return torch.softmax(joined.transpose(1, 2), -1).sum(1) + joined[ids].mean((0, 1, 2))


def turned(*, open_dims: bool) -> list[Witnessed]:
    batch, length = Dim("batch", min=1, max=9), Dim("length", min=2, max=40)
    shapes = ({0: batch, 1: length}, None) if open_dims else None
    example = (torch.randn(3, 6, 8), torch.tensor([2, 0]))
    program = capture_exported(torch.export.export(Turned().eval(), example, dynamic_shapes=shapes, strict=False))
    lower_program(program, "fused", CompileOptions())
    return witness_kernels([program], CompileOptions(), None)


@pytest.mark.parametrize("open_dims", [False, True], ids=["static", "open"])
def test_every_kind_of_region_is_compared(*, open_dims: bool) -> None:
    """Named linalg ops too, which the interpreter knows in general form alone; open extents at several sizes."""
    found = turned(open_dims=open_dims)
    assert [(each.name, each.reason) for each in found if each.verdict != "same"] == []
    assert {"matmul", "transpose", "attention", "gather"} <= {each.name for each in found}
    for each in found:
        assert each.cases["values"] == 1 and each.cases["special"] > 4
        assert (each.cases.get("extents", 0) > 3) == ("?" in each.operands)
    assert any("?" in each.operands for each in found) == open_dims


def test_a_wrong_number_at_some_extents_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    own = SoftmaxOp.reference

    def wrong(op: SoftmaxOp, value: Array) -> tuple[Array, ...]:
        factor = 1.01 if value.shape[-1] == 4 else 1.0
        return tuple(result * np.asarray(factor, result.dtype) for result in own(op, value))

    monkeypatch.setattr(SoftmaxOp, "reference", wrong)
    (flagged,) = [each for each in turned(open_dims=True) if each.verdict == "differs"]
    assert flagged.name == "softmax" and [each.case for each in flagged.differences] == ["x_0=1, x_1=2"]


def test_what_the_interpreter_does_not_know_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(op: SoftmaxOp, value: Array) -> tuple[Array, ...]:
        raise UnsupportedError("LK4001", "the interpreter does not know it")

    monkeypatch.setattr(SoftmaxOp, "reference", unknown)
    (left_out,) = [each for each in turned(open_dims=False) if each.verdict != "same"]
    assert left_out.verdict == "left out" and left_out.reason == "the interpreter does not know it"


def test_a_kernel_that_differs_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    program = capture_exported(exported())
    lower_program(program, "fused", CompileOptions())
    plant(monkeypatch)
    found = witness_kernels([program], CompileOptions(), None)
    assert [each.name for each in found if each.verdict == "differs"] == ["softmax"]


def test_partial_sums_that_leave_the_type_are_no_difference() -> None:
    program = torch.export.export(nn.BatchNorm2d(9).eval(), (torch.randn(2, 9, 4, 4),))
    assert [each.verdict for each in witness_ops(program, None)] == ["same"]


def test_of_products_that_leave_the_type_nothing_is_compared_of_ops_that_sum() -> None:
    """Attention over the largest keys: scores are infinite in f32 and finite in float64; other values are compared."""
    exact = torch.tensor([0.5], dtype=torch.float64)
    ours, eager = torch.tensor([1.25]), torch.tensor([math.nan])
    for largest, spread, wrong in ((3e38, PARTIAL_SUMS, False), (3.0, PARTIAL_SUMS, True), (3e38, 1.0, True)):
        operands = [torch.tensor([largest, math.inf])]
        found = judge_operator("attention", operands, ours, eager, exact, ties=False, spread=spread)
        assert bool(found.wrong) == wrong


def test_what_reads_beyond_its_tensors_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy ends it; a kernel would read on."""

    def wrong(op: SoftmaxOp, value: Array) -> tuple[Array, ...]:
        return (np.take(value, [99], 0),)

    monkeypatch.setattr(SoftmaxOp, "reference", wrong)
    found = {each.name: each for each in witness_ops(exported(), None)}
    assert found["aten.softmax.int"].verdict == "differs"
    assert "ours fails: IndexError" in found["aten.softmax.int"].differences[0].text
