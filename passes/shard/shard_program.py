"""Makes the program that every rank of a mesh runs of the program of one device, by a plan.

Vocabulary
    plan     names the modules whose weights are split, and how (:mod:`lowerkit.passes.shard.plan`)
    held     how the ranks hold a tensor: whole, split along a dimension, or as terms of a sum
    form     a value as one rank computes it, held in one way; of a value there may be several

Steps, op by op in program order, so that operands are known:
    1. ask the plan, then the rules (:mod:`lowerkit.passes.shard.rules`) how the op wants its operands; an op without a
       rule wants them whole;
    2. bring each operand into that form: weights and constants are cut, everything else takes a collective;
    3. write the op again with the types of one rank.
What the function returns is whole. All ranks run the same ops in the same order, so their collectives meet.

Bytes: weights that are split are stored once, one part behind the other, and each rank reads its own part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect import GatherOp
from lowerkit.dialect.types import is_float
from lowerkit.mlir import ir, tensor
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.rewriting import (
    DYNAMIC,
    captured_values,
    clone_op,
    constant_index,
    defining_op,
    dimension,
    element_of,
    erase_dead,
    main_block,
    operations,
    remap_operands,
    shape_of,
    tensor_type,
)
from lowerkit.passes.shard.choices import Choices
from lowerkit.passes.shard.collectives import Collectives
from lowerkit.passes.shard.invariance import is_invariant
from lowerkit.passes.shard.parts import OwnParts, local_empty
from lowerkit.passes.shard.plan import ShardingPlan
from lowerkit.passes.shard.rules import mask_sharding, placed
from lowerkit.passes.shard.shardings import PARTIAL, WHOLE, Partial, Placed, Sharding, Split, Whole, local_type
from lowerkit.passes.shard.vocabulary import own_look_up
from lowerkit.program.weights import Shard, WeightStore

_DATA = frozenset({"arith.constant", "lk.weight", "tensor.empty"})


@dataclass(frozen=True)
class ShardProgram(Pass):
    """Splits a program among the ranks of ``context.sharding``; nothing without one.

    Precondition: stage canonical.

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
            _Sharder(block, context.sharding, context.weights).run()
        return True


class _Sharder:
    def __init__(self, block: ir.Block, plan: ShardingPlan, weights: WeightStore) -> None:
        self.block = block
        self.plan = plan
        self.parts = OwnParts(weights, Shard(((plan.axis, plan.ranks),)))
        self.collectives = Collectives(plan)
        self.choices = Choices(plan, weights)
        self.held: dict[ir.Value, Sharding] = {}
        self.forms: dict[tuple[ir.Value, Sharding], ir.Value] = {}
        self.replaced: list[ir.Operation] = []

    def run(self) -> None:
        for op in operations(self.block):
            if op.name == "tensor.dim":
                self._extent(op)
            elif op.name not in _DATA:
                self._op(op)
        self.choices.require_possible()
        for op in reversed(self.replaced):
            op.erase()
        erase_dead(self.block)

    # --- one op ---------------------------------------------------------------------------------------------------

    def _op(self, op: ir.Operation) -> None:
        given = [self._held(operand) for operand in op.operands]
        entry = self.choices.entry(op)
        if self.plan.ranks == 1:
            if not self.choices.splits_table(op, entry) and op.name == "lk.matmul":
                self.choices.product(op, entry)
            return  # the plan was asked for its report; one rank has all that there is
        if self.choices.splits_table(op, entry):
            self._look_up(op)
            return
        if op.name == "lk.attention" and self._has_fewer_heads(op, given):
            self._attention(op, given[0])
            return
        chosen = self.choices.product(op, entry) if op.name == "lk.matmul" else None
        chosen = chosen or placed(op, given, self.plan.ranks)
        if chosen is not None and chosen.result == PARTIAL and is_invariant(op) and is_float(element_of(op.results[0])):
            chosen = None  # where the sum of the ranks' terms is made would show in its bits
        if chosen is not None and isinstance(chosen.result, Split) and not self._divides(op, chosen.result):
            self._padded(op, chosen, chosen.result)
        elif chosen is None:
            self._run_whole(op)
        else:
            self._rewrite(op, chosen)

    def _run_whole(self, op: ir.Operation) -> None:
        changed = {
            value: self._form(value, WHOLE, op)
            for value in (*op.operands, *captured_values(op))
            if self._held(value) != WHOLE
        }
        if changed:
            remap_operands(op, changed)

    def _rewrite(self, op: ir.Operation, chosen: Placed) -> None:
        destinations = _destinations(op)
        operands: list[ir.Value] = []
        for number, (operand, wanted) in enumerate(zip(op.operands, chosen.operands, strict=True)):
            if number in destinations and isinstance(chosen.result, Split):
                with ir.InsertionPoint(op), op.location:
                    operands.append(local_empty(operand, chosen.result, self.plan.ranks))
            else:
                operands.append(self._form(operand, wanted, op))
        copy = self._copy(op, operands, chosen.result)
        for result, made in zip(op.results, copy.results, strict=True):
            self._define(result, chosen.result, made)
        if isinstance(chosen.result, Split):
            _localize(copy, chosen.result.axis, self.plan.ranks)
        self.replaced.append(op)

    def _copy(self, op: ir.Operation, operands: Sequence[ir.Value], held: Sharding) -> ir.Operation:
        """Writes an op again on the operands of one rank, with results of the types of one rank."""
        with ir.InsertionPoint(op), op.location:
            copy = clone_op(op, {})
        for number, value in enumerate(operands):
            copy.operands[number] = value
        for result in copy.results:
            result.set_type(local_type(result, held, self.plan.ranks))
        return copy

    def _extent(self, op: ir.Operation) -> None:
        """An extent of a split tensor is the whole one's."""
        source = op.operands[0]
        held = self._held(source)
        if held == WHOLE:
            return
        axis = ir.IntegerAttr(_defined(op.operands[1]).attributes["value"]).value
        if isinstance(held, Split) and held.axis == axis:
            with ir.InsertionPoint(op), op.location:
                op.results[0].replace_all_uses_with(constant_index(shape_of(source)[axis]))
            self.replaced.append(op)
        else:
            op.operands[0] = self.forms[source, held]

    # --- special ops ----------------------------------------------------------------------------------------------

    def _look_up(self, op: ir.Operation) -> None:
        table, indices = op.operands
        part = self._form(table, Split(0), op)
        indices = self._form(indices, WHOLE, op)
        with ir.InsertionPoint(op):
            term = own_look_up(self.parts, table, part, indices, op.location)
        self._define(op.results[0], PARTIAL, term)
        self.replaced.append(op)

    def _divides(self, op: ir.Operation, split: Split) -> bool:
        return shape_of(op.results[0])[split.axis] % self.plan.ranks == 0

    def _padded(self, op: ir.Operation, chosen: Placed, split: Split) -> None:
        """A product with a vocabulary that does not divide is made whole at once, and cut where its padding begins."""
        result = op.results[0]
        operands = [
            self._form(operand, wanted, op) for operand, wanted in zip(op.operands, chosen.operands, strict=True)
        ]
        gathered = self.collectives.gathered(self._copy(op, operands, split).results[0], split, op)
        shape = shape_of(gathered)
        kind = ir.RankedTensorType(result.type)
        sizes = list(kind.shape)
        with ir.InsertionPoint(op), op.location:
            extents = [dimension(gathered, axis) for axis, size in enumerate(sizes) if size == DYNAMIC]
            zeros, ones = [0] * len(shape), [1] * len(shape)
            whole = tensor.ExtractSliceOp(kind, gathered, [], extents, [], zeros, sizes, ones).result
        result.replace_all_uses_with(whole)
        self.replaced.append(op)

    def _has_fewer_heads(self, op: ir.Operation, given: Sequence[Sharding]) -> bool:
        heads = shape_of(op.operands[1])[1]
        return given[0] == Split(1) and 0 < heads < self.plan.ranks and self.plan.ranks % heads == 0

    def _attention(self, op: ir.Operation, query: Sharding) -> None:
        """Several ranks share a key head: each takes the one that its query heads attend to."""
        ranks, heads = self.plan.ranks, shape_of(op.operands[1])[1]
        own = (np.arange(ranks, dtype=np.int64) * heads // ranks).reshape(ranks, 1)
        operands = [self._form(op.operands[0], query, op)]
        for value in list(op.operands)[1:3]:
            whole = self._form(value, WHOLE, op)
            with ir.InsertionPoint(op), op.location:
                operands.append(whole if heads == 1 else GatherOp.build(whole, self.parts.row_of("head", own), axis=1))
        for mask in list(op.operands)[3:]:
            operands.append(self._form(mask, mask_sharding(shape_of(mask), 1), op))
        self._define(op.results[0], query, self._copy(op, operands, query).results[0])
        self.replaced.append(op)

    # --- forms ----------------------------------------------------------------------------------------------------

    def _held(self, value: ir.Value) -> Sharding:
        return self.held.get(value, WHOLE)

    def _define(self, value: ir.Value, held: Sharding, form: ir.Value) -> None:
        self.held[value] = held
        self.forms[value, held] = form

    def _form(self, value: ir.Value, wanted: Sharding, before: ir.Operation) -> ir.Value:
        """Returns a value as ``wanted``, made before the op that reads it where it is not there yet."""
        held = self._held(value)
        if held == wanted == WHOLE or tensor_type(value) is None:
            return value
        known = self.forms.get((value, wanted))
        if known is None:
            known = self.forms[value, wanted] = self._convert(value, held, wanted, before)
        return known

    def _convert(self, value: ir.Value, held: Sharding, wanted: Sharding, before: ir.Operation) -> ir.Value:
        match held, wanted:
            case Partial(), Split():
                return self.collectives.scattered(self.forms[value, held], wanted, before)
            case Partial(), _:
                return self.collectives.summed(self.forms[value, held], before)
            case Split(), Whole():
                return self.collectives.gathered(self.forms[value, held], held, before)
            case _, Split():
                whole = self._form(value, WHOLE, before)
                with ir.InsertionPoint(before), before.location:
                    return self.parts.of(whole, wanted)
            case _:
                raise AssertionError(f"nothing asks for terms of what is held as {held}")


def _defined(value: ir.Value) -> ir.Operation:
    op = defining_op(value)
    assert op is not None, "canonical extents are asked for by number"
    return op


def _destinations(op: ir.Operation) -> range:
    """The operands of an elementwise op that only say what its result looks like."""
    if not op.name.startswith("linalg."):
        return range(0)
    count = len(op.operands)
    return range(count - len(op.results), count)


def _localize(op: ir.Operation, axis: int, ranks: int) -> None:
    """Lets the attributes of an op that state extents state those of one rank."""
    name = {"tensor.expand_shape": "static_output_shape", "tensor.extract_slice": "static_sizes"}.get(op.name)
    if name is not None:
        sizes = list(ir.DenseI64ArrayAttr(op.attributes[name]))
        sizes[axis] //= ranks
        op.attributes[name] = ir.DenseI64ArrayAttr.get(sizes)
