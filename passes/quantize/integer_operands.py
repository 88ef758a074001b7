"""Brings products of bytes to the operands that kernels take.

    a signed left operand x     ->  unsigned: x + 128 is x with its highest bit flipped, and 128 sum w is subtracted,
                                    in the constant that is added to each channel next, where there is one
    K no multiple of 4          ->  zeros behind it on both sides: dot products of bytes take four
    a constant right operand    ->  a weight of its own shape

These are the CPU's dot products of bytes: before this pass the operands are as the model has them.
Depthwise convolutions sum over taps, not over channels, and keep theirs.

Bytes: the flip and the zeros are a copy of the left operand, which joins what computes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.dialect.linalg_builder import pad
from lowerkit.dialect.scalar_builder import constant
from lowerkit.mlir import arith, ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import as_elementwise, build_elementwise, identity_map
from lowerkit.passes.quantize.parameters import Array, as_weight, derived
from lowerkit.passes.rewriting import (
    empty_like,
    erase_dead,
    main_block,
    operations,
    replace,
    shape_of,
    users,
    weight_symbol,
)

DOT = 4
"""Products that one instruction sums."""


@dataclass(frozen=True)
class IntegerOperands(Pass):
    """Prepares the operands of ``lk.integer_matmul`` and ``lk.integer_conv`` by constants; others are left alone.

    Precondition: stage raised or canonical, before ``channels-last``.
    """

    name: ClassVar[str] = "integer-operands"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        flips: dict[ir.Value, ir.Value] = {}  # several products of one operand share its flip
        for op in operations(block):
            if op.name in ("lk.integer_matmul", "lk.integer_conv"):
                with ir.InsertionPoint(op), op.location:
                    changed = _prepare(op, context, flips) or changed
        erase_dead(block)
        return changed


def _prepare(op: ir.Operation, context: PassContext, flips: dict[ir.Value, ir.Value]) -> bool:
    data, weight = op.operands
    shape = shape_of(weight)
    is_conv = op.name == "lk.integer_conv"
    signed = not ir.BoolAttr(op.attributes["unsigned"]).value
    depth = 1 if is_conv or ir.BoolAttr(op.attributes["transpose_rhs"]).value else 0
    missing = 0 if is_conv and is_depthwise(op) else -shape[depth] % DOT
    if weight_symbol(weight) is not None and not signed and not missing:
        return False
    if is_conv and missing and ir.IntegerAttr(op.attributes["groups"]).value > 1:
        missing = 0  # zeros would have to go between the groups of the input; plain loops take it
    symbol = as_weight(weight, context)
    if symbol is None or list(context.weights.spec(symbol)[1]) != shape or (not is_conv and len(shape) != 2):
        return False
    attributes = {name: op.attributes[name] for name in op.attributes}
    if signed:
        if data not in flips:
            flips[data] = flipped(data)
        data = flips[data]
        attributes["unsigned"] = ir.BoolAttr.get(True)
        if is_conv:
            value = ir.IntegerAttr(op.attributes["padding_value"]).value + 128
            attributes["padding_value"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    last = not is_conv or ir.BoolAttr(op.attributes["channels_last"]).value
    channel_axis = len(shape_of(data)) - 1 if last else 1
    data = padded(data, channel_axis, missing)
    bytes_ = weight_of_bytes(context, symbol, shape, depth, missing)
    product = ir.Operation.create(
        op.name, results=[op.results[0].type], operands=[data, bytes_], attributes=attributes
    ).result
    flip = _Flip(symbol, tuple(shape), 0 if is_conv else 1 - depth, channel_axis)
    if signed and not _add_to_next(op, flip, context):
        product = _less_flip(product, flip, context)
    replace(op, [product])
    return True


def is_depthwise(op: ir.Operation) -> bool:
    """Whether a convolution has a filter for each of several input channels alone."""
    outputs, channels = shape_of(op.operands[1])[:2]
    return channels == 1 and 1 < ir.IntegerAttr(op.attributes["groups"]).value == outputs


def weight_of_bytes(
    context: PassContext, symbol: str, shape: list[int], axis: int, missing: int, *, flip: bool = False
) -> ir.Value:
    """Builds a weight with ``missing`` zeros behind ``axis``; ``flip``: it is stored unsigned around 128."""
    widths = [(0, missing if index == axis else 0) for index in range(len(shape))]

    def prepare(array: Array) -> Array:
        return np.pad((array.view(np.uint8) ^ 128).view(np.int8) if flip else array, widths)

    whole = [size + after for size, (_, after) in zip(shape, widths, strict=True)]
    return derived(context, f"{symbol}.bytes", [symbol], prepare, dtype="i8", shape=whole)


def padded(data: ir.Value, axis: int, missing: int) -> ir.Value:
    """Appends what meets zeros of the weight."""
    high = [missing if index == axis else 0 for index in range(len(shape_of(data)))]
    return pad(data, [0] * len(high), high, constant(0, ir.RankedTensorType(data.type).element_type))


def flipped(data: ir.Value) -> ir.Value:
    """Stores signed numbers x as the unsigned numbers x + 128: the highest bit changes."""
    rank = len(shape_of(data))
    element = ir.RankedTensorType(data.type).element_type

    def write(elements: list[ir.Value]) -> list[ir.Value]:
        return [arith.XOrIOp(elements[0], constant(-128, element)).result]

    init = empty_like(data, range(rank), element)
    return build_elementwise([data], [identity_map(rank)], [init], write, ir.Location.current).results[0]


@dataclass(frozen=True)
class _Flip:
    """What the flip of the left operand adds to the sums: ``128 sum w`` of each output channel."""

    weight: str
    shape: tuple[int, ...]
    output_axis: int
    channel_axis: int

    def totals(self, weight: Array) -> Array:
        """Returns ``-128 sum w`` of each output channel."""
        summed = tuple(index for index in range(len(self.shape)) if index != self.output_axis)
        return -128 * weight.astype(np.int64).sum(summed)


def _add_to_next(op: ir.Operation, flip: _Flip, context: PassContext) -> bool:
    """Subtracts the flip in the constant of each channel that is added next; False where nothing like that is added.

    The only reader is ``(sums << bits) + constant`` or ``sums + constant``, all modulo 2^32.
    """
    readers = users(op.results[0])
    view = as_elementwise(readers[0]) if len(readers) == 1 and readers[0].name == "linalg.generic" else None
    if view is None or view.inputs_read_through(op.results[0]) != [identity_map(view.rank)]:
        return False
    body = operations(view.body)
    value = view.body.arguments[list(view.inputs).index(op.results[0])]
    bits = 0
    if body and body[0].name == "arith.constant" and len(body) > 1 and body[1].name == "arith.shli":
        bits, value = ir.IntegerAttr(body[0].attributes["value"]).value, body[1].result
        if body[1].operands[1] != body[0].result:
            return False
    adds = users(value)
    if len(adds) != 1 or adds[0].name != "arith.addi" or adds[0].operands[0] != value:
        return False
    arguments = list(view.body.arguments)[: len(view.inputs)]
    if adds[0].operands[1] not in arguments:
        return False
    place = arguments.index(adds[0].operands[1])
    known = weight_symbol(view.inputs[place])
    if known is None or view.maps[place] != (flip.channel_axis,) or len(users(arguments[place])) != 1:
        return False

    def shifted(constant: Array, weight: Array) -> Array:
        return (constant.astype(np.int64) + (flip.totals(weight) << bits)).astype(np.int32)

    extents = [flip.shape[flip.output_axis]]
    with ir.InsertionPoint(view.op), view.op.location:
        vector = derived(context, f"{known}.flip", [known, flip.weight], shifted, dtype="i32", shape=extents)
    view.op.operands[place] = vector
    return True


def _less_flip(sums: ir.Value, flip: _Flip, context: PassContext) -> ir.Value:
    """Subtracts the flip from each output channel."""

    def totals(weight: Array) -> Array:
        return flip.totals(weight).astype(np.int32)

    extents = [flip.shape[flip.output_axis]]
    vector = derived(context, f"{flip.weight}.offset", [flip.weight], totals, dtype="i32", shape=extents)
    rank = len(shape_of(sums))

    def write(elements: list[ir.Value]) -> list[ir.Value]:
        return [arith.AddIOp(elements[0], elements[1]).result]

    init = empty_like(sums, range(rank), ir.RankedTensorType(sums.type).element_type)
    maps = [identity_map(rank), (flip.channel_axis,)]
    return build_elementwise([sums, vector], maps, [init], write, ir.Location.current).results[0]
