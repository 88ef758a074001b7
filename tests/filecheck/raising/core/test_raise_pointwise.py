"""raise-pointwise: ops on elements in the types that PyTorch computes in; NaN stays where PyTorch keeps it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.torch_text import Check, function, raised

_X = np.array([np.nan, -np.inf, -3.0, -0.5, 0.0, 0.25, 3.0, np.inf], np.float32)


def _of_one(call: str, result: str = "8", argument: str = "8") -> str:
    return function(f"%x: @[{argument}]", f"@[{result}]", f"\n  %r = torch.aten.{call}\n  return %r : @[{result}]")


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("torch.aten.clamp %x, %low, %high : @[8], !torch.float, !torch.float -> @[8]", np.clip(_X, -1, 2)),
        ("torch.aten.hardtanh %x, %low, %high : @[8], !torch.float, !torch.float -> @[8]", np.clip(_X, -1, 2)),
        ("torch.aten.clamp_min %x, %low : @[8], !torch.float -> @[8]", np.maximum(_X, -1)),
        ("torch.aten.clamp_max %x, %high : @[8], !torch.float -> @[8]", np.minimum(_X, 2)),
        ("torch.aten.relu6 %x : @[8] -> @[8]", np.clip(_X, 0, 6)),
        ("torch.aten.maximum %x, %x : @[8], @[8] -> @[8]", _X),
        ("torch.aten.minimum %x, %x : @[8], @[8] -> @[8]", _X),
        ("torch.aten.threshold %x, %low, %high : @[8], !torch.float, !torch.float -> @[8]", np.where(_X <= -1, 2, _X)),
        ("torch.aten.hardshrink %x, %high : @[8], !torch.float -> @[8]", np.where(np.abs(_X) <= 2, 0, _X)),
        ("torch.aten.clamp %x, %nan, %high : @[8], !torch.float, !torch.float -> @[8]", np.full_like(_X, np.nan)),
        ("torch.aten.softshrink %x, %high : @[8], !torch.float -> @[8]", np.sign(_X) * np.maximum(np.abs(_X) - 2, 0)),
    ],
)
def test_nan_goes_through_limits(call: str, wanted: np.ndarray) -> None:
    text = function(
        "%x: @[8]",
        "@[8]",
        f"""
  %low = torch.constant.float -1.0
  %high = torch.constant.float 2.0
  %nan = torch.constant.float 0x7FF8000000000000
  %r = {call}
  return %r : @[8]""",
    )
    np.testing.assert_array_equal(raised(text, [_X])[0], wanted)


def test_nan_is_not_equal_to_itself() -> None:
    text = _of_one("eq.Tensor %x, %x : @[8], @[8] -> @[8:i1]", "8:i1")
    np.testing.assert_array_equal(raised(text, [_X])[0], ~np.isnan(_X))


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("isfinite %x : @[8] -> @[8:i1]", np.isfinite(_X)),
        ("isinf %x : @[8] -> @[8:i1]", np.isinf(_X)),
        ("isnan %x : @[8] -> @[8:i1]", np.isnan(_X)),
        ("logical_not %x : @[8] -> @[8:i1]", _X == 0),
    ],
)
def test_numbers_are_told_apart(call: str, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(raised(_of_one(call, "8:i1"), [_X])[0], wanted)


def test_bytes_are_divided_and_compared_without_a_sign(check: Check) -> None:
    text = function(
        "%x: @[4:ui8], %y: @[4:ui8]",
        "@[4:ui8], @[4:i1]",
        """
  %r = torch.aten.floor_divide %x, %y : @[4:ui8], @[4:ui8] -> @[4:ui8]
  %s = torch.aten.gt.Tensor %x, %y : @[4:ui8], @[4:ui8] -> @[4:i1]
  return %r, %s : @[4:ui8], @[4:i1]""",
    )
    check(text, "raise-pointwise", "// CHECK: arith.divui\n// CHECK: arith.cmpi ugt\n// CHECK-NOT: torch.aten")


def test_bytes_become_floats_before_they_are_divided(check: Check) -> None:
    text = _of_one("div.Scalar %x, %i3 : @[4:ui8], !torch.int -> @[4]", "4", "4:ui8")
    check(text, "raise-pointwise", "// CHECK: arith.uitofp %{{.*}} : i8 to f32\n// CHECK: arith.divf %{{.*}} : f32")


@pytest.mark.parametrize(
    ("left", "right", "compared"),
    [
        ("4:i1", "4:si64", "slt, %{{.*}} : i64"),
        ("4:i1", "4:i1", "ult, %{{.*}} : i1"),
        ("4:si8", "4:ui8", "slt, %{{.*}} : i16"),
        ("4:ui8", "4:ui8", "ult, %{{.*}} : i8"),
        ("4:f16", "4:bf16", "olt, %{{.*}} : f32"),
        ("4:f16", ":f64", "olt, %{{.*}} : f16"),
        ("4:si64", ":f64", "olt, %{{.*}} : f64"),
        ("4:si8", ":si64", "slt, %{{.*}} : i8"),
        (":si8", ":si64", "slt, %{{.*}} : i64"),
    ],
)
def test_comparisons_are_made_in_the_type_of_pytorch(check: Check, left: str, right: str, compared: str) -> None:
    shape = "4" if left.startswith("4") or right.startswith("4") else ""
    text = function(
        f"%x: @[{left}], %y: @[{right}]",
        f"@[{shape}:i1]",
        f"\n  %r = torch.aten.lt.Tensor %x, %y : @[{left}], @[{right}] -> @[{shape}:i1]\n  return %r : @[{shape}:i1]",
    )
    check(text, "raise-pointwise", f"// CHECK: arith.cmp{{{{[fi]}}}} {compared}")


def test_shifts_by_the_width_leave_nothing_but_the_sign() -> None:
    text = function(
        "%x: @[4:si32], %n: @[4:si32]",
        "@[4:si32], @[4:si32]",
        """
  %r = torch.aten.bitwise_left_shift.Tensor %x, %n : @[4:si32], @[4:si32] -> @[4:si32]
  %s = torch.aten.bitwise_right_shift.Tensor %x, %n : @[4:si32], @[4:si32] -> @[4:si32]
  return %r, %s : @[4:si32], @[4:si32]""",
    )
    x, count = np.array([5, -5, -5, 5], np.int32), np.array([1, 32, -1, 31], np.int32)
    left, right = raised(text, [x, count])
    np.testing.assert_array_equal(left, [10, 0, 0, -(1 << 31)])
    np.testing.assert_array_equal(right, [2, -1, -1, 0])


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("floor_divide %x, %y : @[6{t}], @[6{t}] -> @[6{t}]", [-3, -3, 2, 0, -1, 1]),
        ("remainder.Tensor %x, %y : @[6{t}], @[6{t}] -> @[6{t}]", [1, -1, -1, 1, 1, 0]),
        ("fmod.Tensor %x, %y : @[6{t}], @[6{t}] -> @[6{t}]", [-1, 2, -1, 1, -1, 0]),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "si64"])
def test_division_rounds_down_and_its_remainder_has_the_sign_of_the_divisor(
    call: str, wanted: list[int], dtype: str
) -> None:
    kind = np.float32 if dtype == "f32" else np.int64
    body = f"\n  %r = torch.aten.{call.replace('{t}', ':' + dtype)}\n  return %r : @[6:{dtype}]"
    text = function(f"%x: @[6:{dtype}], %y: @[6:{dtype}]", f"@[6:{dtype}]", body)
    x, y = np.array([-5, 8, -5, 1, -1, 6], kind), np.array([2, -3, -2, 3, 2, 6], kind)
    np.testing.assert_array_equal(raised(text, [x, y])[0], wanted)


def test_integer_division_uses_no_floats(check: Check) -> None:
    text = function(
        "%x: @[2,3:si64], %y: @[3:si64]",
        "@[2,3:si64]",
        """
  %floor = torch.constant.str "floor"
  %r = torch.aten.div.Tensor_mode %x, %y, %floor : @[2,3:si64], @[3:si64], !torch.str -> @[2,3:si64]
  return %r : @[2,3:si64]""",
    )
    check(text, "raise-pointwise,lower-types", "// CHECK: arith.divsi\n// CHECK-NOT: f64")


def test_tanh_gelu_has_the_right_constant(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[2,3]",
        """
  %tanh = torch.constant.str "tanh"
  %r = torch.aten.gelu %x, %tanh : @[2,3], !torch.str -> @[2,3]
  return %r : @[2,3]""",
    )
    check(
        text,
        "raise-pointwise",
        """
        // CHECK: arith.constant 4.471500e-02 : f32
        // CHECK: arith.constant 0.797884583 : f32
        // CHECK: math.tanh
        // CHECK-NOT: torch.aten.gelu
        """,
    )


@pytest.mark.parametrize(
    ("exponent", "checks"),
    [
        ("int 2", "// CHECK: arith.mulf\n// CHECK-NOT: math.powf"),
        ("int 3", "// CHECK: arith.mulf\n// CHECK: arith.mulf\n// CHECK-NOT: math.powf"),
        ("float -2.0", "// CHECK: arith.mulf\n// CHECK: arith.divf\n// CHECK-NOT: math.powf"),
        ("float 0.5", "// CHECK: math.sqrt\n// CHECK-NOT: math.powf"),
        ("int 4", "// CHECK: math.powf %{{.*}} : f32"),
        ("int 300", "// CHECK: math.powf %{{.*}} : f32"),
        ("int 16777217", "// CHECK: math.powf %{{.*}} : f64\n// CHECK: arith.truncf"),
    ],
)
def test_only_the_smallest_powers_are_products(check: Check, exponent: str, checks: str) -> None:
    text = function(
        "%x: @[4]",
        "@[4]",
        f"""
  %e = torch.constant.{exponent}
  %r = torch.aten.pow.Tensor_Scalar %x, %e : @[4], !torch.{exponent.split(maxsplit=1)[0]} -> @[4]
  return %r : @[4]""",
    )
    check(text, "raise-pointwise", checks)


def test_16_bit_activation_is_computed_in_f32_and_rounded_once(check: Check) -> None:
    check(
        _of_one("silu %x : @[8:bf16] -> @[8:bf16]", "8:bf16", "8:bf16"),
        "raise-pointwise",
        """
        // CHECK: arith.extf %{{.*}} : bf16 to f32
        // CHECK: math.exp %{{.*}} : f32
        // CHECK: arith.divf %{{.*}} : f32
        // CHECK-NEXT: arith.truncf %{{.*}} : f32 to bf16
        """,
    )


def test_sum_of_16_bit_tensors_needs_no_f32(check: Check) -> None:
    text = _of_one("add.Tensor %x, %x, %i1 : @[8:bf16], @[8:bf16], !torch.int -> @[8:bf16]", "8:bf16", "8:bf16")
    check(text, "raise-pointwise", "// CHECK: arith.addf %{{.*}} : bf16\n// CHECK-NOT: f32")


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("mul", "// CHECK: arith.constant 1.000000e-01 : f32\n// CHECK: arith.mulf %{{.*}} : f32"),
        ("add", "// CHECK: arith.constant 1.000980e-01 : bf16\n// CHECK: arith.addf %{{.*}} : bf16"),
    ],
)
def test_a_factor_keeps_its_digits_and_an_addend_is_rounded(check: Check, name: str, checks: str) -> None:
    """As in eager: ``bf16 * 0.1`` is computed with 0.1, ``bf16 + 0.1`` with 0.10009765625."""
    extra = (", %i1", ", !torch.int") if name == "add" else ("", "")
    text = function(
        "%x: @[8:bf16]",
        "@[8:bf16]",
        f"""
  %f = torch.constant.float 1.000000e-01
  %r = torch.aten.{name}.Scalar %x, %f{extra[0]} : @[8:bf16], !torch.float{extra[1]} -> @[8:bf16]
  return %r : @[8:bf16]""",
    )
    check(text, "raise-pointwise", checks)


def test_open_extents_come_from_the_operand_that_has_them(check: Check) -> None:
    text = function(
        "%x: @[1,?], %y: @[?,1]",
        "@[?,?]",
        """
  %r = torch.aten.mul.Tensor %x, %y : @[1,?], @[?,1] -> @[?,?]
  return %r : @[?,?]""",
    )
    check(
        text,
        "raise-pointwise",
        """
        // CHECK: #[[X:.*]] = affine_map<(d0, d1) -> (0, d1)>
        // CHECK: #[[Y:.*]] = affine_map<(d0, d1) -> (d0, 0)>
        // CHECK: %[[ROWS:.*]] = tensor.dim %[[B:.*]], %c0
        // CHECK: %[[COLUMNS:.*]] = tensor.dim %[[A:.*]], %c1
        // CHECK: tensor.empty(%[[ROWS]], %[[COLUMNS]])
        // CHECK: indexing_maps = [#[[X]], #[[Y]], #{{.*}}]{{.*}} ins(%[[A]], %[[B]]
        """,
    )


@pytest.mark.parametrize(("shape", "channels"), [("2,3", "3"), ("2,3", "1"), ("4", "1"), ("", "1")])
def test_prelu_has_a_slope_for_each_channel(shape: str, channels: str) -> None:
    text = function(
        f"%x: @[{shape}], %w: @[{channels}]",
        f"@[{shape}]",
        f"\n  %r = torch.aten.prelu %x, %w : @[{shape}], @[{channels}] -> @[{shape}]\n  return %r : @[{shape}]",
    )
    sizes = [int(size) for size in shape.split(",") if size]
    x = -1 - np.arange(np.prod(sizes, dtype=int), dtype=np.float32).reshape(sizes)
    slope = 0.5 + np.arange(int(channels), dtype=np.float32)
    np.testing.assert_array_equal(raised(text, [x, slope])[0], (x * slope).reshape(sizes))


def test_an_infinite_number_beside_integers_is_refused(check: Check) -> None:
    text = function(
        "%x: @[4:si64], %m: @[4:i1]",
        "@[4:si64]",
        """
  %f = torch.constant.float 0x7FF0000000000000
  %r = torch.aten.masked_fill.Scalar %x, %m, %f : @[4:si64], @[4:i1], !torch.float -> @[4:si64]
  return %r : @[4:si64]""",
    )
    context = check(text, "raise-pointwise", "// CHECK: torch.aten.masked_fill.Scalar")
    assert "the number inf beside si64" in str(context.remarks)


def test_a_computed_number_is_a_scalar_of_the_body(check: Check) -> None:
    text = function(
        "%x: @[?]",
        "@[?]",
        """
  %n = torch.aten.size.int %x, %i0 : @[?], !torch.int -> !torch.int
  %r = torch.aten.mul.Scalar %x, %n : @[?], !torch.int -> @[?]
  return %r : @[?]""",
    )
    check(text, "raise-pointwise", "// CHECK: torch_c.to_i64\n// CHECK: arith.sitofp\n// CHECK-NEXT: arith.mulf")
    x: Any = np.array([1.0, 2.0, 4.0], np.float32)
    np.testing.assert_array_equal(raised(text, [x])[0], 3 * x)
