"""Spells out arithmetic on sizes in what the importer and the lowerings know: sums, products, floor divisions, maxima.

The importer takes the operators of Python that its table names and fails on the rest with an error of its own; it takes
``%`` for ``fmod``, whose sign is another, and exchanges the operands of a comparison between a whole number and a
float. Here each of them becomes the same function in other words::

    a % b           a - a // b * b           floor(a / b)    a // b
    a ** 3          a * a * a                ceil(a / b)     -(-a // b)
    a >> 2, a << 2  a // 4, a * 4            trunc(a / b)    a // b, where neither can be negative
    a & 7           a % 8                    sym_sum(a)      a[0] + a[1] + ...
                                             trunc(a * 0.6)  a * 3 // 5, where rounding gives the same

What has no such words is refused with its line.
"""

# torch and torch-mlir are subclassed and told apart by names that they keep private; the versions are pinned.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.utils._sympy.value_ranges import ValueRanges
from torch_mlir.extras import fx_importer as upstream

from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.expressions import floored_factor
from lowerkit.errors import UnsupportedError
from lowerkit.program.locations import users_line

_LARGEST_POWER = 16
_ORDERED = ("lt", "le", "gt", "ge", "eq", "ne")


class _UnknownError(Exception):
    """An operation has no other words."""


class _Writer:
    """Writes operations before a node, each with its symbolic value."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def call(self, function: Callable[..., Any], *args: Any, target: Any = None) -> Any:
        """Writes ``function(*args)``; ``target`` is what the importer knows it by, where that is something else."""
        values = [value_of(arg) for arg in args]
        if not any(isinstance(arg, fx.Node) for arg in args):
            return function(*args)
        graph = self.node.graph
        with graph.inserting_before(self.node):
            made = graph.call_function(target or function, args)
        made.meta = {key: self.node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in self.node.meta}
        made.meta["val"] = function(*values)
        return made


def spell_out_sizes(graph: fx.Graph) -> None:
    """Changes the graph and the bodies of its control flow.

    Raises:
        UnsupportedError: LK4001, operations on sizes that nothing here expresses; all of them.
    """
    unknown: list[str] = []
    for body in _graphs(graph):
        for node in list(body.nodes):
            if node.op != "call_function" or isinstance(node.target, torch._ops.OperatorBase):
                continue
            if node.target is operator.getitem:
                continue
            try:
                _spell_out(node)
            except _UnknownError as error:
                line = users_line(node.meta.get("stack_trace"))
                unknown.append(f"{node.name}: {error}" + (f" at {line}" if line else ""))
        body.eliminate_dead_code(_is_number)
    if unknown:
        raise UnsupportedError(
            "LK4001",
            f"{len(unknown)} computations with sizes are not supported",
            details=unknown,
            hint="give the dims that they use fixed sizes, or write them with +, -, *, //, %, min and max",
        )


def value_of(argument: Any) -> Any:
    """The symbolic value of an argument, or the number that it is."""
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def _graphs(graph: fx.Graph) -> Iterable[fx.Graph]:
    yield graph
    for node in graph.find_nodes(op="get_attr"):
        body = getattr(graph.owning_module, str(node.target), None)
        if isinstance(body, fx.GraphModule):
            yield from _graphs(body.graph)


def _is_number(node: fx.Node) -> bool:
    """Whether a node may not be left out though nobody reads it: all that gives no number."""
    return node.op != "call_function" or isinstance(node.target, torch._ops.OperatorBase)


def _spell_out(node: fx.Node) -> None:
    name = getattr(node.target, "__name__", str(node.target))
    rule = _RULES.get(name)
    if rule is None:
        if name in upstream.PY_BUILTIN_TO_TORCH_OP:
            return
        raise _UnknownError(f"{name} of sizes")
    made = rule(_Writer(node), *node.args)
    if isinstance(made, fx.Node):
        node.replace_all_uses_with(made)
    else:
        for user in list(node.users):
            user.args = fx.map_arg(user.args, lambda arg: made if arg is node else arg)
            user.kwargs = fx.map_arg(user.kwargs, lambda arg: made if arg is node else arg)


def _is_whole(*arguments: Any) -> bool:
    return all(isinstance(value_of(argument), (int, torch.SymInt)) for argument in arguments)


def _require_whole(what: str, *arguments: Any) -> None:
    if not _is_whole(*arguments):
        raise _UnknownError(f"{what} of a float")


def _bounds(argument: Any) -> ValueRanges[Any]:
    value = value_of(argument)
    if not isinstance(value, torch.SymInt):
        return ValueRanges.wrap(value)
    return value.node.shape_env.bound_sympy(value.node.expr)


def _modulo(write: _Writer, left: Any, right: Any) -> Any:
    _require_whole("the remainder", left, right)
    quotient = write.call(operator.floordiv, left, right)
    return write.call(operator.sub, left, write.call(operator.mul, quotient, right))


def _power(write: _Writer, base: Any, exponent: Any) -> Any:
    if exponent in (0.5, -0.5):
        root = _square_root(write, base)
        return root if exponent > 0 else write.call(operator.truediv, 1.0, root)
    if not isinstance(exponent, int) or not 0 <= exponent <= _LARGEST_POWER:
        raise _UnknownError(f"the power {exponent} of a size")
    product: Any = base if exponent else 1
    for _ in range(exponent - 1):
        product = write.call(operator.mul, product, base)
    return product


def _shifted_left(write: _Writer, value: Any, count: Any) -> Any:
    return write.call(operator.mul, value, 1 << _count(count))


def _shifted_right(write: _Writer, value: Any, count: Any) -> Any:
    return write.call(operator.floordiv, value, 1 << _count(count))


def _count(count: Any) -> int:
    if not isinstance(count, int) or not 0 <= count < 32:
        raise _UnknownError("a shift of a size by other than 0 to 31")
    return count


def _both(write: _Writer, left: Any, right: Any) -> Any:
    """The lowest bits of a size."""
    if isinstance(left, int):
        left, right = right, left
    if not isinstance(right, int) or isinstance(right, bool) or right < 0 or right & (right + 1):
        raise _UnknownError(f"and of a size with {right}")
    return _modulo(write, left, right + 1)


def _sum(write: _Writer, parts: Any) -> Any:
    total: Any = 0
    for part in parts:
        total = write.call(operator.add, total, part)
    return total


def _largest(write: _Writer, left: Any, right: Any) -> Any:
    _require_whole("the maximum", left, right)
    return write.call(torch.sym_max, left, right, target=torch.ops.prim.max.int)


def _smallest(write: _Writer, left: Any, right: Any) -> Any:
    _require_whole("the minimum", left, right)
    return write.call(torch.sym_min, left, right, target=torch.ops.prim.min.int)


def _float(write: _Writer, value: Any) -> Any:
    if not _is_whole(value):
        return value
    return write.call(torch.sym_float, value, target=aten.Float.Scalar)


def _int(write: _Writer, value: Any) -> Any:
    return value if _is_whole(value) else _truncated(write, value)


def _quotient(value: Any, what: str) -> tuple[Any, Any]:
    """Above and below of a division of whole numbers."""
    if isinstance(value, fx.Node) and value.target in (operator.truediv, aten.div.int) and _is_whole(*value.args):
        above, below = value.args
        return above, below
    raise _UnknownError(f"{what} of a float that is no quotient of sizes")


def _floored(write: _Writer, value: Any, what: str) -> tuple[Any, Any]:
    """As :func:`_quotient`, of what is rounded down; a size times a float is one too."""
    if isinstance(value, fx.Node) and value.target is operator.mul:
        factor, size = sorted(value.args, key=lambda arg: isinstance(arg, fx.Node))
        fraction = floored_factor(factor) if isinstance(factor, float) else None
        if fraction is not None and isinstance(size, fx.Node) and size.target is aten.Float.Scalar:
            (whole,) = size.args
            if _bounds(whole).lower >= 0:
                return write.call(operator.mul, whole, fraction[0]), fraction[1]
    return _quotient(value, what)


def _floor(write: _Writer, value: Any) -> Any:
    return value if _is_whole(value) else write.call(operator.floordiv, *_floored(write, value, "floor"))


def _ceiling(write: _Writer, value: Any) -> Any:
    if _is_whole(value):
        return value
    above, below = _quotient(value, "ceil")
    return write.call(operator.neg, write.call(operator.floordiv, write.call(operator.neg, above), below))


def _truncated(write: _Writer, value: Any) -> Any:
    if _is_whole(value):
        return value
    above, below = _floored(write, value, "trunc")
    if not (_bounds(above).lower >= 0 and _bounds(below).lower >= 0):
        raise _UnknownError("trunc of a quotient that may be negative")
    return write.call(operator.floordiv, above, below)


def _square_root(write: _Writer, value: Any) -> Any:
    if isinstance(value, fx.Node) and value.target is aten.Float.Scalar:
        (value,) = value.args
    _require_whole("the square root", value)
    return write.call(torch.sym_sqrt, value, target=aten.sqrt.int)


def _compared(name: str) -> Callable[[_Writer, Any, Any], Any]:
    """A comparison of whole numbers, or of two floats: for those there are lowerings of ``>``, ``>=`` and ``==``."""
    function = getattr(operator, name)

    def rule(write: _Writer, left: Any, right: Any) -> Any:
        if _is_whole(left, right):
            return write.call(function, left, right)
        left, right = _float(write, left), _float(write, right)
        if name in ("lt", "le"):
            return write.call(operator.gt if name == "lt" else operator.ge, right, left)
        if name == "ne":
            return write.call(operator.ne, write.call(operator.sub, left, right), 0, target=aten.ne.float_int)
        return write.call(function, left, right)

    return rule


_RULES: dict[str, Callable[..., Any]] = {
    "mod": _modulo,
    "pow": _power,
    "pow_by_natural": _power,
    "lshift": _shifted_left,
    "rshift": _shifted_right,
    "and_": _both,
    "sym_sum": _sum,
    "sym_max": _largest,
    "sym_min": _smallest,
    "sym_float": _float,
    "sym_int": _int,
    "floor": _floor,
    "ceil": _ceiling,
    "trunc": _truncated,
    "pos": lambda _, value: value,
    "sqrt": _square_root,
    "sym_sqrt": _square_root,
    "_sym_sqrt": _square_root,
    **{name: _compared(name) for name in _ORDERED},
}
