"""Normalizations: in the precision that their operands have, or in f32 where that is more."""

from __future__ import annotations

from onnx import TensorProto

from lowerkit.capture.onnx.nodes.node import Node, Results, Rule
from lowerkit.capture.onnx.nodes.torch_ops import reduce
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    cast,
    expand,
    size,
    sizes_of,
    unary,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    build,
    constant_bool,
    constant_float,
    constant_int,
    constant_none,
    int_list,
    tensor_info,
)


def _rows(node: Node) -> tuple[int, ir.Value]:
    """The axis that rows begin at, and the shape of a row."""
    axis = node.info(0).normalized_axis(node.attribute("axis", -1))
    return axis, int_list(sizes_of(node.operand(0))[axis:])


def _affine(node: Node, axis: int, index: int) -> ir.Value | None:
    """A scale or bias that has the shape of a row; None for one that broadcasts."""
    return node.operand(index) if node.has(index) and node.info(index).shape == node.info(0).shape[axis:] else None


def layer_normalization(node: Node) -> Results:
    """Rows to mean 0 and deviation 1; the mean and the reciprocal of the deviation are in the stash type."""
    value, info = node.operand(0), node.info(0)
    axis, row = _rows(node)
    scale, bias = _affine(node, axis, 1), _affine(node, axis, 2)
    epsilon = constant_float(node.attribute("epsilon", 1e-5))
    read = node.wants(1) or node.wants(2)
    if not read and scale is not None and (bias is not None or not node.has(2)) and None not in info.shape[axis:]:
        operands = [value, row, scale, bias or constant_none(), epsilon, constant_bool(False)]
        return build("torch.aten.layer_norm", operands, [value.type])
    wide = cast(value, "f64" if info.dtype == "f64" else "f32")
    axes = range(axis, info.rank)
    mean = reduce("mean", wide, axes)
    moved = binary("sub", wide, mean)
    variance = reduce("mean", binary("mul", moved, moved), axes)
    deviation = unary("rsqrt", binary_scalar("add", variance, node.attribute("epsilon", 1e-5)))
    result = binary("mul", cast(binary("mul", moved, deviation), info.dtype), node.operand(1))
    result = binary("add", result, node.operand(2)) if node.has(2) else result
    stored = "f64" if node.attribute("stash_type", 1) == TensorProto.DOUBLE else "f32"
    return [result, cast(mean, stored), cast(deviation, stored)]


def rms_normalization(node: Node) -> Results:
    """Rows to a root mean square of 1."""
    value = node.operand(0)
    axis, row = _rows(node)
    scale = _affine(node, axis, 1)
    weight = constant_none() if scale is None else scale
    epsilon = constant_float(node.attribute("epsilon", 1e-5))
    result = build("torch.aten.rms_norm", [value, row, weight, epsilon], [value.type])[0]
    return [binary("mul", result, node.operand(1)) if scale is None else result]


def group_normalization(node: Node) -> Results:
    """Groups of channels to mean 0 and deviation 1; before opset 21 scale and bias are those of the groups."""
    value, groups = node.operand(0), node.attribute("num_groups", 1)
    affine = [node.operand(1), node.operand(2)]
    if node.version < 21:
        channels = node.info(0).static_dim(1)
        each = [groups, channels // groups]
        affine = [view(expand(unsqueeze(vector, 1), each), [channels]) for vector in affine]
    numbers = [constant_float(node.attribute("epsilon", 1e-5)), constant_bool(False)]
    return build("torch.aten.group_norm", [value, constant_int(groups), *affine, *numbers], [value.type])


def instance_normalization(node: Node) -> Results:
    """Each channel of each batch to mean 0 and deviation 1."""
    value = node.operand(0)
    numbers = [constant_bool(True), constant_float(0.0), constant_float(node.attribute("epsilon", 1e-5))]
    operands = [value, node.operand(1), node.operand(2), *[constant_none()] * 2, *numbers, constant_bool(False)]
    return build("torch.aten.instance_norm", operands, [value.type])


def batch_normalization(node: Node) -> Results:
    """Channels by the statistics given; in training by their own, which are mixed into those."""
    value, info = node.operand(0), node.info(0)
    scale, bias, mean, variance = (node.operand(index) for index in range(1, 5))
    momentum = node.attribute("momentum", 0.9)
    running: list[ir.Value] = []
    if node.attribute("training_mode", 0):
        axes = [axis for axis in range(info.rank) if axis != 1]
        own = reduce("mean", value, axes)
        moved = binary("sub", value, own)
        found = [own, reduce("mean", binary("mul", moved, moved), axes)]
        flat = [view(each, [size(value, 1)]) for each in found]
        kept = [binary_scalar("mul", each, momentum) for each in (mean, variance)]
        fresh = [binary_scalar("mul", cast(each, tensor_info(mean).dtype), 1.0 - momentum) for each in flat]
        running = [binary("add", *pair) for pair in zip(kept, fresh, strict=True)]
        mean, variance = flat
    numbers = [constant_float(1.0 - momentum), constant_float(node.attribute("epsilon", 1e-5)), constant_bool(False)]
    operands = [value, scale, bias, mean, variance, constant_bool(False), *numbers]
    return [*build("torch.aten.batch_norm", operands, [value.type]), *running]


def mean_variance_normalization(node: Node) -> Results:
    """To mean 0 and deviation 1 along axes, with the standard's term against a deviation of 0."""
    value, axes = node.operand(0), list(node.attribute("axes", [0, 2, 3]))
    moved = binary("sub", value, reduce("mean", value, axes))
    deviation = unary("sqrt", reduce("mean", binary("mul", moved, moved), axes))
    return [binary("div", moved, binary_scalar("add", deviation, 1e-9))]


RULES: dict[str, Rule] = {
    "BatchNormalization": batch_normalization,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": layer_normalization,
    "MeanVarianceNormalization": mean_variance_normalization,
    "RMSNormalization": rms_normalization,
}
