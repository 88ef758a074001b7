"""Puts comparisons into the ops that choose by them, so that an accelerator sees ``relu`` and not a tensor of bools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import as_elementwise, identity_map
from lowerkit.passes.fuse.clusters import Cluster
from lowerkit.passes.rewriting import element_of, erase_dead, main_block, operations, users


@dataclass(frozen=True)
class MergePredicates(Pass):
    """Merges an elementwise op that gives bools with its only reader, if that is elementwise and of the same loops.

    Nothing without accelerators: the CPU fuses more than that. Precondition: stage canonical.
    """

    name: ClassVar[str] = "merge-predicates"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        if not context.accelerators:
            return False
        block = main_block(module)
        changed = False
        for op in reversed(operations(block)):
            changed = _merge(op) or changed
        erase_dead(block)
        return changed


def _merge(op: ir.Operation) -> bool:
    view = as_elementwise(op)
    if view is None or len(op.results) != 1 or str(element_of(op.results[0])) != "i1":
        return False
    readers = users(op.results[0])
    reader = as_elementwise(readers[0]) if len(readers) == 1 else None
    if reader is None or reader.shape != view.shape or reader.op.block != op.block:
        return False
    if reader.inputs_read_through(op.results[0]) != [identity_map(reader.rank)]:
        return False
    cluster = Cluster(reader)
    cluster.add(view, identity_map(reader.rank), preserve=False)
    cluster.merge()
    return True
