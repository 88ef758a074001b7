"""Shape arithmetic over dimensions that may be dynamic, for the shape rules and verifiers.

A dimension is an int or :data:`DYNAMIC`. Two dimensions are compatible if they are equal or one is dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from lowerkit.errors import VerifyError
from lowerkit.mlir import ir

DYNAMIC: int = ir.ShapedType.get_dynamic_size()
"""The value that stands for ``?`` in the shape of a type."""


def fail(message: str, hint: str | None = None) -> NoReturn:
    """Raises the error of a shape rule or verifier."""
    raise VerifyError("LK3002", message, hint=hint)


def is_dynamic(dimension: int) -> bool:
    """Whether a dimension is ``?``."""
    return dimension == DYNAMIC


def show(shape: Sequence[int]) -> str:
    """Returns a shape as messages print it: ``2x?x3``, ``scalar`` for rank 0."""
    return "x".join("?" if is_dynamic(dimension) else str(dimension) for dimension in shape) or "scalar"


def tensor_type(shape: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    """Returns the builtin tensor type; unlike ``RankedTensorType.get`` it needs no location context."""
    return ir.RankedTensorType.get(list(shape), element, loc=ir.Location.unknown(element.context))


def ranked(name: str, kind: Any, ranks: Sequence[int] | None = None) -> ir.RankedTensorType:
    """Returns ``kind`` as a ranked tensor type, or fails naming the operand and the ranks that are allowed."""
    if not isinstance(kind, ir.RankedTensorType):
        fail(f"operand {name} must be a ranked tensor, found {kind}")
    result = kind
    if ranks is not None and result.rank not in ranks:
        allowed = " or ".join(str(rank) for rank in ranks)
        fail(f"operand {name} must have rank {allowed}, found {result} of rank {result.rank}")
    return result


def compatible(left: int, right: int) -> bool:
    """Whether two dimensions can be the same at run time."""
    return left == right or is_dynamic(left) or is_dynamic(right)


def compatible_shapes(left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether two shapes have one rank and pairwise compatible dimensions."""
    return len(left) == len(right) and all(map(compatible, left, right))


def compatible_types(left: ir.Type, right: ir.Type) -> bool:
    """Whether two types are equal, or tensors of one element type and compatible shapes."""
    if left == right:
        return True
    if not (isinstance(left, ir.RankedTensorType) and isinstance(right, ir.RankedTensorType)):
        return False
    return left.element_type == right.element_type and compatible_shapes(left.shape, right.shape)


def merge(left: int, right: int) -> int:
    """Returns the known one of two compatible dimensions."""
    return right if is_dynamic(left) else left


def broadcast_shapes(left_name: str, left: Sequence[int], right_name: str, right: Sequence[int]) -> list[int]:
    """Broadcasts two shapes as numpy does. A dynamic dimension against n > 1 gives n, against 1 stays dynamic."""
    rank = max(len(left), len(right))
    first = [1] * (rank - len(left)) + list(left)
    second = [1] * (rank - len(right)) + list(right)
    result: list[int] = []
    for a, b in zip(first, second, strict=True):
        if a == 1:
            result.append(b)
        elif b == 1:
            result.append(a)
        elif compatible(a, b):
            result.append(merge(a, b))
        else:
            fail(
                f"{left_name} of shape {show(left)} and {right_name} of shape {show(right)} do not broadcast: "
                f"{a} against {b}"
            )
    return result


def broadcastable_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether ``shape`` broadcasts to exactly ``target``, as far as the known dimensions say."""
    if len(shape) > len(target):
        return False
    tail = list(target)[len(target) - len(shape) :]
    return all(dimension == 1 or compatible(dimension, goal) for dimension, goal in zip(shape, tail, strict=True))


def require_axis(axis: int, rank: int) -> int:
    """Returns an axis of an op, which counts from 0, or fails."""
    if not 0 <= axis < rank:
        fail(f"attribute axis is {axis}, which is not a dimension of a tensor of rank {rank}")
    return axis


def axis_index(axis: int, rank: int) -> int:
    """Returns a possibly negative axis as an index, or fails."""
    if not -rank <= axis < rank:
        fail(f"axis {axis} is out of range for a tensor of rank {rank}")
    return axis % rank


def per_dimension(name: str, value: int | Sequence[int], count: int) -> list[int]:
    """Returns ``value`` for each of ``count`` dimensions; an int is repeated."""
    if isinstance(value, int):
        return [value] * count
    if len(value) != count:
        fail(f"attribute {name} must have {count} values, one for each spatial dimension, found {list(value)}")
    return list(value)


def element_count(shape: Sequence[Any]) -> Any:
    """Returns the product of the dimensions (numbers, or extents to count with), or None if one is dynamic."""
    count: Any = 1
    for dimension in shape:
        if is_dynamic(dimension):
            return None
        count *= dimension
    return count
