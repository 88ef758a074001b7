"""The scalar ops of a body, in Triton.

Types stay as the body has them: bf16 and f16 are widened for each op and rounded behind it, as everywhere in lowerkit;
booleans are ``int1``, integers have no sign of their own. Functions are those of libdevice, which f32 and f64 have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence

from lowerkit.mlir import ir
from lowerkit.targets.cuda.triton.integers import WIDTHS, integer_text, to_integer
from lowerkit.targets.cuda.triton.writer import KernelWriter, as_i64, render
from lowerkit.targets.plan import KernelExpr

TYPES = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16", "i1": "tl.int1",
    "i8": "tl.int8", "i16": "tl.int16", "i32": "tl.int32", "i64": "tl.int64", "index": "tl.int64",
}  # fmt: skip
POINTERS = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i1": "i8", "i8": "i8", "i16": "i16", "i32": "i32",
    "i64": "i64",
}  # fmt: skip
"""What a pointer to elements of a type points to: booleans lie in bytes."""
NARROW = ("f16", "bf16")

_FLOAT_BINARY = {
    "arith.addf": "{0} + {1}", "arith.subf": "{0} - {1}", "arith.mulf": "{0} * {1}",
    "arith.maximumf": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "arith.minimumf": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "arith.maxnumf": "tl.maximum({0}, {1})", "arith.minnumf": "tl.minimum({0}, {1})",
    "math.powf": "libdevice.pow({0}, {1})", "math.atan2": "libdevice.atan2({0}, {1})",
    "math.copysign": "libdevice.copysign({0}, {1})", "arith.remf": "libdevice.fmod({0}, {1})",
    "math.clampf": "tl.minimum(tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL), {2}, "
    "propagate_nan=tl.PropagateNan.ALL)",
}  # fmt: skip
_FLOAT_UNARY = {
    "arith.negf": "{0} * -1.0", "math.absf": "tl.abs({0})", "math.floor": "libdevice.floor({0})",
    "math.ceil": "libdevice.ceil({0})", "math.trunc": "libdevice.trunc({0})", "math.round": "libdevice.round({0})",
    "math.roundeven": "libdevice.rint({0})", "math.rsqrt": "libdevice.rsqrt({0})",
} | {
    f"math.{name}": f"libdevice.{name}({{0}})"
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "cbrt",
    )
}  # fmt: skip
_TESTS = {
    "math.isnan": "{0} != {0}", "math.isinf": 'tl.abs({0}) == float("inf")',
    "math.isfinite": 'tl.abs({0}) < float("inf")',
}  # fmt: skip
"""Questions about a float, of which the answer is a boolean."""
_CMPF = {
    0: "({0} == {0}) & ({0} != {0})", 1: "{0} == {1}", 2: "{0} > {1}", 3: "{0} >= {1}", 4: "{0} < {1}",
    5: "{0} <= {1}", 6: "({0} < {1}) | ({0} > {1})", 7: "({0} == {0}) & ({1} == {1})",
    8: "(({0} < {1}) | ({0} > {1})) == 0", 9: "({0} <= {1}) == 0", 10: "({0} < {1}) == 0", 11: "({0} >= {1}) == 0",
    12: "({0} > {1}) == 0", 13: "{0} != {1}", 14: "({0} != {0}) | ({1} != {1})", 15: "({0} == {0}) | ({0} != {0})",
}  # fmt: skip
_CMPI = {0: "==", 1: "!=", 2: "<", 3: "<=", 4: ">", 5: ">="}
_CMPI_UNSIGNED = {6: "<", 7: "<=", 8: ">", 9: ">="}


class NoCode(Exception):
    """There is nothing in Triton for an op; the text says for which."""


LookUp = Callable[[ir.Value, Sequence[str]], str]
"""Writes the element of a tensor at some positions."""
Outer = Callable[[ir.Value], KernelExpr | None]
"""What a scalar that is computed outside of a body is, in terms of the open extents; None where it depends on more."""


def write_body(
    writer: KernelWriter,
    block: ir.Block,
    inputs: Sequence[str],
    indices: Callable[[int], str],
    outer: Outer = lambda _value: None,
    look_up: LookUp | None = None,
) -> list[str]:
    """Writes the body of a ``linalg.generic``; returns the values that it yields.

    Args:
        writer: the kernel.
        block: the body.
        inputs: its arguments, as far as the body reads them.
        indices: the coordinate of an iteration dim, for ``linalg.index``.
        outer: scalars that are computed outside of the body.
        look_up: writes the element of a tensor at some positions, for ``tensor.extract``.

    Raises:
        NoCode: an op has no translation.
    """
    values: dict[ir.Value, str] = dict(zip(block.arguments, inputs, strict=False))
    *steps, last = [op.operation for op in block.operations]
    for op in steps:
        if op.name == "linalg.index":
            text = as_i64(indices(ir.IntegerAttr(op.attributes["dim"]).value))
        elif op.name == "tensor.extract" and look_up is not None:
            tensor, *positions = op.operands
            text = look_up(tensor, [_value(writer, position, values, outer) for position in positions])
        else:
            text = op_text(op, [_value(writer, operand, values, outer) for operand in op.operands])
        values[op.results[0]] = writer.let(text)
    return [_value(writer, value, values, outer) for value in last.operands]


def constant(value: float | int, element: str) -> str:
    """Returns the text of a number of an MLIR type."""
    if element == "i1":
        return f"tl.full([], {int(bool(value))}, tl.int1)"
    if isinstance(value, float) and not math.isfinite(value):
        return f'tl.full([], float("{value}"), {TYPES[element]})'
    return f"tl.full([], {value!r}, {TYPES[element]})"


def converted(text: str, source: str, target: str) -> str:
    """Returns a number of one type as one of another; between floats it is rounded to nearest even."""
    return text if source == target else f"{text}.to({TYPES[target]})"


def has_code(block: ir.Block, outer: Outer, tensors: Container[ir.Value] = ()) -> str | None:
    """Returns the op of a body that has no translation, with its type; None where all have.

    ``tensors`` are those whose elements it may look up.
    """
    inside: set[ir.Value] = set(block.arguments)
    for op in [each.operation for each in block.operations]:
        scalars = list(op.operands)
        if op.name == "tensor.extract" and scalars.pop(0) not in tensors:
            return "an element of a tensor that is computed inside the region"
        if not all(value in inside or _is_constant(value) or outer(value) is not None for value in scalars):
            return "a scalar that is computed outside the body"
        inside.update(op.results)
    for op in [each.operation for each in block.operations][:-1]:
        if op.name in ("linalg.index", "arith.constant", "tensor.extract"):
            continue
        try:
            op_text(op, ["x"] * len(op.operands))
        except NoCode as error:
            return str(error)
    return None


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "arith.constant"


def _value(writer: KernelWriter, value: ir.Value, values: dict[ir.Value, str], outer: Outer) -> str:
    if value not in values:
        owner = value.owner
        size = None if _is_constant(value) else outer(value)
        if size is not None:
            text = f"tl.full([], {size}, tl.int64)" if isinstance(size, int) else f"({render(size)}).to(tl.int64)"
            values[value] = writer.let(converted(text, "i64", str(value.type).replace("index", "i64")))
            return values[value]
        if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
            raise NoCode("a scalar that is computed outside the body")
        attribute = owner.operation.attributes["value"]
        if not isinstance(attribute, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
            raise NoCode(f"a constant of {value.type}")
        values[value] = writer.let(constant(attribute.value, str(value.type)))
    return values[value]


def op_text(op: ir.Operation, texts: Sequence[str]) -> str:
    """Returns the text of a scalar op, given those of its operands.

    Raises:
        NoCode: it has no translation.
    """
    name, result = op.name, str(op.results[0].type)
    source = str(op.operands[0].type) if len(op.operands) else result
    wide = [f"{text}.to(tl.float32)" for text in texts] if source in NARROW else list(texts)
    computed = "f32" if source in NARROW else source
    pattern = _FLOAT_BINARY.get(name) or _FLOAT_UNARY.get(name)
    if pattern is not None and computed in ("f32", "f64"):
        text = pattern.format(*wide)
        return converted(f"({text})", "f32", result) if source in NARROW else text
    if name in ("arith.divf", "math.sqrt", "math.fma") and computed in ("f32", "f64"):
        return _rounded_once(name, source, wide)
    if name in _TESTS and computed in ("f32", "f64"):
        return _TESTS[name].format(*wide)
    if name == "math.fpowi" and computed in ("f32", "f64"):
        power = f"libdevice.pow({wide[0]}, {texts[1]}.to({TYPES[computed]}))"
        return converted(power, computed, result)
    if name == "arith.select" and source == "i1":
        return f"tl.where({', '.join(texts)})"
    if name == "arith.cmpf":
        return _CMPF[ir.IntegerAttr(op.attributes["predicate"]).value].format(*wide)
    if name == "arith.cmpi":
        return _compared(ir.IntegerAttr(op.attributes["predicate"]).value, source, texts)
    if name in ("arith.fptosi", "arith.fptoui"):
        found = to_integer(name, computed, result, wide[0])
    elif source == result and len(texts):
        found = integer_text(name, source, texts)
    else:
        found = None
    if found is None and source in TYPES and result in TYPES and len(texts):
        found = _conversion(name, source, result, texts[0])
    if found is None:
        raise NoCode(f"{name} of {source}")
    return found


def _rounded_once(name: str, source: str, wide: Sequence[str]) -> str:
    if source == "f64":
        function = {"arith.divf": "{0} / {1}", "math.sqrt": "libdevice.sqrt({0})", "math.fma": "tl.fma({0}, {1}, {2})"}
        return function[name].format(*wide)
    function = {"arith.divf": "tl.div_rn", "math.sqrt": "tl.sqrt_rn", "math.fma": "tl.fma"}[name]
    return converted(f"{function}({', '.join(wide)})", "f32", source)


def _compared(predicate: int, source: str, texts: Sequence[str]) -> str:
    sign = (_CMPI | _CMPI_UNSIGNED)[predicate]
    left, right = texts
    if source == "i1" and predicate >= 2:  # a boolean is a bit: as a signed number -1 and 0
        left, right = (f"{text}.to(tl.int32)" for text in texts)
        return f"{right} {sign} {left}" if predicate in _CMPI else f"{left} {sign} {right}"
    if predicate in _CMPI:
        return f"{left} {sign} {right}"
    left, right = (f"{text}.to({_unsigned(source)}, bitcast=True)" for text in texts)
    return f"{left} {sign} {right}"


def _unsigned(source: str) -> str:
    return f"tl.uint{WIDTHS[source]}"


def _conversion(name: str, source: str, result: str, text: str) -> str | None:
    floating = result[0] in "fb"
    match name:
        case "arith.extf" | "arith.truncf":
            return f"{text}.to({TYPES[result]})"
        case "arith.bitcast":
            return text if source == result else f"{text}.to({TYPES[result]}, bitcast=True)"
        case "arith.trunci" | "arith.index_cast" | "arith.index_castui" if result == "i1":
            return f"({text} & 1) != 0"
        case "arith.extsi" | "arith.index_cast" | "arith.sitofp" if source == "i1":
            return _converted_integer(f"(0 - {text}.to(tl.int32))", result, floating)
        case "arith.extui" | "arith.uitofp" | "arith.index_castui" if source == "i1":
            return _converted_integer(f"{text}.to(tl.int32)", result, floating)
        case "arith.extsi" | "arith.index_cast" | "arith.trunci" | "arith.sitofp" if source in WIDTHS:
            return _converted_integer(text, result, floating)
        case "arith.extui" | "arith.index_castui" | "arith.uitofp" if source in WIDTHS:
            return _converted_integer(f"{text}.to({_unsigned(source)}, bitcast=True)", result, floating)
        case _:
            return None


def _converted_integer(text: str, result: str, floating: bool) -> str:
    """An integer as another, or as a float: of 16 bits through f32."""
    if floating and result in NARROW:
        return f"{text}.to(tl.float32).to({TYPES[result]})"
    return f"{text}.to({TYPES[result]})"
