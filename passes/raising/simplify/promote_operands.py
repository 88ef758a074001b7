"""Gives all operands of an elementwise op one element type, that which PyTorch computes in.

torch-mlir converts operands inside its lowerings: not at all for some pairs of types (a bool or a byte beside another
type brings the process down), by their sign for others. So no op reaches it with operands of unlike types:

    arithmetic     in the type of the result; that of bytes and bools in 32-bit integers, cut off afterwards, which
                   wraps as PyTorch does (``add`` of bools is then ``or``, ``mul`` is ``and``);
    comparisons    in the type that PyTorch promotes the operands to, where tensors of rank 0 and Python numbers count
                   only if they are of a higher kind (bool < integer < float);
    numbers        cut off to the integer type of the tensor that they meet.

:data:`SHIFTS` by a negative number, or by as many bits as there are, give what PyTorch gives: 0, or the sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    cast,
    concatenate,
    scalar_tensor,
    unsqueeze,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    LOW_PRECISION_FLOATS,
    TORCH_DTYPE_CODES,
    NotConcernedError,
    RefusalError,
    build,
    constant_float,
    constant_int,
    int_of,
    is_tensor,
    like_result,
    list_items,
    number_of,
    tensor_info,
    try_number,
)
from lowerkit.passes.source_location import op_name

_BYTES = frozenset({"ui8", "si8"})
_NARROW = _BYTES | {"i1"}
_WIDTH = {"ui8": 8, "si8": 8, "si16": 16, "si32": 32, "si64": 64}

_OF_TWO = (
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "div.Tensor_mode", "floor_divide", "remainder.Tensor"),
    *("fmod.Tensor", "pow.Tensor_Tensor", "maximum", "minimum", "atan2", "lerp.Scalar", "lerp.Tensor", "logaddexp"),
    *("addcmul", "addcdiv", "clamp.Tensor", "clamp_min.Tensor", "clamp_max.Tensor", "prelu", "threshold_backward"),
    *("rsub.Tensor", "logaddexp2", "xlogy.Tensor", "float_power.Tensor_Tensor"),
    *("float_power.Tensor_Scalar", "float_power.Scalar", "gelu_backward", "tanh_backward", "sigmoid_backward"),
    *("silu_backward", "elu_backward", "leaky_relu_backward", "hardtanh_backward", "softplus_backward"),
    *("log_sigmoid_backward", "logit_backward", "fmax", "fmin", "hypot", "copysign.Tensor", "heaviside", "max.other"),
    *("min.other", "multiply.Tensor", "true_divide.Tensor", "nextafter", "gcd", "lcm", "ldexp.Tensor"),
)
_OF_NUMBERS = (
    *("add.Scalar", "sub.Scalar", "rsub.Scalar", "mul.Scalar", "div.Scalar", "div.Scalar_mode", "floor_divide.Scalar"),
    *("remainder.Scalar", "fmod.Scalar", "pow.Tensor_Scalar", "pow.Scalar", "clamp", "clamp_min", "clamp_max"),
    *("hardtanh", "threshold", "leaky_relu", "relu", "relu6", "abs", "neg", "sign", "sgn", "square", "floor", "ceil"),
    *("round", "trunc", "round.decimals", "absolute", "fix", "frac"),
)
_TO_FLOAT = (
    *("reciprocal", "rsqrt", "sqrt", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan"),
    *("sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid"),
    *("deg2rad", "rad2deg", "special_expm1", "logit", "sinc", "digamma", "lgamma", "i0", "erfinv", "polygamma"),
    *("silu", "mish", "softplus", "elu", "celu", "selu", "gelu", "log_sigmoid", "hardswish", "hardsigmoid"),
)
_BITWISE = tuple(
    f"{spelled}.{kind}"
    for name in ("and", "or", "xor")
    for spelled in (f"bitwise_{name}", f"__{name}__")
    for kind in ("Tensor", "Scalar")
)
_OF_WIDE_NUMBERS = frozenset(
    f"torch.aten.{name}"
    for name in ("mul.Tensor", "multiply.Tensor", "div.Tensor", "true_divide.Tensor", "div.Tensor_mode", "floor_divide")
)
"""Ops whose second tensor, of rank 0 beside a 16-bit float, is not rounded to that."""
_WITH_FLAGS = frozenset({"leaky_relu_backward", "elu_backward"})
"""Ops one of whose arguments is a bool, which is no number to compute with."""
_CHOICES = {
    "where.self": (1, 2),
    "where.ScalarOther": (1,),
    "where.ScalarSelf": (2,),
    "masked_fill.Scalar": (0,),
    "masked_fill.Tensor": (0, 2),
}
"""Ops that choose by a mask, with the places of what they choose among."""
_COMPARISONS = tuple(f"{name}.{kind}" for name in ("gt", "ge", "lt", "le", "eq", "ne") for kind in ("Tensor", "Scalar"))
_LOGICAL = ("logical_and", "logical_or", "logical_xor")
SHIFTS = (
    *("bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor"),
    *(
        "__lshift__.Scalar",
        "__rshift__.Scalar",
        "bitwise_left_shift.Tensor_Scalar",
        "bitwise_right_shift.Tensor_Scalar",
    ),
)


def _kind(dtype: str) -> int:
    """0 for bools, 1 for integers, 2 for floats."""
    return 0 if dtype == "i1" else 1 if "i" in dtype else 2


def _joined(left: str, right: str) -> str:
    """The type that holds two types, by PyTorch's table."""
    if left == right:
        return left
    if _kind(left) != _kind(right):
        return left if _kind(left) > _kind(right) else right
    if _kind(left) == 2:
        widths = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
        if widths[left] == widths[right]:
            return "f32"
        return left if widths[left] > widths[right] else right
    if {left, right} == {"ui8", "si8"}:
        return "si16"
    return left if _WIDTH[left] > _WIDTH[right] else right


def promoted(values: Sequence[ir.Value]) -> str:
    """Returns the element type that PyTorch promotes tensors and numbers to; numbers are bools, ints or floats."""
    groups: list[str | None] = [None, None, None]  # with dims, of rank 0, numbers
    for value in values:
        if is_tensor(value):
            place, dtype = (0 if tensor_info(value).rank else 1), tensor_info(value).dtype
        else:
            place, dtype = 2, {"!torch.bool": "i1", "!torch.float": "f32"}.get(str(value.type), "si64")
        known = groups[place]
        groups[place] = dtype if known is None else _joined(known, dtype)
    found: str | None = None
    for dtype in groups:
        if dtype is not None and (found is None or _kind(dtype) > _kind(found)):
            found = dtype
    assert found is not None, "an op has operands"
    return found


def _require_known(op: ir.Operation) -> None:
    if op.name == "torch.operator":
        raise NotConcernedError("the torch dialect has no such op: it is refused by its name")
    for value in (*op.operands, *op.results):
        if is_tensor(value) and tensor_info(value).dtype not in TORCH_DTYPE_CODES:
            raise NotConcernedError("an element type of PyTorch's that its ops do not compute with")


def _wrapped(number: float, dtype: str) -> int:
    """A number as an integer of ``dtype``, cut off as a conversion in C does."""
    if dtype == "i1":
        return int(number != 0)
    width = _WIDTH[dtype]
    low = 0 if dtype == "ui8" else -(1 << (width - 1))
    return (int(number) - low) % (1 << width) + low


def _number_as(value: ir.Value, dtype: str) -> ir.Value:
    """A constant number as one of ``dtype``; a number that is computed stays."""
    number = try_number(value)
    if number is None:
        return value
    if _kind(dtype) == 2:
        return constant_float(float(number)) if isinstance(number, bool) else value
    if not math.isfinite(number):
        raise RefusalError(f"the number {number} beside {dtype}")
    wrapped = _wrapped(number, dtype)
    return (
        value
        if isinstance(number, int) and not isinstance(number, bool) and wrapped == number
        else constant_int(wrapped)
    )


def _computed_in(
    op: ir.Operation, dtype: str, places: Sequence[int] | None = None, *, compares: bool = False
) -> Sequence[ir.Value]:
    """Computes an op with its tensors (at ``places``, or all) in ``dtype``, and gives what it gave."""
    info = tensor_info(op.results[0])
    wide = "si32" if dtype in _NARROW else dtype
    operands = list(op.operands)
    has_flags = op_name(op).removeprefix("torch.aten.") in _WITH_FLAGS
    for place, operand in enumerate(operands):
        if is_tensor(operand) and (places is None or place in places):
            operands[place] = cast(cast(operand, dtype), wide)
        elif str(operand.type) in ("!torch.int", "!torch.float", "!torch.bool") and not has_flags:
            operands[place] = _number_as(operand, dtype)
    computed = info if compares else info.with_dtype(wide)
    if operands == list(op.operands) and computed == info:
        raise NotConcernedError("the operands have the type already")
    result = build(op_name(op), operands, [computed.torch_type()])[0]
    return like_result(cast(result, info.dtype), op)


def _arithmetic(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    _require_known(op)
    dtype = tensor_info(op.results[0]).dtype
    if op_name(op) in _OF_WIDE_NUMBERS and dtype in LOW_PRECISION_FLOATS:
        right = tensor_info(op.operands[1])
        if right.rank == 0 and right.dtype != dtype:
            return _by_wide_number(op, dtype)
    return _computed_in(op, dtype)


def _by_wide_number(op: ir.Operation, dtype: str) -> Sequence[ir.Value]:
    """The divisor or factor of rank 0 keeps its digits and its range: PyTorch reads it in f32."""
    left, right, *rest = op.operands
    wide = tensor_info(op.results[0]).with_dtype("f32").torch_type()
    operands = [cast(cast(left, dtype), "f32"), cast(right, "f32"), *rest]
    return like_result(cast(build(op_name(op), operands, [wide])[0], dtype), op)


def _bitwise(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """Bits of bytes and bools need no wider type where both sides have it; a number becomes a tensor."""
    _require_known(op)
    dtype = tensor_info(op.results[0]).dtype
    left, right = op.operands
    if not is_tensor(right):
        number = number_of(right)
        if dtype not in _WIDTH and dtype != "i1":
            raise RefusalError(f"the bits of {dtype}")
        name = op_name(op).removeprefix("torch.aten.").strip("_").removeprefix("bitwise_").removesuffix("__.Scalar")
        name = f"bitwise_{name.removesuffix('.Scalar')}"
        other = scalar_tensor(_wrapped(number, dtype), dtype)
        return like_result(binary(name, cast(left, dtype), other), op)
    if all(is_tensor(operand) and tensor_info(operand).dtype == dtype for operand in op.operands):
        raise NotConcernedError("the operands have the type already")
    return _computed_in(op, dtype)


def _choice(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    _require_known(op)
    places = _CHOICES[op_name(op).removeprefix("torch.aten.")]
    dtype = tensor_info(op.results[0]).dtype
    chosen = [op.operands[place] for place in places]
    numbers = [operand for operand in op.operands if not is_tensor(operand)]
    if not numbers and all(tensor_info(value).dtype == dtype for value in chosen):
        raise NotConcernedError("the operands have the type already")
    return _computed_in(op, dtype, places)


def _comparison(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    _require_known(op)
    left, right = op.operands
    if not is_tensor(right) and try_number(right) is None:
        raise NotConcernedError("a number that is computed")
    return _computed_in(op, promoted([left, right]), compares=True)


def _shift(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """Shifts: (value, bits)."""
    _require_known(op)
    dtype = tensor_info(op.results[0]).dtype
    if dtype not in _WIDTH:
        raise RefusalError(f"a shift of {dtype}")
    wide = "si32" if dtype in _BYTES else dtype
    value, bits = cast(cast(op.operands[0], dtype), wide), op.operands[1]
    left = "lshift" in op_name(op) or "left" in op_name(op)
    # A byte without sign shifted by 8 is 0, as PyTorch gives; a number with sign keeps its sign bit.
    most = _WIDTH[dtype] - (0 if left or dtype == "ui8" else 1)
    kind = tensor_info(op.results[0]).with_dtype(wide).torch_type()
    if not is_tensor(bits):
        return like_result(
            cast(_shifted_by_number(value, _wrapped(int_of(bits), dtype), most, kind, left=left), dtype), op
        )
    bits = cast(cast(bits, dtype), wide)
    outside = binary("bitwise_or", binary_scalar("lt", bits, 0, "i1"), binary_scalar("ge", bits, most, "i1"), "i1")
    safe = build("torch.aten.where.ScalarSelf", [outside, constant_int(0 if left else most), bits], [bits.type])[0]
    shifted = build(f"torch.aten.bitwise_{'left' if left else 'right'}_shift.Tensor", [value, safe], [kind])[0]
    if left:
        shifted = build("torch.aten.where.ScalarSelf", [outside, constant_int(0), shifted], [kind])[0]
    return like_result(cast(shifted, dtype), op)


def _shifted_by_number(value: ir.Value, bits: int, most: int, kind: ir.Type, *, left: bool) -> ir.Value:
    outside = not 0 <= bits < most
    if left:
        return binary_scalar("mul", value, 0) if outside else binary_scalar("mul", value, 1 << bits)
    return build("torch.aten.__rshift__.Scalar", [value, constant_int(most if outside else bits)], [kind])[0]


def _parts(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """cat, stack: (tensors, dim)."""
    _require_known(op)
    parts, dim = list_items(op.operands[0]), op.operands[1]
    info = tensor_info(op.results[0])
    if not any(tensor_info(part).dtype != info.dtype for part in parts):
        raise NotConcernedError("the parts have the type already")
    axis = info.normalized_axis(int_of(dim))
    alike = [cast(part, info.dtype) for part in parts]
    if op_name(op) == "torch.aten.stack":
        alike = [unsqueeze(part, axis) for part in alike]
    return like_result(concatenate(alike, axis), op)


@dataclass(frozen=True)
class PromoteOperands(TablePass):
    """Gives the operands of elementwise ops, and the parts of concatenations, one element type. Precondition: none."""

    name: ClassVar[str] = "promote-operands"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _arithmetic for name in (*_OF_TWO, *_OF_NUMBERS, *_TO_FLOAT)},
        **{f"torch.aten.{name}": _bitwise for name in _BITWISE},
        **{f"torch.aten.{name}": _choice for name in _CHOICES},
        **{f"torch.aten.{name}": _comparison for name in (*_COMPARISONS, *_LOGICAL)},
        **{f"torch.aten.{name}": _shift for name in SHIFTS},
        "torch.aten.cat": _parts,
        "torch.aten.stack": _parts,
    }
