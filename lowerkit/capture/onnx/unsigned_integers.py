"""Unsigned integers of 16, 32 and 64 bits, which torch-mlir's conversions do not know, computed in signed ones.

Vocabulary
    wide    the signed type that stands for an unsigned one: i32 for u16, i64 for u32 and u64
    wrap    taking a result modulo 2^16 or 2^32, after an op that may leave the range

u16 and u32 values are themselves in the wide type. A u64 value keeps its bits: sums, products and bit operations are
the same for both, and ops that tell large from negative numbers (comparison, minimum, division, conversion to floats,
shift to the right) are written out. Inputs and outputs of the model keep their unsigned types; the importer converts.
Only ops that every opset has for signed integers are written: no shifts, no bit operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from lowerkit.capture.onnx.functions import opset_versions
from lowerkit.capture.onnx.rewrites.rewriter import Array, Rewriter, is_float
from lowerkit.capture.onnx.tensors import LazyTensor
from lowerkit.errors import UnsupportedError

if TYPE_CHECKING:
    from lowerkit.capture.onnx.skeleton import OnnxGraph

WIDE: dict[int, int] = {
    TensorProto.UINT16: TensorProto.INT32,
    TensorProto.UINT32: TensorProto.INT64,
    TensorProto.UINT64: TensorProto.INT64,
}
_MASKS: dict[int, int] = {TensorProto.UINT16: 0xFFFF, TensorProto.UINT32: 0xFFFFFFFF}
_TWINS: dict[int, int] = {
    TensorProto.UINT16: TensorProto.INT16,
    TensorProto.UINT32: TensorProto.INT32,
    TensorProto.UINT64: TensorProto.INT64,
}
"""The signed type of the same width."""
_LOWEST = -(1 << 63)

_IN_RANGE = frozenset(
    {
        "And", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Compress", "Concat",
        "DepthToSpace", "Div", "Equal", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Greater",
        "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "NonZero", "Pad", "ReduceMax",
        "ReduceMin", "Reshape", "Scatter", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "SpaceToDepth",
        "Split", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where",
    }
)  # fmt: skip
"""Ops whose results are in the range of their operands, or are no unsigned integers."""
_WRAPPING = frozenset({"Add", "Sub", "Mul", "Sum", "Pow", "CumSum", "ReduceSum", "ReduceProd", "MatMul"})
_MAGNITUDE = frozenset({"Max", "Min", "TopK", "ArgMax", "ArgMin", "ReduceMax", "ReduceMin", "Clip", "Mod", "Pow"})
"""Ops that tell large u64 values from small ones, and for which nothing is written out here."""
_COMPARISONS = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def has_unsigned(ready: OnnxGraph) -> bool:
    """Whether a value of the graph is of an unsigned type of more than 8 bits."""
    graph = ready.graph
    values = [*graph.input, *graph.output, *graph.value_info]
    return any(value.type.tensor_type.elem_type in WIDE for value in values) or any(
        tensor.data_type in WIDE for tensor in graph.initializer
    )


def widen_unsigned(ready: OnnxGraph) -> None:
    """Rewrites the graph over wide types; ``ready.unsigned`` names the inputs and outputs that were unsigned.

    Raises:
        UnsupportedError: LK4001, with every node on unsigned integers that cannot be written so.
    """
    graph = ready.graph
    types = {value.name: value.type.tensor_type for value in [*graph.input, *graph.output, *graph.value_info]}
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    version = opset_versions(ready.model).get("", 1)
    nodes: list[NodeProto] = []
    problems: list[str] = []
    for number, node in enumerate(list(graph.node)):
        kinds = {
            name: types[name].elem_type
            for name in (*node.input, *node.output)
            if name in types and types[name].elem_type in WIDE
        }
        if not kinds:
            nodes.append(node)
            continue
        rewriter = Rewriter(ready, node, version, types, values)
        if _write(rewriter, node, kinds):
            nodes.extend(rewriter.nodes)
        else:
            names = {TensorProto.DataType.Name(kind).lower() for kind in kinds.values()}
            problems.append(f"{node.op_type} (node {node.name or number!r}) on {', '.join(sorted(names))}")
    if problems:
        raise UnsupportedError("LK4001", f"{len(problems)} ONNX nodes are not supported", details=problems)
    del graph.node[:]
    graph.node.extend(nodes)
    _widen_values(ready)


def _write(b: Rewriter, node: NodeProto, kinds: dict[str, int]) -> bool:
    """Writes one node over wide types; returns False where that is not possible."""
    result = kinds.get(node.output[0])
    u64 = TensorProto.UINT64 in kinds.values()
    if node.op_type == "Cast":
        _cast(b, kinds.get(node.input[0]), result)
        return True
    if node.op_type == "BitCast":
        _bit_cast(b, kinds.get(node.input[0]), result)
        return True
    if node.op_type == "BitShift":
        return _shift(b, node, kinds[node.input[0]])
    if node.op_type == "BitwiseNot":
        dtype = np.dtype(np.int32 if WIDE[kinds[node.input[0]]] == TensorProto.INT32 else np.int64)
        b.give(b.op("Sub", b.constant(_MASKS.get(kinds[node.input[0]], -1), dtype), node.input[0]))
        return True
    if u64 and node.op_type in _COMPARISONS:
        b.give(b.op(node.op_type, *[_ordered(b, name) for name in node.input]))
        return True
    if u64 and node.op_type in ("Max", "Min"):
        b.give(_ordered(b, b.op(node.op_type, *[_ordered(b, name) for name in node.input])))
        return True
    if u64 and node.op_type == "Div":
        b.give(_divide(b, *node.input))
        return True
    if u64 and node.op_type == "Mod" and not b.attribute("fmod", 0):
        b.give(b.op("Sub", node.input[0], b.op("Mul", _divide(b, *node.input), node.input[1])))
        return True
    if u64 and node.op_type in _MAGNITUDE and kinds.get(node.input[0]) == TensorProto.UINT64:
        return _small_enough(b, node)
    if node.op_type not in _IN_RANGE | _WRAPPING:
        return False
    attributes = {attribute.name: b.attribute(attribute.name, None) for attribute in node.attribute}
    found = b.ops(node.op_type, list(node.input), len(node.output), **attributes)
    for index, name in enumerate(found):
        kind = kinds.get(node.output[index])
        wrapped = node.op_type in _WRAPPING and kind in _MASKS
        b.give(_wrapped(b, name, kind) if wrapped and kind is not None else name, index)
    return True


def _small_enough(b: Rewriter, node: NodeProto) -> bool:
    """TopK and its like order u64 by the bits with the sign flipped, which keeps the order."""
    if node.op_type not in ("TopK", "ArgMax", "ArgMin", "ReduceMax", "ReduceMin"):
        return False
    attributes = {attribute.name: b.attribute(attribute.name, None) for attribute in node.attribute}
    found = b.ops(node.op_type, [_ordered(b, node.input[0]), *node.input[1:]], len(node.output), **attributes)
    for index, name in enumerate(found):
        b.give(_ordered(b, name) if index == 0 and not node.op_type.startswith("Arg") else name, index)
    return True


def _wrapped(b: Rewriter, name: str, kind: int) -> str:
    dtype = np.int32 if WIDE[kind] == TensorProto.INT32 else np.int64
    return b.op("Mod", name, b.constant(_MASKS[kind] + 1, dtype))


def _ordered(b: Rewriter, name: str) -> str:
    """Flips the sign bit: signed order of the results is unsigned order of the operands; twice is nothing."""
    return b.op("Add", name, b.constant(_LOWEST, np.int64))


def _cast(b: Rewriter, source: int | None, target: int | None) -> None:
    value = b.input(0)
    to = b.attribute("to", 0) if target is None else WIDE[target]
    if source == TensorProto.UINT64 and is_float(to):
        # Halved (the lowest bit is kept, so that rounding is that of the whole), converted, doubled.
        one, two = b.constant(1, np.int64), b.constant(2, np.int64)
        half = _halved(b, value)
        even = b.op("Sub", one, b.op("Mod", half, two))
        large = b.cast(b.op("Add", half, b.op("Mul", even, b.op("Mod", value, two))), to)
        large = b.op("Add", large, large)
        b.give(b.op("Where", b.op("Less", value, b.constant(0, np.int64)), large, b.cast(value, to)))
        return
    found = b.cast(value, to)
    b.give(_wrapped(b, found, target) if target in _MASKS else found)


def _bit_cast(b: Rewriter, source: int | None, target: int | None) -> None:
    value = b.input(0) if source is None else b.cast(b.input(0), _TWINS[source])
    found = b.op("BitCast", value, to=b.attribute("to", 0) if target is None else _TWINS[target])
    if target is None:
        b.give(found)
    else:
        wide = b.cast(found, WIDE[target])
        b.give(_wrapped(b, wide, target) if target in _MASKS else wide)


def _shift(b: Rewriter, node: NodeProto, kind: int) -> bool:
    """Shifts by products and quotients with powers of two, modulo 2^64: the last of them is negative.

    By as many bits as there are, or more, nothing is left.
    """
    dtype = np.int32 if WIDE[kind] == TensorProto.INT32 else np.int64
    powers = np.uint64(1) << np.arange(64, dtype=np.uint64)
    count = b.cast(node.input[1], TensorProto.INT64)
    width = 16 if kind == TensorProto.UINT16 else 32 if kind == TensorProto.UINT32 else 64
    # As a signed number, a count of 2^63 and more is negative.
    within = b.op("Less", count, b.constant(width, np.int64))
    within = b.op("And", within, b.op("GreaterOrEqual", count, b.constant(0, np.int64)))
    count = b.op("Where", within, count, b.constant(0, np.int64))

    def give(shifted: str) -> None:
        b.give(b.op("Where", within, shifted, b.constant(0, dtype)))

    def power(table: Array) -> str:
        return b.op("Gather", b.constant(table.view(np.int64).astype(dtype), dtype), count)

    value = node.input[0]
    if b.attribute("direction", "") == "LEFT":
        product = b.op("Mul", value, power(powers))
        give(_wrapped(b, product, kind) if kind in _MASKS else product)
    elif kind in _MASKS:
        give(b.op("Div", value, power(powers)))
    else:
        # The sign bit is taken off, shifted by itself, and put back.
        low = b.op("Div", _ordered(b, value), power(powers))
        large = b.op("Add", low, power(powers[::-1].copy()))
        give(b.op("Where", b.op("Less", value, b.constant(0, np.int64)), large, b.op("Div", value, power(powers))))
    return True


def _halved(b: Rewriter, value: str) -> str:
    """Divides u64 by two."""
    two = b.constant(2, np.int64)
    large = b.op("Add", b.op("Div", _ordered(b, value), two), b.constant(1 << 62, np.int64))
    return b.op("Where", b.op("Less", value, b.constant(0, np.int64)), large, b.op("Div", value, two))


def _divide(b: Rewriter, dividend: str, divisor: str) -> str:
    """Divides u64: by halves, with one correction; a divisor of more than 63 bits goes in once or not at all."""
    one, zero = b.constant(1, np.int64), b.constant(0, np.int64)

    def at_least(x: str, y: str) -> str:
        return b.op("GreaterOrEqual", _ordered(b, x), _ordered(b, y))

    safe = b.op("Where", b.op("Greater", divisor, zero), divisor, one)
    half = b.op("Div", _halved(b, dividend), safe)
    quotient = b.op("Add", half, half)
    rest = b.op("Sub", dividend, b.op("Mul", quotient, safe))
    quotient = b.op("Add", quotient, b.cast(at_least(rest, safe), TensorProto.INT64))
    once = b.cast(at_least(dividend, divisor), TensorProto.INT64)
    return b.op("Where", b.op("Less", divisor, zero), once, quotient)


def _widen_values(ready: OnnxGraph) -> None:
    """Gives every value of the graph its wide type; notes which inputs and outputs were unsigned."""
    graph = ready.graph
    for value in [*graph.input[: len(ready.inputs)], *graph.output]:
        kind = value.type.tensor_type.elem_type
        if kind in WIDE:
            ready.unsigned[value.name] = kind
    for value in [*graph.input, *graph.output]:
        kind = value.type.tensor_type.elem_type
        value.type.tensor_type.elem_type = WIDE.get(kind, kind)
    del graph.value_info[:]
    for tensor in graph.initializer:
        if tensor.data_type in WIDE:
            wide = helper.tensor_dtype_to_np_dtype(WIDE[tensor.data_type])
            tensor.CopyFrom(numpy_helper.from_array(_bits(numpy_helper.to_array(tensor), wide), tensor.name))
    for name, tensor in list(ready.weights.items()):
        kind = {"u16": np.int32, "u32": np.int64, "u64": np.int64}.get(tensor.dtype)
        if kind is not None:
            ready.weights[name] = _widened(tensor, np.dtype(kind))


def _widened(tensor: LazyTensor, wide: np.dtype[Any]) -> LazyTensor:
    name = "i32" if wide == np.int32 else "i64"
    return LazyTensor(name, tensor.shape, lambda: _bits(tensor.read(), wide))


def _bits(array: Array, wide: np.dtype[Any]) -> Array:
    return array.view(np.int64) if array.dtype == np.uint64 else array.astype(wide)
