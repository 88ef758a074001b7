"""Lowers one pointwise torch op to ``linalg.generic``, in the types that PyTorch computes in.

Steps
    types      operands come to the type of the result, or to their common type; numbers are cut off or rounded;
    width      16-bit floats are computed in f32 where PyTorch does more than one step, and rounded once;
    extents    a static extent that is not 1 is the result's; an open one is that of the first operand that has it;
    body       the rule's own, on typed scalars (:mod:`scalars`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from lowerkit.dialect.linalg_builder import Size, affine_constant, loop, map_elements, size_of
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.promotion import NUMBER_DTYPES, Standing, kind, promoted
from lowerkit.passes.raising.core.scalars import Scalar, builtin_element, cast, constant
from lowerkit.passes.raising.torch_dialect.scalars import as_element
from lowerkit.passes.raising.torch_dialect.table_pass import Rule
from lowerkit.passes.raising.torch_dialect.torch_build import broadcast_shape
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    LOW_PRECISION_FLOATS,
    TORCH_DTYPE_CODES,
    NotConcernedError,
    RefusalError,
    build,
    from_builtin,
    is_none,
    is_tensor,
    number_of,
    string_of,
    tensor_info,
    to_builtin,
    try_number,
)

Body: TypeAlias = Callable[..., Scalar]

_NUMBER_CASTS = {"!torch.int": ("to_i64", "i64"), "!torch.float": ("to_f64", "f64"), "!torch.bool": ("to_i1", "i1")}
_COMPUTED_DTYPES = {"!torch.int": "si64", "!torch.float": "f64", "!torch.bool": "i1"}


@dataclass(frozen=True)
class Pointwise:
    """How a pointwise op is computed.

    Attributes:
        body: takes a scalar for each of ``operands`` (None for None), then what the others are in Python; gives the
            result, in the type that it was computed in.
        operands: which operands are tensors, or numbers to compute with: their places, or how many from the first on.
        types: what the operands come to: the type of the ``result``, their ``common`` type, or each has its ``own``.
        masks: places of operands that are conditions, and come to no type.
        wide: 16-bit floats are computed in f32 and rounded once. One exact step needs no f32.
        digits: places of operands that keep their digits beside 16-bit floats, where they are numbers or of rank 0 and
            another type; others are rounded first, as PyTorch does.
        channels: place of an operand that is a vector along axis 1.
    """

    body: Body
    operands: int | tuple[int, ...] = 1
    types: Literal["result", "common", "own"] = "result"
    masks: tuple[int, ...] = ()
    wide: bool = True
    digits: tuple[int, ...] = ()
    channels: int | None = None

    @property
    def places(self) -> Sequence[int]:
        """The places of operands to compute with."""
        return range(self.operands) if isinstance(self.operands, int) else self.operands

    def rule(self) -> Rule:
        """Returns the rule of a table pass."""

        def lower(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
            try:
                return [lowered(op, self)]
            except RefusalError:
                _erase_unfinished(op)
                raise

        return lower


@dataclass(frozen=True)
class _Operand:
    """A tensor, or a Python number: ``value`` is builtin, None for a number that is known."""

    value: ir.Value | None
    dtype: str
    number: float | int | None = None
    rank: int | None = None  # None for numbers
    keeps_digits: bool = False


def lowered(op: ir.Operation, rule: Pointwise) -> ir.Value:
    """Returns what takes the place of ``op``.

    Raises:
        RefusalError: an argument that has to be known is computed, or a number that no integer is.
        NotConcernedError: an element type that PyTorch's ops do not compute with.
    """
    result = tensor_info(op.results[0])
    given = list(op.operands)
    tensors = [tensor_info(value) for value in (*given, *op.results) if is_tensor(value)]
    if any(info.dtype not in TORCH_DTYPE_CODES for info in tensors):
        raise NotConcernedError("an element type of PyTorch's that its ops do not compute with")
    rest = [_parameter(value) for place, value in enumerate(given) if place not in rule.places]
    common = _common_type(given, rule) if rule.types == "common" else result.dtype
    operands = {
        place: None if is_none(given[place]) else _operand(given[place], common, result.rank, place in rule.digits)
        for place in rule.places
    }
    used = [operand for operand in operands.values() if operand is not None]
    is_low = common in LOW_PRECISION_FLOATS
    computed = "f32" if is_low and (rule.wide or any(each.keeps_digits for each in used)) else common

    def body(*elements: ir.Value) -> ir.Value:
        remaining = iter(elements)
        scalars: list[Scalar | None] = []
        for place, operand in operands.items():
            if operand is None:
                scalars.append(None)
                continue
            element = operand.value if operand.rank is None else next(remaining)
            if place in rule.masks:
                scalars.append(cast(_typed(element, operand), "i1"))
            elif rule.types == "own":
                scalars.append(_typed(element, operand))
            else:
                scalars.append(_converted(element, operand, common, computed))
        return cast(rule.body(*scalars, *rest), result.dtype).value

    values = {place: each.value for place, each in operands.items() if each and each.rank is not None and each.value}
    sizes = broadcast_sizes([value for place, value in values.items() if place != rule.channels])
    inputs = [
        (value, _along_channels(value, sizes) if place == rule.channels else _indices(value, sizes))
        for place, value in values.items()
    ]
    return from_builtin(map_elements(inputs, sizes, builtin_element(result.dtype), body), result)


def _erase_unfinished(op: ir.Operation) -> None:
    """Erases the loops before ``op`` whose body was refused while it was built."""
    before: ir.Operation | None = None
    for other in op.block.operations:
        if other.operation == op:
            break
        before = other.operation
    if before is not None and before.name == "linalg.generic":
        last = list(before.regions[0].blocks[0].operations)[-1:]
        if not last or last[0].operation.name != "linalg.yield":
            before.erase()


def _common_type(given: Sequence[ir.Value], rule: Pointwise) -> str:
    found: list[tuple[str, Standing]] = []
    for value in (given[place] for place in rule.places):
        if is_tensor(value):
            info = tensor_info(value)
            found.append((info.dtype, Standing.TENSOR if info.rank else Standing.RANK_0))
        else:
            found.append((NUMBER_DTYPES[str(value.type)], Standing.NUMBER))
    return promoted(found)


def _operand(value: ir.Value, common: str, rank: int, digits: bool) -> _Operand:
    """A number is known, or becomes a builtin value outside of the body."""
    if is_tensor(value):
        info = tensor_info(value)
        keeps = digits and common in LOW_PRECISION_FLOATS and info.rank == 0 and rank > 0 and info.dtype != common
        return _Operand(to_builtin(value), info.dtype, None, info.rank, keeps)
    if str(value.type) not in _NUMBER_CASTS:
        raise RefusalError(f"an operand of type {value.type}")
    number = try_number(value)
    keeps = digits and common in LOW_PRECISION_FLOATS
    dtype = _COMPUTED_DTYPES[str(value.type)]
    if number is not None:
        return _Operand(None, dtype, number, None, keeps)
    name, wanted = _NUMBER_CASTS[str(value.type)]
    return _Operand(build(f"torch_c.{name}", [value], [ir.Type.parse(wanted)])[0], dtype, None, None, keeps)


def _typed(element: ir.Value | None, operand: _Operand) -> Scalar:
    if element is None:
        assert operand.number is not None, "a number that is not computed is known"
        return constant(operand.number, operand.dtype)
    return Scalar(element, operand.dtype)


def _converted(element: ir.Value | None, operand: _Operand, common: str, computed: str) -> Scalar:
    if element is not None:
        value = Scalar(element, operand.dtype)
        return cast(value if operand.keeps_digits else cast(value, common), computed)
    number = operand.number
    assert number is not None, "a number that is not computed is known"
    if common in LOW_PRECISION_FLOATS and not operand.keeps_digits:
        number = as_element(float(number), common)
        assert number is not None, "a float rounds to any float type"
    if kind(common) == 0 and operand.dtype != "i1":
        number = bool(number)
    value = constant(number, computed)
    return value if kind(computed) == 2 else replace(value, number=int(value.number or 0))


def _parameter(value: ir.Value) -> Any:
    if is_none(value):
        return None
    return string_of(value) if str(value.type) == "!torch.str" else number_of(value)


def broadcast_sizes(values: Sequence[ir.Value]) -> list[Size]:
    """Returns the extents of what builtin tensors broadcast to."""
    shape = broadcast_shape(*([None if size < 0 else size for size in value.type.shape] for value in values))
    sizes: list[Size] = []
    for axis, extent in enumerate(shape):
        if extent is not None:
            sizes.append(extent)
            continue
        holder = next(value for value in values if _is_open(value, axis - (len(shape) - value.type.rank)))
        sizes.append(size_of(holder, axis - (len(shape) - holder.type.rank)))
    return sizes


def _is_open(value: ir.Value, axis: int) -> bool:
    return axis >= 0 and ir.RankedTensorType(value.type).is_dynamic_dim(axis)


def _indices(value: ir.Value, sizes: Sequence[Size]) -> list[ir.AffineExpr]:
    """An extent of one is read at 0 wherever the result has another."""
    offset = len(sizes) - value.type.rank
    return [
        affine_constant(0) if extent == 1 and sizes[offset + axis] != 1 else loop(offset + axis)
        for axis, extent in enumerate(value.type.shape)
    ]


def _along_channels(value: ir.Value, sizes: Sequence[Size]) -> list[ir.AffineExpr]:
    """A vector with an entry for each channel, or one for all."""
    if value.type.rank == 1 and value.type.shape[0] != 1 and len(sizes) > 1:
        return [loop(1)]
    return [affine_constant(0) if not sizes or extent == 1 else loop(0) for extent in value.type.shape]
