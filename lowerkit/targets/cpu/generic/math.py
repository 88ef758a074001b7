"""Floats of plain loops: f32 functions as polynomials, 16-bit arithmetic as f32 arithmetic rounded at each op."""

from __future__ import annotations

import re
from collections.abc import Callable

from lowerkit.mlir import ir, run_pipeline, walk
from lowerkit.targets.cpu.text.text_builder import TextBuilder, Value
from lowerkit.targets.cpu.vector.math import FUNCTIONS, power

_CALL = re.compile(r"^\s*(%\S+) = (math\.\w+) (%[\w#]+(?:, %[\w#]+)*)(?: fastmath<\w+>)? : f32$")

# bf16 and f16 are storage types: every op widens to f32 and rounds its result, as eager does. These passes mark the
# conversions as contractible, which would let `extf(truncf(x))` fold to `x` and skip a rounding: see `_keep_rounding`.
_EMULATE = (
    "builtin.module(func.func(arith-emulate-unsupported-floats{source-types=bf16,f16 target-type=f32}))",
    "builtin.module(func.func(math-extend-to-supported-types{extra-types=f64 target-type=f32}))",
)
# Conversions of bf16 as integer arithmetic that vectorizes (without AVX512_BF16 LLVM would call a routine per element,
# and with it denormals would become zero).
_EXPAND = "builtin.module(func.func(arith-expand{include-bf16=true}),canonicalize,cse)"


def expand_math(text: str, powers: bool = False) -> str:
    """Returns kernel text without 16-bit float arithmetic and without f32 functions that have a polynomial.

    ``powers``: x^y too is ours; else the C math library computes it.
    """
    module = ir.Module.parse(text)
    for pipeline in _EMULATE:
        run_pipeline(module, pipeline)
        _keep_rounding(module)
    run_pipeline(module, _EXPAND)
    text = module.operation.get_asm(enable_debug_info=False)
    lines: list[str] = []
    builder = TextBuilder(indent=0)
    for line in text.splitlines():
        match = _CALL.match(line)
        function: Callable[..., Value] | None = FUNCTIONS.get(match[2]) if match else None
        if powers and match is not None and match[2] == "math.powf":
            function = power
        if match is None or function is None:
            lines.append(line)
            continue
        start = len(builder.lines)
        result = function(builder, *(Value(name, "f32") for name in match[3].split(", ")))
        lines.extend(_rename(builder.lines[start:], result.name, match[1]))
    return "\n".join(lines) + "\n"


def _keep_rounding(module: ir.Module) -> None:
    """Takes the fast-math flags off all float conversions."""
    strict = ir.Attribute.parse("#arith.fastmath<none>")

    def visit(op: ir.Operation) -> None:
        if op.name in ("arith.extf", "arith.truncf") and "fastmath" in op.attributes:
            op.attributes["fastmath"] = strict

    walk(module.operation, visit)


def _rename(lines: list[str], old: str, new: str) -> list[str]:
    pattern = re.compile(re.escape(old) + r"(?![\w#])")
    return [pattern.sub(new, line) for line in lines]
