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
from lowerkit.passes.raising.torch_dialect.integer_casts import builtin_type, convert_integers

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
    source, target = builtin_type(operands[0].type), builtin_type(result)
    data = _to_builtin(operands[0])
    constants = [literal(name) for name in node.input[1:] if name]
    axis = int(attributes.get("axis", 1)) % max(source.rank, 1)
    if any(value is None for value in constants):
        wide = ir.Type.parse("!torch.vtensor<[],si32>")
        parameters = (_to_builtin(operands[1]), _to_builtin(convert_integers(operands[2], wide)))
        axis = 0
    else:
        scale = constants[0]
        assert scale is not None
        given = constants[1] if len(constants) > 1 else None
        zero_point = np.zeros(scale.shape, np.int32) if given is None else given.astype(np.int32)
        if scale.size == 1:
            scale, zero_point, axis = scale.reshape(()), zero_point.reshape(()), 0
        parameters = (_constant(scale), _constant(zero_point))
    stored = result if node.op_type == "QuantizeLinear" else operands[0].type
    if node.op_type == "QuantizeLinear":
        value = QuantizeOp.build(data, *parameters, axis=axis, unsigned=_unsigned(stored), storage=target.element_type)
    else:
        value = DequantizeOp.build(data, *parameters, axis=axis, unsigned=_unsigned(stored))
    return _from_builtin(value, result)


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
    left, right = map(_to_builtin, operands)
    unsigned = _unsigned(operands[0].type)
    if node.op_type == "MatMulInteger":
        return _from_builtin(IntegerMatmulOp.build(left, right, unsigned=unsigned), result)
    value = IntegerConvOp.build(
        left,
        right,
        strides=attributes.get("strides", 1),
        dilation=attributes.get("dilations", 1),
        groups=attributes.get("group", 1),
        unsigned=unsigned,
    )
    return _from_builtin(value, result)


def _unsigned(kind: ir.Type) -> bool:
    return ",ui" in str(kind)


def _to_builtin(value: ir.Value) -> ir.Value:
    kind = builtin_type(value.type)
    return ir.Operation.create("torch_c.to_builtin_tensor", results=[kind], operands=[value]).result


def _from_builtin(value: ir.Value, result: ir.Type) -> ir.Value:
    """Returns the torch tensor of type ``result``, which may know other dims than ``value`` does."""
    target = builtin_type(result)
    if value.type != target:
        value = ir.Operation.create("tensor.cast", results=[target], operands=[value]).result
    return ir.Operation.create("torch_c.from_builtin_tensor", results=[result], operands=[value]).result


def _constant(array: Array) -> ir.Value:
    kind = ir.RankedTensorType.get(array.shape, element_type(array.dtype))
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    value = ir.DenseElementsAttr.get(contiguous, type=kind.element_type, shape=array.shape)
    return ir.Operation.create("arith.constant", results=[kind], attributes={"value": value}).result
