"""Writes each op of a program again as one rank runs it; see :mod:`lowerkit.passes.shard.shard_program`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowerkit.dialect import GatherOp
from lowerkit.mlir import ir, tensor
from lowerkit.passes.rewriting import (
    DYNAMIC,
    captured_values,
    clone_op,
    constant_index,
    defining_op,
    dimension,
    erase_dead,
    remap_operands,
    shape_of,
    tensor_type,
    weight_symbol,
)
from lowerkit.passes.shard.choices import Choices
from lowerkit.passes.shard.collectives import Collectives
from lowerkit.passes.shard.decisions import Decisions
from lowerkit.passes.shard.local_copy import localize
from lowerkit.passes.shard.loops.nest import Nest
from lowerkit.passes.shard.loops.table import PRODUCTS
from lowerkit.passes.shard.parts import OwnParts, local_empty
from lowerkit.passes.shard.plan import ShardingPlan, StateSlices
from lowerkit.passes.shard.shardings import WHOLE, Partial, Placed, Sharding, Shared, Split, Whole, divides, parts_of
from lowerkit.passes.shard.vocabulary import own_look_up
from lowerkit.passes.source_location import describe
from lowerkit.program.weights import Shard, WeightStore


class Sharder:
    """Splits one function among the ranks of a plan's axis."""

    def __init__(self, block: ir.Block, plan: ShardingPlan, weights: WeightStore, inputs: Sequence[str]) -> None:
        self.block = block
        self.plan = plan
        self.parts = OwnParts(weights, Shard(((plan.axis, plan.ranks),)))
        self.collectives = Collectives(plan)
        self.choices = Choices(plan, weights)
        self.inputs = inputs
        self.held: dict[ir.Value, Sharding] = {}
        self.forms: dict[tuple[ir.Value, Sharding], ir.Value] = {}
        self.replaced: list[ir.Operation] = []

    def run(self) -> None:
        """Transforms in place.

        Raises:
            UnsupportedError: LK4007, the plan splits what cannot be split.
        """
        decisions = Decisions(self.block, self.choices, self.inputs)
        self.choices.require_possible()
        self._report(decisions)
        if self.plan.ranks == 1:
            return  # the plan was asked for its report; one rank has all that there is
        self._cut_arguments(decisions)
        for op, nest, step in zip(decisions.ops, decisions.nests, decisions.steps, strict=True):
            match step.action:
                case "extent":
                    self._extent(op)
                case "whole":
                    self._run_whole(op)
                case "look_up":
                    self._look_up(op)
                case "data":
                    continue
                case _:
                    assert step.placed is not None, "decided by its loops"
                    assert nest is not None, "decided by its loops"
                    if step.action == "run":
                        self._rewrite(op, nest, step.placed)
                    elif step.action == "pad":
                        self._padded(op, nest, step.placed)
                    else:
                        self._share_heads(op, nest, step.placed)
        for op in reversed(self.replaced):
            assert not any(list(result.uses) for result in op.results), f"{op.name} is still read"  # MLIR would not say
            op.erase()
        erase_dead(self.block)

    def _report(self, decisions: Decisions) -> None:
        report = self.plan.report
        for op, step in zip(decisions.ops, decisions.steps, strict=True):
            if op.name in PRODUCTS and weight_symbol(op.operands[1]) is not None and not decisions.is_split(step):
                report.whole.append(describe(op).module_path)
        for name, held in decisions.states.items() if self.plan.ranks > 1 else ():
            report.states[name] = StateSlices(held.axis, parts_of(held, self.plan.ranks))

    # --- one op ---------------------------------------------------------------------------------------------------

    def _cut_arguments(self, decisions: Decisions) -> None:
        """The ranks take their slices of inputs that the plan splits in front of all else."""
        if not decisions.arguments:
            return
        first = decisions.ops[0]
        for argument, held in decisions.arguments.items():
            assert isinstance(held, Split), "inputs are split along a dimension"
            # In no module: the first op may belong to a stage of a pipeline, and each stage cuts what it reads.
            with ir.InsertionPoint(first), ir.Location.unknown():
                part = self.parts.of(argument, held)
            self.forms[argument, WHOLE] = argument
            self._define(argument, held, part)

    def _run_whole(self, op: ir.Operation) -> None:
        changed = {
            value: self._form(value, WHOLE, op)
            for value in (*op.operands, *captured_values(op))
            if self._held(value) != WHOLE
        }
        if changed:
            remap_operands(op, changed)

    def _rewrite(self, op: ir.Operation, nest: Nest, chosen: Placed) -> None:
        operands: list[ir.Value] = []
        for number, (operand, wanted) in enumerate(zip(op.operands, chosen.operands, strict=True)):
            result = nest.destinations.get(number)
            held = WHOLE if result is None else chosen.results[result]
            if isinstance(held, Split | Shared):
                with ir.InsertionPoint(op), op.location:
                    operands.append(local_empty(operand, held, self.plan.ranks))
            else:
                operands.append(self._form(operand, wanted, op))
        copy = self._copy(op, operands, nest, chosen)
        for result, held, made in zip(op.results, chosen.results, copy.results, strict=True):
            self._define(result, held, made)
        self.replaced.append(op)

    def _copy(self, op: ir.Operation, operands: Sequence[ir.Value], nest: Nest, placed: Placed) -> ir.Operation:
        """Writes an op again on the operands of one rank."""
        with ir.InsertionPoint(op), op.location:
            copy = clone_op(op, {})
        for number, value in enumerate(operands):
            copy.operands[number] = value
        localize(copy, nest, placed, self.plan.ranks)
        return copy

    def _extent(self, op: ir.Operation) -> None:
        """An extent of a split tensor is the whole one's."""
        source = op.operands[0]
        held = self._held(source)
        if held == WHOLE:
            return
        axis = ir.IntegerAttr(_defined(op.operands[1]).attributes["value"]).value
        if isinstance(held, Split | Shared) and held.axis == axis:
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
        self._define(op.results[0], Partial(), term)
        self.replaced.append(op)

    def _padded(self, op: ir.Operation, nest: Nest, chosen: Placed) -> None:
        """A product with a weight that does not divide is made whole at once, and cut where its padding begins."""
        result, (split,) = op.results[0], chosen.results
        assert isinstance(split, Split), "its loop is that of the outputs"
        operands = [
            self._form(operand, wanted, op) for operand, wanted in zip(op.operands, chosen.operands, strict=True)
        ]
        gathered = self.collectives.gathered(self._copy(op, operands, nest, chosen).results[0], split, op)
        shape = shape_of(gathered)
        kind = ir.RankedTensorType(result.type)
        sizes = list(kind.shape)
        with ir.InsertionPoint(op), op.location:
            extents = [dimension(gathered, axis) for axis, size in enumerate(sizes) if size == DYNAMIC]
            zeros, ones = [0] * len(shape), [1] * len(shape)
            whole = tensor.ExtractSliceOp(kind, gathered, [], extents, [], zeros, sizes, ones).result
        result.replace_all_uses_with(whole)
        self.replaced.append(op)

    def _share_heads(self, op: ir.Operation, nest: Nest, chosen: Placed) -> None:
        """Several ranks share a key head: each takes the one that its query heads attend to."""
        ranks, heads, (query, *_) = self.plan.ranks, shape_of(op.operands[1])[1], chosen.operands
        own = (np.arange(ranks, dtype=np.int64) * heads // ranks).reshape(ranks, 1)
        operands = [self._form(op.operands[0], query, op)]
        for value in list(op.operands)[1:3]:
            whole = self._form(value, WHOLE, op)
            with ir.InsertionPoint(op), op.location:
                operands.append(whole if heads == 1 else GatherOp.build(whole, self.parts.row_of("head", own), axis=1))
        masks = zip(list(op.operands)[3:], chosen.operands[3:], strict=True)
        operands += [self._form(mask, wanted, op) for mask, wanted in masks]
        self._define(op.results[0], query, self._copy(op, operands, nest, chosen).results[0])
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
                return self.collectives.scattered(self.forms[value, held], held, wanted, before)
            case Partial(), Whole():
                return self.collectives.reduced(self.forms[value, held], held, before)
            case Split(), Split() if (value, WHOLE) not in self.forms and divides(value, wanted.axis, self.plan.ranks):
                return self.collectives.exchanged(self.forms[value, held], held, wanted, before)
            case Split(), Whole():
                return self.collectives.gathered(self.forms[value, held], held, before)
            case Whole() | Partial() | Split(), Split() | Shared():
                whole = self._form(value, WHOLE, before)
                with ir.InsertionPoint(before), before.location:
                    return self.parts.of(whole, wanted)
            case _:
                raise AssertionError(f"nothing asks for terms of what is held as {held}")


def _defined(value: ir.Value) -> ir.Operation:
    op = defining_op(value)
    assert op is not None, "canonical extents are asked for by number"
    return op
