"""What values cannot show in kernels that ship: fences and waits of ``wgmma`` in products, convolutions, attention."""

from __future__ import annotations

import pytest

from lowerkit.runtimes.cuda.image import unpack
from lowerkit.runtimes.cuda.simulated.ordering_lint import check
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, tensor
from tests.support.targets.cuda_kernels import compile_cuda

PRODUCT = "accumulate = f32, transpose_lhs = false, transpose_rhs = {}"
CONV = (
    "accumulate = f32, channels_last = true, dilation = array<i64: 1, 1>, groups = 1 : i64, "
    "padding = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>"
)
ATTENTION = 'causal = true, empty_rows = "zero", fill = 0xFFF0000000000000 : f64, masking = "add", scale = 0.125 : f64'
HEADS = tensor([4, 16, 1024, 64], "bf16")

REGIONS = {
    "product": anchored(
        "matmul", [tensor([4096, 1024], "bf16"), tensor([1024, 4096], "bf16")], tensor([4096, 4096], "bf16"),
        PRODUCT.format("false"),
    ),
    "product with B by columns": anchored(
        "matmul", [tensor([4096, 1024], "f16"), tensor([4096, 1024], "f16")], tensor([4096, 4096], "f16"),
        PRODUCT.format("true"),
    ),
    "product of bytes": anchored(
        "integer_matmul", [tensor([4096, 1024], "i8"), tensor([4096, 1024], "i8")], tensor([4096, 4096], "i32"),
        "transpose_rhs = true, unsigned = false",
    ),
    "convolution": anchored(
        "conv", [tensor([32, 28, 28, 256], "bf16"), tensor([256, 256, 3, 3], "bf16")],
        tensor([32, 28, 28, 256], "bf16"), CONV,
    ),
    "attention": anchored("attention", [HEADS, HEADS, HEADS], HEADS, ATTENTION),
}  # fmt: skip


@pytest.mark.parametrize("name", REGIONS)
def test_no_fence_is_missing(name: str) -> None:
    view = RegionView.from_text(REGIONS[name], name.partition(" ")[0], ["", "w"] if name == "convolution" else ())
    compiled = compile_cuda(view, "sm_90", fast=True)
    assert compiled.planned.family != "threads"
    read = unpack(compiled.code, {})
    (variant,) = read.variants
    texts = [read.compiled(variant, kernel).ptx.decode() for kernel in variant.kernels]
    assert any("wgmma.mma_async" in text for text in texts)
    assert [str(finding) for text in texts for finding in check(text)] == []


def test_a_fence_that_is_missing_is_found() -> None:
    compiled = compile_cuda(RegionView.from_text(REGIONS["product"], "product"), "sm_90", fast=True)
    read = unpack(compiled.code, {})
    (variant,) = read.variants
    text = read.compiled(variant, next(iter(variant.kernels))).ptx.decode()
    assert "wgmma.wait_group" in text
    without = "\n".join(line for line in text.splitlines() if "wgmma.wait_group" not in line)
    assert check(without)
