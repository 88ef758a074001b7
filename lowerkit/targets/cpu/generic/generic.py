"""The family that accepts every region: linalg, bufferization, loops, and LLVM's vectorizer.

It is the floor under the hand-written families: correct for any body and any shape, parallel where the region ends in
one structured op, and as fast as LLVM makes plain loops. f32 functions of the math dialect become the same polynomials
as in the other families, so that LLVM can vectorize them and all families agree.
"""

from __future__ import annotations

from typing import ClassVar

from lowerkit.codegen.lower_lk import lower_lk_ops
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.generic.bufferize import assemble, bufferize
from lowerkit.targets.cpu.generic.long_sums import widen_sums
from lowerkit.targets.cpu.generic.math import expand_math
from lowerkit.targets.cpu.generic.tiling import make_body_function, tile_root
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView


class GenericFamily(KernelFamily):
    """Any region body that bufferizes."""

    name: ClassVar[str] = "generic"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan; never refuses.

        Raises:
            UnsupportedError: LK4001, an lk op has no lowering to linalg.
            CodegenError: LK5001, the body does not bufferize, or a temporary has no bounded size.
        """
        module = region.clone_module()
        buffers = [_shaped(type_) for type_ in region.buffer_types]
        with module.context, ir.Location.unknown():
            try:
                lower_lk_ops(module)
                widen_sums(module, make_body_function(module))
                tiling = tile_root(module)
                bufferize(module)
            except ir.MLIRError as error:
                raise CodegenError(
                    "LK5001", f"a {region.kind} region cannot be lowered: {error}", location=region.location or None
                ) from error
            kernel = assemble(module, buffers, len(region.operands), None if tiling is None else tiling.size)
            text = expand_math(kernel.mlir)
        note = "one task" if kernel.task_count == 1 else f"tasks of {tiling.size if tiling else 1} iterations"
        return DeviceCode(self.name, text, kernel.task_count, kernel.scratch_bytes, note=f"plain loops, {note}")


def _shaped(type_: ir.RankedTensorType) -> abi.Shaped:
    shape = tuple(None if type_.is_dynamic_dim(axis) else type_.get_dim_size(axis) for axis in range(type_.rank))
    return abi.Shaped(shape, str(type_.element_type))
