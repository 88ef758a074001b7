"""The lk dialect: the contract with hardware.

``load_dialect(context)`` makes the ops known to a context; each op class gives its builder, verifier, shape rule,
numpy reference, lowering to linalg, FLOPs and bytes. ``docs/dialect.md`` is generated from these classes.
"""

from __future__ import annotations

from lowerkit.dialect.base import Lk, LkOperation
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
from lowerkit.dialect.shapes import DYNAMIC
from lowerkit.mlir import ir

DIALECT_VERSION = "0.2"

__all__ = [
    "DIALECT_VERSION",
    "DYNAMIC",
    "AttentionOp",
    "AvgPoolOp",
    "CallOp",
    "CheckIndicesOp",
    "CollectiveDoneOp",
    "CollectiveStartOp",
    "CondOp",
    "ConvOp",
    "ConvTransposeOp",
    "CumulativeOp",
    "DequantizeOp",
    "GatherOp",
    "GroupNormOp",
    "IntegerConvOp",
    "IntegerMatmulOp",
    "LayerNormOp",
    "Lk",
    "LkOperation",
    "MatmulOp",
    "MaxPoolOp",
    "QuantizeOp",
    "ReduceOp",
    "RegionOp",
    "RequantOp",
    "ResizeOp",
    "RmsNormOp",
    "RopeOp",
    "ScatterOp",
    "SoftmaxOp",
    "SortOp",
    "StateReadOp",
    "StateWriteOp",
    "TopkOp",
    "WeightOp",
    "WhileOp",
    "YieldOp",
    "load_dialect",
]


def load_dialect(context: ir.Context) -> None:
    """Makes the lk ops known to ``context``; a second call does nothing."""
    if context.is_dialect_loaded(Lk.DIALECT_NAMESPACE):
        return
    with context, ir.Location.unknown(context):
        Lk.load()
