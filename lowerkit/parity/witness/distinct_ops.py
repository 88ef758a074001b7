"""The distinct ops of a captured program: each once, by name, element types, ranks and constant arguments.

Vocabulary
    operand    a tensor that an op reads: element type and shape; an open dim is a name.
    small      extents above :data:`KEPT` say nothing that smaller ones do not: each becomes another number from there
               on, the same where it stands again. Ops whose extents hang together with their arguments (a view, groups)
               keep their own: eager refuses the smaller ones.

Ops that differ in nothing but large extents are one.
"""

# torch's type of a fake tensor's extents, and of overloads, is private.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import fx
from torch.export import ExportedProgram

from lowerkit.capture.torch_export.graph.control_flow import body_graphs
from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.capture.torch_export.symbolic.expressions import InexpressibleError, to_expression
from lowerkit.parity.witness.distinct_op import Computed, DistinctOp, Extent, LoneOp, Operand, Place, Size
from lowerkit.program.dtypes import torch_name_of
from lowerkit.program.locations import frames_of_trace, is_users_file
from lowerkit.runtimes.expressions import Expr, symbols

KEPT = 8
"""The largest extent that is kept as it is."""

_MOST_ELEMENTS = 1 << 22
"""Of all operands of an op at the extents that it has in the model; what is larger, and cannot be made smaller, is not
run."""

_NO_VALUES = ("aten._assert", "aten.sym_", "profiler.", "aten._check")
"""Ops that say something of sizes, or of data, and compute nothing."""


Op = TypeVar("Op", bound=LoneOp)


@dataclass
class Occurrence(Generic[Op]):
    """Where a distinct op stands in the model, and why it is not run, if it is not."""

    op: Op | None
    name: str
    places: list[str]
    reason: str = ""


def occurrences(exported: ExportedProgram) -> list[Occurrence[DistinctOp]]:
    """Returns the distinct ops of a program with the nodes and lines that they stand at, in order."""
    found: dict[str, Occurrence[DistinctOp]] = {}
    folded = _folded(exported)
    for node in _calls(exported.graph):
        if node in folded:
            continue
        place = _place(node)
        try:
            op = _Reader(node, exported.range_constraints).op()
        except LeftOutError as reason:
            key, made = f"{node.target} {reason}", Occurrence[DistinctOp](None, str(node.target), [], str(reason))
        else:
            key, made = op.key, Occurrence(op, op.name, [])
        found.setdefault(key, made).places.append(place)
    return list(found.values())


def _calls(graph: fx.Graph) -> Iterator[fx.Node]:
    for inner in body_graphs(graph):
        for node in inner.nodes:
            is_op = node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
            if is_op and not str(node.target).startswith(_NO_VALUES) and _has_tensor(node.meta.get("val")):
                yield node


def _folded(exported: ExportedProgram) -> set[fx.Node]:
    """Returns the nodes that hang on constants alone: PyTorch computes them at capture."""
    signature = exported.graph_signature
    varying = {*signature.user_inputs, *signature.parameters, *signature.buffers_to_mutate.values()}
    names = {*varying, *signature.inputs_to_parameters}
    folded: set[fx.Node] = set()
    for node in exported.graph.nodes:
        varies = node.name in names or any(source not in folded for source in node.all_input_nodes)
        if not varies and (node.op != "placeholder" or node.name in signature.inputs_to_buffers):
            folded.add(node)
    return folded


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)


def _place(node: fx.Node) -> str:
    frames = frames_of_trace(node.meta.get("stack_trace"))
    own = [frame for frame in frames if is_users_file(frame[0])] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else node.name


class LeftOutError(Exception):
    """Why a node is not run alone."""


class _Reader:
    """Reads one node: tensors become places, extents small or open."""

    def __init__(self, node: fx.Node, ranges: Mapping[Any, Any]) -> None:
        self.node = node
        self.ranges = ranges
        self.sources: list[fx.Node] = []
        self.names: dict[Any, str] = {}
        self.sizes: dict[str, tuple[int, int, int | None]] = {}

    def op(self) -> DistinctOp:
        arguments = tuple(self._read(value) for value in self.node.args)
        named = tuple((name, self._read(value)) for name, value in self.node.kwargs.items() if name != "device")
        own = [self._operand(source.meta["val"]) for source in self.sources]
        arguments = tuple(self._sized(value) for value in arguments)
        named = tuple((name, self._sized(value)) for name, value in named)
        numbers = small_numbers([extent for operand in own for extent in operand.shape])
        smaller = tuple(Operand(each.dtype, tuple(number_for(e, numbers) for e in each.shape)) for each in own)
        forms: list[tuple[Any, Any, tuple[Operand, ...]]] = [(arguments, named, tuple(own))]
        if numbers:
            forms.insert(0, (arguments, named, smaller))
            along = _mapped((arguments, named), numbers)
            if along != (arguments, named):
                forms.insert(0, (*along, smaller))
        for positional, keyword, operands in forms:
            op = DistinctOp(self.node.target, positional, keyword, operands, self.sizes)
            if self._is_possible(op):
                return op
        raise LeftOutError("eager refuses it alone, or its tensors are too large to run it beside eager")

    def _read(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            held = value.meta.get("val")
            if isinstance(held, torch.Tensor):
                if torch_name_of(held.dtype) is None:
                    raise LeftOutError(f"a tensor of {held.dtype}")
                if value not in self.sources:
                    self.sources.append(value)
                return Place(self.sources.index(value))
            if isinstance(held, torch.SymInt):
                return held
            if isinstance(held, (int, float, bool)):
                return held
            raise LeftOutError(f"an argument that is {type(held).__name__}")
        if isinstance(value, (list, tuple)):
            return tuple(self._read(item) for item in value)
        if isinstance(value, torch.SymInt):
            return value
        if isinstance(value, fx.Graph | fx.GraphModule):
            raise LeftOutError("control flow")
        return value

    def _operand(self, value: torch.Tensor) -> Operand:
        return Operand(value.dtype, tuple(self._extent(extent) for extent in value.shape))

    def _extent(self, extent: Any) -> Extent:
        if is_static(extent):
            return int(extent)
        return self._expression(extent)

    def _expression(self, extent: Any) -> Expr:
        try:
            return to_expression(extent.node.expr, self._name)
        except InexpressibleError as part:
            raise LeftOutError(f"an extent, {extent.node.expr}, with the part {part}") from part

    def _name(self, symbol: Any) -> str:
        if symbol not in self.names:
            name = self.names[symbol] = f"n{len(self.names)}"
            bounds = self.ranges.get(symbol)
            low = max(0, _plain(bounds.lower) or 0) if bounds is not None else 0
            high = _plain(bounds.upper) if bounds is not None else None
            # Not the model's own size: that is no part of what the op is.
            self.sizes[name] = (max(low, 4 + len(self.names)) if high is None else min(high, max(low, 4)), low, high)
        return self.names[symbol]

    def _sized(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._sized(item) for item in value)
        if not isinstance(value, torch.SymInt):
            return value
        if is_static(value):
            return int(value)
        extents = [
            (number, axis, extent)
            for number, source in enumerate(self.sources)
            for axis, extent in enumerate(map(self._extent, source.meta["val"].shape))
            if not isinstance(extent, int)
        ]
        known = set(self.names)
        expression = self._expression(value)
        for number, axis, extent in extents:
            if extent == expression:
                return Size(number, axis)
        places = [
            next(((name, number, axis) for number, axis, extent in extents if _is_linear(extent, name)), None)
            for name in dict.fromkeys(symbols(expression))
        ]
        found = tuple(place for place in places if place is not None)
        if len(found) < len(places) or set(self.names) != known:
            raise LeftOutError(f"a size, {value.node.expr}, that its tensors do not tell")
        return Computed(expression, found)

    def _is_possible(self, op: DistinctOp) -> bool:
        """Whether eager computes it, with results of the ranks and types that it has in the model."""
        shapes = op.shapes()
        if sum(_elements(shape) for shape in shapes) > _MOST_ELEMENTS:
            return False
        try:
            with torch.no_grad():
                pairs = zip(op.operands, shapes, strict=True)
                result = op.call([torch.zeros(shape, dtype=operand.dtype) for operand, shape in pairs])
        except Exception:  # torch raises what it likes
            return False
        return _kinds(result) == _kinds(self.node.meta["val"])


def _is_linear(extent: Expr, name: str) -> bool:
    """Whether an extent is a chain of sums and products of numbers around one name."""
    while isinstance(extent, tuple) and len(extent) == 3 and extent[0] in ("add", "sub", "mul"):
        if isinstance(extent[1], int) == isinstance(extent[2], int):
            return False
        extent = extent[2] if isinstance(extent[1], int) else extent[1]
    return extent == name


def _kinds(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_kinds(item) for item in value]
    return (value.dtype, value.dim()) if isinstance(value, torch.Tensor) else None


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _plain(bound: Any) -> int | None:
    try:
        number = int(bound)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return None if number >= 1 << 61 else number


def small_numbers(extents: Sequence[Extent]) -> dict[int, int]:
    """Returns what stands for each large extent: numbers from ``KEPT + 1`` on that no kept one has."""
    large = list(dict.fromkeys(extent for extent in extents if isinstance(extent, int) and extent > KEPT))
    return {extent: KEPT + 1 + number for number, extent in enumerate(large)}


def number_for(value: Any, numbers: Mapping[int, int]) -> Any:
    """Returns what stands for a large extent; anything else as it is."""
    return numbers.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value


def _mapped(value: Any, numbers: Mapping[int, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_mapped(item, numbers) for item in value)
    return number_for(value, numbers)
