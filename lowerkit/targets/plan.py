"""What a target makes of a function: code that its device runs, or the reason why it does not take it.

Vocabulary: a *region* is an anchor op with its fused epilogue; a *family* is one way to write kernels (a GEMM, a
row-wise norm); a *task* is the unit that a pool of threads splits: a kernel of the host runs tasks
``[task_begin, task_end)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowerkit.targets.packing import Packing

# An int, ("dim", i) for the i-th dynamic dim of the kernel, or (operation, a, b) over expressions.
KernelExpr = Any


@dataclass(frozen=True)
class DeviceCode:
    """The code of one function, and how to call it.

    Attributes:
        family: what wrote it: a name for the ledger.
        payload: what :meth:`~lowerkit.targets.target.Target.link` takes. Bytes, as the device loads them; of the CPU
            the text of a ``builtin.module`` with one public function ``kernel(buffers: !llvm.ptr, dims: !llvm.ptr,
            task_begin: i64, task_end: i64, scratch: !llvm.ptr)``. Equal payloads are linked once.
        task_count: number of tasks, an expression over the kernel's dims; leaves are ints and ``("dim", i)``.
        scratch_bytes: bytes of 64-byte aligned scratch that each thread needs, an expression likewise.
        packings: operand index -> layout in which that weight's bytes are handed to the kernel.
        note: why this code was chosen, shown by ``lowerkit inspect``.
        in_place: result number -> the operand whose content that result holds before the kernel starts. The kernel
            changes it and never reads the operand itself; the two may be the same memory.
        refusals: (family, reason) of those that were asked before.
    """

    family: str
    payload: str | bytes
    task_count: KernelExpr = 1
    scratch_bytes: KernelExpr = 0
    packings: Mapping[int, Packing] = field(default_factory=dict[int, Packing])
    note: str = ""
    in_place: Mapping[int, int] = field(default_factory=dict[int, int])
    refusals: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The payload of code that is text."""
        assert isinstance(self.payload, str), f"the code of {self.family} is not text"
        return self.payload


@dataclass(frozen=True)
class Refusal:
    """Why a function, a region or an op is not taken, in words for the ledger (``rank 5 input; at most 4``).

    Attributes:
        reason: the words.
        of_extents: whether the same ops with other extents are taken, so that a part may be where the whole is not.
    """

    reason: str
    of_extents: bool = False


@dataclass(frozen=True)
class LinkSettings:
    """How to link.

    Attributes:
        workers: processes; None is one for each core this process may use.
        use_cache: read and write the caches on disk.
        on_progress: called with a line for people.
    """

    workers: int | None = None
    use_cache: bool = True
    on_progress: Callable[[str], None] | None = None


@dataclass(frozen=True)
class LinkedCode:
    """The code of all functions of a target.

    Attributes:
        data: what the artifact holds.
        entries: where each code starts in it.
        sizes: its bytes from there on; 0 where the loader does not need them.
        fields: what the manifest says of it, by field name.
        remarks: what a user should know.
    """

    data: bytes
    entries: Sequence[int]
    sizes: Sequence[int]
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    remarks: Sequence[str] = ()


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


def total(terms: Iterable[KernelExpr]) -> KernelExpr:
    """Returns the sum of ``terms``."""
    result: KernelExpr = 0
    for term in terms:
        result = expression("add", result, term)
    return result


def substitute_dims(expr: KernelExpr, dims: Sequence[Any]) -> Any:
    """Returns ``expr`` with each ``("dim", i)`` replaced by ``dims[i]`` (an int or an expression over symbols)."""
    if isinstance(expr, int | str):
        return expr
    operation = expr[0]
    if operation == "dim":
        return dims[expr[1]]
    return expression(operation, substitute_dims(expr[1], dims), substitute_dims(expr[2], dims))
