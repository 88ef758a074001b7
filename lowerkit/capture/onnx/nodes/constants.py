"""Nodes whose result holds no element of an operand: constants, ranges, unit matrices, one-hot vectors; and copies."""

from __future__ import annotations

from onnx import numpy_helper

from lowerkit.capture.onnx.literals import literal
from lowerkit.capture.onnx.nodes.elementwise import where
from lowerkit.capture.onnx.nodes.node import Node, Rule, torch_name
from lowerkit.capture.onnx.nodes.sizes import Size, value_of
from lowerkit.capture.onnx.tensors import DTYPE_NAMES
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    cast,
    full,
    size,
    slice_axis,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    TORCH_DTYPE_CODES,
    RefusalError,
    TensorInfo,
    build,
    constant_bool,
    constant_int,
    constant_none,
    tensor_info,
)


def counted(end: Size, start: Size = 0, step: Size = 1) -> ir.Value:
    """Builds ``start, start + step, ...`` below ``end``, as int64."""
    numbers = (start, end, step)
    static = [number for number in numbers if isinstance(number, int)]
    extent = len(range(*static)) if len(static) == 3 else None
    rest = [constant_int(TORCH_DTYPE_CODES["si64"]), constant_none(), constant_none(), constant_bool(False)]
    result = TensorInfo((extent,), "si64").torch_type()
    return build("torch.aten.arange.start_step", [*map(value_of, numbers), *rest], [result])[0]


def along(vector: ir.Value, axis: int, rank: int) -> ir.Value:
    """Views a vector as a tensor that varies along one of ``rank`` axes."""
    for _ in range(rank - 1 - axis):
        vector = unsqueeze(vector, tensor_info(vector).rank)
    for _ in range(axis):
        vector = unsqueeze(vector, 0)
    return vector


def _constant(node: Node) -> ir.Value:
    tensor = node.attribute("value", None)
    if tensor is None:
        raise RefusalError("no tensor")
    return literal(numpy_helper.to_array(tensor), torch_name(DTYPE_NAMES[tensor.data_type]))


def _constant_of_shape(node: Node) -> ir.Value:
    tensor = node.attribute("value", None)
    sizes = list(node.sizes(0).items)
    if tensor is None:
        return full(0.0, sizes, "f32")
    number = numpy_helper.to_array(tensor).reshape(()).item()
    return full(number, sizes, torch_name(DTYPE_NAMES[tensor.data_type]))


def _range(node: Node) -> ir.Value:
    """Of integers that are sizes; those of floats that are constant were folded."""
    if node.dtype not in ("si64", "si32", "si16"):
        raise RefusalError("a range of floats that are computed")
    start, end, step = (node.sizes(index).items[0] for index in range(3))
    return cast(counted(end, start, step), node.dtype)


def _unit_matrix(node: Node) -> ir.Value:
    value = node.operand(0)
    info = tensor_info(value)
    dtype = node.attribute("dtype", None)
    rows, columns = along(counted(size(value, 0)), 0, 2), counted(size(value, 1))
    ones = binary("eq", binary_scalar("add", rows, int(node.attribute("k", 0))), columns, "i1")
    return cast(ones, info.dtype if dtype is None else torch_name(DTYPE_NAMES[dtype]))


def _one_hot(node: Node) -> ir.Value:
    """Indices from ``-depth`` to ``depth - 1`` count; others have no place."""
    indices, values = node.operand(0), node.operand(2)
    depth = node.constant(1)
    count: Size = int(depth.reshape(()).item()) if depth is not None and depth.size == 1 else node.sizes(1).items[0]
    wide = cast(indices, "si64")
    rank = tensor_info(indices).rank + 1
    axis = node.attribute("axis", -1) % rank
    extent = value_of(count)
    moved = build("torch.aten.add.Scalar", [wide, extent, constant_int(1)], [wide.type])[0]
    placed = where(binary_scalar("lt", wide, 0, "i1"), moved, wide)
    hit = binary("eq", unsqueeze(placed, axis), along(counted(count), axis, rank), "i1")
    off, on = (view(slice_axis(values, 0, place, place + 1), []) for place in range(2))
    return where(hit, on, off)


RULES: dict[str, Rule] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "EyeLike": _unit_matrix,
    "Identity": lambda node: node.operand(0),
    "OneHot": _one_hot,
    "Range": _range,
}
