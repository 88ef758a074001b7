"""The ops that a region is built around, and what a region is called after them."""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import shape_of

_ANCHORS: dict[str, str] = {
    "lk.matmul": "matmul",
    "lk.integer_matmul": "matmul",
    "lk.conv": "conv",
    "lk.integer_conv": "conv",
    "lk.conv_transpose": "conv_transpose",
    "lk.attention": "attention",
    "lk.softmax": "softmax",
    "lk.layer_norm": "layer_norm",
    "lk.rms_norm": "rms_norm",
    "lk.group_norm": "group_norm",
    "lk.max_pool": "pool",
    "lk.avg_pool": "pool",
    "lk.reduce": "reduce",
    "lk.gather": "gather",
    "lk.resize": "resize",
    "lk.rope": "rope",
    "lk.cumulative": "cumulative",
}

_OTHERS: dict[str, str] = {
    "lk.topk": "topk",
    "lk.sort": "sort",
    "lk.scatter": "scatter",
    "linalg.transpose": "transpose",
    "linalg.fill": "elementwise",
    "linalg.broadcast": "elementwise",
    "linalg.reduce": "reduce",
    "tensor.concat": "concat",
    "tensor.pad": "pad",
    "tensor.extract_slice": "slice",
    "tensor.insert_slice": "insert",
    "tensor.gather": "gather",
    "tensor.scatter": "scatter",
}


def region_names() -> dict[str, str]:
    """Returns what a region is called, by the name of the op that it is built around."""
    return {**_ANCHORS, **_OTHERS}


def is_anchor(op: ir.Operation | None) -> bool:
    """Whether an elementwise epilogue can be computed on the results of ``op`` before they are stored."""
    return op is not None and op.name in _ANCHORS


def region_kind(op: ir.Operation) -> str:
    """Returns what a region around ``op`` is called; ``generic`` for ops that have no name of their own."""
    if op.name in ("lk.conv", "lk.integer_conv") and _is_depthwise(op):
        return "depthwise_conv"
    return region_names().get(op.name, "generic")


def _is_depthwise(op: ir.Operation) -> bool:
    """Whether each group of a convolution has one input channel; the filter is [Cout, Cin/groups, ...]."""
    return ir.IntegerAttr(op.attributes["groups"]).value > 1 and shape_of(op.operands[1])[1] == 1
