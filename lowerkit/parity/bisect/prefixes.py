"""Programs cut out of a program: a region alone, a region up to one of its ops, a few ops around a node.

Weights that the piece reads come along as data; other values that it reads become inputs, with the very arrays that
were computed for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.dialect import CallOp, RegionOp, WeightOp, YieldOp
from lowerkit.dialect.reference.numeric import Array
from lowerkit.mlir import func, ir
from lowerkit.passes.function_by_function import TARGET
from lowerkit.passes.rewriting import clone_op, operations
from lowerkit.program.dtypes import name_of
from lowerkit.program.program import Program
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import HOST, Signature, TensorSpec

_NOT_CUT = ("arith.constant", "tensor.empty", "linalg.fill", "linalg.index", "tensor.dim", "affine.")


@dataclass(frozen=True)
class Piece:
    """A program of its own with the arrays to run it on; ``op`` is the last op of the region that it holds."""

    program: Program
    inputs: list[Array]
    op: ir.Operation


def region_piece(
    region: ir.Operation, operands: Sequence[Array], is_weight: Sequence[bool], target: str = HOST
) -> Piece:
    """Returns the whole region as a program at stage fused.

    Args:
        region: an ``lk.region`` of static shapes.
        operands: the arrays that it reads, of the types of its operands.
        is_weight: for each operand whether it is stored with the code, and so may be packed.
        target: the accelerator whose region it is.
    """
    ops = operations(region.regions[0].blocks[0])
    values = list(ops[-1].operands)
    return _piece(region, operands, is_weight, ops[:-1], values, ops[-2], None, target)


def region_prefixes(
    region: ir.Operation, operands: Sequence[Array], is_weight: Sequence[bool], target: str = HOST
) -> Iterator[Piece]:
    """Yields the region cut after each op of its body that computes, inner ops of ``linalg.generic`` too, in order."""
    ops = operations(region.regions[0].blocks[0])[:-1]
    for number, op in enumerate(ops):
        if op.name.startswith(_NOT_CUT) or not isinstance(op.results[0].type, ir.RankedTensorType):
            continue
        if op.name == "linalg.generic":
            body = operations(op.regions[0].blocks[0])
            for place, inner in enumerate(body[:-1]):
                fits = len(inner.results) == 1 and inner.results[0].type == body[-1].operands[0].type
                if fits and not inner.name.startswith(_NOT_CUT) and inner.results[0] != body[-1].operands[0]:
                    yield _piece(region, operands, is_weight, ops[: number + 1], [op.results[0]], inner, place, target)
        yield _piece(region, operands, is_weight, ops[: number + 1], [op.results[0]], op, None, target)


def function_prefixes(
    call: ir.Operation, block: ir.Block, operands: Sequence[Array], is_weight: Sequence[bool]
) -> Iterator[Piece]:
    """Yields a function of an accelerator cut after each op that computes, at stage canonical: it is given away anew.

    Args:
        call: of the function.
        block: its body, weights as arguments.
        operands: the arrays that it reads.
        is_weight: for each operand whether it is stored with the code.
    """
    ops = operations(block)[:-1]
    types = [value.type for value in block.arguments]
    for number, op in enumerate(ops):
        if op.name.startswith(_NOT_CUT) or not isinstance(op.results[0].type, ir.RankedTensorType):
            continue

        def fill(inputs: list[ir.Value], number: int = number, op: ir.Operation = op) -> list[ir.Value]:
            mapping: dict[ir.Value, ir.Value] = dict(zip(block.arguments, inputs, strict=True))
            for each in ops[: number + 1]:
                clone_op(each, mapping)
            return [mapping[value] for value in op.results]

        yield assemble(call.context, call.location, types, operands, is_weight, fill, op, "canonical")


def _piece(
    region: ir.Operation,
    operands: Sequence[Array],
    is_weight: Sequence[bool],
    ops: Sequence[ir.Operation],
    values: Sequence[ir.Value],
    last: ir.Operation,
    inner: int | None,
    target: str,
) -> Piece:
    def fill(inputs: list[ir.Value]) -> list[ir.Value]:
        kind = ir.StringAttr(region.attributes["kind"]).value
        built = RegionOp.build(inputs, kind, [value.type for value in values], loc=region.location)
        mapping: dict[ir.Value, ir.Value] = dict(
            zip(region.regions[0].blocks[0].arguments, built.block.arguments, strict=True)
        )
        with ir.InsertionPoint(built.block):
            for op in ops:
                clone_op(op, mapping)
            yielded = YieldOp.build([mapping[value] for value in values], loc=region.location)
        if inner is not None:
            generic = operations(built.block)[-2]
            assert yielded.operation.operands[0] == generic.results[0], "the generic op is the last of the prefix"
            body = operations(generic.regions[0].blocks[0])
            body[-1].operands[0] = body[inner].results[0]
        return list(built.operation.results)

    types = [value.type for value in region.operands]
    return assemble(region.context, region.location, types, operands, is_weight, fill, last, "fused", target)


def assemble(
    context: ir.Context,
    location: ir.Location,
    types: Sequence[ir.Type],
    operands: Sequence[Array],
    is_weight: Sequence[bool],
    fill: Callable[[list[ir.Value]], list[ir.Value]],
    last: ir.Operation,
    stage: str = "fused",
    target: str = HOST,
) -> Piece:
    """Returns a program at ``stage`` whose ``@main`` is what ``fill`` builds from the operands.

    With ``target`` it stands in a function of that accelerator, and ``@main`` calls it.
    """
    weights = WeightStore()
    inputs = [np.asarray(array, order="C") for array, stored in zip(operands, is_weight, strict=True) if not stored]
    with context, location:
        module = ir.Module.create()
        kinds = [kind for kind, stored in zip(types, is_weight, strict=True) if not stored]
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", (kinds, []))
            home = func.FuncOp(f"{target}_0", (kinds, [])) if target else main
        arguments = iter(list(home.add_entry_block().arguments))
        with ir.InsertionPoint(home.entry_block):
            values: list[ir.Value] = []
            for number, (kind, array, stored) in enumerate(zip(types, operands, is_weight, strict=True)):
                if stored:
                    weights.add(f"weight.{number}", np.asarray(array, order="C"))
                    values.append(WeightOp.build(f"weight.{number}", kind))
                else:
                    values.append(next(arguments))
            results = fill(values)
            returned = [value.type for value in results]
            # A call gives its results by type: so they are returned.
            order = sorted(range(len(results)), key=lambda number: returned.index(returned[number]))
            func.ReturnOp([results[number] for number in order] if target else results)
        whole = ir.TypeAttr.get(ir.FunctionType.get(kinds, returned))
        main.operation.attributes["function_type"] = whole
        if target:
            by_type = [returned[number] for number in order]
            home.operation.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kinds, by_type))
            home.operation.attributes[TARGET] = ir.StringAttr.get(target)
            with ir.InsertionPoint(main.add_entry_block()):
                given = CallOp.build(list(main.arguments), f"{target}_0", by_type)
                func.ReturnOp([given[order.index(number)] for number in range(len(results))])
    signature = Signature(
        [TensorSpec(f"x{number}", name_of(array.dtype), list(array.shape)) for number, array in enumerate(inputs)],
        [
            TensorSpec(f"y{number}", str(kind.element_type), list(kind.shape))
            for number, kind in enumerate(map(ir.RankedTensorType, returned))
        ],
    )
    return Piece(Program(context, module, weights, signature, "a piece of a model", stage), inputs, last)
