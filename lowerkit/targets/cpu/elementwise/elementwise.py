"""The family of regions that are one elementwise ``linalg.generic``: arithmetic, casts, broadcasts, permuted copies."""

from __future__ import annotations

from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.elementwise.contiguous import choose_lanes, emit_rows
from lowerkit.targets.cpu.elementwise.loop_nest import ElementwiseNest, collapse
from lowerkit.targets.cpu.elementwise.transposed import emit_narrow, emit_square, narrow_rows, square_rows
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text.kernel_frame import SUPPORTED_ELEMENTS, KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index
from lowerkit.targets.cpu.text.linear_access import Access, linear_access
from lowerkit.targets.cpu.vector.body import VectorBody
from lowerkit.targets.cpu.vector.epilogue import generic_maps, is_parallel, read_inputs
from lowerkit.targets.plan import DeviceCode, KernelExpr, Refusal
from lowerkit.targets.region_view import RegionView

__all__ = ["ElementwiseFamily", "emit_nest"]


class ElementwiseFamily(KernelFamily):
    """One all-parallel ``linalg.generic`` with linear indexing maps.

    Takes any rank, several results, broadcasts, permutations, ``linalg.index`` and dynamic dims. Refuses reductions,
    bodies with ops that have no vector form (``tensor.extract``), and operands computed inside the region.
    """

    name: ClassVar[str] = "elementwise"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not one elementwise generic."""
        if region.anchor is not None:
            return Refusal(f"the region is anchored by {region.anchor.operation.name}")
        if region.epilogue is None:
            return Refusal("the region is not one linalg.generic")
        generic = region.epilogue.operation
        frame = KernelFrame(region.buffer_types, region.invariant)
        nest = read_generic(region, generic, frame)
        return nest if isinstance(nest, Refusal) else emit_nest(self.name, frame, nest, cpu)


def emit_nest(family: str, frame: KernelFrame, nest: ElementwiseNest, cpu: CpuFeatures) -> DeviceCode | Refusal:
    """Chooses the way to walk a nest and returns the plan."""
    for access in nest.outputs:
        if access.buffer.element not in SUPPORTED_ELEMENTS:
            return Refusal(f"results of {access.buffer.element}")
    if (rows := narrow_rows(nest)) is not None:
        lanes = choose_lanes(nest, cpu.vector_bits)
        return frame.plan(family, emit_narrow(frame, nest, rows, lanes), note=f"interleaves rows of {lanes} lanes")
    if (rows := square_rows(nest)) is not None:
        tasks, scratch = emit_square(frame, nest, rows, cpu.vector_bits)
        return frame.plan(family, tasks, scratch, note="transposes square tiles in registers")
    lanes = choose_lanes(nest, cpu.vector_bits)
    sizes = " x ".join(str(group.size) for group in nest.groups) or "1"
    return frame.plan(family, emit_rows(frame, nest, lanes), note=f"{lanes} lanes over {sizes}")


def read_generic(region: RegionView, generic: ir.Operation, frame: KernelFrame) -> ElementwiseNest | Refusal:
    """Reads a region of one generic into a nest."""
    if generic.name != "linalg.generic" or not is_parallel(generic):
        return Refusal(f"{generic.name} is not an elementwise generic")
    body = VectorBody(generic)
    if body.unsupported is not None:
        return Refusal(body.unsupported)
    inputs = read_inputs(generic, body, frame, None)
    if isinstance(inputs, Refusal):
        return inputs
    maps = generic_maps(generic)
    result_maps = maps[len(maps) - len(generic.results) :]
    yielded = region.returned
    places: list[Access | None] = [None] * len(generic.results)
    for number, value in enumerate(yielded):
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.operation != generic:
            return Refusal("the region yields a value that is not the generic's")
        result = ir.OpResult(value).result_number
        buffer = len(region.operands) + number
        map_ = result_maps[result]
        if not map_.is_projected_permutation or len(map_.results) != map_.n_dims:
            return Refusal(f"result {number} is stored through the map {map_}")
        if places[result] is not None:
            return Refusal("one value is yielded twice")
        places[result] = linear_access(frame.text, map_, frame.buffers[buffer], frame.sizes[buffer])
    outputs = [place for place in places if place is not None]
    if len(outputs) != len(places):
        return Refusal("a result of the generic is not yielded")
    sizes: list[Index] = [1] * maps[0].n_dims
    extents: list[KernelExpr] = [1] * maps[0].n_dims
    buffer = len(region.operands) + [ir.OpResult(value).result_number for value in yielded].index(0)
    for position, expression in enumerate(result_maps[0].results):
        dim = ir.AffineDimExpr(expression).position
        sizes[dim], extents[dim] = frame.sizes[buffer][position], frame.extents[buffer][position]
    return collapse(frame.text, sizes, extents, body, inputs, outputs)
