"""What the target keeps of a region until it is linked: the launches, and the text of each kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from lowerkit.runtimes.cuda.image import Function, Launch, Product
from lowerkit.runtimes.cuda.tensor_maps import TensorMap
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.tensors import Frame
from lowerkit.targets.packing import Packing
from lowerkit.targets.plan import KernelExpr


class LoopKernel(msgspec.Struct, frozen=True, tag="loops"):
    """A kernel of plain loops, in MLIR, under its final name."""

    mlir: str


class FastKernel(msgspec.Struct, frozen=True, tag="triton"):
    """A kernel in Triton."""

    kernel: TritonKernel


Kernel = LoopKernel | FastKernel


class PlannedRegion(msgspec.Struct, frozen=True):
    """The launches of a region at one level.

    Attributes:
        function: the launches; what Triton adds to them (shared memory, null pointers) is known when it is linked.
        kernels: by name.
        family: what wrote them.
        note: why they look as they do.
        packings: operand number -> kind and parameters of the layout in which that weight is handed over.
    """

    function: Function
    kernels: Mapping[str, Kernel]
    family: str = "threads"
    note: str = ""
    packings: Mapping[int, tuple[str, tuple[tuple[str, int], ...]]] = {}

    def asking(self, asked: str) -> PlannedRegion:
        """Returns the region with ``asked`` in its first launch: what its tile was chosen for."""
        first, *others = self.function.launches
        launches = [msgspec.structs.replace(first, asked=asked), *others]
        return msgspec.structs.replace(self, function=msgspec.structs.replace(self.function, launches=launches))

    def layouts(self) -> dict[int, Packing]:
        """Returns the layouts of weights."""
        return {number: Packing(kind, parameters) for number, (kind, parameters) in self.packings.items()}


def kernel_name(kernel: TritonKernel) -> str:
    """Returns the name of a kernel in an artifact: its family and the hash of its text."""
    return f"{kernel.family}_{hashlib.sha256(msgspec.json.encode(kernel)).hexdigest()[:16]}"


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch of a kernel in Triton.

    Attributes:
        kernel: it.
        pointers: its first parameters: numbers of operands, results, temporaries of the region.
        blocks: of the grid.
        flops, read, written, exponentials: see :class:`~lowerkit.runtimes.cuda.image.Launch`.
        computes: its ``product``.
        maps: a tensor for each descriptor of the kernel; what the compiler says of them is known when it is linked.
        asked, shared_out: see :class:`~lowerkit.runtimes.cuda.image.Launch`.
    """

    kernel: TritonKernel
    pointers: Sequence[int]
    blocks: KernelExpr
    flops: KernelExpr = 0
    read: KernelExpr = 0
    written: KernelExpr = 0
    exponentials: KernelExpr = 0
    computes: Product | None = None
    asked: str = ""
    shared_out: bool = False
    maps: Sequence[TensorMap] = ()


def planned_region(
    frame: Frame,
    launches: Sequence[PlannedLaunch],
    temporaries: Sequence[KernelExpr] = (),
    *,
    note: str,
    packings: Mapping[int, Packing] | None = None,
) -> PlannedRegion:
    """Returns a region that is some launches, in order.

    Args:
        frame: of the region.
        launches: in order; the first one names the family.
        temporaries: bytes of each; their numbers follow those of the buffers.
        note: see :class:`PlannedRegion`.
        packings: operand number -> layout.
    """
    operands = [buffer.bytes for buffer in frame.buffers[: len(frame.region.operands)]]
    results = [buffer.bytes for buffer in frame.results]
    return _region(operands, results, temporaries, launches, note, packings)


def one_kernel(
    kernel: TritonKernel,
    buffers: Sequence[KernelExpr],
    operands: int,
    blocks: KernelExpr,
    *,
    note: str,
    flops: KernelExpr = 0,
    read: KernelExpr = 0,
    written: KernelExpr = 0,
    exponentials: KernelExpr = 0,
    computes: Product | None = None,
    packings: Mapping[int, Packing] | None = None,
) -> PlannedRegion:
    """Returns a region that is one launch of a kernel over all its buffers.

    Args:
        kernel: it.
        buffers: bytes of operands, then of results.
        operands: how many of them are operands.
        blocks: of the grid.
        note: see :class:`PlannedRegion`.
        flops, read, written: see :class:`~lowerkit.runtimes.cuda.image.Launch`.
        packings: operand number -> layout.
    """
    launch = PlannedLaunch(kernel, range(len(buffers)), blocks, flops, read, written, exponentials, computes)
    return _region(buffers[:operands], buffers[operands:], (), [launch], note, packings)


def _region(
    operands: Sequence[KernelExpr],
    results: Sequence[KernelExpr],
    temporaries: Sequence[KernelExpr],
    launches: Sequence[PlannedLaunch],
    note: str,
    packings: Mapping[int, Packing] | None,
) -> PlannedRegion:
    """Returns the region of some launches, given the bytes of its buffers."""
    kernels: dict[str, Kernel] = {}
    described: list[Launch] = []
    for each in launches:
        assert len(each.maps) == len(each.kernel.descriptors), "a tensor for each descriptor"
        name = kernel_name(each.kernel)
        kernels[name] = FastKernel(each.kernel)
        described.append(
            Launch(
                name, list(each.pointers), each.blocks, 32 * each.kernel.warps, flops=each.flops, read=each.read,
                written=each.written, exponentials=each.exponentials, product=each.computes, asked=each.asked,
                shared_out=each.shared_out, maps=list(each.maps),
            )
        )  # fmt: skip
    packed = {number: (each.kind, each.parameters) for number, each in (packings or {}).items()}
    dims = launches[0].kernel.dims
    function = Function(list(operands), list(results), list(temporaries), dims, described)
    return PlannedRegion(function, kernels, launches[0].kernel.family, note, packed)
