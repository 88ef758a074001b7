"""Shapes as expressions over the symbolic dims of the signature.

Vocabulary
    index value   an SSA value of type ``index`` or integer that shapes are computed from.
    expression    an int, a dim of the signature, or an operation on expressions (:mod:`lowerkit.runtimes.expressions`).

A dim is an int where its type says so; else it is derived from the op that made the tensor. Ops in destination style
have the shapes of their destinations, so one rule serves all of linalg. The results of a region are derived from its
body, where every lk op is first replaced by its lowering, which computes its shapes with index arithmetic itself: no
shape rule is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowerkit.codegen.lower_lk import lower_lk_ops
from lowerkit.dialect import CollectiveStartOp
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import Expr, simplify
from lowerkit.targets.region_view import RegionView

Shape = tuple[Expr, ...]

_ARITHMETIC = {
    "arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul", "arith.divui": "floordiv",
    "arith.divsi": "floordiv", "arith.floordivsi": "floordiv", "arith.ceildivsi": "ceildiv",
    "arith.ceildivui": "ceildiv", "arith.remsi": "mod", "arith.remui": "mod", "arith.minsi": "min",
    "arith.minui": "min", "arith.maxsi": "max", "arith.maxui": "max",
}  # fmt: skip
_CONVERSIONS = ("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci")
_SAME_AS_FIRST = ("tensor.cast", "tensor.bitcast", "lk.collective_done")


class ShapeTable:
    """Evaluates shapes and index values of one block, each once.

    Args:
        known: the shapes of block arguments (and of any other values that are given from outside); of an index the
            value itself, alone in a tuple.
    """

    def __init__(self, known: Mapping[ir.Value, Sequence[Expr]]) -> None:
        self._shapes: dict[ir.Value, Shape] = {value: tuple(shape) for value, shape in known.items()}

    def shape(self, value: ir.Value) -> Shape:
        """Returns the shape of a tensor.

        Raises:
            UnsupportedError: LK4002, a dim depends on data.
        """
        found = self._shapes.get(value)
        if found is None:
            found = self._shapes[value] = self._derive(value)
        return found

    def define(self, values: Sequence[ir.Value], shapes: Sequence[Shape]) -> None:
        """States the shapes of values that were derived elsewhere."""
        self._shapes.update(zip(values, shapes, strict=True))

    def index(self, value: ir.Value) -> Expr:
        """Returns an index value.

        Raises:
            UnsupportedError: LK4002, it depends on data.
        """
        owner = value.owner
        if isinstance(owner, ir.Block):
            if value in self._shapes and not isinstance(value.type, ir.RankedTensorType):
                return self._shapes[value][0]
            raise _data_dependent(None)
        op = owner.operation
        if op.name == "arith.constant":
            return ir.IntegerAttr(op.attributes["value"]).value
        if op.name == "tensor.dim":
            axis = self.index(op.operands[1])
            if isinstance(axis, int):
                return self.shape(op.operands[0])[axis]
        if op.name in _CONVERSIONS:
            return self.index(op.operands[0])
        if op.name in _ARITHMETIC:
            return simplify((_ARITHMETIC[op.name], self.index(op.operands[0]), self.index(op.operands[1])))
        if op.name == "arith.select":
            return self._selected(op)
        if op.name in ("affine.apply", "affine.min", "affine.max"):
            return self._affine(op)
        if op.name == "tensor.extract" and not isinstance(op.operands[0].owner, ir.Block):
            return self._extract(op)
        raise _data_dependent(op)

    def _selected(self, op: ir.Operation) -> Expr:
        """``c ? a : b`` as ``b + c * (a - b)``."""
        outcome, chosen, other = self._truth(op.operands[0]), self.index(op.operands[1]), self.index(op.operands[2])
        return simplify(("add", other, simplify(("mul", outcome, simplify(("sub", chosen, other))))))

    def _truth(self, value: ir.Value) -> Expr:
        """Returns 1 where a comparison of index values holds, else 0."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            raise _data_dependent(None)
        op = owner.operation
        if op.name == "arith.constant":
            return abs(ir.IntegerAttr(op.attributes["value"]).value)
        if op.name not in ("arith.cmpi", "arith.andi", "arith.ori"):
            raise _data_dependent(op)
        if op.name != "arith.cmpi":
            left, right = self._truth(op.operands[0]), self._truth(op.operands[1])
            return simplify(("mul" if op.name == "arith.andi" else "max", left, right))
        left, right = self.index(op.operands[0]), self.index(op.operands[1])
        return _comparison(ir.IntegerAttr(op.attributes["predicate"]).value, left, right)

    def _derive(self, value: ir.Value) -> Shape:
        type_ = ir.RankedTensorType(value.type)
        fixed = [None if type_.is_dynamic_dim(axis) else type_.get_dim_size(axis) for axis in range(type_.rank)]
        if None not in fixed:
            return tuple(extent for extent in fixed if extent is not None)
        owner = value.owner
        if isinstance(owner, ir.Block):
            raise _data_dependent(None)
        op = owner.operation
        number = list(op.results).index(value)
        dynamic = self._dynamic_shape(op, number)
        if len(dynamic) != len(fixed):
            raise _data_dependent(op)
        return tuple(known if extent is None else extent for extent, known in zip(fixed, dynamic, strict=True))

    def _dynamic_shape(self, op: ir.Operation, number: int) -> Sequence[Expr]:
        """The shape of result ``number`` of ``op``."""
        if op.name in _SAME_AS_FIRST:
            return self.shape(op.operands[0])
        if op.name.startswith("linalg."):
            destinations = len(op.operands) - len(op.results)
            return self.shape(op.operands[destinations + number])
        match op.name:
            case "lk.region":
                return self._region(op)[number]
            case "lk.collective_start":
                return CollectiveStartOp.result_shape(op, self.shape(op.operands[0]))
            case "tensor.empty" | "tensor.splat" | "tensor.generate" | "bufferization.alloc_tensor":
                skipped = 1 if op.name == "tensor.splat" else 0
                return self._fill_in(ir.RankedTensorType(op.results[0].type), list(op.operands)[skipped:])
            case "tensor.expand_shape":
                return self._mixed("static_output_shape", op, list(op.operands)[1:])
            case "tensor.collapse_shape":
                return self._collapse(op)
            case "tensor.extract_slice":
                return self._extract_slice(op)
            case "tensor.insert_slice" | "tensor.insert" | "tensor.scatter" | "arith.select":
                return self.shape(op.operands[1])
            case "tensor.pad":
                return self._pad(op)
            case "tensor.concat":
                return self._concat(op)
            case "scf.for":
                return self.shape(op.operands[3 + number])
            case "scf.if":
                return ShapeTable(self._shapes).shape(_last(op).operands[number])
            case _ if op.name.startswith(("arith.", "math.")):
                return self.shape(op.operands[0])
            case _:
                raise _data_dependent(op)

    def _region(self, op: ir.Operation) -> list[Shape]:
        view = RegionView.from_region(op)
        return result_shapes(view, [self.shape(operand) for operand in op.operands])

    def _fill_in(self, type_: ir.RankedTensorType, values: list[ir.Value]) -> list[Expr]:
        dynamic = iter(values)
        return [
            self.index(next(dynamic)) if type_.is_dynamic_dim(axis) else type_.get_dim_size(axis)
            for axis in range(type_.rank)
        ]

    def _mixed(self, attribute: str, op: ir.Operation, values: Sequence[ir.Value]) -> list[Expr]:
        """Ints of a static attribute with the dynamic ones taken from ``values`` in order."""
        dynamic, marker = iter(values), ir.ShapedType.get_dynamic_size()
        return [
            self.index(next(dynamic)) if extent == marker else extent
            for extent in ir.DenseI64ArrayAttr(op.attributes[attribute])
        ]

    def _collapse(self, op: ir.Operation) -> list[Expr]:
        source = self.shape(op.operands[0])
        result: list[Expr] = []
        for group in ir.ArrayAttr(op.attributes["reassociation"]):
            extent: Expr = 1
            for axis in ir.ArrayAttr(group):
                extent = simplify(("mul", extent, source[ir.IntegerAttr(axis).value]))
            result.append(extent)
        return result

    def _segments(self, op: ir.Operation) -> list[list[ir.Value]]:
        counts = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        operands = iter(op.operands)
        return [[next(operands) for _ in range(count)] for count in counts]

    def slice_sizes(self, op: ir.Operation) -> list[Expr]:
        """Returns the sizes of a ``tensor.insert_slice``."""
        return self._mixed("static_sizes", op, self._segments(op)[3])

    def _extract_slice(self, op: ir.Operation) -> list[Expr]:
        sizes = self._mixed("static_sizes", op, self._segments(op)[2])
        rank = ir.RankedTensorType(op.results[0].type).rank
        dropped = len(sizes) - rank
        kept: list[Expr] = []
        for extent in sizes:  # a rank-reducing slice drops unit dims
            if extent == 1 and dropped:
                dropped -= 1
            else:
                kept.append(extent)
        return kept

    def _pad(self, op: ir.Operation) -> list[Expr]:
        segments = self._segments(op)
        low = self._mixed("static_low", op, segments[1])
        high = self._mixed("static_high", op, segments[2])
        source = self.shape(op.operands[0])
        return [
            simplify(("add", simplify(("add", before, extent)), after))
            for before, extent, after in zip(low, source, high, strict=True)
        ]

    def _concat(self, op: ir.Operation) -> list[Expr]:
        axis = ir.IntegerAttr(op.attributes["dim"]).value
        shapes = [self.shape(operand) for operand in op.operands]
        result = list(shapes[0])
        for shape in shapes[1:]:
            result[axis] = simplify(("add", result[axis], shape[axis]))
        return result

    def _extract(self, op: ir.Operation) -> Expr:
        source = op.operands[0].owner.operation
        if source.name == "tensor.from_elements" and len(op.operands) == 2:
            position = self.index(op.operands[1])
            if isinstance(position, int):
                return self.index(source.operands[position])
        raise _data_dependent(op)

    def _affine(self, op: ir.Operation) -> Expr:
        indexing = ir.AffineMapAttr(op.attributes["map"]).value
        values = [self.index(operand) for operand in op.operands]
        found = [_affine_expression(result, values, indexing.n_dims) for result in indexing.results]
        result = found[0]
        for other in found[1:]:
            result = simplify(("min" if op.name == "affine.min" else "max", result, other))
        return result


def result_shapes(view: RegionView, operands: Sequence[Sequence[Expr]]) -> list[Shape]:
    """Returns the shapes of a region's results, given those of its operands.

    Raises:
        UnsupportedError: LK4002, a dim depends on data.
    """
    if all(type_.has_static_shape for type_ in view.results):
        return [tuple(type_.shape) for type_ in view.results]
    module = view.clone_module()
    with module.context, ir.Location.unknown():
        lower_lk_ops(module)
        block = module.body.operations[0].operation.regions[0].blocks[0]
        table = ShapeTable(dict(zip(block.arguments, operands, strict=True)))
        returned = list(block.operations)[-1].operation.operands
        return [table.shape(value) for value in returned]


def _comparison(predicate: int, left: Expr, right: Expr) -> Expr:
    """Returns 1 or 0 for a predicate of ``arith.cmpi``: eq ne slt sle sgt sge ult ule ugt uge."""

    def less(a: Expr, b: Expr) -> Expr:
        return simplify(("min", simplify(("max", simplify(("sub", b, a)), 0)), 1))

    strict = less(left, right), less(right, left)
    unequal = simplify(("add", *strict))
    outcomes = (
        simplify(("sub", 1, unequal)), unequal, strict[0], simplify(("sub", 1, strict[1])), strict[1],
        simplify(("sub", 1, strict[0])),
    )  # fmt: skip
    return outcomes[predicate if predicate < len(outcomes) else predicate - 4]


def _affine_expression(expr: ir.AffineExpr, values: Sequence[Expr], dims: int) -> Expr:
    if isinstance(expr, ir.AffineConstantExpr):
        return expr.value
    if isinstance(expr, ir.AffineDimExpr):
        return values[expr.position]
    if isinstance(expr, ir.AffineSymbolExpr):
        return values[dims + expr.position]
    names: dict[Any, str] = {
        ir.AffineAddExpr: "add", ir.AffineMulExpr: "mul", ir.AffineModExpr: "mod",
        ir.AffineFloorDivExpr: "floordiv", ir.AffineCeilDivExpr: "ceildiv",
    }  # fmt: skip
    name = next(name for kind, name in names.items() if isinstance(expr, kind))
    left = _affine_expression(expr.lhs, values, dims)  # type: ignore[attr-defined]
    right = _affine_expression(expr.rhs, values, dims)  # type: ignore[attr-defined]
    return simplify((name, left, right))


def _last(op: ir.Operation) -> ir.Operation:
    return list(op.regions[0].blocks[0].operations)[-1].operation


def _data_dependent(op: ir.Operation | None) -> UnsupportedError:
    what = f"the result of {op.name}" if op is not None else "a block argument"
    return UnsupportedError(
        "LK4002",
        f"a shape depends on data: {what} is no function of the input shapes",
        op=op.name if op is not None else None,
        location=str(op.location) if op is not None else None,
    )


def dynamic_dims(types: Sequence[ir.Type], shapes: Sequence[Sequence[Expr]]) -> list[Expr]:
    """The kernel's dims array: the dynamic dims of operands, then of results, in order."""
    dims: list[Expr] = []
    for type_, shape in zip(types, shapes, strict=True):
        tensor = ir.RankedTensorType(type_)
        dims += [extent for axis, extent in enumerate(shape) if tensor.is_dynamic_dim(axis)]
    return dims
