"""Lowers quantize, dequantize and requant to elementwise ops, which fuse with whatever they stand beside.

From here on they are the scalar bodies that their lk ops define, bit for bit: an epilogue of an integer product, the
end of a softmax, the start of an addition. Layout passes see through them.


"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import LkOperation
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.rewriting import erase_dead, main_block, operations, replace

_OPS = frozenset({"lk.quantize", "lk.dequantize", "lk.requant"})


@dataclass(frozen=True)
class LowerQuantization(Pass):
    """Writes quantization as ``linalg.generic``.

    Precondition: stage canonical; the passes that look for quantization have run.
    """

    name: ClassVar[str] = "lower-quantization"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            if op.name in _OPS:
                view = op.opview
                assert isinstance(view, LkOperation)
                replace(op, view.to_linalg())
                changed = True
        erase_dead(block)
        return changed
