"""QuantizeLinear and DequantizeLinear with constant parameters, as ``lk.quantize`` and ``lk.dequantize``.

Only what the lk ops state is taken: f32 on one side, integers of 8 or 16 bits (32 for DequantizeLinear) on the other,
parameters for the whole tensor or along one axis. Everything else is written in floats (``onnx_rewrites/quantized``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from lowerkit.capture.onnx_conversions import builtin_type
from lowerkit.dialect import DequantizeOp, QuantizeOp
from lowerkit.dialect.types import element_type
from lowerkit.mlir import ir

Array = np.ndarray[Any, Any]
QUANTIZATION = frozenset({"QuantizeLinear", "DequantizeLinear"})
_NARROW = frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16})


def takes(op_type: str, integers: int, floats: int, parameters: list[Array | None], block_size: int) -> bool:
    """Whether a node is imported as an lk op.

    Args:
        op_type: ``QuantizeLinear`` or ``DequantizeLinear``.
        integers: element type of the stored side.
        floats: element type of the float side.
        parameters: scale, and the zero point where there is one; None for what is not constant.
        block_size: the attribute, 0 where it is absent.
    """
    stored = _NARROW if op_type == "QuantizeLinear" else _NARROW | {TensorProto.INT32}
    if integers not in stored or floats != TensorProto.FLOAT or block_size:
        return False
    scale = parameters[0]
    if scale is None or scale.dtype != np.float32 or any(value is None for value in parameters):
        return False
    return scale.size == 1 or scale.ndim == 1


def import_quantization(
    node: NodeProto, operands: list[ir.Value], result: ir.Type, literal: Callable[[str], Array]
) -> ir.Value:
    """Builds the op for a node that :func:`takes` accepted, at the current insertion point and location.

    Args:
        node: the node.
        operands: the torch tensors of its inputs.
        result: type of its output, a torch tensor.
        literal: gives the value of a constant by its name.
    """
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    source, target = builtin_type(operands[0].type), builtin_type(result)
    data = ir.Operation.create("torch_c.to_builtin_tensor", results=[source], operands=[operands[0]]).result
    scale = literal(node.input[1])
    has_point = len(node.input) > 2 and bool(node.input[2])
    zero_point = literal(node.input[2]).astype(np.int32) if has_point else np.zeros(scale.shape, np.int32)
    axis = int(attributes.get("axis", 1)) % max(source.rank, 1)
    if scale.size == 1:
        scale, zero_point, axis = scale.reshape(()), zero_point.reshape(()), 0
    parameters = (_constant(scale), _constant(zero_point))
    stored = result if node.op_type == "QuantizeLinear" else operands[0].type
    unsigned = ",ui" in str(stored)
    if node.op_type == "QuantizeLinear":
        value = QuantizeOp.build(data, *parameters, axis=axis, unsigned=unsigned, storage=target.element_type)
    else:
        value = DequantizeOp.build(data, *parameters, axis=axis, unsigned=unsigned)
    if value.type != target:
        value = ir.Operation.create("tensor.cast", results=[target], operands=[value]).result
    return ir.Operation.create("torch_c.from_builtin_tensor", results=[result], operands=[value]).result


def _constant(array: Array) -> ir.Value:
    kind = ir.RankedTensorType.get(array.shape, element_type(array.dtype))
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    value = ir.DenseElementsAttr.get(contiguous, type=kind.element_type, shape=array.shape)
    return ir.Operation.create("arith.constant", results=[kind], attributes={"value": value}).result
