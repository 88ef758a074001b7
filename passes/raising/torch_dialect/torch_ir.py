"""Reading and building the torch dialect from Python.

Vocabulary. A *torch tensor* is a value of type ``!torch.vtensor<[shape],dtype>``; a *builtin tensor* is a value of
type ``tensor<...>``. ``to_builtin`` and ``from_builtin`` are the two casts between them: an lk op stands between a pair
of them until the function is converted as a whole. All building happens at the insertion point and location that
are current.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.passes.source_location import op_name

_TENSOR_TYPE = re.compile(r"!torch\.v?tensor<\[(?P<shape>[^\]]*)\],(?P<dtype>\w+)>")

TORCH_DTYPE_CODES: dict[str, int] = {
    "ui8": 0, "si8": 1, "si16": 2, "si32": 3, "si64": 4, "f16": 5, "f32": 6, "f64": 7, "i1": 11, "bf16": 15,
    "ui16": 27, "ui32": 28, "ui64": 29,
}  # fmt: skip
"""Element type of a torch tensor -> PyTorch's number for it (c10/core/ScalarType.h)."""

DTYPE_OF_CODE = {code: dtype for dtype, code in TORCH_DTYPE_CODES.items()}

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
LOW_PRECISION_FLOATS = frozenset({"f16", "bf16"})


class RefusalError(Exception):
    """A rule does not apply to an op that it was offered; the text says why. Becomes a remark, never an error."""


class NotConcernedError(RefusalError):
    """A rule was offered an op that it is not meant for (another mode, say). Nothing to tell anyone."""


@dataclass(frozen=True)
class TensorInfo:
    """Shape (None for a dim that is known at run time only) and element type of a torch tensor."""

    shape: tuple[int | None, ...]
    dtype: str

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floats."""
        return self.dtype in FLOATS

    def static_shape(self) -> list[int]:
        """Returns the shape; refuses a dynamic one."""
        return [self.static_dim(axis) for axis in range(self.rank)]

    def static_dim(self, axis: int) -> int:
        """Returns the size of one dim; refuses a dynamic one."""
        size = self.shape[axis]
        if size is None:
            raise RefusalError(f"dim {axis} of {self} is not known at compile time")
        return size

    def normalized_axis(self, axis: int) -> int:
        """Returns ``axis`` counted from the front."""
        rank = max(self.rank, 1)
        if not -rank <= axis < rank:
            raise RefusalError(f"axis {axis} is out of range for {self}")
        return axis % rank

    def with_shape(self, shape: Sequence[int | None]) -> TensorInfo:
        """Returns a tensor of these elements in another shape."""
        return TensorInfo(tuple(shape), self.dtype)

    def with_dtype(self, dtype: str) -> TensorInfo:
        """Returns a tensor of this shape with other elements."""
        return TensorInfo(self.shape, dtype)

    def torch_type(self) -> ir.Type:
        """Returns the type in the torch dialect."""
        dims = ",".join("?" if size is None else str(size) for size in self.shape)
        return ir.Type.parse(f"!torch.vtensor<[{dims}],{self.dtype}>")

    def builtin_type(self) -> ir.RankedTensorType:
        """Returns the builtin tensor type."""
        # Builtin integers of the linalg level are signless; the ops carry the sign.
        element = re.sub(r"^[su]i", "i", self.dtype)
        dims = "".join("?x" if size is None else f"{size}x" for size in self.shape)
        return ir.RankedTensorType(ir.Type.parse(f"tensor<{dims}{element}>"))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


# Reading.


def tensor_info(value: ir.Value) -> TensorInfo:
    """Returns shape and element type of a torch tensor; refuses a value that is none, or of unknown rank."""
    return type_info(value.type)


def type_info(kind: ir.Type) -> TensorInfo:
    """As :func:`tensor_info`, of a type."""
    match = _TENSOR_TYPE.fullmatch(str(kind))
    if match is None:
        raise RefusalError(f"{kind} is no tensor with known rank and element type")
    dims = [dim for dim in match["shape"].split(",") if dim]
    return TensorInfo(tuple(None if dim == "?" else int(dim) for dim in dims), match["dtype"])


def is_tensor(value: ir.Value) -> bool:
    """Whether ``value`` is a torch tensor with known rank and element type."""
    return _TENSOR_TYPE.fullmatch(str(value.type)) is not None


def defining_op(value: ir.Value, *names: str) -> ir.Operation | None:
    """Returns the op that makes ``value`` if it is one of ``names`` (any, if none are given)."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    operation = owner.operation
    return operation if not names or op_name(operation) in names else None


def _constant(value: ir.Value, kind: str) -> ir.Attribute | None:
    op = defining_op(value, f"torch.constant.{kind}")
    return op.attributes["value"] if op is not None else None


def is_none(value: ir.Value) -> bool:
    """Whether ``value`` is Python's None."""
    return str(value.type) == "!torch.none"


def try_int(value: ir.Value) -> int | None:
    """Returns a constant int, or the size of a static dim; None otherwise."""
    attribute = _constant(value, "int")
    if attribute is not None:
        # `IntegerAttr.value` reads a signed i64, which is what PyTorch's int is.
        return ir.IntegerAttr(attribute).value
    truth = defining_op(value, "torch.aten.Int.bool")
    if truth is not None:
        known = try_number(truth.operands[0])
        return None if known is None else int(known)
    size = defining_op(value, "torch.aten.size.int")
    if size is not None and is_tensor(size.operands[0]):
        axis = try_int(size.operands[1])
        info = tensor_info(size.operands[0])
        return info.shape[axis] if axis is not None else None
    return None


def int_of(value: ir.Value) -> int:
    """Returns a constant int; refuses one that is computed."""
    number = try_int(value)
    if number is None:
        raise RefusalError("an int argument is not a constant")
    return number


def try_number(value: ir.Value) -> float | int | None:
    """Returns a constant int, float or bool as a Python number; None otherwise."""
    attribute = _constant(value, "float")
    if attribute is not None:
        return ir.FloatAttr(attribute).value
    attribute = _constant(value, "bool")
    if attribute is not None:
        return bool(ir.BoolAttr(attribute).value)
    return try_int(value)


def number_of(value: ir.Value) -> float | int:
    """Returns a constant number; refuses one that is computed."""
    number = try_number(value)
    if number is None:
        raise RefusalError("a scalar argument is not a constant")
    return number


def bool_of(value: ir.Value, *, default: bool | None = None) -> bool:
    """Returns a constant bool (``default`` for None); refuses one that is computed."""
    if default is not None and is_none(value):
        return default
    number = try_number(value)
    if number is None:
        raise RefusalError("a bool argument is not a constant")
    return bool(number)


def string_of(value: ir.Value) -> str:
    """Returns a constant string; refuses one that is computed."""
    attribute = _constant(value, "str")
    if attribute is None:
        raise RefusalError("a string argument is not a constant")
    return ir.StringAttr(attribute).value


def list_items(value: ir.Value) -> list[ir.Value]:
    """Returns the items of a list that is spelled out; refuses any other list."""
    op = defining_op(value, "torch.prim.ListConstruct")
    if op is None:
        raise RefusalError("a list argument is not spelled out")
    return list(op.operands)


def ints_of(value: ir.Value) -> list[int]:
    """Returns a list of constant ints; refuses any other."""
    return [int_of(item) for item in list_items(value)]


def spread(values: Sequence[int], count: int) -> list[int]:
    """Returns ``count`` values; PyTorch lets one value stand for all."""
    if len(values) == 1:
        return list(values) * count
    if len(values) != count:
        raise RefusalError(f"{len(values)} values for {count} spatial dims")
    return list(values)


def dtype_of_code(value: ir.Value) -> str | None:
    """Returns the element type that a ``dtype`` argument names, None for None."""
    if is_none(value):
        return None
    code = int_of(value)
    if code not in DTYPE_OF_CODE:
        raise RefusalError(f"element type number {code} of PyTorch is not supported")
    return DTYPE_OF_CODE[code]


def axes_of(value: ir.Value, info: TensorInfo) -> list[int]:
    """Returns the sorted axes that a ``dim`` argument (an int, a list of ints or None for all) names."""
    if is_none(value):
        return list(range(info.rank))
    axes = [int_of(value)] if str(value.type) == "!torch.int" else ints_of(value)
    if not axes:
        return list(range(info.rank))
    named = sorted({info.normalized_axis(axis) for axis in axes})
    return named if info.rank else []  # PyTorch lets a tensor of rank 0 be reduced along a dim that it has not


# Building.


def build(name: str, operands: Sequence[ir.Value], results: Sequence[ir.Type]) -> list[ir.Value]:
    """Builds a registered op and returns its results."""
    return list(ir.Operation.create(name, results=list(results), operands=list(operands)).results)


def _build_constant(kind: str, type_text: str, attribute: ir.Attribute | None) -> ir.Value:
    attributes = {} if attribute is None else {"value": attribute}
    return ir.Operation.create(f"torch.constant.{kind}", [ir.Type.parse(type_text)], attributes=attributes).results[0]


def constant_int(number: int) -> ir.Value:
    """Builds an int."""
    return _build_constant("int", "!torch.int", ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number))


def constant_float(number: float) -> ir.Value:
    """Builds a float."""
    return _build_constant("float", "!torch.float", ir.FloatAttr.get(ir.F64Type.get(), number))


def constant_bool(flag: bool) -> ir.Value:
    """Builds a bool."""
    return _build_constant("bool", "!torch.bool", ir.BoolAttr.get(flag))


def constant_string(text: str) -> ir.Value:
    """Builds a str."""
    return _build_constant("str", "!torch.str", ir.StringAttr.get(text))


def constant_none() -> ir.Value:
    """Builds None."""
    return _build_constant("none", "!torch.none", None)


def constant_number(number: float | int) -> ir.Value:
    """Builds an int constant for an int, a float constant for a float."""
    return constant_int(number) if isinstance(number, int) else constant_float(number)


def int_list(numbers: Sequence[int | ir.Value]) -> ir.Value:
    """Builds a list of ints out of numbers and int values."""
    items = [constant_int(item) if isinstance(item, int) else item for item in numbers]
    return build("torch.prim.ListConstruct", items, [ir.Type.parse("!torch.list<int>")])[0]


def to_builtin(value: ir.Value) -> ir.Value:
    """Casts a torch tensor to a builtin tensor; takes apart the opposite cast rather than stacking on it."""
    opposite = defining_op(value, "torch_c.from_builtin_tensor")
    wanted = tensor_info(value).builtin_type()
    if opposite is not None and opposite.operands[0].type == wanted:
        return opposite.operands[0]
    return build("torch_c.to_builtin_tensor", [value], [wanted])[0]


def from_builtin(value: ir.Value, info: TensorInfo) -> ir.Value:
    """Casts a builtin tensor to the torch tensor that ``info`` states; refines or forgets static dims as needed."""
    wanted = info.builtin_type()
    found = ir.RankedTensorType(value.type)
    if found.element_type != wanted.element_type:
        raise RefusalError(f"the lk op gives {found}, PyTorch {info}")
    if found != wanted:
        value = build("tensor.cast", [value], [wanted])[0]
    return build("torch_c.from_builtin_tensor", [value], [info.torch_type()])[0]


def like_result(value: ir.Value, op: ir.Operation, index: int = 0) -> list[ir.Value]:
    """Refines or forgets static dims so that ``value`` has the type of a result of ``op``; returns it in a list."""
    wanted = op.results[index].type
    if value.type == wanted:
        return [value]
    return [from_builtin(to_builtin(value), tensor_info(op.results[index]))]
