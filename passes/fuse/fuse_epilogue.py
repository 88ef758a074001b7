"""Puts an anchor op and the elementwise op that follows it into one region, so that a kernel finishes its elements
while they are in registers: bias, activation, residual addition, scaling, conversion.

Steps, from the last anchor to the first (where an op reads two anchors, the later one finds the other's value ready):
    1. the anchor's reader must be elementwise, of the same shape, and read the anchor's elements in their own order;
    2. other readers of the anchor's value must come later: the value becomes a further result of the region;
    3. both move into a region in place of the elementwise op, where all its other operands exist.

Bytes: one store and one load of the anchor's result are saved; its other readers cost the store again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import Elementwise, as_elementwise, identity_map
from lowerkit.passes.fuse.anchors import is_anchor, region_kind
from lowerkit.passes.fuse.regions import make_region
from lowerkit.passes.rewriting import (
    OpMap,
    OpSet,
    ancestor_in,
    captured_values,
    erase_dead,
    main_block,
    operations,
    positions,
    shape_of,
    users,
)


@dataclass(frozen=True)
class FuseEpilogue(Pass):
    """Forms ``lk.region`` from anchors with an elementwise epilogue.

    Precondition: elementwise chains are merged already (``fuse-elementwise``); what is not merged stays outside.

    Attributes:
        max_operands: tensors that an epilogue reads beside the anchor's result, at most.
    """

    name: ClassVar[str] = "fuse-epilogue"
    max_operands: int = 8

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        snapshot = operations(block)
        position = positions(snapshot)
        taken = OpSet()
        changed = False
        for anchor in reversed(snapshot):
            if not is_anchor(anchor) or len(anchor.results) != 1:
                continue
            epilogue = self._epilogue(anchor, block, position, taken)
            if epilogue is None:
                continue
            place = position[epilogue.op]
            taken.add(epilogue.op)
            region = make_region([anchor, epilogue.op], region_kind(anchor))
            position[region] = place
            changed = True
        return erase_dead(block) > 0 or changed

    def _epilogue(
        self,
        anchor: ir.Operation,
        block: ir.Block,
        position: OpMap[int],
        taken: OpSet,
    ) -> Elementwise | None:
        """Returns the elementwise op that can be computed on the accumulators of ``anchor``."""
        value = anchor.results[0]
        readers = [ancestor_in(block, reader) for reader in users(value)]
        if not readers:
            return None
        first = min(readers, key=lambda reader: position[reader])
        view = None if first in taken else as_elementwise(first)
        if view is None or view.shape != tuple(shape_of(value)) or value in captured_values(first):
            return None
        if value in view.inits or len(view.inputs) - 1 > self.max_operands:
            return None
        if any(index_map != identity_map(view.rank) for index_map in view.inputs_read_through(value)):
            return None
        return view
