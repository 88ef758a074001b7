"""Puts views of operands and of the result into the region of an op whose kernels read and write through strides.

Attention in a model reads ``[batch, length, heads, depth]`` turned to ``[batch, heads, length, depth]``, and what it
gives is turned back. A kernel that reads through strides needs none of these copies.

Steps: for each such op, the chain of views behind each operand (transposes, reshapes, slices that know their places) is
cloned in front of it, up to what computes; a transpose that alone reads its result, and a reshape behind that, goes in
as well; all of it becomes one region. Views that nobody else reads are dead then.

Bytes saved: what a transpose moves, once in and once out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.fuse.anchors import region_kind
from lowerkit.passes.fuse.regions import make_region
from lowerkit.passes.rewriting import clone_op, defining_op, erase_dead, main_block, operations, users

_ANCHORS = frozenset({"lk.attention", "lk.rope"})
_RESHAPES = frozenset({"tensor.expand_shape", "tensor.collapse_shape"})
_MOVES = frozenset({"linalg.transpose", "tensor.extract_slice"})


@dataclass(frozen=True)
class FuseViews(Pass):
    """Makes regions of ops that read through strides and the views around them.

    Precondition: stage layout or later, before ``form-regions``.
    """

    name: ClassVar[str] = "fuse-views"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            if op.name in _ANCHORS:
                changed = _fuse(op) or changed
        if changed:
            erase_dead(block)
        return changed


def _fuse(anchor: ir.Operation) -> bool:
    members: list[ir.Operation] = []
    for number, value in enumerate(anchor.operands):
        chain = _views_behind(value)
        if not any(op.name in _MOVES for op in chain):
            continue
        mapping: dict[ir.Value, ir.Value] = {}
        with ir.InsertionPoint(anchor), anchor.location:
            for op in chain:
                members.append(clone_op(op, mapping))
        anchor.operands[number] = members[-1].results[0]
    members.append(anchor)
    behind = _views_in_front(anchor)
    if len(members) == 1 and not behind:
        return False
    make_region([*members, *behind], region_kind(anchor))
    return True


def _views_behind(value: ir.Value) -> list[ir.Operation]:
    """Returns the views that lead to a value, the first one first."""
    chain: list[ir.Operation] = []
    op = defining_op(value)
    while op is not None and _is_view(op):
        chain.append(op)
        op = defining_op(op.operands[0])
    return chain[::-1]


def _views_in_front(anchor: ir.Operation) -> list[ir.Operation]:
    """Returns the transpose that alone reads the result, and the reshape that alone reads that one."""
    found: list[ir.Operation] = []
    value = anchor.results[0]
    for names in (frozenset({"linalg.transpose"}), _RESHAPES):
        readers = users(value)
        if len(readers) != 1 or readers[0].name not in names or not _is_view(readers[0]):
            break
        if readers[0].operands[0] != value or readers[0].block != anchor.block:
            break
        found.append(readers[0])
        value = readers[0].results[0]
    return found


def _is_view(op: ir.Operation) -> bool:
    """Whether an op shows elements that it does not change, at places that are known when it is compiled."""
    if op.name == "tensor.extract_slice":
        return len(op.operands) == 1
    return op.name == "linalg.transpose" or op.name in _RESHAPES
