"""Lets a program work on parts of its batch, one behind the other, so that the stages of a pipeline work side by side.

Vocabulary
    micro-batch  a part of the batch: as many inputs as there would be on one of ``parts`` ranks that share it
    meeting      what these ranks would do together: gather results, or sum terms

Steps: split the program among ranks that share the batch, as for an axis of a mesh; write what one of them runs once
for each part, in order; replace each meeting by what it gives, made of the parts. What reads a meeting comes once,
behind all parts; so nothing that the parts have apart may read it: then the model is no function of single inputs.

Bytes: inputs are cut and results are joined by copies; everything else as before.
"""

from __future__ import annotations

from functools import partial

from lowerkit.dialect import WeightOp
from lowerkit.dialect.ops.collective import REDUCTIONS
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import arith, ir, tensor
from lowerkit.passes.base import PassContext
from lowerkit.passes.elementwise import build_elementwise, identity_map
from lowerkit.passes.rewriting import (
    DYNAMIC,
    captured_values,
    clone_op,
    dimension,
    element_of,
    empty_like,
    erase_dead,
    has_effects,
    main_block,
    operations,
    shape_of,
    weight_symbol,
)
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.passes.source_location import describe
from lowerkit.program.weights import Array, WeightStore

AXIS = "micro-batch"
"""The axis of the ranks that would share the batch; it is gone when the pass is done."""


def split_batch(module: ir.Module, context: PassContext, parts: int) -> None:
    """Changes a canonical program in place.

    Raises:
        UnsupportedError: LK4007, the batch does not divide, or an op needs all of it.
    """
    context.sharding = ShardingPlan(AXIS, parts, (PlanEntry("*", "batch"),), keeps_states=False)
    ShardProgram().run(module, context)
    context.sharding = None
    block = main_block(module)
    with module.context, ir.Location.unknown():
        _Parts(block, context.weights, parts).run()


class _Parts:
    def __init__(self, block: ir.Block, weights: WeightStore, parts: int) -> None:
        self.block = block
        self.weights = weights
        self.parts = parts

    def run(self) -> None:
        ops = operations(self.block)
        first = next((number for number, op in enumerate(ops) if op.name == "lk.collective_start"), len(ops))
        apart = self._apart(ops)
        met = {op.results[0] for op in ops if self._is_meeting(op)}
        for op in ops[first:]:
            values = _read(op)
            if values & apart and values & met and not self._is_meeting(op):
                raise UnsupportedError(
                    "LK4007",
                    f"{describe(op)} needs the whole batch: it cannot run in {self.parts} micro-batches",
                    hint="leave out micro-batches of the plan, or the pipeline axis",
                )
            if not self._is_meeting(op) and values & met:
                met.update(op.results)
        copies: list[dict[ir.Value, ir.Value]] = [{} for _ in range(self.parts)]
        body = [op for op in ops if any(result in apart for result in op.results) or _checks(op, apart)]
        body = [op for op in body if not self._is_meeting(op)]
        meetings = [op for op in ops if op.name == "lk.collective_start"]
        anchor = meetings[0] if meetings else list(self.block.operations)[-1].operation
        for op in ops:  # what all parts read is made before them
            shared = not self._is_meeting(op) and not any(result in apart or result in met for result in op.results)
            if shared and len(op.results):
                op.move_before(anchor)
        for number, mapping in enumerate(copies):
            for op in body:
                with ir.InsertionPoint(anchor), op.location:
                    self._copy(op, number, mapping)
        for op in body:
            if _checks(op, apart):
                op.erase()
        for op in meetings:
            done = next(iter(op.results[0].uses)).owner.operation
            own = [mapping.get(op.operands[0], op.operands[0]) for mapping in copies]
            with ir.InsertionPoint(op), op.location:
                done.results[0].replace_all_uses_with(self._meet(op, own))
            done.erase()
            op.erase()
        erase_dead(self.block)

    def _apart(self, ops: list[ir.Operation]) -> set[ir.Value]:
        """Returns the values that the parts have apart."""
        apart: set[ir.Value] = set()
        for op in ops:
            symbol = weight_symbol(op.results[0]) if len(op.results) else None
            shard = None if symbol is None else self.weights.shard(symbol)
            own = shard is not None and any(name == AXIS for name, _ in shard.axes)
            if own or _read(op) & apart:
                if op.name != "lk.collective_done":
                    apart.update(op.results)
                if has_effects(op) and not _checks(op, apart):
                    raise UnsupportedError(
                        "LK4007",
                        f"{describe(op)} has an effect: it cannot run once for each of {self.parts} micro-batches",
                        hint="leave out micro-batches of the plan",
                    )
        return apart

    def _is_meeting(self, op: ir.Operation) -> bool:
        return op.name in ("lk.collective_start", "lk.collective_done")

    def _copy(self, op: ir.Operation, number: int, mapping: dict[ir.Value, ir.Value]) -> None:
        symbol = weight_symbol(op.results[0]) if len(op.results) else None
        if symbol is None:
            clone_op(op, mapping)
            return
        name, (dtype, shape) = self.weights.unique_name(f"{symbol}.{number}"), self.weights.spec(symbol)
        self.weights.derive(name, [symbol], partial(_row, number), dtype=dtype, shape=shape[1:])
        mapping[op.results[0]] = WeightOp.build(name, ir.RankedTensorType(op.results[0].type))

    def _meet(self, op: ir.Operation, own: list[ir.Value]) -> ir.Value:
        kind = ir.StringAttr(op.attributes["kind"]).value
        if kind == "all_gather":
            return tensor.ConcatOp(
                ir.RankedTensorType(op.results[0].type), 0, [_stacked(value) for value in own]
            ).result
        reduction = ir.StringAttr(op.attributes["reduction"]).value
        if kind == "all_reduce" and reduction == "sum":
            total = own[0]
            for value in own[1:]:
                total = _added(total, value)
            return total
        raise UnsupportedError(
            "LK4007",
            f"{describe(op)} takes a {kind} ({reduction} of {', '.join(REDUCTIONS)}) of all of the batch: "
            f"it cannot run in {self.parts} micro-batches",
            hint="leave out micro-batches of the plan",
        )


def _read(op: ir.Operation) -> set[ir.Value]:
    """Returns what an op reads, its regions included: a body may look up in a tensor from outside."""
    return {*op.operands, *captured_values(op)}


def _checks(op: ir.Operation, apart: set[ir.Value]) -> bool:
    """Whether an op ends the run where what the parts have apart is wrong: each part is checked by itself."""
    return op.name == "lk.check_indices" and any(operand in apart for operand in op.operands)


def _row(number: int, data: Array) -> Array:
    return data[number]


def _stacked(value: ir.Value) -> ir.Value:
    """Returns a value with a new first dimension of 1."""
    shape = shape_of(value)
    kind = ir.RankedTensorType.get([1, *shape], element_of(value))
    groups = [[0, 1], *([axis + 1] for axis in range(1, len(shape)))] if shape else []
    sizes = [dimension(value, axis) for axis, size in enumerate(shape) if size == DYNAMIC]
    return tensor.ExpandShapeOp(kind, value, groups, sizes, [1, *shape]).result


def _added(left: ir.Value, right: ir.Value) -> ir.Value:
    axes = list(range(len(shape_of(left))))
    identity = identity_map(len(axes))

    def add(scalars: list[ir.Value]) -> list[ir.Value]:
        op = arith.AddFOp if isinstance(scalars[0].type, ir.FloatType) else arith.AddIOp
        return [op(*scalars).result]

    location = ir.Location.current
    empty = empty_like(left, axes, element_of(left))
    return build_elementwise([left, right], [identity, identity], [empty], add, location).results[0]
