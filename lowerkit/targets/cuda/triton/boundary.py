"""Lines between the tiles of a kernel: one that ptxas moves no instruction across, and a fence.

ptxas may move what reads the sums of tensor cores behind that which comes next, and where the sums of the next tile
come next it then waits for each of their products (ptxas C7514, C7515). A trap ends a block of instructions, whether or
not it is ever taken.
"""

from __future__ import annotations

from lowerkit.targets.cuda.triton.writer import KernelWriter

BOUNDARY = "{ .reg .pred never; setp.eq.s32 never, $1, -1; @never trap; mov.b32 $0, $1; }"
"""Returns its operand, which is not -1."""


def write_boundary(writer: KernelWriter, number: str) -> None:
    """Writes the line; ``number`` is an i32 that is never -1, which a compiler must not see."""
    writer.line(f'tl.inline_asm_elementwise("{BOUNDARY}", "=r,r", [{number}], tl.int32, False, 1)')


FENCE = "fence.proxy.async.shared::cta; mov.b32 $0, $1;"
"""Returns its operand."""


def write_fence(writer: KernelWriter, number: str) -> None:
    """Writes the line that lets the TMA unit and tensor cores of the next tile come behind what threads exchanged by
    shared memory for this one, wherever Triton lets both lie; ``number`` is any i32."""
    writer.line(f'tl.inline_asm_elementwise("{FENCE}", "=r,r", [{number}], tl.int32, False, 1)')
