"""What one step of a compiled model computes, as IR: a region of the host, or a function of an accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lowerkit.codegen.index_checks import checks_first
from lowerkit.dialect.reference.numeric import Array, quiet
from lowerkit.dialect.types import floats_as_float64
from lowerkit.mlir import ir
from lowerkit.parity.bisect.evaluation import wide
from lowerkit.parity.bisect.prefixes import Piece, function_prefixes, region_piece, region_prefixes
from lowerkit.parity.bisect.torch_ops import MixedInterpreter
from lowerkit.parity.taps import last_op
from lowerkit.passes.function_by_function import target_of
from lowerkit.runtimes.manifest import HOST
from lowerkit.targets.region_view import RegionView


@dataclass(frozen=True)
class Unit:
    """The work of one step.

    Attributes:
        op: the ``lk.region`` or ``lk.call`` in the module.
        block: what it computes; its arguments are the buffers that the step reads.
        last: the op that the step is named after.
        target: the accelerator, :data:`HOST` for a kernel of the CPU.
        view: holds ``block``, of a call of a function that its target compiles as a whole.
        outer: of a region in such a target's function, what each argument of the function is where it is called.
    """

    op: ir.Operation
    block: ir.Block
    last: ir.Operation
    target: str = HOST
    view: RegionView | None = None
    outer: Mapping[ir.Value, ir.Value] = field(default_factory=dict[ir.Value, ir.Value])

    @property
    def types(self) -> list[ir.RankedTensorType]:
        """The types of what it reads, then of what it writes."""
        return [ir.RankedTensorType(value.type) for value in (*self.block.arguments, *self.op.results)]

    @quiet
    def run(self, operands: Sequence[Array], *, float64: bool) -> list[Array]:
        """Returns what it computes, in float64 or in its own element types."""
        interpreter = MixedInterpreter({}, None, None, float64=float64, keep=False)
        with self.op.context, floats_as_float64(float64):
            arguments = [wide(array) if float64 else array for array in operands]
            return [np.asarray(value) for value in interpreter.run_block(self.block, arguments, {})]

    def pieces(self, operands: Sequence[Array], is_weight: Sequence[bool]) -> Iterator[Piece]:
        """Yields programs that compute it up to each of its ops, the whole last."""
        if self.view is None:
            yield from region_prefixes(self.op, operands, is_weight, self.target)
            yield region_piece(self.op, operands, is_weight, self.target)
        else:
            yield from function_prefixes(self.op, self.block, operands, is_weight)


def units_of(ops: Sequence[ir.Operation]) -> list[Unit]:
    """Returns the units of ``@main`` in the order of their steps; of a target by regions, each region of a call."""
    return [unit for op in ops for unit in _units(op)]


def _units(op: ir.Operation) -> Iterator[Unit]:
    if op.name == "lk.region":
        yield Unit(op, op.regions[0].blocks[0], last_op(op))
    if op.name != "lk.call":
        return
    name = ir.StringAttr(op.attributes["callee"]).value
    function = ir.SymbolTable(op.parent.operation.parent.operation)[name].operation
    block = function.regions[0].blocks[0]
    ops = checks_first([inner.operation for inner in block.operations])
    regions = [inner for inner in ops if inner.name == "lk.region"]
    if regions:
        outer = dict(zip(block.arguments, op.operands, strict=True))
        for region in regions:
            yield Unit(region, region.regions[0].blocks[0], last_op(region), target_of(function), outer=outer)
        return
    view = RegionView.from_function(function)
    body = [inner.operation for inner in view.block.operations][:-1]
    yield Unit(op, view.block, body[-1], target_of(function), view)
