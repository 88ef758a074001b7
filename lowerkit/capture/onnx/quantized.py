"""Quantization as lk ops: QuantizeLinear and DequantizeLinear, and plain products of bytes.

Only what the lk ops state is taken: f32 on one side, integers of 8 or 16 bits (32 for DequantizeLinear) on the other,
parameters for the whole tensor or along one axis. They are constants; a QuantizeLinear to unsigned bytes may have one
scale and zero point that are computed (DynamicQuantizeLinear). Everything else is written in floats
(``rewrites/quantized``). MatMulInteger and ConvInteger are taken without zero points, by a constant signed weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from lowerkit.dialect import DequantizeOp, IntegerConvOp, IntegerMatmulOp, QuantizeOp
from lowerkit.dialect.types import element_type
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import cast
from lowerkit.passes.raising.torch_dialect.torch_ir import TensorInfo, from_builtin, tensor_info, to_builtin, type_info

Array = np.ndarray[Any, Any]
QUANTIZATION = frozenset({"QuantizeLinear", "DequantizeLinear"})
PRODUCTS = frozenset({"MatMulInteger", "ConvInteger"})
_NARROW = frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16})


def takes(
    op_type: str, integers: int, floats: int, parameters: list[Array | None], block_size: int, *, single: bool = False
) -> bool:
    """Whether a node is imported as an lk op.

    Args:
        op_type: ``QuantizeLinear`` or ``DequantizeLinear``.
        integers: element type of the stored side.
        floats: element type of the float side.
        parameters: scale, and the zero point where there is one; None for what is not constant.
        block_size: the attribute, 0 where it is absent.
        single: scale and zero point are one f32 and one byte, of rank 0, constant or not.
    """
    stored = _NARROW if op_type == "QuantizeLinear" else _NARROW | {TensorProto.INT32}
    if integers not in stored or floats != TensorProto.FLOAT or block_size:
        return False
    scale = parameters[0]
    if scale is None or any(value is None for value in parameters):
        return single and op_type == "QuantizeLinear" and integers == TensorProto.UINT8 and len(parameters) == 2
    return scale.dtype == np.float32 and (scale.size == 1 or scale.ndim == 1)


def import_quantization(
    node: NodeProto, operands: list[ir.Value], result: ir.Type, literal: Callable[[str], Array | None]
) -> ir.Value:
    """Builds the op for a node that :func:`takes` accepted, at the current insertion point and location.

    Args:
        node: the node.
        operands: the torch tensors of its inputs.
        result: type of its output, a torch tensor.
        literal: gives the value of a constant by its name, None for what is computed.
    """
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    source, target = tensor_info(operands[0]), type_info(result)
    data = to_builtin(operands[0])
    constants = [literal(name) for name in node.input[1:] if name]
    axis = int(attributes.get("axis", 1)) % max(source.rank, 1)
    if any(value is None for value in constants):
        parameters = (to_builtin(operands[1]), to_builtin(cast(operands[2], "si32")))
        axis = 0
    else:
        scale = constants[0]
        assert scale is not None
        given = constants[1] if len(constants) > 1 else None
        zero_point = np.zeros(scale.shape, np.int32) if given is None else given.astype(np.int32)
        if scale.size == 1:
            scale, zero_point, axis = scale.reshape(()), zero_point.reshape(()), 0
        parameters = (_constant(scale), _constant(zero_point))
    if node.op_type == "QuantizeLinear":
        storage = target.builtin_type().element_type
        value = QuantizeOp.build(data, *parameters, axis=axis, unsigned=_is_unsigned(target), storage=storage)
    else:
        value = DequantizeOp.build(data, *parameters, axis=axis, unsigned=_is_unsigned(source))
    return from_builtin(value, target)


def takes_product(node: NodeProto, weight: tuple[int, tuple[int, ...]] | None) -> bool:
    """Whether a MatMulInteger or ConvInteger is imported as an lk op.

    Args:
        node: the node.
        weight: element type and shape of its second operand where that is a constant.
    """
    if len([name for name in node.input if name]) != 2 or weight is None or weight[0] != TensorProto.INT8:
        return False
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if node.op_type == "MatMulInteger":
        return len(weight[1]) == 2
    padded = any(attributes.get("pads", ())) or attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")
    return 3 <= len(weight[1]) <= 5 and not padded


def import_product(node: NodeProto, operands: list[ir.Value], result: ir.Type) -> ir.Value:
    """Builds the op for a node that :func:`takes_product` accepted, at the current insertion point and location."""
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    left, right = map(to_builtin, operands)
    unsigned = _is_unsigned(tensor_info(operands[0]))
    if node.op_type == "MatMulInteger":
        return from_builtin(IntegerMatmulOp.build(left, right, unsigned=unsigned), type_info(result))
    value = IntegerConvOp.build(
        left,
        right,
        strides=attributes.get("strides", 1),
        dilation=attributes.get("dilations", 1),
        groups=attributes.get("group", 1),
        unsigned=unsigned,
    )
    return from_builtin(value, type_info(result))


def _is_unsigned(info: TensorInfo) -> bool:
    return info.dtype.startswith("u")


def _constant(array: Array) -> ir.Value:
    kind = ir.RankedTensorType.get(array.shape, element_type(array.dtype))
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    value = ir.DenseElementsAttr.get(contiguous, type=kind.element_type, shape=array.shape)
    return ir.Operation.create("arith.constant", results=[kind], attributes={"value": value}).result
