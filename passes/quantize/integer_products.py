"""Turns matrix products and convolutions of dequantized operands into integer ones.

    sum (x - zx) sx * (w - 0) sw  =  sx sw * (sum x w  -  zx * sum w)

The integer sum is exact; ``zx * sum w`` is one number for each output channel, known at compile time, and is added to
the bias in units of ``sx * sw``. Padding counts as ``zx``, so it contributes nothing. The result is dequantized by
``sx * sw``; ``requantize`` makes integers of it where they are asked for.

Steps for each ``lk.matmul`` or ``lk.conv`` whose operands are dequantized:
    1. check: one scale for the activation, a constant 8-bit weight with one scale or one per output channel, symmetric;
    2. bring the activation to unsigned and the weight to signed storage (a flip of the highest bit), K to a multiple
       of 4, which dot products of bytes want;
    3. fold the bias that is added next: given in int32 by the exporter, or rounded. A rounded one would be off by half
       a unit of ``sx * sw``, which short sums notice: sums are shifted left as far as 2^28 allows before it is added.

Sums stay below 2^29 in magnitude whatever the data, and so does what is added: ``K * 255 * 128`` is at most 2^28, a
bias below 2^28. ``requantize`` relies on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect import DequantizeOp, IntegerConvOp, IntegerMatmulOp
from lowerkit.dialect.linalg_builder import pad
from lowerkit.dialect.scalar_builder import constant
from lowerkit.mlir import arith, ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import build_elementwise, identity_map
from lowerkit.passes.layout.transposes import build_transpose
from lowerkit.passes.quantize.bias import Bias, bias_after
from lowerkit.passes.quantize.parameters import Array, Scaling, as_weight, constant_parameter, derived, scaling_of
from lowerkit.passes.rewriting import defined_by, empty_like, erase_dead, main_block, operations, shape_of
from lowerkit.passes.source_location import describe

_LARGEST_BIAS = 1 << 28
_LARGEST_DEPTH = _LARGEST_BIAS // (255 * 128)
_DOT = 4
"""Products that one instruction sums."""


class _RefusalError(Exception):
    """The product stays in floats; the text says why."""


@dataclass(frozen=True)
class _Product:
    """A product that can be computed in integers.

    Attributes:
        op: the float op.
        data, scaling: the activation as it is stored, and what it stands for.
        weight: name of the weight, signed after ``flip``.
        weight_scale: float64, rank 0 or one per output channel.
        flip: the weight is stored unsigned around 128.
        outputs: output channels.
        channel_axis: of the result.
        depth_axes: dimensions of the weight that are summed.
        depth_axis: the one that is padded to a multiple of 4.
    """

    op: ir.Operation
    data: ir.Value
    scaling: Scaling
    weight: str
    weight_shape: tuple[int, ...]
    weight_scale: Array
    flip: bool
    output_axis: int
    depth_axis: int

    @property
    def is_conv(self) -> bool:
        return self.op.name == "lk.conv"

    @property
    def outputs(self) -> int:
        return self.weight_shape[self.output_axis]

    @property
    def channel_axis(self) -> int:
        rank = len(shape_of(self.op.results[0]))
        if not self.is_conv or ir.BoolAttr(self.op.attributes["channels_last"]).value:
            return rank - 1
        return 1

    @property
    def missing(self) -> int:
        """How many elements the depth lacks to a multiple of 4."""
        return -self.weight_shape[self.depth_axis] % _DOT


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
            bias = bias_after(op, product.channel_axis, context)
            if bias is not None and bias.largest(product.scaling.scale * product.weight_scale, context) > _LARGEST_BIAS:
                context.remark(self.name, f"did not fold the bias of {op.name} at {describe(op)}: it is too large")
                bias = None
            _write(product, bias, 0 if bias is None else _spare_bits(product, bias, context), context)
            changed = True
        erase_dead(block)
        return changed


def _read(op: ir.Operation, context: PassContext) -> _Product:
    data, weight = (defined_by(operand, "lk.dequantize") for operand in op.operands)
    if data is None or weight is None:
        raise _RefusalError("one operand is not quantized")
    scaling, weight_scaling = scaling_of(data, context), scaling_of(weight, context)
    if scaling is None or weight_scaling is None:
        raise _RefusalError("a scale or zero point is not a positive constant")
    if not scaling.per_tensor:
        raise _RefusalError("the activation has a scale per channel")
    types = [str(ir.RankedTensorType(source.operands[0].type).element_type) for source in (data, weight)]
    if types != ["i8", "i8"]:
        raise _RefusalError(f"operands of {types[0]} and {types[1]}, not of i8")
    shape = tuple(shape_of(weight.operands[0]))
    output_axis, depth_axis = _axes(op, len(shape))
    if not weight_scaling.per_tensor and weight_scaling.axis != output_axis:
        raise _RefusalError("the weight has a scale per input channel")
    point = 128 if weight_scaling.unsigned else 0
    if np.any(weight_scaling.zero_point != point):
        raise _RefusalError("the weight is not symmetric")
    symbol = as_weight(weight.operands[0], context)
    if symbol is None:
        raise _RefusalError("the right operand is no constant")
    if context.weights.spec(symbol)[1] != shape:
        raise _RefusalError("the weight is reshaped before it is dequantized")
    reason = depth_refusal(op, shape)
    if reason is not None:
        raise _RefusalError(reason)
    return _Product(
        op, data.operands[0], scaling, symbol, shape, weight_scaling.scale, weight_scaling.unsigned, output_axis,
        depth_axis,
    )  # fmt: skip


def depth_refusal(op: ir.Operation, shape: tuple[int, ...]) -> str | None:
    """Returns why sums over the weight of this shape are not taken in integers, None where they are."""
    if op.name == "lk.matmul" and len(shape) != 2:
        return "the right operand has batches"
    grouped = op.name == "lk.conv" and ir.IntegerAttr(op.attributes["groups"]).value > 1
    last = op.name == "lk.matmul" and not ir.BoolAttr(op.attributes["transpose_rhs"]).value
    outputs = shape[-1] if last else shape[0]
    depth = math.prod(shape) // outputs if outputs else 0
    if not 0 < depth <= _LARGEST_DEPTH:
        return f"sums of {depth} products could leave 29 bits"
    if grouped and shape[1] % _DOT:
        return f"{shape[1]} channels a group; integer dot products take multiples of {_DOT}"
    return None


def _axes(op: ir.Operation, rank: int) -> tuple[int, int]:
    """Returns the dimensions of the weight that are output channels, and input channels or K."""
    if op.name == "lk.conv":
        return 0, 1
    if rank != 2:
        raise _RefusalError("the right operand has batches")
    transposed = ir.BoolAttr(op.attributes["transpose_rhs"]).value
    return (0, 1) if transposed else (1, 0)


def _spare_bits(product: _Product, bias: Bias, context: PassContext) -> int:
    """Returns by how much sums can be shifted left, so that a bias in floats is rounded to finer units."""
    if bias.scale is not None:
        return 0
    depth = math.prod(product.weight_shape) // product.outputs
    bits = (_LARGEST_BIAS // (255 * 128 * depth)).bit_length() - 1
    while bits and bias.largest(product.scaling.scale * product.weight_scale / 2.0**bits, context) > _LARGEST_BIAS:
        bits -= 1
    return bits


def _write(product: _Product, bias: Bias | None, bits: int, context: PassContext) -> None:
    """Builds the integer product where its bias is added, or where it stands, and replaces both."""
    place = product.op if bias is None else bias.op
    with ir.InsertionPoint(place), product.op.location:
        sums = _build_sums(product, context)
        scale = product.scaling.scale * product.weight_scale / 2.0**bits
        shifted = _add_offsets(product, sums, scale, bias, bits, context)
        axis = product.channel_axis if scale.ndim else 0
        zero = constant_parameter(context, "zero_point", np.zeros(scale.shape, np.int32))
        factors = constant_parameter(context, f"{product.weight}.scale", scale)
        value = DequantizeOp.build(shifted, factors, zero, axis=axis)
    place.results[0].replace_all_uses_with(value)
    place.erase()
    if bias is not None:
        product.op.erase()


def _build_sums(product: _Product, context: PassContext) -> ir.Value:
    op, shape, missing, axis = product.op, list(product.weight_shape), product.missing, product.depth_axis
    data = product.data if product.scaling.unsigned else _flipped(product.data)
    weight_name = product.weight
    weight = op.operands[1].owner.operation.operands[0]
    if missing or product.flip or product.weight != _symbol(weight):
        shape[axis] += missing
        widths = [(0, missing if index == axis else 0) for index in range(len(shape))]
        flip = product.flip

        def prepare(array: Array) -> Array:
            signed = (array.view(np.uint8) ^ 128).view(np.int8) if flip else array
            return np.pad(signed, widths)

        weight = derived(context, f"{weight_name}.bytes", [weight_name], prepare, dtype="i8", shape=shape)
    point = int(product.scaling.zero_point) + (0 if product.scaling.unsigned else 128)
    if not product.is_conv:
        if ir.BoolAttr(op.attributes["transpose_lhs"]).value:
            rank = len(shape_of(data))
            data = build_transpose(data, [*range(rank - 2), rank - 1, rank - 2])
        data = _padded(data, len(shape_of(data)) - 1, missing)
        transposed = ir.BoolAttr(op.attributes["transpose_rhs"]).value
        return IntegerMatmulOp.build(data, weight, transpose_rhs=transposed, unsigned=True)
    channels_last = ir.BoolAttr(op.attributes["channels_last"]).value
    data = _padded(data, len(shape_of(data)) - 1 if channels_last else 1, missing)
    window = {name: list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("strides", "padding", "dilation")}
    return IntegerConvOp.build(
        data,
        weight,
        channels_last=channels_last,
        groups=ir.IntegerAttr(op.attributes["groups"]).value,
        padding_value=point,
        unsigned=True,
        **window,
    )


def _symbol(value: ir.Value) -> str | None:
    op = defined_by(value, "lk.weight")
    return None if op is None else ir.StringAttr(op.attributes["symbol"]).value


def _padded(data: ir.Value, axis: int, missing: int) -> ir.Value:
    """Appends what meets zeros of the weight."""
    high = [missing if index == axis else 0 for index in range(len(shape_of(data)))]
    return pad(data, [0] * len(high), high, constant(0, ir.RankedTensorType(data.type).element_type))


def _flipped(data: ir.Value) -> ir.Value:
    """Stores signed numbers x as the unsigned numbers x + 128: the highest bit changes."""
    rank = len(shape_of(data))
    element = ir.RankedTensorType(data.type).element_type

    def write(elements: list[ir.Value]) -> list[ir.Value]:
        return [arith.XOrIOp(elements[0], constant(-128, element)).result]

    init = empty_like(data, range(rank), element)
    return build_elementwise([data], [identity_map(rank)], [init], write, ir.Location.current).results[0]


def _add_offsets(
    product: _Product, sums: ir.Value, scale: Array, bias: Bias | None, bits: int, context: PassContext
) -> ir.Value:
    """Shifts sums left and adds ``bias - zx * sum w``, in the same units, to each output channel."""
    parents = [product.weight, *([] if bias is None else [bias.weight])]
    point = int(product.scaling.zero_point) + (0 if product.scaling.unsigned else 128)
    summed = tuple(index for index in range(len(product.weight_shape)) if index != product.output_axis)
    outputs, flip = product.outputs, product.flip
    if bias is None and point == 0:
        return sums

    def offsets(weight: Array, *given: Array) -> Array:
        signed = (weight.view(np.uint8) ^ 128).view(np.int8) if flip else weight
        total = -point * signed.astype(np.int64).sum(summed) << bits
        if bias is not None:
            total = total + bias.in_units(given[0], scale)
        return total.astype(np.int32)

    vector = derived(context, f"{product.weight}.offset", parents, offsets, dtype="i32", shape=[outputs])
    rank = len(shape_of(sums))

    def write(elements: list[ir.Value]) -> list[ir.Value]:
        number, offset = elements
        if bits:
            number = arith.ShLIOp(number, constant(bits, number.type)).result
        return [arith.AddIOp(number, offset).result]

    init = empty_like(sums, range(rank), ir.RankedTensorType(sums.type).element_type)
    maps = [identity_map(rank), (product.channel_axis,)]
    return build_elementwise([sums, vector], maps, [init], write, ir.Location.current).results[0]
