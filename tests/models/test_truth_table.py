"""A slice of the truth table: the arithmetic of every day over the kinds of promotion, and cells that were wrong once.

The table itself is ``python tools/truth_table.py``; docs/results/truth-table.md has its results.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from lowerkit.conformance.runner import RunOptions, run_suite
from lowerkit.conformance.suite import Case, SuiteReference
from tests.support.truth_table.suite import CellResult

_ONCE_WRONG = (
    *("floor_divide.default()[f32,f32]/grid", "fmod.Tensor()[f32,f32]/grid", "remainder.Tensor()[f32,f32]/grid"),
    *("div.Tensor_mode(rounding_mode=floor)[bf16,bf16]/grid", "floor_divide.default()[u8,#3]/grid"),
    *("neg.default()[i64]/grid", "gcd.default()[i64,i64]/grid", "gt.Tensor()[bool,i64]/right0"),
    *("ge.Tensor()[bool,u8]/grid", "minimum.default()[bool,i8]/grid", "mul.Tensor()[i8,#2]/grid"),
    *("sub.Tensor()[i8,#1]/grid", "floor_divide.default()[i8,#2]/grid", "remainder.Scalar(other=-3)[u8]/grid"),
    *("where.self()[bool,bool,i64]/grid", "masked_fill.Scalar(value=2)[bool,bool]/grid"),
    *("clamp.default(min=-2.5,max=2.5)[i64]/grid", "clamp.default(min=nan,max=1)[f32]/grid"),
    *(
        "hardtanh.default()[f32]/grid",
        "relu6.default()[f32]/grid",
        "threshold.default(threshold=0.1,value=20.0)[f32]/grid",
    ),
    *("softshrink.default()[f32]/grid", "hardshrink.default()[f32]/grid", "isclose.default()[f32,f32]/grid"),
    *(
        "eq.Tensor()[f32,f32]/same",
        "threshold_backward.default(threshold=0)[f32,i64]/grid",
        "prelu.default()[f16,f16]/all0",
    ),
    *("bitwise_left_shift.Tensor()[i32,i32]/grid", "bitwise_right_shift.Tensor()[u8,u8]/grid"),
    *("eq.Scalar(other=2.5)[u8]/grid", "float_power.Tensor_Tensor()[u8,u8]/grid", "add.Scalar(other=True)[bool]/grid"),
    *("trunc.default()[f32]/grid", "maximum.default()[f32,f32]/grid", "clamp.Tensor()[f32,f32,f32]/grid"),
    "elu_backward.default(alpha=0.5,scale=2.0,input_scale=1.5,is_result=False)[bf16,bf16]/grid",
    *("hardtanh_backward.default(min_val=-1.5,max_val=2.5)[f32,f32]/grid", "sigmoid_backward.default()[f16,f16]/grid"),
    *("rad2deg.default()[f32]/grid", "round.decimals(decimals=2)[bf16]/grid", "round.decimals(decimals=2)[f16]/grid"),
    *("float_power.Tensor_Scalar(exponent=300)[f32]/grid", "polygamma.default(n=2)[f64]/grid"),
    *("fmax.default()[bf16,f32]/grid", "div.Tensor_mode(rounding_mode=None)[f16,bf16]/right0"),
    *("div.Tensor()[bf16,f32]/right0", "div.Tensor_mode(rounding_mode=trunc)[bf16,f32]/right0"),
    *("__lshift__.Scalar(other=16777217)[i16]/grid", "__rshift__.Scalar(other=16777217)[u8]/grid"),
    *("__or__.Scalar(other=300)[u8]/grid", "__xor__.Scalar(other=True)[i64]/grid", "fill.Scalar(value=True)[i8]/grid"),
    *("fmod.Scalar(other=300)[i8]/grid", "ldexp.Tensor()[f32,i64]/grid", "ldexp.Tensor()[bool,f16]/right0"),
    *("angle.default()[f64]/grid", "isfinite.default()[i64]/grid", "mvlgamma.default(p=3)[f64]/grid"),
    *("addcdiv.default(value=0.5)[f64,f64,f64]/grid", "pow.Tensor_Scalar(exponent=16777217)[f32]/grid"),
    *("kl_div.default(reduction=0)[bf16,bf16]/grid", "l1_loss.default(reduction=0)[u8,i8]/grid"),
    *(
        "pow.Tensor_Tensor()[i64,i64]/grid",
        "pow.Scalar(self=-3)[i32]/grid",
        "pow.Tensor_Scalar(exponent=300)[i64]/grid",
    ),
    *("erfinv.default()[f64]/grid", "nan_to_num.default()[i64]/grid", "remainder.Scalar(other=0.1)[f16]/grid"),
    *("logical_and.default()[f32,f64]/right0", "log_sigmoid_backward.default()[f32,f32,f32]/grid"),
    "hardtanh_backward.default(min_val=-1.5,max_val=2.5)[f32,f16]/left0",
    *("tanh_backward.default()[f32,f32]/strided", "threshold.default(threshold=0.1,value=20.0)[bf16]/grid"),
    "threshold_backward.default(threshold=0)[f32,f64]/grid",
    "softplus_backward.default(beta=2,threshold=10)[f64,f64]/grid",
    "binary_cross_entropy_with_logits.default(reduction=0)[f32,f32]/same",
    *("logaddexp2.default()[f32,f32]/grid", "lgamma.default()[f32]/grid", "copysign.Tensor()[bf16,bf16]/grid"),
)
_OPERATORS_ONCE_WRONG = (
    *("_softmax_backward_data#1[bf16]/nan", "_softmax_backward_data#2[f32]/symbolic:inf", "linalg.det#8[f32]/zeros"),
    *("argmax#6[f32]/symbolic:nan", "argmin#6[bf16]/symbolic:nan", "nn.functional.max_pool2d#0[f32]/symbolic:nan"),
    *("nn.functional.max_pool1d#24[bf16]/symbolic:nan", "masked.cumprod#8[f32]/symbolic:nan"),
)
_PAIRS = ("f32,f32", "f32,i64", "bool,i8", "u8,i8", "bf16,f32", "i64,bool")
_EVERY_DAY = (
    *(
        f"{name}.Tensor()[{_PAIRS[place % 6]}]/grid"
        for place, name in enumerate(("add", "mul", "div", "eq", "lt", "ge"))
    ),
    *(
        f"{name}.Tensor()[{_PAIRS[(place + 3) % 6]}]/left0"
        for place, name in enumerate(("add", "mul", "gt", "le", "ne"))
    ),
    *(f"{name}.Tensor()[{pair}]/right0" for name, pair in (("add", "i8,u8"), ("mul", "f16,bf16"), ("div", "u8,i64"))),
    *(f"where.self()[bool,{pair}]/grid" for pair in ("f32,i64", "bool,i8", "u8,i8")),
    *(f"{name}.default()[{dtype}]/grid" for name in ("abs", "neg", "relu", "exp") for dtype in ("f32", "bf16", "i8")),
    *(f"{name}.default()[f32]/strided" for name in ("tanh", "sigmoid", "rsqrt", "floor")),
    *(f"{name}.default()[f32]/empty" for name in ("silu", "erf")),
)
_AT_A_TIME = 48


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param((*_ONCE_WRONG, *_OPERATORS_ONCE_WRONG), id="once wrong"),
        pytest.param(_EVERY_DAY, id="every day", marks=pytest.mark.exhaustive),
    ],
)
def test_a_slice_of_the_table(cells: tuple[str, ...]) -> None:
    """Cells run in a process of their own: one that dies is a failure here, not the end of the tests."""
    names = list(dict.fromkeys(cells))
    cases = [Case(json.dumps(names[start : start + _AT_A_TIME])) for start in range(0, len(names), _AT_A_TIME)]
    replies = run_suite(SuiteReference("tests.support.truth_table.suite"), cases, RunOptions(time_limit=300.0))
    assert [reply.reason for reply in replies if reply.verdict != "passed"] == []
    results = [msgspec.json.decode(note, type=CellResult) for reply in replies for note in reply.notes]
    assert sorted(result.name for result in results) == sorted(names)
    assert [result for result in results if result.verdict not in ("passed", "better")] == []
