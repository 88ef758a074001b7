"""Choices other than columns and rows of plain products, each against the program of one device in numpy."""

from __future__ import annotations

import re

import pytest

from lowerkit.errors import UnsupportedError
from lowerkit.passes.shard.plan import ShardingPlan
from tests.filecheck.conftest import match_checks
from tests.filecheck.shard.test_shard_program import (
    elementwise,
    kinds,
    lk,
    main,
    multiplied,
    product,
    sharded,
    weight,
)

RMS = "epsilon = 1.0e-6 : f64, normalized_rank = 1 : i64"
CONV = (
    "accumulate = f32, channels_last = false, strides = array<i64: 1>, padding = array<i64: 1, 1>, "
    "dilation = array<i64: 1>, groups = {} : i64"
)


def named(op: str, result: str, path: str) -> str:
    """Gives an op that is written with ``%y`` another result, and a module."""
    return op.replace("%y =", f"%{result} =") + f' loc("m@{path}")'


def conv(result: str, operand: str, shape: str, name: str, filters: str, out: str, groups: int = 1) -> str:
    made = lk("conv", f"%{operand}, %{name}", CONV.format(groups), f"{shape} {filters}", out)
    return f"{weight(name, filters)}\n{named(made, result, name)}"


CONVS = main(
    "%x: tensor<2x4x6xf32>",
    "tensor<2x6x6xf32>",
    "\n".join(
        [
            conv("a", "x", "2x4x6xf32", "wide", "8x4x3xf32", "2x8x6xf32"),
            conv("b", "a", "2x8x6xf32", "deep", "8x1x3xf32", "2x8x6xf32", 8),
            conv("c", "b", "2x8x6xf32", "narrow", "6x8x3xf32", "2x6x6xf32"),
            "return %c : tensor<2x6x6xf32>",
        ]
    ),
)


@pytest.mark.parametrize("deep", [{}, {"deep": "column"}])
def test_channels_of_convolutions(deep: dict[str, str]) -> None:
    text, plan = sharded(CONVS, {"wide": "column", "narrow": "row", **deep})
    assert kinds(plan) == ["all_reduce"]
    assert plan.report.whole == []
    match_checks(
        text,
        """
        // CHECK: lk.conv{{.*}}-> tensor<2x4x6xf32>
        // CHECK: lk.conv{{.*}}groups = 4 : i64{{.*}}(tensor<2x4x6xf32>, tensor<4x1x3xf32>) -> tensor<2x4x6xf32>
        // CHECK: lk.conv{{.*}}(tensor<2x4x6xf32>, tensor<6x4x3xf32>) -> tensor<2x6x6xf32>
        // CHECK-NEXT: kind = "all_reduce"
        """,
    )


def test_a_module_that_is_to_stay_whole_is_no_group_of_slices() -> None:
    _, plan = sharded(CONVS, {"wide": "column", "deep": "replicate", "narrow": "row"})
    assert "deep" in plan.report.whole
    assert kinds(plan) == ["all_gather", "all_reduce"]


def batch(text: str, ranks: int = 2) -> tuple[str, ShardingPlan]:
    return sharded(text, {"x": "batch"}, ranks, inputs=["x"])


def test_an_input_split_along_its_first_dimension() -> None:
    text, plan = batch(CONVS)
    assert kinds(plan) == ["all_gather"]
    assert plan.report.whole == []
    match_checks(text, "// CHECK: lk.conv{{.*}}(tensor<1x4x6xf32>, tensor<8x4x3xf32>) -> tensor<1x8x6xf32>")


def test_an_input_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="input x: 2 does not divide by 3") as caught:
        batch(CONVS, 3)
    assert caught.value.code == "LK4007"


INTEGER = f"""
    {weight("up", "6x8xi8")}
    %h = "lk.integer_matmul"(%x, %up) {{transpose_rhs = false, unsigned = false}}
        : (tensor<4x6xi8>, tensor<6x8xi8>) -> tensor<4x8xi32> loc("m@up")
    {weight("scales", "8xi32")} {weight("shifts", "8xi32")} {weight("zeros", "8xi32")}
    %q = "lk.requant"(%h, %scales, %shifts, %zeros) {{axis = 1 : i64, rounding = "half_even", mult_bits = 32 : i64,
        minimum = -128 : i64, maximum = 127 : i64, unsigned_input = false, unsigned = false, storage = i8}}
        : (tensor<4x8xi32>, tensor<8xi32>, tensor<8xi32>, tensor<8xi32>) -> tensor<4x8xi8>
    {weight("down", "6x8xi8")}
    %y = "lk.integer_matmul"(%q, %down) {{transpose_rhs = true, unsigned = false}}
        : (tensor<4x8xi8>, tensor<6x8xi8>) -> tensor<4x6xi32> loc("m@down")
    return %y : tensor<4x6xi32>"""


def test_integers_are_split_with_their_parameters() -> None:
    text, plan = sharded(main("%x: tensor<4x6xi8>", "tensor<4x6xi32>", INTEGER), {"up": "column", "down": "row"})
    assert kinds(plan) == ["all_reduce"]
    match_checks(
        text,
        """
        // CHECK: lk.requant{{.*}}(tensor<4x4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<4x4xi8>
        // CHECK: kind = "all_reduce"{{.*}}tensor<4x6xi32>
        """,
    )


EXPERTS = "\n".join(
    [
        weight("up", "4x6x8xf32"),
        named(multiplied("%x, %up", "4x3x6xf32 4x6x8xf32", "4x3x8xf32"), "h", "up"),
        weight("down", "4x8x6xf32"),
        named(multiplied("%h, %down", "4x3x8xf32 4x8x6xf32", "4x3x6xf32"), "z", "down"),
        "return %z : tensor<4x3x6xf32>",
    ]
)


@pytest.mark.parametrize(
    ("plan", "collectives", "local"),
    [
        ({"*": "expert"}, ["all_gather"], "tensor<2x3x6xf32>, tensor<2x6x8xf32>"),
        ({"up": "column", "down": "row"}, ["all_reduce"], "tensor<4x3x6xf32>, tensor<4x6x4xf32>"),
    ],
)
def test_weights_of_three_dimensions(plan: dict[str, str], collectives: list[str], local: str) -> None:
    text, sharding = sharded(main("%x: tensor<4x3x6xf32>", "tensor<4x3x6xf32>", EXPERTS), plan)
    assert kinds(sharding) == collectives
    match_checks(text, f"// CHECK: lk.matmul{{{{.*}}}}({local})")


def test_norms_run_on_slices_along_the_sequence() -> None:
    shape = "4x8xf32"
    types = f"tensor<{shape}>, tensor<{shape}>"
    body = [
        product("p", "x", shape, "first", "8x8xf32", shape),
        elementwise("h", "#id, #id, #id", "%p, %x", types, shape),
        weight("s", "8xf32"),
        named(lk("rms_norm", "%h, %s", RMS, f"{shape} 8xf32", shape), "n", "norm"),
        product("u", "n", shape, "up", "8x16xf32", "4x16xf32"),
        product("d", "u", "4x16xf32", "down", "16x8xf32", shape),
        elementwise("k", "#id, #id, #id", "%d, %h", types, shape),
        named(lk("rms_norm", "%k, %s", RMS, f"{shape} 8xf32", shape), "o", "norm"),
        f"return %o : tensor<{shape}>",
    ]
    text = main(f"%x: tensor<{shape}>", f"tensor<{shape}>", "\n".join(body))
    plan = {"first": "row", "norm": "sequence", "up": "column", "down": "row"}
    module, sharding = sharded(text, plan)
    assert kinds(sharding) == ["reduce_scatter", "all_gather", "reduce_scatter", "all_gather"]
    assert len(re.findall(r"lk.rms_norm.*tensor<2x8xf32>", module)) == 2


def test_terms_are_added_before_their_sum() -> None:
    shape = "4x8xf32"
    types = f"tensor<{shape}>, tensor<{shape}>"
    body = [
        product("t", "x", shape, "one", "8x8xf32", shape),
        product("u", "x", shape, "two", "8x8xf32", shape),
        elementwise("y", "#id, #id, #id", "%t, %u", types, shape),
        f"return %y : tensor<{shape}>",
    ]
    _, plan = sharded(main(f"%x: tensor<{shape}>", f"tensor<{shape}>", "\n".join(body)), {"*": "row"})
    assert kinds(plan) == ["all_reduce"]
    body[2] = elementwise("y", "#id, #id, #id", "%t, %u", types, shape, "arith.mulf %a, %b : f32")
    _, plan = sharded(main(f"%x: tensor<{shape}>", f"tensor<{shape}>", "\n".join(body)), {"*": "row"})
    assert kinds(plan) == ["all_reduce", "all_reduce"]


def test_slices_along_another_dimension_are_exchanged() -> None:
    body = [
        product("h", "x", "4x6xf32", "up", "6x8xf32", "4x8xf32"),
        named(lk("softmax", "%h", "axis = 1 : i64, log = false", "4x8xf32", "4x8xf32"), "s", "soft"),
        "return %s : tensor<4x8xf32>",
    ]
    text, plan = sharded(
        main("%x: tensor<4x6xf32>", "tensor<4x8xf32>", "\n".join(body)), {"up": "column", "soft": "sequence"}
    )
    assert kinds(plan) == ["all_to_all", "all_gather"]
    match_checks(text, '// CHECK: kind = "all_to_all"{{.*}}(tensor<2x2x4xf32>) -> tensor<2x2x4xf32>')
