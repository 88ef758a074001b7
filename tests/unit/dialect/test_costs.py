"""FLOPs and bytes follow the documented formulas, and are unknown where a shape is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lowerkit.dialect import (
    AttentionOp,
    AvgPoolOp,
    ConvOp,
    ConvTransposeOp,
    CumulativeOp,
    DequantizeOp,
    GatherOp,
    GroupNormOp,
    IntegerConvOp,
    IntegerMatmulOp,
    LayerNormOp,
    LkOperation,
    MatmulOp,
    MaxPoolOp,
    QuantizeOp,
    ReduceOp,
    RequantOp,
    ResizeOp,
    RmsNormOp,
    RopeOp,
    ScatterOp,
    SoftmaxOp,
    SortOp,
    TopkOp,
)
from lowerkit.dialect.examples import Example
from lowerkit.mlir import ir

COSTS: list[tuple[Callable[..., Any], tuple[str, ...], int, int]] = [
    (MatmulOp.build, ("8x3x4xf32", "4x5xf32"), 2 * 8 * 3 * 4 * 5, 4 * (96 + 20 + 120)),
    (MatmulOp.build, ("3x4xbf16", "4x5xbf16"), 120, 2 * (12 + 20 + 15)),
    (
        lambda x, f: ConvOp.build(x, f, groups=2, padding=1),
        ("2x4x8x8xf32", "6x2x3x3xf32"),
        2 * (2 * 6 * 64) * (2 * 9),
        4 * (512 + 108 + 768),
    ),
    (
        lambda x, f: ConvTransposeOp.build(x, f, strides=2),
        ("1x4x5x5xf32", "4x3x2x2xf32"),
        2 * (4 * 25) * (3 * 4),
        4 * (100 + 48 + 300),
    ),
    (
        lambda q, k, v: AttentionOp.build(q, k, v, causal=True),
        ("2x4x5x8xf32", "2x2x7x8xf32", "2x2x7x6xf32"),
        (2 * 4 * 5 * 7) * (2 * (8 + 6) + 5),
        4 * (320 + 224 + 168 + 240),
    ),
    (SoftmaxOp.build, ("4x8xf16",), 5 * 32, 2 * 64),
    (LayerNormOp.build, ("4x8xf32", "8xf32", "8xf32"), 8 * 32, 4 * 80),
    (RmsNormOp.build, ("4x8xf32", "8xf32"), 4 * 32, 4 * 72),
    (lambda x: GroupNormOp.build(x, groups=2), ("2x4x3xf32",), 8 * 24, 4 * 48),
    (lambda x: MaxPoolOp.build(x, kernel=2), ("1x3x8x8xf32",), 48 * 4, 4 * (192 + 48)),
    (lambda x: AvgPoolOp.build(x, kernel=2), ("1x3x8x8xf32",), 48 * 5, 4 * (192 + 48)),
    (lambda x: ReduceOp.build(x, kind="any", axes=[1]), ("4x8xi1",), 32, 32 + 4),
    (lambda d, i: GatherOp.build(d, i), ("30000x16xf32", "7xi64"), 0, 7 * 8 + 2 * 7 * 16 * 4),
    (lambda d, i, u: ScatterOp.build(d, i, u), ("30x16xf32", "7xi64", "7x16xf32"), 0, 2 * 1920 + 7 * 8 + 3 * 448),
    (
        lambda d, i, u: ScatterOp.build(d, i, u, kind="add"),
        ("30x16xf32", "7xi64", "7x16xf32"),
        7 * 16,
        2 * 1920 + 7 * 8 + 3 * 448,
    ),
    (lambda x: ResizeOp.build(x, mode="linear", size=[8, 8]), ("1x3x4x4xf32",), 2 * 4 * 192, 4 * (48 + 192)),
    (lambda x: ResizeOp.build(x, mode="nearest", size=[8, 8]), ("1x3x4x4xf32",), 0, 4 * (48 + 192)),
    (SortOp.build, ("4x10xf32",), 4 * 10 * 4, 4 * 40 + 12 * 40),
    (lambda x: TopkOp.build(x, k=2), ("4x16xf32",), 4 * 16 * 4, 4 * 64 + 12 * 8),
    (RopeOp.build, ("1x2x4x8xf32", "4x8xf32", "4x8xf32"), 3 * 64, 4 * (64 + 32 + 32 + 64)),
    (CumulativeOp.build, ("4x8xi32",), 32, 4 * 64),
    (IntegerMatmulOp.build, ("8x3x4xi8", "4x5xi8"), 2 * 8 * 3 * 4 * 5, 96 + 20 + 4 * 120),
    (
        lambda x, f: IntegerConvOp.build(x, f, padding=1),
        ("2x4x8x8xi8", "6x4x3x3xi8"),
        2 * (2 * 6 * 64) * (4 * 9),
        512 + 216 + 4 * 768,
    ),
    (QuantizeOp.build, ("4x8xf32", "f32", "i32"), 5 * 32, 4 * 32 + 8 + 32),
    (DequantizeOp.build, ("4x8xi8", "f32", "i32"), 2 * 32, 32 + 8 + 4 * 32),
    (RequantOp.build, ("4x8xi32", "i32", "i32", "i32"), 6 * 32, 4 * 32 + 12 + 32),
]


def built(build: Callable[..., Any], kinds: tuple[str, ...]) -> tuple[ir.Module, LkOperation]:
    """Returns the op, and the module that keeps it alive."""
    module = Example(tuple(f"tensor<{kind}>" for kind in kinds), build).module()
    operations = module.body.operations[0].regions[0].blocks[0].operations
    (op,) = [op for op in operations if isinstance(op, LkOperation)]
    return module, op


@pytest.mark.parametrize(("build", "kinds", "flops", "moved"), COSTS)
def test_formulas(build: Any, kinds: tuple[str, ...], flops: int, moved: int, context: ir.Context) -> None:
    module, op = built(build, kinds)
    assert module.operation.verify()
    assert op.flops() == flops
    assert op.bytes_moved() == moved


@pytest.mark.parametrize(("build", "kinds", "flops", "moved"), COSTS)
def test_dynamic_shapes_have_no_cost(
    build: Any, kinds: tuple[str, ...], flops: int, moved: int, context: ir.Context
) -> None:
    # The batch dimension of the first operand, or of what comes after the table of a gather or scatter.
    looked_up = (flops == 0 and len(kinds) == 2) or kinds[1:2] == ("7xi64",)
    unknown = [
        "?" + kind.lstrip("0123456789") if (number > 0 if looked_up else number == 0) else kind
        for number, kind in enumerate(kinds)
    ]
    module, op = built(build, tuple(unknown))
    assert module.operation.verify()
    assert op.bytes_moved() is None
    assert op.flops() is (0 if flops == 0 else None)
