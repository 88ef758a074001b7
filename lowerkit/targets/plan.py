"""What a kernel emitter hands back: a plan, or the reason why it does not take the region.

Vocabulary: a *region* is an anchor op with its fused epilogue; a *family* is one way to write kernels (a GEMM, a
row-wise norm); a *plan* is the MLIR text of one kernel with what the runtime must know to call it; a *task* is the
unit that the thread pool splits: the kernel runs tasks ``[task_begin, task_end)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from lowerkit.targets.cpu.gemm.weight_packing import Packing
    from lowerkit.targets.cpu.levels import CpuFeatures
    from lowerkit.targets.region_view import RegionView

# An int, ("dim", i) for the i-th dynamic dim of the kernel, or (operation, a, b) over expressions.
KernelExpr = Any


@dataclass(frozen=True)
class KernelPlan:
    """One kernel: its text, and how to call it.

    Attributes:
        family: name of the family that wrote it.
        mlir: text of a ``builtin.module`` with one public function ``kernel(buffers: !llvm.ptr, dims: !llvm.ptr,
            task_begin: i64, task_end: i64, scratch: !llvm.ptr)``. Equal texts are compiled once.
        task_count: number of tasks, an expression over the kernel's dims; leaves are ints and ``("dim", i)``.
        scratch_bytes: bytes of 64-byte aligned scratch that each thread needs, an expression likewise.
        packings: operand index -> layout in which that weight's bytes are handed to the kernel.
        note: why this kernel was chosen, shown by ``lowerkit inspect``.
        in_place: result number -> the operand whose content that result holds before the kernel starts. The kernel
            changes it and never reads the operand itself; the two may be the same memory.
    """

    family: str
    mlir: str
    task_count: KernelExpr = 1
    scratch_bytes: KernelExpr = 0
    packings: Mapping[int, Packing] = field(default_factory=dict[int, "Packing"])
    note: str = ""
    in_place: Mapping[int, int] = field(default_factory=dict[int, int])


@dataclass(frozen=True)
class Refusal:
    """Why a family does not take a region, in words for the ledger (``rank 5 input; at most 4``)."""

    reason: str


class KernelFamily(ABC):
    """One way to write kernels. Stateless: the same region and level give the same plan."""

    name: ClassVar[str]

    @abstractmethod
    def plan(self, region: RegionView, cpu: CpuFeatures) -> KernelPlan | Refusal:
        """Returns the plan for ``region`` on ``cpu``, or the reason for not taking it."""


def dim(index: int) -> KernelExpr:
    """Returns the leaf that stands for the ``index``-th dynamic dim of a kernel."""
    return ("dim", index)


def expression(operation: str, left: KernelExpr, right: KernelExpr) -> KernelExpr:
    """Returns ``operation(left, right)``, folded where both sides are ints or one is neutral.

    Args:
        operation: ``add``, ``sub``, ``mul``, ``floordiv``, ``ceildiv``, ``mod``, ``min`` or ``max``.
    """
    if isinstance(left, int) and isinstance(right, int):
        return _FOLDS[operation](left, right)
    if operation in ("mul", "floordiv", "ceildiv") and right == 1:
        return left
    if operation == "mul" and left == 1:
        return right
    if operation == "mul" and (left == 0 or right == 0):
        return 0
    if operation in ("add", "sub") and right == 0:
        return left
    if operation == "add" and left == 0:
        return right
    if operation in ("min", "max") and left == right:
        return left
    return (operation, left, right)


_FOLDS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def product(factors: Sequence[KernelExpr]) -> KernelExpr:
    """Returns the product of ``factors``, ints gathered into one."""
    constant = 1
    result: KernelExpr = 1
    for factor in factors:
        if isinstance(factor, int):
            constant *= factor
        else:
            result = expression("mul", result, factor)
    return expression("mul", result, constant)


def substitute_dims(expr: KernelExpr, dims: Sequence[Any]) -> Any:
    """Returns ``expr`` with each ``("dim", i)`` replaced by ``dims[i]`` (an int or an expression over symbols)."""
    if isinstance(expr, int | str):
        return expr
    operation = expr[0]
    if operation == "dim":
        return dims[expr[1]]
    return expression(operation, substitute_dims(expr[1], dims), substitute_dims(expr[2], dims))
