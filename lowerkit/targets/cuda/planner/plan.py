"""A region as launches: every nest of loops a kernel of thousands of threads, values between them in temporaries.

Steps: lk ops become linalg, linalg becomes loops over buffers (as the generic family of the CPU makes them, uncut);
nests that one thread can run without the others share a kernel (:mod:`grouping`); each kernel is written
(:mod:`outline`). A thread computes one element, or one short row where a value is carried along it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from lowerkit.codegen.lower_lk import lower_lk_ops
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.runtimes.cuda.image import Function, Launch
from lowerkit.targets.cpu.generic.bufferize import bufferize
from lowerkit.targets.cpu.generic.long_sums import widen_sums
from lowerkit.targets.cpu.generic.size_bounds import SizeBounds
from lowerkit.targets.cpu.generic.tiling import make_body_function
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.cpu.text.text_builder import element_bytes
from lowerkit.targets.cuda.planned import Kernel, LoopKernel, PlannedRegion
from lowerkit.targets.cuda.planner.grouping import group_nests
from lowerkit.targets.cuda.planner.nests import ParallelLoop
from lowerkit.targets.cuda.planner.outline import KERNEL, outline
from lowerkit.targets.plan import KernelExpr, dim, expression, product
from lowerkit.targets.region_view import RegionView

BLOCK = 128


def plan_region(region: RegionView) -> PlannedRegion:
    """Plans a region.

    Raises:
        UnsupportedError: LK4001, an lk op has no lowering to linalg.
        CodegenError: LK5001, the body does not bufferize, or a size has no bound over the region's dims.
    """
    module = region.clone_module()
    buffers = [_shaped(type_) for type_ in region.buffer_types]
    sizes = _buffer_bytes(buffers)
    count = len(region.operands)
    kernels: dict[str, Kernel] = {}
    launches: list[Launch] = []
    with module.context, ir.Location.unknown():
        try:
            lower_lk_ops(module)
            widen_sums(module, make_body_function(module))
            bufferize(module)
        except ir.MLIRError as error:
            raise CodegenError(
                "LK5001", f"a {region.kind} region cannot be lowered: {error}", location=region.location or None
            ) from error
        body = next(op.operation for op in module.body.operations if op.operation.name == "func.func")
        block = body.regions[0].blocks[0]
        bounds = SizeBounds(list(block.arguments))
        allocations = [op.operation for op in block.operations if op.operation.name == "memref.alloc"]
        temporaries = [_bytes_of(allocation, bounds) for allocation in allocations]
        text = module.operation.get_asm(enable_debug_info=False)
        for group in group_nests(block, lambda loop: _iterations(loop, bounds) is not None):
            threads = product([_iterations(loop, bounds) or 0 for loop in group.nests[0].parallel])
            if threads == 0:
                continue
            kernel = outline(text, group, buffers)
            name = f"{_word(region.kind)}_{hashlib.sha256(kernel.text.encode()).hexdigest()[:16]}"
            kernels[name] = LoopKernel(kernel.text.replace(KERNEL, name))
            pointers = [*kernel.buffers, *(len(buffers) + number for number in kernel.allocations)]
            block = BLOCK if group.nests[0].parallel else 32
            launches.append(Launch(name, pointers, expression("ceildiv", threads, block), block))
        dims = bounds.dim_count
    used = sorted({pointer for launch in launches for pointer in launch.pointers if pointer >= len(buffers)})
    places = {old: len(buffers) + new for new, old in enumerate(used)}
    launches = [
        msgspec.structs.replace(launch, pointers=[places.get(each, each) for each in launch.pointers])
        for launch in launches
    ]
    kept = [temporaries[old - len(buffers)] for old in used]
    note = f"{len(launches)} launch{'' if len(launches) == 1 else 'es'} of plain loops"
    return PlannedRegion(Function(sizes[:count], sizes[count:], kept, dims, launches), kernels, note=note)


def _shaped(type_: ir.RankedTensorType) -> abi.Shaped:
    shape = tuple(None if type_.is_dynamic_dim(axis) else type_.get_dim_size(axis) for axis in range(type_.rank))
    return abi.Shaped(shape, str(type_.element_type))


def _buffer_bytes(buffers: Sequence[abi.Shaped]) -> list[KernelExpr]:
    number = 0
    sizes: list[KernelExpr] = []
    for shaped in buffers:
        extents: list[KernelExpr] = []
        for extent in shaped.shape:
            extents.append(dim(number) if extent is None else extent)
            number += extent is None
        sizes.append(product([*extents, element_bytes(abi.stored_type(shaped.element))]))
    return sizes


def _bytes_of(allocation: ir.Operation, bounds: SizeBounds) -> KernelExpr:
    type_ = ir.MemRefType(allocation.results[0].type)
    sizes = iter(allocation.operands)
    extents = [
        bounds.upper(next(sizes)) if type_.is_dynamic_dim(axis) else type_.get_dim_size(axis)
        for axis in range(type_.rank)
    ]
    return product([*extents, element_bytes(str(type_.element_type))])


def _iterations(loop: ParallelLoop, bounds: SizeBounds) -> KernelExpr | None:
    """How often a loop runs; None where that depends on data."""
    try:
        lower, upper, step = (bounds.exact(value) for value in loop.bounds)
    except CodegenError:
        return None
    return expression("ceildiv", expression("sub", upper, lower), step)


def _word(kind: str) -> str:
    """The kind of a region as part of a name in PTX."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in kind) or "kernel"
