"""Sizes of temporaries as expressions over a kernel's dims: exact where possible, else an upper bound.

All index values of a kernel body are sizes and positions, so they are never negative; that is what lets a difference
be bounded by its first operand and a loop index by its upper limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.targets.plan import KernelExpr, dim, expression


class SizeBounds:
    """Evaluates index values of a body function whose arguments are the kernel's buffers as memrefs."""

    def __init__(self, arguments: Sequence[ir.Value]) -> None:
        self._dims: dict[tuple[ir.Value, int], KernelExpr] = {}
        number = 0
        for argument in arguments:
            type_ = ir.MemRefType(argument.type)
            for axis in range(type_.rank):
                if type_.is_dynamic_dim(axis):
                    self._dims[argument, axis] = dim(number)
                    number += 1
        self.dim_count = number

    def exact(self, value: ir.Value) -> KernelExpr:
        """Returns the value.

        Raises:
            CodegenError: LK5001, it depends on a loop or on data.
        """
        found = self._evaluate(value, upper=False)
        if found is None:
            raise CodegenError("LK5001", "the extent of a loop is no function of the kernel's dims")
        return found

    def upper(self, value: ir.Value) -> KernelExpr:
        """Returns the value or an upper bound of it.

        Raises:
            CodegenError: LK5001, it depends on data.
        """
        found = self._evaluate(value, upper=True)
        if found is None:
            raise CodegenError("LK5001", f"the size of a temporary has no bound over the kernel's dims: {value.owner}")
        return found

    def _evaluate(self, value: ir.Value, upper: bool) -> KernelExpr | None:
        owner = value.owner
        if isinstance(owner, ir.Block):
            return self._loop_limit(owner, value) if upper else None
        op = owner.operation
        match op.name:
            case "arith.constant":
                return ir.IntegerAttr(op.attributes["value"]).value
            case "memref.dim":
                return self._memref_dim(op, upper)
            case "arith.index_cast" | "arith.index_castui":
                return self._evaluate(op.operands[0], upper)
            case "affine.apply" | "affine.min" | "affine.max":
                return self._affine(op, upper)
            case _:
                return self._arith(op, upper)

    def _memref_dim(self, op: ir.Operation, upper: bool) -> KernelExpr | None:
        axis = self._evaluate(op.operands[1], upper=False)
        return self._extent(op.operands[0], axis, upper) if isinstance(axis, int) else None

    def _extent(self, buffer: ir.Value, axis: int, upper: bool) -> KernelExpr | None:
        """Returns an extent of a buffer: an argument's is a dim of the kernel, others have it from what made them."""
        type_ = ir.MemRefType(buffer.type)
        if not type_.is_dynamic_dim(axis):
            return type_.get_dim_size(axis)
        if (buffer, axis) in self._dims or isinstance(buffer.owner, ir.Block):
            return self._dims.get((buffer, axis))
        op = buffer.owner.operation
        dynamic_before = sum(type_.is_dynamic_dim(before) for before in range(axis))
        match op.name:
            case "memref.alloc" | "memref.alloca":
                return self._evaluate(op.operands[dynamic_before], upper)
            case "memref.cast":
                return self._extent(op.operands[0], axis, upper)
            case "memref.expand_shape":
                return self._evaluate(op.operands[1 + dynamic_before], upper)
            case "memref.collapse_shape":
                groups = ir.ArrayAttr(op.attributes["reassociation"])
                total: KernelExpr | None = 1
                for source_axis in ir.ArrayAttr(groups[axis]):
                    factor = self._extent(op.operands[0], ir.IntegerAttr(source_axis).value, upper)
                    total = _both("mul", total, factor)
                return total
            case _:
                return None

    def _loop_limit(self, block: ir.Block, value: ir.Value) -> KernelExpr | None:
        loop = block.owner
        if loop.name != "scf.for" or block.arguments[0] != value:
            return None
        return self._evaluate(loop.operation.operands[1], upper=True)

    def _arith(self, op: ir.Operation, upper: bool) -> KernelExpr | None:
        names = {
            "arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul", "arith.divui": "floordiv",
            "arith.divsi": "floordiv", "arith.floordivsi": "floordiv", "arith.ceildivsi": "ceildiv",
            "arith.ceildivui": "ceildiv", "arith.remsi": "mod", "arith.remui": "mod", "arith.minsi": "min",
            "arith.minui": "min", "arith.maxsi": "max", "arith.maxui": "max",
        }  # fmt: skip
        if op.name == "arith.select" and upper:
            return _both("max", self._evaluate(op.operands[1], upper), self._evaluate(op.operands[2], upper))
        name = names.get(op.name)
        if name is None:
            return None
        left = self._evaluate(op.operands[0], upper)
        right = self._evaluate(op.operands[1], False)
        return self._combine(name, left, right, upper, lambda: self._evaluate(op.operands[1], True))

    def _combine(
        self, name: str, left: KernelExpr | None, right: KernelExpr | None, upper: bool, right_upper: object
    ) -> KernelExpr | None:
        if right is None and upper and callable(right_upper):
            bound = right_upper()
            if name == "sub":
                return left
            if name in ("floordiv", "ceildiv"):
                return left
            if name == "min":
                return left if bound is None else bound if left is None else expression("min", left, bound)
            return _both(name, left, bound) if name != "mod" else bound
        if name == "min" and upper and left is None:
            return right
        if name == "mul" and isinstance(right, int) and right < 0 and upper:
            return 0
        return _both(name, left, right)

    def _affine(self, op: ir.Operation, upper: bool) -> KernelExpr | None:
        indexing = ir.AffineMapAttr(op.attributes["map"]).value
        operands = list(op.operands)
        found = [self._affine_expr(result, operands, indexing.n_dims, upper) for result in indexing.results]
        if op.name == "affine.apply":
            return found[0]
        if op.name == "affine.max" or not upper:
            known: KernelExpr | None = found[0]
            for other in found[1:]:
                known = _both("max" if op.name == "affine.max" else "min", known, other)
            return known
        bounded = [one for one in found if one is not None]
        result: KernelExpr | None = None
        for one in bounded:
            result = one if result is None else expression("min", result, one)
        return result

    def _affine_expr(
        self, expr: ir.AffineExpr, operands: Sequence[ir.Value], dims: int, upper: bool
    ) -> KernelExpr | None:
        if isinstance(expr, ir.AffineConstantExpr):
            return expr.value
        if isinstance(expr, ir.AffineDimExpr):
            return self._evaluate(operands[expr.position], upper)
        if isinstance(expr, ir.AffineSymbolExpr):
            return self._evaluate(operands[dims + expr.position], upper)
        names = {
            ir.AffineAddExpr: "add", ir.AffineMulExpr: "mul", ir.AffineModExpr: "mod",
            ir.AffineFloorDivExpr: "floordiv", ir.AffineCeilDivExpr: "ceildiv",
        }  # fmt: skip
        name = next(name for kind, name in names.items() if isinstance(expr, kind))
        left = self._affine_expr(expr.lhs, operands, dims, upper)
        right = self._affine_expr(expr.rhs, operands, dims, upper)
        if name == "mul" and upper and isinstance(right, int) and right < 0:
            return 0
        return _both(name, left, right)


def _both(name: str, left: KernelExpr | None, right: KernelExpr | None) -> KernelExpr | None:
    return None if left is None or right is None else expression(name, left, right)
