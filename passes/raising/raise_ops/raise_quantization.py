"""Raises PyTorch's decomposed quantization (PT2E graphs) to ``lk.quantize`` and ``lk.dequantize``.

The formula is that of the source: ``round(x * (1 / scale)) + zero_point``. Scales and zero points are constants, or one
of each that the graph chooses at run time (``choose_qparams.tensor``, ``choose_qparams_symmetric.tensor``). Parameters
for each token are not raised: ``quantize_per_token`` adds the zero point before it rounds, a third formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lowerkit.dialect import DequantizeOp, QuantizeOp, WeightOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.raise_ops.dynamic_quantization import chosen_parameters, of_one_element, to_one_element
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    dtype_of_code,
    from_builtin,
    int_of,
    is_none,
    number_of,
    tensor_info,
    to_builtin,
)
from lowerkit.passes.rewriting import scalar_tensor, weight_symbol

_STORED = {"ui8": ("i8", True), "si8": ("i8", False), "si16": ("i16", False), "si32": ("i32", False)}


@dataclass(frozen=True)
class _Parameters:
    """Scale and zero point as builtin tensors, and the axis along which they lie."""

    scale: ir.Value
    zero_point: ir.Value
    axis: int


def _stored(dtype: str | None) -> tuple[ir.Type, bool]:
    if dtype not in _STORED:
        raise RefusalError(f"numbers stored as {dtype}")
    name, unsigned = _STORED[dtype]
    return ir.Type.parse(name), unsigned


def _per_tensor(op: ir.Operation) -> _Parameters:
    scale = scalar_tensor(float(number_of(op.operands[1])), ir.F64Type.get())
    return _Parameters(scale, scalar_tensor(int_of(op.operands[2]), ir.IntegerType.get_signless(32)), 0)


def _computed(op: ir.Operation) -> _Parameters:
    for operand in list(op.operands)[1:3]:
        if tensor_info(operand).shape not in ((), (1,)):
            raise RefusalError(f"{tensor_info(operand)} as a parameter for the tensor")
    scale = of_one_element(to_builtin(op.operands[1]), ir.F64Type.get())
    return _Parameters(scale, of_one_element(to_builtin(op.operands[2]), ir.IntegerType.get_signless(32)), 0)


def _per_channel(op: ir.Operation, context: PassContext) -> _Parameters:
    info = tensor_info(op.operands[0])
    scales, points = op.operands[1], op.operands[2]
    if tensor_info(scales).dtype != "f32":
        raise RefusalError(f"scales of {tensor_info(scales).dtype}, which promote the product to that type")
    scale = to_builtin(scales)
    if weight_symbol(scale) is None:
        raise RefusalError("scales that are no constants")
    if is_none(points):
        shape = tuple(tensor_info(scales).static_shape())
        zero_point = _weight(context, "zero_point", [], lambda: np.zeros(shape, np.int32), shape)
    else:
        source = weight_symbol(to_builtin(points))
        if source is None:
            raise RefusalError("zero points that are no constants")
        shape = tuple(tensor_info(points).static_shape())
        zero_point = _weight(context, f"{source}.i32", [source], lambda points: points.astype(np.int32), shape)
    return _Parameters(scale, zero_point, info.normalized_axis(int_of(op.operands[3])))


def _weight(context: PassContext, stem: str, parents: list[str], function: Any, shape: tuple[int, ...]) -> ir.Value:
    name = context.weights.unique_name(stem)
    context.weights.derive(name, parents, function, dtype="i32", shape=shape)
    return WeightOp.build(name, ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(32)))


def _quantize(op: ir.Operation, parameters: _Parameters, rest: Sequence[ir.Value]) -> Sequence[ir.Value]:
    data = op.operands[0]
    if not tensor_info(data).is_float:
        raise RefusalError(f"a quantization of {tensor_info(data)}")
    low, high, code = rest
    storage, unsigned = _stored(dtype_of_code(code))
    if storage.width > 16:
        raise RefusalError(f"a quantization to {storage}")
    value = QuantizeOp.build(
        to_builtin(data),
        parameters.scale,
        parameters.zero_point,
        axis=parameters.axis,
        formula="reciprocal",
        minimum=int_of(low),
        maximum=int_of(high),
        unsigned=unsigned,
        storage=storage,
    )
    return [from_builtin(value, tensor_info(op.results[0]))]


def _dequantize(op: ir.Operation, parameters: _Parameters, rest: Sequence[ir.Value]) -> Sequence[ir.Value]:
    if tensor_info(op.results[0]).dtype != "f32":
        raise RefusalError(f"a dequantization to {tensor_info(op.results[0]).dtype}")
    data = op.operands[0]
    _, unsigned = _stored(tensor_info(data).dtype)
    value = DequantizeOp.build(
        to_builtin(data), parameters.scale, parameters.zero_point, axis=parameters.axis, unsigned=unsigned
    )
    return [from_builtin(value, tensor_info(op.results[0]))]


def _raise_quantize_per_tensor(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """quantize_per_tensor: (input, scale, zero_point, quant_min, quant_max, dtype)."""
    return _quantize(op, _per_tensor(op), list(op.operands)[3:6])


def _raise_quantize_per_channel(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """quantize_per_channel: (input, scales, zero_points, axis, quant_min, quant_max, dtype)."""
    return _quantize(op, _per_channel(op, context), list(op.operands)[4:7])


def _raise_dequantize_per_tensor(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """dequantize_per_tensor: (input, scale, zero_point, quant_min, quant_max, dtype, out_dtype)."""
    return _dequantize(op, _per_tensor(op), list(op.operands)[3:])


def _raise_dequantize_per_channel(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """dequantize_per_channel: (input, scales, zero_points, axis, quant_min, quant_max, dtype, out_dtype)."""
    return _dequantize(op, _per_channel(op, context), list(op.operands)[4:])


def _raise_quantize_computed(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """quantize_per_tensor.tensor: (input, scale, zero_point, quant_min, quant_max, dtype)."""
    return _quantize(op, _computed(op), list(op.operands)[3:6])


def _raise_dequantize_computed(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """dequantize_per_tensor.tensor: (input, scale, zero_point, quant_min, quant_max, dtype, out_dtype)."""
    return _dequantize(op, _computed(op), list(op.operands)[3:])


def _choose(op: ir.Operation, *, symmetric: bool) -> Sequence[ir.Value]:
    """choose_qparams.tensor: (input, quant_min, quant_max, eps, dtype)."""
    data, low, high, eps, code = op.operands
    if tensor_info(data).dtype != "f32":
        raise RefusalError(f"parameters chosen for {tensor_info(data)}, not for f32")
    if any(tensor_info(result).shape != (1,) for result in op.results):
        raise RefusalError("parameters for more than the tensor")
    _, unsigned = _stored(dtype_of_code(code))
    found = chosen_parameters(
        to_builtin(data), int_of(low), int_of(high), float(number_of(eps)), symmetric=symmetric, unsigned=unsigned
    )
    return [
        from_builtin(to_one_element(value), tensor_info(result))
        for value, result in zip(found, op.results, strict=True)
    ]


def _raise_choose(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return _choose(op, symmetric=False)


def _raise_choose_symmetric(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return _choose(op, symmetric=True)


@dataclass(frozen=True)
class RaiseQuantization(TablePass):
    """Raises the ``quantized_decomposed`` ops of whole tensors and of channels. Precondition: none."""

    name: ClassVar[str] = "raise-quantization"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.quantized_decomposed.quantize_per_tensor": _raise_quantize_per_tensor,
        "torch.quantized_decomposed.quantize_per_channel": _raise_quantize_per_channel,
        "torch.quantized_decomposed.dequantize_per_tensor": _raise_dequantize_per_tensor,
        "torch.quantized_decomposed.dequantize_per_channel": _raise_dequantize_per_channel,
        "torch.quantized_decomposed.quantize_per_tensor.tensor": _raise_quantize_computed,
        "torch.quantized_decomposed.dequantize_per_tensor.tensor": _raise_dequantize_computed,
        "torch.quantized_decomposed.choose_qparams.tensor": _raise_choose,
        "torch.quantized_decomposed.choose_qparams_symmetric.tensor": _raise_choose_symmetric,
    }
