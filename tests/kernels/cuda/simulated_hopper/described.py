"""Matrix products whose operands the TMA unit brings, compiled and run."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.kernels.cuda.simulated_hopper.hopper_programs import (
    described_matmul,
    describing_matmul,
    persistent_matmul,
    tasks_matmul,
)
from tests.kernels.cuda.simulated_hopper.running import HopperKernel, compile_hopper, described, run_hopper
from tests.kernels.cuda.simulated_triton.launching import DTYPES, values

Array = np.ndarray[Any, Any]
Block = tuple[int, int, int]
SMALL: Block = (64, 64, 64)
_BLOCKS = 3  # of a persistent launch
# Who describes the tensors, and how blocks and warps share the work.
FORMS = ("described", "describing", "persistent", "tasks", "persistent_tasks")


def compile_form(form: str, dtype: str = "bf16", block: Block = SMALL, warps: int = 4, sm: int = 90) -> HopperKernel:
    """Compiles a product; ``form`` is one of FORMS."""
    m, n, k = block
    types = {"a": described(dtype, m, k), "b": described(dtype, k, n), "c": described(dtype, m, n)}
    types |= dict.fromkeys(("m", "n", "k"), "i32")
    constants: dict[str, Any] = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    aligned = ["m", "n", "k"]
    function: Any = {"described": described_matmul, "describing": describing_matmul, "tasks": tasks_matmul}.get(form)
    if form == "describing":
        types |= dict.fromkeys(("a", "b", "c"), f"*{dtype}")
        aligned += ["a", "b", "c"]
    if function is None:
        function = persistent_matmul
        types["blocks"] = "i32"
        constants["TASKS"] = form == "persistent_tasks"
    return compile_hopper(function, types, constants, aligned, sm=sm, num_warps=warps, num_stages=3)


def run_form(
    form: str,
    kernel: HopperKernel,
    dtype: str = "bf16",
    sizes: tuple[int, int, int] = (128, 192, 208),
    block: Block = SMALL,
    *,
    ptx: str | None = None,
    **options: Any,
) -> tuple[Array, Array]:
    """Returns the result and the one of numpy in f64."""
    m, n, k = sizes
    a, b, c = values((m, k), dtype, 1), values((k, n), dtype, 2), np.zeros((m, n), DTYPES[dtype])
    grid, more = (-(-m // block[0]), -(-n // block[1])), ()
    if form.startswith("persistent"):
        grid, more = (_BLOCKS,), (_BLOCKS,)
    found = run_hopper(kernel, grid, [a, b, c, m, n, k, *more], ptx=ptx, **options)
    return found, a.astype(np.float64) @ b.astype(np.float64)
