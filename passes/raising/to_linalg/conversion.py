"""Runs torch-mlir's conversions to linalg: here for ops that are well known, else in a process apart.

Steps
    decompose  what has no direct lowering (``torch-decompose-complex-ops``), with the ops that do declared legal;
    convert    torch to linalg, scf, arith and tensor; then the function and what stands between two casts.

Some conversions never come to an end (``conv_tbc``), some end the process on element types that nobody has tried or
on extents of 0. So every op that is not in the short list below is converted by a worker
(:mod:`lowerkit.passes.mlir_worker`), with a bound on its processor time. The list is of the ops that nearly every model
has, in the element types that they have there, so that the common model pays for no worker.
"""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.passes.mlir_worker import module_seconds, run_here, run_in_worker
from lowerkit.passes.raising.torch_dialect.torch_ir import is_tensor, tensor_info

# Ops with a direct lowering whose decomposition is worse: through float64, or into many ops.
_LEGAL_OPS = ("aten.gelu", "aten.sigmoid", "aten.tanh", "aten.erf", "aten.relu", "aten.pow.Tensor_Scalar")

_DECOMPOSE = f"builtin.module(func.func(torch-decompose-complex-ops{{legal-ops={','.join(_LEGAL_OPS)}}},canonicalize))"
_CONVERT = (
    "builtin.module(func.func("
    "convert-torch-to-linalg,canonicalize,convert-torch-to-scf,convert-torch-to-arith,convert-torch-to-tensor"
    "),torch-func-backend-type-conversion,"
    "func.func(canonicalize,torch-finalizing-backend-type-conversion,canonicalize,cse))"
)

_WELL_KNOWN = frozenset(
    f"torch.aten.{name}"
    for name in (
        *(
            "add.Tensor",
            "add.Scalar",
            "sub.Tensor",
            "sub.Scalar",
            "mul.Tensor",
            "mul.Scalar",
            "div.Tensor",
            "div.Scalar",
        ),
        *("neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "square", "sin", "cos", "tanh", "erf", "sigmoid"),
        *("relu", "gelu", "silu", "hardtanh", "clamp", "maximum", "minimum", "to.dtype", "where.self"),
        *("eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor", "ge.Tensor"),
        *("eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar"),
        *("view", "transpose.int", "permute", "expand", "slice.Tensor", "select.int", "unsqueeze", "squeeze.dim"),
        *("cat", "constant_pad_nd", "clone", "contiguous"),
    )
)
_WELL_KNOWN_DTYPES = frozenset({"f32", "f64", "f16", "bf16", "si64", "i1"})
_NO_CONVERSION = ("torch.constant.", "torch.prim.ListConstruct", "torch_c.")


def convert(module: ir.Module, torch_ops: list[ir.Operation], seconds: float | None = None) -> None:
    """Converts ``module`` in place; a torch op that has no conversion may remain.

    Args:
        module: functions on torch tensors.
        torch_ops: its ops of the torch dialect.
        seconds: the most processor time, where a worker converts; None goes by the number of ops.

    Raises:
        ConversionError: a conversion failed, and the module may be half converted.
    """
    if all(_is_well_known(op) for op in torch_ops):
        run_here(module, (_DECOMPOSE, _CONVERT))
    else:
        run_in_worker(module, (_DECOMPOSE, _CONVERT), module_seconds(len(torch_ops)) if seconds is None else seconds)


def _is_well_known(op: ir.Operation) -> bool:
    if op.name.startswith(_NO_CONVERSION):
        return True
    if op.name not in _WELL_KNOWN or len(op.regions) > 0:
        return False
    operands, results = (
        [tensor_info(value) for value in side if is_tensor(value)] for side in (op.operands, op.results)
    )
    if any(0 in info.shape for info in (*operands, *results)):
        return False  # some conversions divide by an extent
    types = [info.dtype for info in operands]
    if not _WELL_KNOWN_DTYPES.issuperset([*types, *(info.dtype for info in results)]):
        return False
    if op.name == "torch.aten.where.self":
        types = types[1:]
    return len(set(types)) <= 1
