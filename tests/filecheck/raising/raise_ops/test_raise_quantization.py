"""raise-quantization: PyTorch's decomposed quantization becomes lk.quantize and lk.dequantize."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowerkit.passes.base import PassContext

Check = Callable[..., PassContext]

PER_TENSOR = """
func.func @main(%x: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
  %scale = torch.constant.float 5.000000e-02
  %zero = torch.constant.int 7
  %low = torch.constant.int 0
  %high = torch.constant.int 127
  %code = torch.constant.int CODE
  %none = torch.constant.none
  %q = torch.quantized_decomposed.quantize_per_tensor %x, %scale, %zero, %low, %high, %code
      : !torch.vtensor<[2,3],f32>, !torch.float, !torch.int, !torch.int, !torch.int, !torch.int
      -> !torch.vtensor<[2,3],TYPE>
  %d = torch.quantized_decomposed.dequantize_per_tensor %q, %scale, %zero, %low, %high, %code, %none
      : !torch.vtensor<[2,3],TYPE>, !torch.float, !torch.int, !torch.int, !torch.int, !torch.int, !torch.none
      -> !torch.vtensor<[2,3],f32>
  return %d : !torch.vtensor<[2,3],f32>
}
"""

PER_CHANNEL = """
func.func @main() -> !torch.vtensor<[4,3],f32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<4x3xi8>
  %s = "lk.weight"() {symbol = "s"} : () -> tensor<4xSCALE>
  %z = "lk.weight"() {symbol = "z"} : () -> tensor<4xi64>
  %a = torch_c.from_builtin_tensor %w : tensor<4x3xi8> -> !torch.vtensor<[4,3],si8>
  %b = torch_c.from_builtin_tensor %s : tensor<4xSCALE> -> !torch.vtensor<[4],SCALE>
  %c = torch_c.from_builtin_tensor %z : tensor<4xi64> -> !torch.vtensor<[4],si64>
  %axis = torch.constant.int 0
  %low = torch.constant.int -127
  %high = torch.constant.int 127
  %code = torch.constant.int 1
  %none = torch.constant.none
  %d = torch.quantized_decomposed.dequantize_per_channel %a, %b, %c, %axis, %low, %high, %code, %none
      : !torch.vtensor<[4,3],si8>, !torch.vtensor<[4],SCALE>, !torch.vtensor<[4],si64>, !torch.int, !torch.int,
        !torch.int, !torch.int, !torch.none -> !torch.vtensor<[4,3],f32>
  return %d : !torch.vtensor<[4,3],f32>
}
"""

CHOSEN = """
func.func @main(%x: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
  %low = torch.constant.int -128
  %high = torch.constant.int 127
  %eps = torch.constant.float 1.000000e-05
  %code = torch.constant.int 1
  %none = torch.constant.none
  %p:2 = torch.operator "torch.quantized_decomposed.CHOOSE.tensor"(%x, %low, %high, %eps, %code)
      : (!torch.vtensor<[2,3],f32>, !torch.int, !torch.int, !torch.float, !torch.int)
      -> (!torch.vtensor<[SIZE],f64>, !torch.vtensor<[SIZE],si64>)
  %q = torch.operator "torch.quantized_decomposed.quantize_per_tensor.tensor"(%x, %p#0, %p#1, %low, %high, %code)
      : (!torch.vtensor<[2,3],f32>, !torch.vtensor<[SIZE],f64>, !torch.vtensor<[SIZE],si64>, !torch.int, !torch.int,
         !torch.int) -> !torch.vtensor<[2,3],si8>
  %d = torch.operator "torch.quantized_decomposed.dequantize_per_tensor.tensor"
      (%q, %p#0, %p#1, %low, %high, %code, %none)
      : (!torch.vtensor<[2,3],si8>, !torch.vtensor<[SIZE],f64>, !torch.vtensor<[SIZE],si64>, !torch.int, !torch.int,
         !torch.int, !torch.none) -> !torch.vtensor<[2,3],f32>
  return %d : !torch.vtensor<[2,3],f32>
}
"""


@pytest.mark.parametrize(("choose", "divisor"), [("choose_qparams", "2.55"), ("choose_qparams_symmetric", "1.275")])
def test_parameters_chosen_at_run_time(check: Check, choose: str, divisor: str) -> None:
    checks = f"""
        // CHECK: "lk.reduce"({{{{.*}}}}kind = "max"
        // CHECK: "lk.reduce"({{{{.*}}}}kind = "min"
        // CHECK: arith.constant {divisor}{{{{0*}}}}e+02 : f32
        // CHECK: "lk.quantize"
        // CHECK-SAME: formula = "reciprocal"
        // CHECK-SAME: (tensor<2x3xf32>, tensor<f64>, tensor<i32>) -> tensor<2x3xi8>
        // CHECK: "lk.dequantize"({{{{.*}}}}(tensor<2x3xi8>, tensor<f64>, tensor<i32>) -> tensor<2x3xf32>
        // CHECK-NOT: quantized_decomposed
    """
    text = CHOSEN.replace("CHOOSE", choose).replace("SIZE", "1")
    assert not check(text, "raise-quantization", checks).remarks


def test_chosen_parameters_of_several_elements_are_left_alone(check: Check) -> None:
    text = CHOSEN.replace("CHOOSE", "choose_qparams").replace("SIZE", "2")
    context = check(text, "raise-quantization", "// CHECK: quantized_decomposed.quantize_per_tensor.tensor")
    assert any("as a parameter for the tensor" in remark for remark in context.remarks)


def test_per_tensor_keeps_range_and_formula(check: Check) -> None:
    text = PER_TENSOR.replace("CODE", "0").replace("TYPE", "ui8")
    checks = """
        // CHECK: "lk.quantize"({{.*}}) {axis = 0 : i64, formula = "reciprocal", maximum = 127 : i64, minimum = 0 : i64,
        // CHECK-SAME: storage = i8, unsigned = true} : (tensor<2x3xf32>, tensor<f64>, tensor<i32>) -> tensor<2x3xi8>
        // CHECK: "lk.dequantize"({{.*}}) {axis = 0 : i64, unsigned = true}
        // CHECK-NOT: quantized_decomposed
    """.replace("i64,\n        // CHECK-SAME: storage", "i64, storage")
    assert not check(text, "raise-quantization", checks).remarks


def test_per_channel(check: Check) -> None:
    weights = {"w": np.ones((4, 3), np.int8), "s": np.ones(4, np.float32), "z": np.array([0, 1, -1, 2])}
    context = check(
        PER_CHANNEL.replace("SCALE", "f32"),
        "raise-quantization",
        """
        // CHECK: "lk.dequantize"({{.*}}) {axis = 0 : i64, unsigned = false} : (tensor<4x3xi8>, tensor<4xf32>,
        // CHECK-NOT: quantized_decomposed
        """,
        weights,
    )
    assert context.weights.get("z.i32").tolist() == [0, 1, -1, 2]


def test_64_bit_storage_is_left_alone(check: Check) -> None:
    text = PER_TENSOR.replace("CODE", "4").replace("TYPE", "si64")
    context = check(text, "raise-quantization", "// CHECK: torch.quantized_decomposed.quantize_per_tensor")
    assert any("numbers stored as si64" in remark for remark in context.remarks)


def test_scales_of_f64_per_channel_are_left_alone(check: Check) -> None:
    weights = {"w": np.ones((4, 3), np.int8), "s": np.ones(4), "z": np.zeros(4, np.int64)}
    text = PER_CHANNEL.replace("SCALE", "f64")
    context = check(text, "raise-quantization", "// CHECK: quantized_decomposed.dequantize_per_channel", weights)
    assert any("scales of f64" in remark for remark in context.remarks)
