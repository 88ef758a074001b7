"""Gives the sums of products that a plan splits along K one order, the same for every number of ranks.

Vocabulary
    K         what a product sums over; the input channels of a convolution, whose taps stay together
    chunk     one of ``chunks`` equal parts of K, the same for every mesh; a rank has neighbouring ones. Zeros stand
              behind the end of a K that does not divide
    partial   the product of one chunk, in the type in which products are summed
    tree      the sum of all partials: neighbours are added, then neighbours of these sums, up to the root

Steps for each product that the plan splits along K among R ranks:
    1. K becomes [R, chunks / R, K / chunks], on the left by a view and a transpose, in the weight when it is stored;
    2. one product with R and chunks / R as batches gives the partials, or one convolution with them as groups;
    3. elementwise additions over slices: the subtrees of each of the R, then what is above them.
``shard-program`` splits R: each rank makes its subtrees, one gather brings their R roots to every rank, and each adds
these in the same order. With one rank the same tree is made in one place. The module is marked ``lk.invariant``:
collectives then sum no floats, and kernels sum in an order that hangs on K alone.

Bytes: beside the product, the left operand of a matrix product once more, and ``2 * chunks / R + R`` results in the
type of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect.types import is_float
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.rewriting import element_of, erase_dead, main_block, operations, weight_symbol
from lowerkit.passes.shard.choices import Choices
from lowerkit.passes.shard.chunked_products import sum_chunks, why_no_chunks
from lowerkit.passes.shard.invariance import is_chunked, mark_invariant
from lowerkit.passes.shard.loops.table import PRODUCTS
from lowerkit.passes.shard.plan import ShardingPlan
from lowerkit.passes.source_location import describe
from lowerkit.program.weights import WeightStore


@dataclass(frozen=True)
class FixReductions(Pass):
    """Sums the products that ``context.sharding`` splits along K in a tree over chunks of K; nothing without a plan.

    Precondition: stage canonical, before ``shard-program`` of the same plan.

    Attributes:
        chunks: of K; a multiple of each number of ranks that is to give the same bits.

    Raises:
        UnsupportedError: LK4007, the ranks do not divide the chunks, or products have none; all of them at once.
    """

    name: ClassVar[str] = "fix-reductions"
    chunks: int = 8

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        if context.sharding is None:
            return False
        block = main_block(module)
        with module.context, ir.Location.unknown():
            mark_invariant(module)
            products = self._products(block, context.sharding, context.weights)
            for op in products:
                sum_chunks(op, context.sharding.ranks, self.chunks, context.weights)
            erase_dead(block)
        return True

    def _products(self, block: ir.Block, plan: ShardingPlan, weights: WeightStore) -> list[ir.Operation]:
        """Returns the products that the plan splits along K.

        Raises:
            UnsupportedError: LK4007, one of them has no tree.
        """
        choices = Choices(plan, weights)
        found: list[ir.Operation] = []
        problems: list[str] = []
        for op in operations(block):
            if op.name not in PRODUCTS or weight_symbol(op.operands[1]) is None or is_chunked(op):
                continue
            entry = choices.entry(op)
            if entry is None or entry.choice != "row" or not is_float(element_of(op.operands[1])):
                continue  # sums of integers are the same in any order
            if reason := why_no_chunks(op):
                problems.append(f"{describe(op)}: {reason} ({entry.pattern!r}: {entry.choice})")
            plan.report.used.add(entry)
            found.append(op)
        if found and self.chunks % plan.ranks:
            raise UnsupportedError(
                "LK4007",
                f"{self.chunks} chunks of a sum cannot be shared by {plan.ranks} ranks of {plan.axis!r}",
                hint=f"sums that are the same on every mesh take a number of ranks that divides {self.chunks}",
            )
        if problems:
            raise UnsupportedError(
                "LK4007",
                f"{len(problems)} sums cannot be made of {self.chunks} chunks, which are the same on every mesh: "
                f"{problems[0]}",
                details=problems[1:],
                hint="give these modules the choice column or replicate, ahead of the pattern that names them",
            )
        return found
