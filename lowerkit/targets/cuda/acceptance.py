"""Which ops the CUDA target takes: all but those with a scalar function that has no code for the GPU.

Where NVIDIA's library of functions is (it comes with Triton), plain loops have all of them, so that an op that is taken
is compiled whatever region it lands in. Without it, f32 functions are polynomials of ours, those of 16 bits the same,
and f64 has those alone for which there are instructions.
"""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.targets.cpu.vector.math import FUNCTIONS
from lowerkit.targets.cuda.ptx import libdevice
from lowerkit.targets.op_view import OpView

# Functions that the GPU has instructions for, or that are exact; integer ones too.
_INSTRUCTIONS = frozenset(
    {
        "math.absf", "math.absi", "math.ceil", "math.copysign", "math.ctlz", "math.ctpop", "math.cttz", "math.floor",
        "math.fma", "math.isfinite", "math.isinf", "math.isnan", "math.isnormal", "math.round", "math.roundeven",
        "math.rsqrt", "math.sqrt", "math.trunc",
    }
)  # fmt: skip
_POLYNOMIALS = frozenset({*FUNCTIONS, "math.powf", "math.fpowi"})
_LIBRARY = frozenset({*(f"math.{name}" for name in libdevice.FUNCTIONS), "math.powf", "math.fpowi", "arith.remf"})
# lk ops that compute an exponential in their element type.
_EXPONENTIAL = frozenset({"lk.softmax", "lk.attention"})


def refusal(op: OpView) -> str | None:
    """Returns why an op is not taken, in words; None where it is."""
    if (
        not libdevice.available()
        and op.name in _EXPONENTIAL
        and "f64" in {value.dtype for value in (*op.operands, *op.results)}
    ):
        return f"{op.name} of f64: there is no f64 exponential for the GPU"
    found: set[str] = set()

    def visit(inner: ir.Operation) -> ir.WalkResult:
        if not _has_code(inner):
            found.add(f"{inner.name} of {inner.operands[0].type}")
        return ir.WalkResult.ADVANCE

    op.operation.walk(visit)
    if not found:
        return None
    what = "elementwise " if op.name == "elementwise" else ""
    return f"{what}{', '.join(sorted(found))}: there is no code for the GPU"


def _has_code(op: ir.Operation) -> bool:
    if op.name in _LIBRARY and libdevice.available():
        return True
    if op.name == "arith.remf":  # the instructions of the GPU are exact for small quotients alone
        return False
    if not op.name.startswith("math.") or op.name in _INSTRUCTIONS:
        return True
    return op.name in _POLYNOMIALS and str(op.operands[0].type) in ("f32", "f16", "bf16")
