"""The arithmetic of a thread: its number, and the iterations that are its own."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.mlir import arith, func, ir, scf


class ScalarOps:
    """Builds index arithmetic at the current insertion point; constants are folded by what runs afterwards."""

    def __init__(self) -> None:
        self.index = ir.IndexType.get()
        self.narrow = ir.IntegerType.get_signless(32)

    def constant(self, number: int) -> ir.Value:
        """An index."""
        return arith.ConstantOp(self.index, ir.IntegerAttr.get(self.index, number)).result

    @staticmethod
    def number_of(value: ir.Value) -> int | None:
        """What a constant is; None of any other value."""
        if isinstance(value.owner, ir.Block) or value.owner.name != "arith.constant":
            return None
        return ir.IntegerAttr(value.owner.operation.attributes["value"]).value

    def thread_number(self) -> ir.Value:
        """The number of this thread in the grid."""
        block, width, thread = (self._register(name) for name in ("ctaid", "ntid", "tid"))
        return arith.AddIOp(arith.MulIOp(block, width).result, thread).result

    def _register(self, name: str) -> ir.Value:
        call = func.CallOp([self.narrow], f"llvm.nvvm.read.ptx.sreg.{name}.x", [])
        return arith.IndexCastUIOp(self.index, call.operation.results[0]).result

    def iterations(self, lower: ir.Value, upper: ir.Value, step: ir.Value) -> ir.Value:
        """How often a loop runs."""
        begin, end, stride = self.number_of(lower), self.number_of(upper), self.number_of(step)
        if begin is not None and end is not None and stride is not None:
            return self.constant(max(-(-(end - begin) // stride), 0))
        distance = upper if begin == 0 else arith.SubIOp(upper, lower).result
        return distance if stride == 1 else arith.CeilDivSIOp(distance, step).result

    def product(self, counts: Sequence[ir.Value]) -> ir.Value:
        """The product of indices; 1 of none."""
        total = self.constant(1)
        for count in counts:
            total = arith.MulIOp(total, count).result
        return total

    def is_below(self, value: ir.Value, limit: ir.Value) -> ir.Value:
        """Whether an index is below another one."""
        return arith.CmpIOp(arith.CmpIPredicate.ult, value, limit).result

    def branch(self, condition: ir.Value, before: ir.Operation) -> ir.Operation:
        """An ``scf.if`` without an else, empty."""
        with ir.InsertionPoint(before):
            branch = scf.IfOp(condition)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp([])
        return branch.operation

    def unravel(self, number: ir.Value, counts: Sequence[ir.Value], narrow: bool) -> list[ir.Value]:
        """The place of ``number`` in a grid of ``counts``, the last one running fastest.

        With ``narrow``, all fits into 32 bits, where division takes a fraction of the time.
        """
        if narrow:
            number = arith.IndexCastUIOp(self.narrow, number).result
            counts = [arith.IndexCastUIOp(self.narrow, count).result for count in counts]
        found: list[ir.Value] = []
        for position, count in reversed(list(enumerate(counts))):
            if position == 0:
                found.append(number)
            else:
                found.append(arith.RemUIOp(number, count).result)
                number = arith.DivUIOp(number, count).result
        found.reverse()
        return [arith.IndexCastUIOp(self.index, each).result for each in found] if narrow else found

    def at(self, lower: ir.Value, step: ir.Value, iteration: ir.Value) -> ir.Value:
        """The value of a loop's variable."""
        if self.number_of(step) != 1:
            iteration = arith.MulIOp(iteration, step).result
        return iteration if self.number_of(lower) == 0 else arith.AddIOp(lower, iteration).result
