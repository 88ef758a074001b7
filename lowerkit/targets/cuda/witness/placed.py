"""A planned region with its sizes known: the bytes of each buffer, the dims, the blocks of each launch.

Both witnesses launch by these, each buffer in memory of its own, so that neither the image of an artifact nor its
memory plan has a part in what they say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.codegen.shapes import result_shapes
from lowerkit.dialect.types import numpy_dtype
from lowerkit.runtimes.cuda.image import Launch
from lowerkit.runtimes.expressions import evaluate
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.region_view import RegionView

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PlacedBuffer:
    """A buffer of a region.

    Attributes:
        name: as messages have it: ``operand 0``, ``result 0``, ``temporary 0``.
        size: bytes.
        data: what it holds before: an operand in the layout that its kernels want, a result that is changed in place
            what its operand holds; None for the others.
        writable: whether kernels may write it.
    """

    name: str
    size: int
    data: bytes | None
    writable: bool


@dataclass(frozen=True)
class PlacedLaunch:
    """A launch as it was planned, and how many blocks that is."""

    launch: Launch
    blocks: int


@dataclass(frozen=True)
class PlacedRegion:
    """See the module.

    Attributes:
        planned: the region.
        buffers: operands, results, temporaries, in the order of their numbers.
        results: type and shape of each result.
        dims: the open extents.
        launches: in order, those of no blocks left out.
    """

    planned: PlannedRegion
    buffers: list[PlacedBuffer]
    results: list[tuple[np.dtype[Any], tuple[int, ...]]]
    dims: list[int]
    launches: list[PlacedLaunch]

    @property
    def kernels(self) -> str:
        """Its kernels, for people: their names, or how many there are."""
        names = list(self.planned.kernels)
        return ", ".join(names) if len(names) < 3 else f"{len(names)} kernels"

    def arrays(self, contents: Sequence[bytes]) -> list[Array]:
        """Returns the results of the region, given the bytes of each."""
        pairs = zip(contents, self.results, strict=True)
        return [np.frombuffer(data, np.uint8).view(kind).reshape(shape) for data, (kind, shape) in pairs]


def place_region(region: RegionView, planned: PlannedRegion, inputs: Sequence[Array]) -> PlacedRegion:
    """Returns a planned region on these inputs.

    Args:
        region: what was planned.
        planned: its launches.
        inputs: an array for each operand, as the region says; weights are brought into their layouts here.

    Raises:
        UnsupportedError: a shape of a result depends on data.
    """
    kinds = [numpy_dtype(type_.element_type) for type_ in region.results]
    shapes = [
        tuple(evaluate(extent, {}) for extent in shape)
        for shape in result_shapes(region, [array.shape for array in inputs])
    ]
    dims = [
        size
        for shape, type_ in zip([*(array.shape for array in inputs), *shapes], region.buffer_types, strict=True)
        for axis, size in enumerate(shape)
        if type_.is_dynamic_dim(axis)
    ]
    function, layouts = planned.function, planned.layouts()
    packed = [layouts[number].apply(array) if number in layouts else array for number, array in enumerate(inputs)]
    buffers = [PlacedBuffer(f"operand {n}", array.nbytes, array.tobytes(), False) for n, array in enumerate(packed)]
    before = {number: packed[operand].tobytes() for number, operand in function.in_place.items()}
    for number, size in enumerate(function.results):
        buffers.append(PlacedBuffer(f"result {number}", evaluate(size, {}, dims), before.get(number), True))
    for number, size in enumerate(function.temporaries):
        buffers.append(PlacedBuffer(f"temporary {number}", evaluate(size, {}, dims), None, True))
    counted = [PlacedLaunch(launch, evaluate(launch.blocks, {}, dims)) for launch in function.launches]
    results = list(zip(kinds, shapes, strict=True))
    return PlacedRegion(planned, buffers, results, dims, [each for each in counted if each.blocks > 0])
