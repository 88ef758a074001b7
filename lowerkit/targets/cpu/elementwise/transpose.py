"""Named data movement (``linalg.transpose``, ``broadcast``, ``copy``) as elementwise nests without a body.

The nest decides the way: rows are copied where the innermost dimension stays (``[B, S, H, D] -> [B, H, S, D]``),
square tiles are transposed in registers where it moves, and images of three channels are interleaved.
"""

from __future__ import annotations

from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.elementwise.elementwise import emit_nest
from lowerkit.targets.cpu.elementwise.loop_nest import collapse
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.linear_access import linear_access
from lowerkit.targets.cpu.text.region_values import Located, source_of
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView

__all__ = ["TransposeFamily"]

_NAMED = ("linalg.transpose", "linalg.broadcast", "linalg.copy")
_VIEWS = ("tensor.cast", "tensor.expand_shape", "tensor.collapse_shape")
_AROUND = ("tensor.empty", "tensor.dim", "arith.constant", *_VIEWS)


class TransposeFamily(KernelFamily):
    """One named op that moves elements and does not compute."""

    name: ClassVar[str] = "transpose"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not one movement."""
        moves = [op.operation for op in region.body_ops if op.operation.name not in _AROUND]
        if len(moves) != 1 or moves[0].name not in _NAMED:
            return Refusal("the region is not one named movement")
        move = moves[0]
        returned = region.returned
        if len(returned) != 1 or isinstance(returned[0].owner, ir.Block) or returned[0].owner.operation != move:
            return Refusal("the region yields something else than the moved tensor")
        frame = KernelFrame(region.buffer_types, region.invariant)
        source = source_of(move.operands[0], frame)
        if not isinstance(source, Located):
            return Refusal("the moved tensor is computed inside the region")
        sizes, extents = frame.sizes[-1], frame.extents[-1]
        with move.context:
            identity = ir.AffineMap.get_identity(len(sizes))
            map_ = _source_map(move, len(sizes))
        read = linear_access(frame.text, map_, source.buffer, source.sizes)
        write = linear_access(frame.text, identity, frame.buffers[-1], sizes)
        assert read is not None, "projected permutations are linear"
        assert write is not None, "the identity is linear"
        nest = collapse(frame.text, sizes, extents, None, [read], [write])
        return emit_nest(self.name, frame, nest, cpu)


def _source_map(move: ir.Operation, rank: int) -> ir.AffineMap:
    """The map from a point of the result to the element of the source."""
    if move.name == "linalg.copy":
        return ir.AffineMap.get_identity(rank)
    if move.name == "linalg.transpose":
        # dimension i of the result runs along dimension permutation[i] of the source
        permutation = list(ir.DenseI64ArrayAttr(move.attributes["permutation"]))
        return ir.AffineMap.get_permutation([permutation.index(dim) for dim in range(rank)])
    added = set(ir.DenseI64ArrayAttr(move.attributes["dimensions"]))
    kept = [ir.AffineDimExpr.get(dim) for dim in range(rank) if dim not in added]
    return ir.AffineMap.get(rank, 0, kept)
