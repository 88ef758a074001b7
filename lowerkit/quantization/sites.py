"""Where quantization applies: matrix products and convolutions of f32 with a constant right operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowerkit.capture.program import Program
from lowerkit.dialect import DequantizeOp, QuantizeOp, WeightOp
from lowerkit.mlir import func, ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.quantize.integer_products import depth_refusal
from lowerkit.passes.quantize.parameters import as_weight, constant_parameter
from lowerkit.passes.rewriting import defining_op, element_of, main_block, operations, shape_of
from lowerkit.passes.source_location import describe
from lowerkit.runtimes.manifest import Signature, TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Site:
    """One product to be quantized.

    Attributes:
        index: its place among the products of the module.
        name: the graph node that it stands for.
        location: the user's line.
        value: which of the distinct activations it reads; several products may share one.
    """

    index: int
    name: str
    location: str
    value: int


@dataclass(frozen=True)
class Sites:
    """All products to be quantized, and why the others are not.

    Attributes:
        sites: in program order.
        values: how many distinct activations they read.
        refused: lines for the user.
    """

    sites: Sequence[Site]
    values: int
    refused: Sequence[str]


def find_sites(program: Program) -> Sites:
    """Looks at every product of a raised program; nothing is changed."""
    values: dict[ir.Value, int] = {}
    sites: list[Site] = []
    refused: list[str] = []
    for index, op in enumerate(_products(program.module)):
        reason = _refusal(op)
        source = describe(op)
        if reason is not None:
            refused.append(f"{op.name} at {source}: {reason}")
            continue
        value = values.setdefault(op.operands[0], len(values))
        place = f"{source.file}:{source.line}" if source.file else ""
        sites.append(Site(index, source.node or op.name, place, value))
    return Sites(sites, len(values), refused)


def _products(module: ir.Module) -> list[ir.Operation]:
    return [op for op in operations(main_block(module)) if op.name in ("lk.matmul", "lk.conv")]


def _refusal(op: ir.Operation) -> str | None:
    """Returns why a product stays in floats, None where it does not."""
    if any(str(element_of(operand)) != "f32" for operand in op.operands):
        return f"operands of {element_of(op.operands[0])}, not of f32"
    weight = defining_op(op.operands[1])
    if weight is None or weight.name not in ("lk.weight", "arith.constant"):
        return "the right operand is no constant"
    return depth_refusal(op, tuple(shape_of(op.operands[1])))


def observed(program: Program, sites: Sites, *, dequantized: bool = False) -> Program:
    """Returns a copy of a raised program with the activations of ``sites`` as further outputs.

    Args:
        program: as :func:`find_sites` saw it, or after :func:`insert`.
        sites: of the program.
        dequantized: the program is quantized: the outputs are what the products read.
    """
    with program.context:
        module = ir.Module.parse(program.module.operation.get_asm(enable_debug_info=True))
    copy = replace(program, module=module)
    main = copy.main.opview
    assert isinstance(main, func.FuncOp)
    products = _products(module)
    first = {site.value: products[site.index].operands[0] for site in reversed(sites.sites)}
    added = [first[value] for value in range(sites.values)]
    terminator = list(main.entry_block.operations)[-1].operation
    everything = [*terminator.operands, *added]
    with ir.InsertionPoint(terminator), terminator.location:
        func.ReturnOp(everything)
    terminator.erase()
    inputs = [argument.type for argument in main.entry_block.arguments]
    with program.context:
        kind = ir.FunctionType.get(inputs, [value.type for value in everything])
        main.operation.attributes["function_type"] = ir.TypeAttr.get(kind)
    specs = [TensorSpec(f"observed.{place}", "f32", [*shape_of(value)]) for place, value in enumerate(added)]
    old = program.signature
    copy.signature = Signature(old.inputs, [*old.outputs, *specs], old.states, old.dims)
    assert not dequantized or all(defining_op(value) is not None for value in added), "a quantized input is computed"
    return copy


def insert(program: Program, sites: Sites, scalings: Sequence[tuple[float, int]]) -> None:
    """Writes quantize and dequantize around each activation, and weights as int8 with a scale per output channel.

    Args:
        program: raised; changed in place.
        sites: of the program.
        scalings: scale and zero point of each distinct activation.
    """
    context = PassContext(weights=program.weights)
    products = _products(program.module)
    made: dict[int, ir.Value] = {}
    for site in sites.sites:
        op = products[site.index]
        source = defining_op(op.operands[0])
        with program.context, ir.InsertionPoint(op):
            if site.value not in made:
                with op.location if source is None else source.location:
                    made[site.value] = _quantized(op.operands[0], scalings[site.value], context)
            with op.location:
                weight = _quantized_weight(op, context)
        op.operands[0] = made[site.value]
        op.operands[1] = weight


def _quantized(value: ir.Value, scaling: tuple[float, int], context: PassContext) -> ir.Value:
    scale = constant_parameter(context, "scale", np.array(scaling[0], np.float32))
    zero = constant_parameter(context, "zero_point", np.array(scaling[1], np.int32))
    return DequantizeOp.build(QuantizeOp.build(value, scale, zero, unsigned=True), scale, zero, unsigned=True)


def _quantized_weight(op: ir.Operation, context: PassContext) -> ir.Value:
    """Symmetric int8, -127 to 127, one scale for each output channel: its largest magnitude / 127."""
    symbol = as_weight(op.operands[1], context)
    assert symbol is not None, "find_sites took it"
    shape = shape_of(op.operands[1])
    axis = 0
    if op.name == "lk.matmul" and not ir.BoolAttr(op.attributes["transpose_rhs"]).value:
        axis = len(shape) - 1
    others = tuple(index for index in range(len(shape)) if index != axis)

    def scales(weight: Array) -> Array:
        largest = np.abs(weight).max(others, initial=0.0)
        return np.where(largest > 2.0**-90, largest / np.float32(127), np.float32(1)).astype(np.float32)

    def integers(weight: Array) -> Array:
        factors = np.expand_dims(scales(weight), others)
        return np.clip(np.rint(weight / factors), -127, 127).astype(np.int8)

    weights = context.weights
    outputs = shape[axis]
    names = [weights.unique_name(f"{symbol}.{kind}") for kind in ("int8", "scale")]
    weights.derive(names[0], [symbol], integers, dtype="i8", shape=shape)
    weights.derive(names[1], [symbol], scales, dtype="f32", shape=[outputs])
    stored = WeightOp.build(names[0], ir.RankedTensorType.get(shape, ir.IntegerType.get_signless(8)))
    factors = WeightOp.build(names[1], ir.RankedTensorType.get([outputs], ir.F32Type.get()))
    zero = constant_parameter(context, "zero_point", np.zeros(outputs, np.int32))
    return DequantizeOp.build(stored, factors, zero, axis=axis)
