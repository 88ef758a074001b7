"""Softmax, LogSoftmax and Hardmax along an axis: models of older opsets were converted to those that have one."""

from __future__ import annotations

from lowerkit.capture.onnx.nodes.constants import along, counted
from lowerkit.capture.onnx.nodes.node import Node, Rule
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import binary, cast, size
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    build,
    constant_bool,
    constant_int,
    constant_none,
    tensor_info,
)


def _softmax(name: str) -> Rule:
    def rule(node: Node) -> ir.Value:
        value = node.operand(0)
        axis = constant_int(tensor_info(value).normalized_axis(node.attribute("axis", -1)))
        return build(f"torch.aten.{name}.int", [value, axis, constant_none()], [value.type])[0]

    return rule


def _hardmax(node: Node) -> ir.Value:
    """One at the first of the largest elements, zero elsewhere."""
    value = node.operand(0)
    info = tensor_info(value)
    axis = info.normalized_axis(node.attribute("axis", -1))
    kept = [1 if at == axis else extent for at, extent in enumerate(info.shape)]
    place_type = info.with_shape(kept).with_dtype("si64").torch_type()
    place = build("torch.aten.argmax", [value, constant_int(axis), constant_bool(True)], [place_type])[0]
    counts = along(counted(size(value, axis)), axis, info.rank)
    return cast(binary("eq", counts, place, "i1"), info.dtype)


RULES: dict[str, Rule] = {
    "Hardmax": _hardmax,
    "LogSoftmax": _softmax("log_softmax"),
    "Softmax": _softmax("softmax"),
}
