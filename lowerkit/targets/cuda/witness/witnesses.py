"""The witnesses for a region of the CUDA target, in the order of the layers."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.errors import LowerkitError
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.cuda.witness.interpreted import LAYER, NAME, interpreter_witness
from lowerkit.targets.cuda.witness.placed import Array, place_region
from lowerkit.targets.cuda.witness.ptx_alone import ptx_witness
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.witness import Witness


def witnesses(region: RegionView, inputs: Sequence[Array], level: str) -> Sequence[Witness]:
    """Returns Triton's interpreter and the PTX alone on the inputs of a region.

    Args:
        region: as the target compiles it.
        inputs: an array for each operand; weights as the region says, not as kernels want them.
        level: for which it is compiled.
    """
    try:
        planned, _ = select_kernels(region, level)
        placed = place_region(region, planned, inputs)
    except LowerkitError as error:
        return [Witness(NAME, LAYER, "nobody", missing=error.message)]
    return [interpreter_witness(placed), ptx_witness(placed, level)]
