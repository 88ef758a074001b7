"""Values of a TorchScript program while it is traced, and the operations on numbers, lists, dicts and strings.

TorchScript counts and decides with Python numbers. Where data decides the course of a loop, numbers that the loop
carries are tensors of rank 0, and so is what is computed from them.
"""

# torch names the nodes of TorchScript graphs in private modules only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor of one element whose value is known while the program is traced.

    A traced ``x.shape[-1] // 2`` is arithmetic on such tensors, converted back at the end. To the exporter the result
    would be data, so every shape that it touches would be unknown. It is computed beside the export instead.
    """

    tensor: torch.Tensor

    def lifted(self) -> torch.Tensor:
        """Returns it as a value of the trace."""
        return torch.full((), self.tensor.item(), dtype=self.tensor.dtype)


def known(value: float) -> Known:
    """Returns a number as a tensor."""
    with _disable_current_modes():
        return Known(torch.tensor(value))


def known_tensor(value: torch.Tensor) -> Known:
    """Returns a tensor of one element, which is not of the trace."""
    with _disable_current_modes():
        return Known(value.reshape(()))


def lifted(value: Any) -> Any:
    """Returns ``value`` with everything that is known made part of the trace."""
    return pytree.tree_map(lambda leaf: leaf.lifted() if isinstance(leaf, Known) else leaf, value)


def apply(function: Callable[..., Any], arguments: Iterable[Any]) -> Any:
    """Calls a function: beside the trace where all tensors are known, else as a part of it."""
    given = list(arguments)
    leaves = pytree.tree_leaves(given)
    if not any(isinstance(leaf, Known) for leaf in leaves):
        return function(*given)
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return function(*lifted(given))
    with _disable_current_modes():
        found = function(*pytree.tree_map(lambda leaf: leaf.tensor if isinstance(leaf, Known) else leaf, given))
    return Known(found) if isinstance(found, torch.Tensor) and found.ndim == 0 else found


def number(value: Any, dtype: torch.dtype | None) -> Any:
    """``int(x)``, ``float(x)``, ``bool(x)`` and ``x.item()``: a number, or a tensor of rank 0 if it is data."""
    if isinstance(value, Known):
        value = value.tensor.item()
    if isinstance(value, torch.Tensor):
        return value.reshape(()).to(dtype) if dtype is not None else value.reshape(())
    return value if dtype is None else _CONVERTERS[dtype](value)


_CONVERTERS: dict[torch.dtype, Callable[[Any], Any]] = {torch.int64: int, torch.float64: float, torch.bool: bool}


def _quotient(one: Any, other: Any) -> Any:
    """Python's ``/``: numbers are doubles, also where they are tensors."""
    if isinstance(one, torch.Tensor) and not one.is_floating_point() and one.ndim == 0:
        one = one.to(torch.float64)
    return one / other


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::div": operator.truediv,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::neg": operator.neg,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
}

_NUMBERS = {"int": 1, "float": 1.0, "bool": True, "Scalar": 1.0, "number": 1.0}
"""TorchScript's types of numbers, with one of each."""


def arithmetic(node: torch._C.Node) -> Callable[..., Any] | None:
    """Returns what computes a node that takes numbers, or a tensor and a number; None for any other node.

    TorchScript names another overload for each of these, and a number that a loop carries is a tensor.
    """
    found = _ARITHMETIC.get(node.kind())
    inputs = list(node.inputs())
    if found is None or not inputs:
        return None
    first, *others = (str(value.type()) for value in inputs)
    if first in _NUMBERS and all(kind in _NUMBERS for kind in others):
        return _quotient if node.kind() == "aten::div" else found
    # add and sub of a tensor take a factor, which is nearly always one
    factors: list[Any] = [value.toIValue() if value.node().kind() == "prim::Constant" else None for value in inputs[2:]]
    if first != "Tensor" or len(others) == 0 or others[0] not in _NUMBERS or any(factor != 1 for factor in factors):
        return None

    def with_number(tensor: torch.Tensor, other: Any, *_: Any) -> Any:
        if isinstance(other, torch.Tensor):  # takes part in promotion as the number that it stands for
            other = other.to(torch.result_type(tensor, _NUMBERS[others[0]]))
        return found(tensor, other)

    return with_number


def is_alias(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share memory."""
    found: bool = torch._C._is_alias_of(one, other)  # pyright: ignore[reportAttributeAccessIssue]  # not in its stubs
    return found


def logical_not(value: Any) -> Any:
    """``not`` of a bool, or of a bool tensor."""
    return torch.logical_not(value) if isinstance(value, torch.Tensor) else not value


def _add_in_place(items: list[Any], others: Iterable[Any]) -> list[Any]:
    items.extend(others)
    return items


def _append(items: list[Any], item: Any) -> list[Any]:
    items.append(item)
    return items


def _sliced(items: Any, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    return items[start:end:step]


CONTAINERS: dict[str, Callable[..., Any]] = {
    "aten::len": len,
    "aten::__getitem__": operator.getitem,
    "aten::_set_item": operator.setitem,
    "aten::append": _append,
    "aten::extend": list.extend,
    "aten::insert": list.insert,
    "aten::pop": lambda items, *place: items.pop(*place),
    "aten::Delete": operator.delitem,
    "aten::clear": lambda items: items.clear(),
    "aten::reverse": list.reverse,
    "aten::copy": lambda items: items.copy(),
    "aten::list": list,
    "aten::slice": _sliced,
    "aten::add": operator.add,
    "aten::add_": _add_in_place,
    "aten::mul": operator.mul,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::keys": lambda items: list(items.keys()),
    "aten::values": lambda items: list(items.values()),
    "aten::items": lambda items: list(items.items()),
    "aten::get": dict.get,
    "aten::update": dict.update,
    "aten::__contains__": operator.contains,
    "aten::format": str.format,
    "prim::min": min,
    "prim::max": max,
    "aten::sum": sum,
}
"""What TorchScript does with lists, tuples, dicts and strings, in place where it works in place."""


def is_container(kind: torch._C.JitType) -> bool:
    """Whether values of a type of TorchScript are lists, tuples, dicts or strings."""
    return isinstance(kind, (torch.ListType, torch.TupleType, torch.DictType, torch.StringType))


_DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.qint8, torch.quint8, torch.qint32),
    torch.bfloat16,
]
_FORMATS = [torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d]


def dtype_number(dtype: torch.dtype) -> int:
    """The number by which TorchScript knows an element type."""
    return _DTYPES.index(dtype)


def python_constant(value: Any, kind: str) -> Any:
    """Returns an argument as Python's operators take it: TorchScript knows element types and layouts by number.

    ``kind`` is the schema's type of the argument.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if "ScalarType" in kind:
            return _DTYPES[value]
        if "MemoryFormat" in kind:
            return _FORMATS[value]
        if "Layout" in kind:
            return torch.strided
    return torch.device("cpu") if "Device" in kind and value is not None else value
