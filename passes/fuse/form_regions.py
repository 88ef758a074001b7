"""Puts every computing op that is still at the top level into a region of its own, and checks that stage fused is
reached: at the top level there are weights, regions, states, views, shape arithmetic and the return, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.errors import PassError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.fuse.anchors import region_kind
from lowerkit.passes.fuse.regions import is_repeatable, make_region
from lowerkit.passes.rewriting import erase_dead, is_used, main_block, operations

VIEWS = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"})
_TOP_LEVEL = VIEWS | {
    "lk.weight", "lk.region", "lk.state_read", "lk.state_write", "lk.check_indices", "lk.call", "lk.cond", "lk.while",
    "lk.collective_start", "lk.collective_done", "func.return", "tensor.dim", "arith.constant",
}  # fmt: skip


@dataclass(frozen=True)
class FormRegions(Pass):
    """Wraps what ``fuse-epilogue`` left into regions and checks the result.

    Precondition: stage layout or later.

    Raises:
        PassError: LK3004, an op can neither stay at the top level nor go into a region; all of them are listed.
    """

    name: ClassVar[str] = "form-regions"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            if _belongs_to_top_level(op) or is_repeatable(op):
                continue
            if any(is_used(result) for result in op.results):
                make_region([op], single_op_kind(op))
                changed = True
        changed = erase_dead(block) > 0 or changed
        # Constants and fills that something at the top level reads need storage. Readers first: the region of a fill
        # repeats the destination that it fills.
        for op in reversed(operations(block)):
            if not is_repeatable(op) or not any(is_used(result) for result in op.results) or _says_what_comes(op):
                continue
            if any(isinstance(result.type, ir.RankedTensorType) for result in op.results):
                make_region([op], "elementwise")
                changed = True
        changed = erase_dead(block) > 0 or changed
        check_fused(block)
        return changed


def single_op_kind(op: ir.Operation) -> str:
    """Returns the kind of a region that holds ``op`` alone."""
    if op.name != "linalg.generic":
        return region_kind(op)
    view = as_elementwise(op)
    if view is not None:
        moves_only = len(operations(view.body)) == 1 and len(view.inputs) == 1
        is_permuted = moves_only and None not in view.maps[0] and sorted(view.maps[0], key=_order) != list(view.maps[0])
        return "transpose" if is_permuted and len(view.maps[0]) == view.rank else "elementwise"
    iterators = [str(iterator) for iterator in op.attributes["iterator_types"]]
    return "reduce" if any("reduction" in iterator for iterator in iterators) else "generic"


def _order(loop: int | None) -> int:
    return -1 if loop is None else loop


def _belongs_to_top_level(op: ir.Operation) -> bool:
    return op.name in _TOP_LEVEL or _is_shape_arithmetic(op) or _says_what_comes(op)


def _says_what_comes(op: ir.Operation) -> bool:
    """Whether ``op`` is the operand of collectives that read only its type; it needs no storage."""
    users = [use.owner.operation.name for result in op.results for use in result.uses]
    return op.name == "tensor.empty" and bool(users) and set(users) == {"lk.collective_start"}


def _is_shape_arithmetic(op: ir.Operation) -> bool:
    """Whether ``op`` computes with indices and 64-bit integers only."""
    if not op.name.startswith(("arith.", "affine.")):
        return False
    return all(isinstance(value.type, ir.IndexType | ir.IntegerType) for value in (*op.operands, *op.results))


def check_fused(block: ir.Block) -> None:
    """Raises ``PassError`` LK3004 with every op that stage fused does not allow at the top level."""
    wrong = [
        f"{op.name} at {op.location}"
        for op in operations(block)
        if not _belongs_to_top_level(op)
        or (op.name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType))
    ]
    if wrong:
        raise PassError(
            "LK3004",
            f"{len(wrong)} ops are outside of a region where only views, weights, states and shape arithmetic may be",
            details=wrong,
            hint="a scalar that depends on data cannot shape a tensor; otherwise report this as a defect of a pass",
        )
