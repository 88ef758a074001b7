"""Makes the program that every rank of a mesh runs of the program of one device, by a plan.

Vocabulary
    plan     names the modules whose weights are split, and how (:mod:`lowerkit.passes.shard.plan`)
    held     how the ranks hold a tensor: whole, split along a dimension, or as terms of a reduction
    form     a value as one rank computes it, held in one way; of a value there may be several

Steps:
    1. decide for each op how it wants its operands (:mod:`lowerkit.passes.shard.decisions`); an op of which nothing is
       known wants them whole;
    2. op by op in program order: bring each operand into that form: weights and constants are cut, everything else
       takes a collective;
    3. write the op again with the types of one rank.
What the function returns is whole. All ranks run the same ops in the same order, so their collectives meet.

Bytes: weights that are split are stored once, one part behind the other, and each rank reads its own part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.rewriting import main_block
from lowerkit.passes.shard.sharder import Sharder


@dataclass(frozen=True)
class ShardProgram(Pass):
    """Splits a program among the ranks of ``context.sharding``; nothing without one.

    Precondition: stage canonical.

    A state to which slices are written is held in slices, and the report of the plan says along which dimension:
    whoever declares states declares those of a rank then.

    Raises:
        UnsupportedError: LK4007, the plan splits what cannot be split; all of it at once.
    """

    name: ClassVar[str] = "shard-program"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        if context.sharding is None:
            return False
        block = main_block(module)
        with module.context, ir.Location.unknown():
            Sharder(block, context.sharding, context.weights, context.input_names).run()
        return True
