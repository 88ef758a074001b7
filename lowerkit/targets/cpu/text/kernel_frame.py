"""The frame around a kernel body: buffers and sizes of the region, the loop over tasks, the finished plan.

A size is known in two forms: as an Index inside the kernel (an int, or the value of a kernel dim), and as an
expression over the kernel's dims for what the runtime computes before the call (task count, scratch).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from lowerkit.mlir import ir
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import DeviceCode, KernelExpr, dim

__all__ = ["KernelFrame", "element_name"]

SUPPORTED_ELEMENTS = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "i1")


def element_name(type_: ir.Type) -> str:
    """Returns the element type of a tensor type as text, such as ``bf16``."""
    return str(ir.ShapedType(type_).element_type)


class KernelFrame:
    """Buffers, sizes and text of one kernel.

    Attributes:
        text: where the body is written; the prologue is already there.
        buffers: operands, then results.
        sizes: the sizes of each buffer as indices.
        extents: the sizes of each buffer as expressions for the runtime.
        scratch: the per-thread scratch as f32.
    """

    def __init__(self, types: Sequence[ir.RankedTensorType], invariant: bool = False) -> None:
        self.text = KernelText()
        self.text.invariant = invariant
        self.buffers: list[Buffer] = []
        self.sizes: list[list[Index]] = []
        self.extents: list[list[KernelExpr]] = []
        self.scratch = Buffer(Value("%scratch", "!llvm.ptr"), "f32")
        number = 0
        for index, type_ in enumerate(types):
            self.text.lines.append(abi.load_pointer(f"pointer{index}", index).rstrip("\n"))
            self.buffers.append(Buffer(Value(f"%pointer{index}", "!llvm.ptr"), element_name(type_)))
            sizes: list[Index] = []
            extents: list[KernelExpr] = []
            for axis in range(type_.rank):
                if type_.is_dynamic_dim(axis):
                    self.text.lines.append(abi.load_dim(f"dim{number}", number).rstrip("\n"))
                    sizes.append(Value(f"%dim{number}", "i64"))
                    extents.append(dim(number))
                    number += 1
                else:
                    sizes.append(type_.get_dim_size(axis))
                    extents.append(type_.get_dim_size(axis))
            self.sizes.append(sizes)
            self.extents.append(extents)

    @contextmanager
    def tasks(self) -> Generator[Value]:
        """Opens the loop over the tasks of this call."""
        with self.text.span(Value("%task_begin", "i64"), Value("%task_end", "i64")) as loop:
            yield loop.index

    def plan(
        self, family: str, task_count: KernelExpr = 1, scratch_bytes: KernelExpr = 0, note: str = ""
    ) -> DeviceCode:
        """Returns the finished plan."""
        return DeviceCode(
            family=family,
            payload=abi.kernel_module(self.text.text()),
            task_count=task_count,
            scratch_bytes=scratch_bytes,
            note=note,
        )
