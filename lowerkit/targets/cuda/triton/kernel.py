"""What a fast family makes: the source of a kernel, and how Triton is to compile it."""

from __future__ import annotations

import msgspec

KERNEL = "lk_kernel"
"""The name of the kernel in its source; the name in an artifact takes its place."""


class TritonKernel(msgspec.Struct, frozen=True):
    """The source of one kernel: ``@triton.jit def lk_kernel(pointers..., descriptors..., dims...)``.

    Attributes:
        family: what wrote it.
        source: the text of a module.
        pointers: what each pointer points to, in Triton's words (``bf16``, ``i8``); all are multiples of 16 bytes.
        dims: how many open extents follow, i64 each.
        warps: of a block.
        stages: how many loads of a loop are under way.
        descriptors: of tensors, ``d0`` and on, such as ``tensordesc<bf16[128, 64]>``: their element and block, from
            the outermost dimension inward; for ``sm_90`` and later.
    """

    family: str
    source: str
    pointers: tuple[str, ...]
    dims: int
    warps: int = 4
    stages: int = 1
    descriptors: tuple[str, ...] = ()

    @property
    def signature(self) -> dict[str, str]:
        """The type of each parameter by its name."""
        pointers = {f"p{number}": f"*{type_}" for number, type_ in enumerate(self.pointers)}
        described = {f"d{number}": type_ for number, type_ in enumerate(self.descriptors)}
        return pointers | described | {f"n{number}": "i64" for number in range(self.dims)}
