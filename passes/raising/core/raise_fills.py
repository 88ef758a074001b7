"""Raises tensors that are made of numbers: zeros, ones, full and their kind, ranges, literals, numbers as tensors.

Each has the element type that its result states. A number is converted as PyTorch converts it, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.linalg_builder import Size, filled, loop_index, map_elements, sizes_of
from lowerkit.mlir import arith, ir
from lowerkit.mlir import math as math_dialect
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.numbers import (
    element_from,
    f64,
    i64,
    scalar_as,
    size_from,
    sizes_from,
    to_scalar,
)
from lowerkit.passes.raising.core.raise_broadcasts import broadcast
from lowerkit.passes.raising.core.slices import count_of
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import cast
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    constant_int,
    from_builtin,
    is_tensor,
    list_items,
    tensor_info,
    to_builtin,
    try_number,
)
from lowerkit.passes.source_location import op_name


def _full(op: ir.Operation, sizes: Sequence[Size], number: ir.Value) -> Sequence[ir.Value]:
    wanted = tensor_info(op.results[0])
    known = [size if extent is None else extent for size, extent in zip(sizes, wanted.shape, strict=True)]
    return [from_builtin(filled(known, element_from(number, wanted.builtin_type().element_type)), wanted)]


def _of_sizes(sizes_at: int, number: int | None = None, number_at: int = 0) -> Rule:
    """A rule for a list of sizes and a number, which an operand states or the op."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        value = op.operands[number_at] if number is None else constant_int(number)
        return _full(op, sizes_from(op.operands[sizes_at]), value)

    return rule


def _like(number: int | None = None, number_at: int = 0) -> Rule:
    """A rule for a tensor whose shape the result has, and a number."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        value = op.operands[number_at] if number is None else constant_int(number)
        if is_tensor(value):
            wanted = tensor_info(op.results[0])
            element = to_builtin(cast(value, wanted.dtype))
            return [from_builtin(broadcast(element, sizes_of(to_builtin(op.operands[0]))), wanted)]
        return _full(op, sizes_of(to_builtin(op.operands[0])), value)

    return rule


def _number(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """NumToTensor, scalar_tensor, tensor.int and its kind: a tensor of rank 0."""
    return _full(op, [], op.operands[0])


def _literal(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """vtensor.literal: a constant; of one value everywhere, a fill."""
    wanted = tensor_info(op.results[0])
    kind, attribute = wanted.builtin_type(), op.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise RefusalError("a literal whose elements are elsewhere")
    if attribute.is_splat and isinstance(
        value := attribute.get_splat_value(), (ir.FloatAttr, ir.IntegerAttr, ir.BoolAttr)
    ):
        element = kind.element_type
        half = 1 << (element.width - 1) if isinstance(element, ir.IntegerType) and element.width > 1 else 0
        number = (value.value + half) % (2 * half) - half if half else value.value
        return [from_builtin(filled(list(kind.shape), scalar.constant(number, element)), wanted)]
    elements = ir.Attribute.parse(_respelled(str(attribute), str(kind)))
    return [from_builtin(arith.ConstantOp(kind, elements).result, wanted)]


def _respelled(attribute: str, kind: str) -> str:
    """A dense attribute as text with the type of builtin tensors, whose integers have no sign."""
    return f"{attribute[: attribute.rindex(' : ')]} : {kind}"


def _list_literal(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """tensor: (list of numbers, ...)."""
    wanted = tensor_info(op.results[0])
    kind = wanted.builtin_type()
    items = [element_from(item, kind.element_type) for item in list_items(op.operands[0])]
    made = ir.Operation.create("tensor.from_elements", results=[kind], operands=items).results[0]
    return [from_builtin(made, wanted)]


def _arange(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """arange: (end), (start, end) or (start, end, step), then what says the element type.

    Integers count in i64, floats in f64 as PyTorch does in its kernels: start + step * position, rounded once.
    """
    count = {"": 1, "start": 2, "start_step": 3}[op_name(op).removeprefix("torch.aten.arange").strip(".")]
    given = list(op.operands)[:count]
    bounds = [constant_int(0), given[0], constant_int(1)] if count == 1 else [*given, constant_int(1)][:3]
    wanted = tensor_info(op.results[0])
    whole = all(str(bound.type) == "!torch.int" for bound in bounds)
    known = wanted.shape[0]
    return [from_builtin(_range(bounds, known, wanted.builtin_type().element_type, whole=whole), wanted)]


def _range(bounds: Sequence[ir.Value], known: int | None, element: ir.Type, *, whole: bool) -> ir.Value:
    kind = i64() if whole else f64()
    start, end, step = (scalar_as(to_scalar(bound), kind) for bound in bounds)
    count: Size = _count(bounds, start, end, step) if known is None else known

    def item() -> ir.Value:
        place = scalar_as(scalar.convert(loop_index(0), i64()), kind)
        scaled = place if try_number(bounds[2]) == 1 else scalar.multiply(place, step)
        return scalar_as(scaled if try_number(bounds[0]) == 0 else scalar.add(scaled, start), element)

    return map_elements([], [count], element, item)


def _count(bounds: Sequence[ir.Value], start: ir.Value, end: ir.Value, step: ir.Value) -> Size:
    """How many steps there are from start to before end."""
    number = try_number(bounds[2])
    if isinstance(number, int) and number > 0 and isinstance(start.type, ir.IntegerType):
        return count_of(size_from(bounds[0]), size_from(bounds[1]), number)
    steps = math_dialect.CeilOp(
        scalar.divide(scalar_as(scalar.subtract(end, start), f64()), scalar_as(step, f64()))
    ).result
    at_least_none = scalar.maximum(steps, scalar.constant(0, f64()))
    return scalar.convert(scalar.convert(at_least_none, i64()), ir.IndexType.get())


def _iota(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """prims.iota: (length, start, step, ...)."""
    wanted = tensor_info(op.results[0])
    length, start, step = op.operands[:3]
    size = size_from(length)
    known = size if isinstance(size, int) else None
    element = wanted.builtin_type().element_type

    def item() -> ir.Value:
        place = scalar.convert(loop_index(0), i64())
        return scalar_as(scalar.add(scalar.multiply(place, to_scalar(step)), to_scalar(start)), element)

    return [from_builtin(map_elements([], [size if known is None else known], element, item), wanted)]


def _linspace(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """linspace: (start, end, steps, ...): the first half counts from the start, the second from the end.

    It is computed in the element type, 16-bit floats in f32; integers get their step in f32 and are cut off.
    """
    wanted = tensor_info(op.results[0])
    element = wanted.builtin_type().element_type
    count = size_from(op.operands[2])
    if not isinstance(count, int):
        raise RefusalError("a computed number of steps")
    wide = f64() if isinstance(element, ir.F64Type) else ir.F32Type.get()
    start, end = (scalar_as(element_from(operand, element), wide) for operand in op.operands[:2])
    step = scalar.divide(scalar.subtract(end, start), scalar.constant(max(count - 1, 1), wide))

    def item() -> ir.Value:
        place = scalar.convert(loop_index(0), i64())
        rest = scalar.subtract(scalar.constant(count - 1, i64()), place)
        forward = scalar.add(start, scalar.multiply(step, scalar.convert(place, wide)))
        backward = scalar.subtract(end, scalar.multiply(step, scalar.convert(rest, wide)))
        first = scalar.compare("lt", place, scalar.constant(count // 2, i64()))
        found = scalar.select(first, forward, backward) if count > 1 else start
        return found if found.type == element else scalar.convert(found, element)

    return [from_builtin(map_elements([], [count], element, item), wanted)]


def _triangle_indices(*, lower: bool) -> Rule:
    """tril_indices, triu_indices: (rows, columns, offset, ...): rows and columns of the elements, in order."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        rows, columns, offset = (size_from(operand) for operand in op.operands[:3])
        if not isinstance(rows, int) or not isinstance(columns, int) or not isinstance(offset, int):
            raise RefusalError("sizes that are computed")
        wanted = tensor_info(op.results[0])
        kind = wanted.builtin_type()
        inside: Callable[[int, int], bool] = (lambda r, c: c <= r + offset) if lower else (lambda r, c: c >= r + offset)
        places = [(row, column) for row in range(rows) for column in range(columns) if inside(row, column)]
        numbers = [ir.IntegerAttr.get(kind.element_type, place[side]) for side in (0, 1) for place in places]
        if not numbers:
            return [from_builtin(filled([2, 0], scalar.constant(0, kind.element_type)), wanted)]
        return [from_builtin(arith.ConstantOp(kind, ir.DenseElementsAttr.get(numbers, kind)).result, wanted)]

    return rule


@dataclass(frozen=True)
class RaiseFills(TablePass):
    """Raises tensors made of numbers. Precondition: ``raise-numbers`` has run, or computed sizes go through casts."""

    name: ClassVar[str] = "raise-fills"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.zeros": _of_sizes(0, 0),
        "torch.aten.ones": _of_sizes(0, 1),
        "torch.aten.empty.memory_format": _of_sizes(0, 0),
        "torch.aten.full": _of_sizes(0, number_at=1),
        "torch.aten.new_zeros": _of_sizes(1, 0),
        "torch.aten.new_ones": _of_sizes(1, 1),
        "torch.aten.new_empty": _of_sizes(1, 0),
        "torch.aten.new_empty_strided": _of_sizes(1, 0),
        "torch.aten.empty_strided": _of_sizes(0, 0),
        "torch.aten.new_full": _of_sizes(1, number_at=2),
        **{f"torch.aten.{name}": _like(0) for name in ("zeros_like", "empty_like", "zero")},
        "torch.aten.ones_like": _like(1),
        **{f"torch.aten.{name}": _like(number_at=1) for name in ("full_like", "fill.Scalar", "fill.Tensor")},
        **{f"torch.aten.{name}": _number for name in ("scalar_tensor", "tensor.int", "tensor.float", "tensor.bool")},
        "torch.prim.NumToTensor.Scalar": _number,
        "torch.aten.tensor": _list_literal,
        "torch.vtensor.literal": _literal,
        **{f"torch.aten.arange{form}": _arange for form in ("", ".start", ".start_step")},
        "torch.prims.iota": _iota,
        "torch.aten.linspace": _linspace,
        "torch.aten.tril_indices": _triangle_indices(lower=True),
        "torch.aten.triu_indices": _triangle_indices(lower=False),
    }
