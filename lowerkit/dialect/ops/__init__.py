"""The op classes of the lk dialect, one small file for each op or tight family."""

from __future__ import annotations

from lowerkit.dialect.ops.attention import AttentionOp
from lowerkit.dialect.ops.call import CallOp
from lowerkit.dialect.ops.check_indices import CheckIndicesOp
from lowerkit.dialect.ops.collective import CollectiveDoneOp, CollectiveStartOp
from lowerkit.dialect.ops.control_flow import CondOp, WhileOp
from lowerkit.dialect.ops.conv import ConvOp
from lowerkit.dialect.ops.conv_transpose import ConvTransposeOp
from lowerkit.dialect.ops.cumulative import CumulativeOp
from lowerkit.dialect.ops.gather import GatherOp
from lowerkit.dialect.ops.integer import IntegerConvOp, IntegerMatmulOp
from lowerkit.dialect.ops.matmul import MatmulOp
from lowerkit.dialect.ops.norm import GroupNormOp, LayerNormOp, RmsNormOp
from lowerkit.dialect.ops.pool import AvgPoolOp, MaxPoolOp
from lowerkit.dialect.ops.quantize import DequantizeOp, QuantizeOp
from lowerkit.dialect.ops.reduce import ReduceOp
from lowerkit.dialect.ops.region import RegionOp, YieldOp
from lowerkit.dialect.ops.requant import RequantOp
from lowerkit.dialect.ops.resize import ResizeOp
from lowerkit.dialect.ops.rope import RopeOp
from lowerkit.dialect.ops.scatter import ScatterOp
from lowerkit.dialect.ops.softmax import SoftmaxOp
from lowerkit.dialect.ops.sort import SortOp, TopkOp
from lowerkit.dialect.ops.state import StateReadOp, StateWriteOp
from lowerkit.dialect.ops.weight import WeightOp

__all__ = [
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
]
