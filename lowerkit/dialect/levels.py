"""The three levels of the IR, each a set of ops that may stand there, checked where one stage ends and the next begins.

    graph    what the model computes: lk ops and elementwise linalg, in floats or with explicit ``lk.quantize`` and
             ``lk.dequantize``
    integer  the same with byte products and ``lk.requant``, which says its multiplier, rounding and saturation
    region   everything computes inside of ``lk.region``: an anchor with its epilogue, the unit of a kernel

Stages ``raised`` to ``partitioned`` are at the graph or the integer level, one module may hold both; functions of
accelerators stay there for targets that take whole functions. Stage ``layout`` has no quantization op left, stage
``fused`` is at the region level, in functions of the host and of targets by regions.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowerkit.mlir import ir

_COMPUTING = ("linalg.", "tensor.", "arith.", "math.", "affine.", "scf.", "func.", "cf.", "memref.", "index.")
_REGION_LEVEL = frozenset({"lk.region", "lk.yield"})
_QUANTIZATION = frozenset({"lk.quantize", "lk.dequantize", "lk.requant"})
_AROUND_REGIONS = frozenset(
    {
        "lk.region", "lk.weight", "lk.call", "lk.cond", "lk.while", "lk.check_indices", "lk.state_read",
        "lk.state_write", "lk.collective_start", "lk.collective_done", "tensor.expand_shape", "tensor.collapse_shape",
        "tensor.cast", "tensor.dim", "tensor.empty", "tensor.from_elements", "tensor.extract", "func.return",
    }
)  # fmt: skip
"""What may stand outside of regions: data, states, control flow, views, and the arithmetic of extents."""


def illegal_ops(function: ir.Operation, stage: str) -> list[ir.Operation]:
    """Returns the ops of a ``func.func`` that may not stand in it at ``stage``."""
    block = function.regions[0].blocks[0]
    if stage == "fused":
        return [
            op.operation
            for op in block.operations
            if op.operation.name not in _AROUND_REGIONS and not op.operation.name.startswith(("arith.", "affine."))
        ]
    return [op for op in _nested(block) if not _is_legal(op.name, stage)]


def _is_legal(name: str, stage: str) -> bool:
    if not name.startswith("lk."):
        return stage == "captured" or name.startswith(_COMPUTING)
    if name in _REGION_LEVEL:
        return False
    if name == "lk.call":
        return stage not in ("raised", "canonical")
    return stage != "layout" or name not in _QUANTIZATION


def _nested(block: ir.Block) -> Iterator[ir.Operation]:
    for op in block.operations:
        yield op.operation
        for region in op.operation.regions:
            for inner in region.blocks:
                yield from _nested(inner)
