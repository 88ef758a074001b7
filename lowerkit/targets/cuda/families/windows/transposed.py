"""Transposed convolutions on tensor cores: see :mod:`~lowerkit.targets.cuda.families.windows.transposed_kernel`."""

from __future__ import annotations

from typing import ClassVar

from lowerkit.runtimes.cuda.image import Product
from lowerkit.targets.cuda.families.windows.conv_tiles import choose_conv_tile
from lowerkit.targets.cuda.families.windows.transposed_kernel import tiles_of, write_transposed
from lowerkit.targets.cuda.families.windows.transposed_problem import Transposed, read_transposed
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.model.convolutions import ConvShape
from lowerkit.targets.cuda.model.measured_tiles import asked_text
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.tensors import Frame
from lowerkit.targets.plan import Refusal, product, total
from lowerkit.targets.region_view import RegionView

_OPEN = 4096
_LEAST_DEPTH = 16


class TransposedFamily(KernelFamily):
    """``lk.conv_transpose`` of floats, channels last or second, in groups or not.

    Batch and images may be open. Bytes: the input about once, since the phases of a part of it run beside each other,
    the filter and the result once.
    """

    name: ClassVar[str] = "conv_transpose"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        frame = Frame(region)
        read = read_transposed(region, frame, depthwise=False)
        if isinstance(read, Refusal):
            return read
        problem, epilogue = read
        asked = asked_transposed(problem, epilogue)
        tile = choose_conv_tile(asked, level)
        kernel = write_transposed(self.name, frame, problem, tile, epilogue)
        used = {problem.slide.x.pointer, problem.filter.pointer} | epilogue.read_operands()
        launch = PlannedLaunch(
            kernel,
            range(len(frame.buffers)),
            tiles_of(problem, tile),
            problem.flops,
            total([frame.buffers[number].bytes for number in sorted(used)]),
            total([each.bytes for each in frame.results]),
            computes=Product(
                problem.rows, problem.outputs, asked.taps * problem.depth, asked.groups, asked.element,
                (tile.m, tile.n, tile.k), tile.stages,
            ),
        )  # fmt: skip
        note = f"{problem.phases} phases, tiles of {tile.m} x {tile.n} x {tile.k}"
        note += f", {tile.warps} warps, {tile.stages} stages"
        planned = planned_region(frame, [launch], note=note, packings=problem.packings)
        return planned.asking(asked_text(asked))


def asked_transposed(problem: Transposed, epilogue: Epilogue) -> ConvShape:
    """Returns what a tile is chosen for: the phases are so many groups; open extents count as many.

    A step of K stays within a tap: channels that are fewer than a step are filled up.
    """
    rows = problem.rows
    elements = product([*problem.slide.pixel_sizes, problem.slide.channels])
    extra = sum(each.tensor is not None and product(each.tensor.sizes) == elements for each in epilogue.inputs)
    return ConvShape(
        problem.slide.x.element,
        rows if isinstance(rows, int) else _OPEN,
        problem.outputs,
        problem.groups * problem.phases,
        max(1, problem.slide.taps // problem.phases),
        -(-problem.depth // _LEAST_DEPTH) * _LEAST_DEPTH,
        1,
        False,
        extra,
    )
