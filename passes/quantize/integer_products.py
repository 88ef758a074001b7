"""Turns matrix products and convolutions of dequantized operands into integer ones.

    sum (x - zx) sx * (w - zw) sw  =  sx sw * (sum x w  -  zw * sum x  -  zx * sum (w - zw))

The integer sums are exact. ``zx * sum (w - zw)`` is one number for each output channel, known at compile time, and is
added to the bias in units of ``sx * sw``. ``zw * sum x`` is there only where a weight is not symmetric: a product
with ones. Padding counts as ``zx``, so it contributes nothing. The result is dequantized by ``sx * sw``;
``requantize`` makes integers of it where they are asked for.

Steps for each ``lk.matmul`` or ``lk.conv`` whose operands are dequantized:
    1. check: one scale for the activation, a constant 8-bit weight with one scale or one per output channel;
    2. keep the activation as the model stores it; a weight that is stored unsigned becomes signed (a flip of the
       highest bit). What bytes a target multiplies is its own matter (``integer-operands`` is the CPU's);
    3. fold the bias that is added next: given in int32 by the exporter, or rounded. A rounded one would be off by half
       a unit of ``sx * sw``, which short sums notice: sums are shifted left as far as 2^28 allows before it is added;
    4. where ``sx`` and ``zx`` are computed: their part is elementwise (``product_terms``), and no bias is folded.

Sums stay below 2^29 in magnitude whatever the data, and so does what is added: ``K * 255 * 128`` is at most 2^28, a
bias below 2^28, and a weight that is not symmetric has half of that depth. ``requantize`` may rely on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect import DequantizeOp, IntegerConvOp, IntegerMatmulOp
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.layout.transposes import build_transpose
from lowerkit.passes.quantize.bias import Bias, bias_after
from lowerkit.passes.quantize.integer_operands import DOT, is_depthwise, weight_of_bytes
from lowerkit.passes.quantize.parameters import (
    Array,
    Scaling,
    as_weight,
    constant_parameter,
    derived,
    scaling_of,
    small_constant,
)
from lowerkit.passes.quantize.product_terms import Terms, add_offsets, scaled_at_run_time
from lowerkit.passes.rewriting import defined_by, erase_dead, main_block, operations, shape_of, weight_symbol
from lowerkit.passes.source_location import describe

_LARGEST_BIAS = 1 << 28
_LARGEST_DEPTH = _LARGEST_BIAS // (255 * 128)


class _RefusalError(Exception):
    """The product stays in floats; the text says why."""


@dataclass(frozen=True)
class _Product:
    """A product that can be computed in integers.

    Attributes:
        op: the float op.
        data: the dequantization of the activation.
        unsigned: how the activation is stored.
        scaling: what it stands for; None where that is computed at run time.
        weight, weight_shape: name and shape of the weight, signed after ``flip``.
        weight_scale: float64, rank 0 or one per output channel.
        weight_point: int64 likewise, of the weight after ``flip``.
        flip: the weight is stored unsigned.
        output_axis: of the weight.
    """

    op: ir.Operation
    data: ir.Operation
    unsigned: bool
    scaling: Scaling | None
    weight: str
    weight_shape: tuple[int, ...]
    weight_scale: Array
    weight_point: Array
    flip: bool
    output_axis: int

    @property
    def is_conv(self) -> bool:
        return self.op.name == "lk.conv"

    @property
    def outputs(self) -> int:
        return self.weight_shape[self.output_axis]

    @property
    def depth(self) -> int:
        return math.prod(self.weight_shape) // self.outputs

    @property
    def channel_axis(self) -> int:
        rank = len(shape_of(self.op.results[0]))
        if not self.is_conv or ir.BoolAttr(self.op.attributes["channels_last"]).value:
            return rank - 1
        return 1

    def terms(self) -> Terms:
        """What zero points and scales of the weight contribute."""
        return Terms(
            self.weight, self.weight_shape, self.output_axis, self.channel_axis, self.weight_scale, self.weight_point,
            self.flip,
        )  # fmt: skip


@dataclass(frozen=True)
class IntegerProducts(Pass):
    """Computes products of dequantized operands in integers.

    Precondition: stage raised or canonical, before ``channels-last``; ``move-views`` has run.
    """

    name: ClassVar[str] = "integer-products"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            if op.name not in ("lk.matmul", "lk.conv"):
                continue
            if all(defined_by(operand, "lk.dequantize") is None for operand in op.operands):
                continue
            try:
                product = _read(op, context)
            except _RefusalError as reason:
                context.remark(self.name, f"left {op.name} at {describe(op)} in floats: {reason}")
                continue
            changed = True
            if product.scaling is None:
                _write_dynamic(product, context)
                continue
            unit = product.scaling.scale * product.weight_scale
            bias = bias_after(op, product.channel_axis, context)
            if bias is not None and bias.largest(unit, context) > _LARGEST_BIAS:
                context.remark(self.name, f"did not fold the bias of {op.name} at {describe(op)}: it is too large")
                bias = None
            _write(product, product.scaling, bias, _spare_bits(product, unit, bias, context), context)
        erase_dead(block)
        return changed


def _read(op: ir.Operation, context: PassContext) -> _Product:
    data, weight = (defined_by(operand, "lk.dequantize") for operand in op.operands)
    if data is None or weight is None:
        raise _RefusalError("one operand is not quantized")
    scaling, weight_scaling = scaling_of(data, context), scaling_of(weight, context)
    if weight_scaling is None:
        raise _RefusalError("a scale or zero point is not a positive constant")
    if scaling is None:
        _require_run_time(op, data, context)
    elif not scaling.per_tensor:
        raise _RefusalError("the activation has a scale per channel")
    types = [str(ir.RankedTensorType(source.operands[0].type).element_type) for source in (data, weight)]
    if types != ["i8", "i8"]:
        raise _RefusalError(f"operands of {types[0]} and {types[1]}, not of i8")
    shape = tuple(shape_of(weight.operands[0]))
    output_axis = _output_axis(op, len(shape))
    if not weight_scaling.per_tensor and weight_scaling.axis != output_axis:
        raise _RefusalError("the weight has a scale per input channel")
    symbol = as_weight(weight.operands[0], context)
    if symbol is None:
        raise _RefusalError("the right operand is no constant")
    if context.weights.spec(symbol)[1] != shape:
        raise _RefusalError("the weight is reshaped before it is dequantized")
    reason = depth_refusal(op, shape)
    if reason is not None:
        raise _RefusalError(reason)
    product = _Product(
        op, data, ir.BoolAttr(data.attributes["unsigned"]).value, scaling, symbol, shape, weight_scaling.scale,
        weight_scaling.zero_point - (128 if weight_scaling.unsigned else 0), weight_scaling.unsigned, output_axis,
    )  # fmt: skip
    if product.weight_point.any():
        if 2 * product.depth > _LARGEST_DEPTH:
            raise _RefusalError(f"sums of {product.depth} products with a weight that is not symmetric")
        if product.is_conv and _groups(op) > 1 and not is_depthwise(op):
            raise _RefusalError("groups of a weight that is not symmetric")
    return product


def _require_run_time(op: ir.Operation, data: ir.Operation, context: PassContext) -> None:
    """Refuses scales and zero points that are wrong constants, and those at run time that cannot be taken."""
    if any(small_constant(data.operands[index], context) is not None for index in (1, 2)):
        raise _RefusalError("a scale or zero point is not a positive constant")
    if any(shape_of(operand) for operand in list(data.operands)[1:]):
        raise _RefusalError("scales that are computed, for each row or channel")
    if op.name == "lk.conv" and any(ir.DenseI64ArrayAttr(op.attributes["padding"])):
        raise _RefusalError("padding with a zero point that is computed")


def depth_refusal(op: ir.Operation, shape: tuple[int, ...]) -> str | None:
    """Returns why sums over the weight of this shape are not taken in integers, None where they are."""
    if op.name == "lk.matmul" and len(shape) != 2:
        return "the right operand has batches"
    grouped = op.name == "lk.conv" and _groups(op) > 1 and not is_depthwise(op)
    last = op.name == "lk.matmul" and not ir.BoolAttr(op.attributes["transpose_rhs"]).value
    outputs = shape[-1] if last else shape[0]
    depth = math.prod(shape) // outputs if outputs else 0
    if not 0 < depth <= _LARGEST_DEPTH:
        return f"sums of {depth} products could leave 29 bits"
    if grouped and shape[1] % DOT:
        return f"{shape[1]} channels a group; integer dot products take multiples of {DOT}"
    return None


def _groups(op: ir.Operation) -> int:
    return ir.IntegerAttr(op.attributes["groups"]).value


def _output_axis(op: ir.Operation, rank: int) -> int:
    """Returns the dimension of the weight that is output channels."""
    if op.name == "lk.conv":
        return 0
    if rank != 2:
        raise _RefusalError("the right operand has batches")
    return 0 if ir.BoolAttr(op.attributes["transpose_rhs"]).value else 1


def _spare_bits(product: _Product, unit: Array, bias: Bias | None, context: PassContext) -> int:
    """Returns by how much sums can be shifted left, so that a bias in floats is rounded to finer units."""
    if bias is None or bias.scale is not None:
        return 0
    width = 128 if not product.weight_point.any() else 256
    bits = (_LARGEST_BIAS // (255 * width * product.depth)).bit_length() - 1
    while bits and bias.largest(unit / 2.0**bits, context) > _LARGEST_BIAS:
        bits -= 1
    return bits


def _write(product: _Product, scaling: Scaling, bias: Bias | None, bits: int, context: PassContext) -> None:
    """Builds the integer product where its bias is added, or where it stands, and replaces both."""
    place = product.op if bias is None else bias.op
    with ir.InsertionPoint(place), product.op.location:
        point = int(scaling.zero_point)
        sums, windows = _build_sums(product, point, context)
        scale = scaling.scale * product.weight_scale / 2.0**bits
        shifted = add_offsets(product.terms(), sums, windows, point, scale, bias, bits, context)
        axis = product.channel_axis if scale.ndim else 0
        zero = constant_parameter(context, "zero_point", np.zeros(scale.shape, np.int32))
        factors = constant_parameter(context, f"{product.weight}.scale", scale)
        value = DequantizeOp.build(shifted, factors, zero, axis=axis)
    place.results[0].replace_all_uses_with(value)
    place.erase()
    if bias is not None:
        product.op.erase()


def _write_dynamic(product: _Product, context: PassContext) -> None:
    """Builds the integer product and what scales it by parameters that are computed."""
    with ir.InsertionPoint(product.op), product.op.location:
        sums, windows = _build_sums(product, 0, context)
        scale, point = list(product.data.operands)[1:]
        value = scaled_at_run_time(product.terms(), sums, windows, scale, point, context)
    product.op.results[0].replace_all_uses_with(value)
    product.op.erase()


def _build_sums(product: _Product, point: int, context: PassContext) -> tuple[ir.Value, ir.Value | None]:
    """Builds ``sum x w``, padded with ``point``, and ``sum x`` where the weight is not symmetric."""
    op, shape, data = product.op, list(product.weight_shape), product.data.operands[0]
    weight = op.operands[1].owner.operation.operands[0]
    if product.flip or product.weight != weight_symbol(weight):
        weight = weight_of_bytes(context, product.weight, shape, 0, 0, flip=product.flip)
    ones: ir.Value | None = None
    if product.weight_point.any():
        count = _groups(op) if product.is_conv else 1
        extents = [count if index == product.output_axis else size for index, size in enumerate(shape)]
        ones = derived(context, "ones", [], lambda: np.ones(extents, np.int8), dtype="i8", shape=extents)
    if not product.is_conv:
        if ir.BoolAttr(op.attributes["transpose_lhs"]).value:
            rank = len(shape_of(data))
            data = build_transpose(data, [*range(rank - 2), rank - 1, rank - 2])
        transposed = ir.BoolAttr(op.attributes["transpose_rhs"]).value

        def matmul(right: ir.Value) -> ir.Value:
            return IntegerMatmulOp.build(data, right, transpose_rhs=transposed, unsigned=product.unsigned)

        return matmul(weight), None if ones is None else matmul(ones)
    channels_last = ir.BoolAttr(op.attributes["channels_last"]).value
    window = {name: list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("strides", "padding", "dilation")}

    def conv(filters: ir.Value) -> ir.Value:
        return IntegerConvOp.build(
            data,
            filters,
            channels_last=channels_last,
            groups=_groups(op),
            padding_value=point,
            unsigned=product.unsigned,
            **window,
        )

    return conv(weight), None if ones is None else conv(ones)
