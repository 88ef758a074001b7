"""One small example of each op, for the documentation and for tests that go over all ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lowerkit.dialect.base import LkOperation
from lowerkit.dialect.linalg_builder import constant_index
from lowerkit.dialect.ops import (
    AttentionOp,
    AvgPoolOp,
    CallOp,
    CheckIndicesOp,
    CollectiveDoneOp,
    CollectiveStartOp,
    CondOp,
    ConvOp,
    ConvTransposeOp,
    CumulativeOp,
    DequantizeOp,
    GatherOp,
    GroupNormOp,
    IntegerConvOp,
    IntegerMatmulOp,
    LayerNormOp,
    MatmulOp,
    MaxPoolOp,
    QuantizeOp,
    ReduceOp,
    RegionOp,
    RequantOp,
    ResizeOp,
    RmsNormOp,
    RopeOp,
    ScatterOp,
    SoftmaxOp,
    SortOp,
    StateReadOp,
    StateWriteOp,
    TopkOp,
    WeightOp,
    WhileOp,
    YieldOp,
)
from lowerkit.mlir import func, ir


@dataclass(frozen=True)
class Example:
    """How to build one op.

    Attributes:
        operands: the types of the values that ``build`` takes.
        build: builds the op at the current insertion point.
    """

    operands: tuple[str, ...]
    build: Callable[..., Any]

    def module(self) -> ir.Module:
        """Returns a module with a function whose body is this example, in the current context."""
        types = [ir.Type.parse(kind) for kind in self.operands]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            block = func.FuncOp("main", (types, [])).add_entry_block()
        with ir.InsertionPoint(block):
            self.build(*block.arguments)
            func.ReturnOp([])
        return module


def _tensor(kind: str) -> ir.Type:
    return ir.Type.parse(kind)


def _region(value: ir.Value) -> None:
    region = RegionOp.build([value], "softmax", [value.type])
    with ir.InsertionPoint(region.block):
        YieldOp.build([SoftmaxOp.build(region.block.arguments[0])])


def _all_reduce(value: ir.Value) -> None:
    CollectiveDoneOp.build(CollectiveStartOp.build(value, kind="all_reduce", axis="tp", ranks=2))


EXAMPLES: dict[type[LkOperation], Example] = {
    WeightOp: Example((), lambda: WeightOp.build("encoder.0.weight", _tensor("tensor<64x32xf32>"))),
    MatmulOp: Example(
        ("tensor<?x128x64xbf16>", "tensor<256x64xbf16>"), lambda a, b: MatmulOp.build(a, b, transpose_rhs=True)
    ),
    ConvOp: Example(
        ("tensor<1x3x224x224xf32>", "tensor<64x3x7x7xf32>"), lambda x, f: ConvOp.build(x, f, strides=2, padding=3)
    ),
    ConvTransposeOp: Example(
        ("tensor<1x16x14x14xf32>", "tensor<16x8x2x2xf32>"), lambda x, f: ConvTransposeOp.build(x, f, strides=2)
    ),
    AttentionOp: Example(
        ("tensor<1x8x?x64xf32>", "tensor<1x2x?x64xf32>", "tensor<1x2x?x64xf32>"),
        lambda q, k, v: AttentionOp.build(q, k, v, causal=True),
    ),
    SoftmaxOp: Example(("tensor<4x?x10xf32>",), lambda x: SoftmaxOp.build(x, axis=-1)),
    LayerNormOp: Example(("tensor<1x128x768xf32>", "tensor<768xf32>", "tensor<768xf32>"), LayerNormOp.build),
    RmsNormOp: Example(("tensor<1x?x2048xbf16>", "tensor<2048xbf16>"), RmsNormOp.build),
    GroupNormOp: Example(
        ("tensor<1x32x16x16xf32>", "tensor<32xf32>", "tensor<32xf32>"),
        lambda x, s, b: GroupNormOp.build(x, s, b, groups=8),
    ),
    MaxPoolOp: Example(("tensor<1x64x112x112xf32>",), lambda x: MaxPoolOp.build(x, kernel=3, strides=2, padding=1)),
    AvgPoolOp: Example(("tensor<1x64x8x8xf32>",), lambda x: AvgPoolOp.build(x, kernel=2)),
    ReduceOp: Example(("tensor<1x64x7x7xf32>",), lambda x: ReduceOp.build(x, kind="mean", axes=[2, 3], keep_dims=True)),
    GatherOp: Example(("tensor<30522x768xf32>", "tensor<1x?xi64>"), lambda t, i: GatherOp.build(t, i, axis=0)),
    ScatterOp: Example(
        ("tensor<1024x64xf32>", "tensor<?xi64>", "tensor<?x64xf32>"),
        lambda t, i, u: ScatterOp.build(t, i, u, axis=0, kind="add"),
    ),
    CheckIndicesOp: Example(
        ("tensor<1x?xi64>",),
        lambda i: CheckIndicesOp.build(i, [constant_index(30522)], wraps=False, operator="embedding"),
    ),
    ResizeOp: Example(("tensor<1x3x32x32xf32>",), lambda x: ResizeOp.build(x, mode="linear", size=[64, 64])),
    TopkOp: Example(("tensor<1x1000xf32>",), lambda x: TopkOp.build(x, k=5)),
    SortOp: Example(("tensor<4x?xf32>",), lambda x: SortOp.build(x, descending=True)),
    RopeOp: Example(
        ("tensor<1x8x?x64xf32>", "tensor<1x1x?x64xf32>", "tensor<1x1x?x64xf32>"),
        RopeOp.build,
    ),
    CumulativeOp: Example(("tensor<4x16xi64>",), lambda x: CumulativeOp.build(x, kind="sum", axis=-1)),
    QuantizeOp: Example(
        ("tensor<1x56x56x64xf32>", "tensor<f32>", "tensor<i32>"),
        lambda x, s, z: QuantizeOp.build(x, s, z, unsigned=True),
    ),
    DequantizeOp: Example(("tensor<64x32xi8>", "tensor<64xf32>", "tensor<64xi32>"), DequantizeOp.build),
    IntegerMatmulOp: Example(
        ("tensor<?x128x768xi8>", "tensor<768x256xi8>"), lambda a, b: IntegerMatmulOp.build(a, b, unsigned=True)
    ),
    IntegerConvOp: Example(
        ("tensor<1x56x56x64xi8>", "tensor<64x64x3x3xi8>"),
        lambda x, f: IntegerConvOp.build(x, f, channels_last=True, padding=1, padding_value=128, unsigned=True),
    ),
    RequantOp: Example(
        ("tensor<1x56x56x64xi32>", "tensor<64xi32>", "tensor<64xi32>", "tensor<64xi32>"),
        lambda x, m, s, z: RequantOp.build(x, m, s, z, axis=3, unsigned=True),
    ),
    StateReadOp: Example((), lambda: StateReadOp.build("cache.0.key", _tensor("tensor<1x2x1024x64xf32>"))),
    StateWriteOp: Example(("tensor<1x2x1024x64xf32>",), lambda x: StateWriteOp.build(x, "cache.0.key")),
    RegionOp: Example(("tensor<4x10xf32>",), _region),
    YieldOp: Example(("tensor<4x10xf32>",), _region),
    CallOp: Example(("tensor<4xf32>",), lambda x: CallOp.build([x], "vendor_kernel", [x.type])),
    CondOp: Example(
        ("tensor<i1>", "tensor<4x8xf32>"), lambda p, x: CondOp.build(p, [x], "main.large", "main.small", [x.type])
    ),
    WhileOp: Example(
        ("tensor<i64>", "tensor<4x8xf32>"), lambda i, x: WhileOp.build([i, x], 2, "main.unfinished", "main.step")
    ),
    CollectiveStartOp: Example(("tensor<2x?x768xf32>",), _all_reduce),
    CollectiveDoneOp: Example(("tensor<2x?x768xf32>",), _all_reduce),
}
"""By op class, in the order of the documentation."""
