"""lk.region and lk.yield: an anchor op with its fused neighbours, the unit that a target accepts or refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lowerkit.dialect.base import LkOperation, Operands, Results
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.ragged import OPERAND_RUNS, RESULT_RUNS, create_ragged, ragged_fields
from lowerkit.dialect.shapes import fail
from lowerkit.mlir import ext, ir


class RegionOp(LkOperation, name="region", traits=[ext.Pure, ir.IsIsolatedFromAboveTrait]):
    """One kernel's worth of computation.

    The body is a single block whose arguments are the operands, one to one and of equal type. It refers to nothing
    outside itself (constants are cloned in) and ends in ``lk.yield``.

    Operands:
        inputs: the tensors and scalars that the body uses.

    Results:
        outputs: what the body yields.

    Attributes:
        kind: the short name of the anchor op (``matmul``, ``conv``, ``softmax``, ``elementwise``, ...).

    FLOPs: the sum over the lk ops of the body, or None where one of them is dynamic.

    Bytes: operands and results, each once: what is inside stays in registers or cache.
    """

    __annotations__.update(ragged_fields("inputs", Operands, OPERAND_RUNS))
    kind: ir.StringAttr
    __annotations__.update(ragged_fields("outputs", Results, RESULT_RUNS))
    body: ext.Region

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls,
        inputs: Sequence[ir.Value],
        kind: str,
        result_types: Sequence[ir.Type],
        *,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> RegionOp:
        """Builds the op with an entry block that has one argument for each input; the caller fills it and yields."""
        attributes = {"kind": ir.StringAttr.get(kind)}
        op = create_ragged(cls.OPERATION_NAME, inputs, result_types, attributes, regions=1, loc=loc, ip=ip)
        location = op.operation.location
        op.operation.regions[0].blocks.append(
            *[value.type for value in op.operation.operands],
            arg_locs=[location] * len(op.operation.operands),
        )
        return op

    @property
    def inputs(self) -> list[ir.Value]:
        """All operands in order."""
        return list(self.operation.operands)

    @property
    def outputs(self) -> list[ir.Value]:
        """All results in order."""
        return list(self.operation.results)

    @property
    def block(self) -> ir.Block:
        """The only block of the body."""
        return self.operation.regions[0].blocks[0]

    @property
    def terminator(self) -> YieldOp:
        """The ``lk.yield`` at the end of the body."""
        operations = self.block.operations
        return operations[len(operations) - 1]

    def check(self) -> None:
        """One block, arguments like the operands, a yield like the results."""
        if not self.kind.value:
            fail("attribute kind must name the anchor of the region, found an empty string")
        blocks = self.operation.regions[0].blocks
        if len(blocks) != 1:
            fail(f"the body must be one block, found {len(blocks)}")
        operands = [operand.type for operand in self.operation.operands]
        arguments = [argument.type for argument in blocks[0].arguments]
        if operands != arguments:
            fail(f"the body takes ({_join(arguments)}), but the operands are ({_join(operands)})")
        operations = blocks[0].operations
        last = operations[len(operations) - 1].operation if len(operations) else None
        if last is None or last.name != YieldOp.OPERATION_NAME:
            fail(f"the body must end in {YieldOp.OPERATION_NAME}, found {last.name if last else 'an empty block'}")
        yielded = [operand.type for operand in last.operands]
        results = [result.type for result in self.operation.results]
        if yielded != results:
            fail(f"the body yields ({_join(yielded)}), but the results are ({_join(results)})")

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns the sum over the lk ops of the body."""
        total = 0
        for op in self.block.operations:
            count = op.flops(shape) if isinstance(op, LkOperation) else 0
            if count is None:
                return None
            total += count
        return total


class YieldOp(LkOperation, name="yield", traits=[ext.Pure, ir.IsTerminatorTrait]):
    """Ends the body of ``lk.region`` and hands its values out.

    Operands:
        values: one for each result of the region, of equal type.

    FLOPs: 0.

    Bytes: 0.
    """

    __annotations__.update(ragged_fields("values", Operands, RESULT_RUNS))

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls, values: Sequence[ir.Value], *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None
    ) -> YieldOp:
        """Builds the op at the end of the body of a region."""
        return create_ragged(
            cls.OPERATION_NAME, values, [], {}, operand_runs=RESULT_RUNS, result_runs=0, loc=loc, ip=ip
        )

    def check(self) -> None:
        """The parent is a region."""
        parent = self.operation.parent
        if parent is not None and parent.name != RegionOp.OPERATION_NAME:
            fail(f"must stand in {RegionOp.OPERATION_NAME}, found it in {parent.name}")

    def bytes_moved(self) -> int | None:
        """Returns 0."""
        return 0


def _join(types: Sequence[ir.Type]) -> str:
    return ", ".join(str(kind) for kind in types)
