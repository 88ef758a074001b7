"""Images of another size on the simulated device, against the op's reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import ResizeOp
from lowerkit.dialect.ops.resize import NEAREST_ROUNDINGS, RESIZE_COORDINATES
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.windows.resize import ResizeFamily
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.region_kernels import random
from tests.support.targets.cuda_kernels import compile_cuda
from tests.support.targets.cuda_rows import with_epilogue
from tests.support.targets.cuda_windows import hold

Shape = Sequence[int | None]


def resize(shape: Shape, size: Sequence[int], mode: str, element: str = "bf16", **options: Any) -> RegionView:
    """A resize, channels last."""
    options = {"channels_last": True} | options
    return region([(shape, element)], lambda x: ResizeOp.build(x, mode=mode, size=size, **options))


# What a case is telling for: up and down, tails, the number of dims, layouts, types.
CASES: dict[str, tuple[Shape, Sequence[int], str, str, dict[str, Any]]] = {
    "twice as large": ((1, 5, 6, 40), (10, 12), "linear", "bf16", {}),
    "smaller, tails": ((2, 9, 7, 5), (4, 3), "linear", "f32", {"coordinates": "align_corners"}),
    "one pixel": ((1, 5, 6, 16), (1, 1), "linear", "f16", {"coordinates": "pytorch_half_pixel"}),
    "from one pixel": ((1, 1, 1, 24), (5, 4), "linear", "bf16", {}),
    "a scale of its own": ((1, 5, 6, 8), (7, 11), "linear", "f32", {"scales": [1.5, 1.9]}),
    "one dim stays": ((1, 5, 6, 8), (5, 9), "linear", "f32", {}),
    "one dim": ((2, 9, 20), (13,), "linear", "bf16", {}),
    "three dims": ((1, 3, 2, 4, 8), (5, 4, 3), "linear", "bf16", {}),
    "channels second": ((2, 5, 6, 7), (9, 21), "linear", "bf16", {"channels_last": False}),
    "linear of f64": ((1, 4, 5, 6), (7, 8), "linear", "f64", {}),
    "cubic": ((1, 6, 5, 20), (11, 13), "cubic", "f32", {}),
    "cubic, bf16, corners": ((1, 6, 5, 3), (9, 4), "cubic", "bf16", {"coordinates": "align_corners"}),
    "cubic, channels second": ((1, 3, 6, 5), (9, 12), "cubic", "f16", {"channels_last": False}),
    "nearest": ((1, 5, 6, 40), (10, 12), "nearest", "bf16", {"coordinates": "asymmetric"}),
    "nearest of bytes": ((2, 5, 6, 7), (3, 11), "nearest", "i8", {"coordinates": "asymmetric"}),
    "nearest of bits": ((2, 5, 6, 7), (9, 5), "nearest", "i1", {"channels_last": False}),
    "nearest of i64": ((1, 3, 6, 7), (9, 5), "nearest", "i64", {}),
}


@pytest.mark.variants("level")
@pytest.mark.parametrize(
    ("name", "level"), [*((name, "sm_90") for name in CASES), ("cubic", "sm_80"), ("twice as large", "sm_80")]
)
def test_matches_the_reference(name: str, level: str) -> None:
    shape, size, mode, element, options = CASES[name]
    plan = hold(resize(shape, size, mode, element, **options), "resize", [[each or 0 for each in shape]], level)
    (launch,) = plan.function.launches
    assert (launch.flops != 0) == (mode != "nearest")
    assert launch.read and launch.written


@pytest.mark.parametrize("coordinates", RESIZE_COORDINATES)
@pytest.mark.parametrize("rounding", NEAREST_ROUNDINGS)
def test_every_way_to_round(rounding: str, coordinates: str) -> None:
    """Sizes whose positions lie between two elements, and steps that f32 cannot hold exactly."""
    sizes, out = (49, 3, 6), (65, 10, 4)
    view = resize((1, *sizes, 1), out, "nearest", "i32", coordinates=coordinates, nearest_rounding=rounding)
    hold(view, "resize", [], inputs=[np.arange(49 * 18, dtype=np.int32).reshape(1, *sizes, 1)])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", RESIZE_COORDINATES)
def test_open_images(mode: str, coordinates: str) -> None:
    view = resize((None, None, None, 8), (7, 4), mode, "f32", coordinates=coordinates)
    for batch, height, width in ((2, 5, 9), (1, 1, 4), (1, 7, 2), (0, 3, 3)):
        hold(view, "resize", [(batch, height, width, 8)], "sm_80")


@pytest.mark.parametrize("shape", [(1, 6, 1, 4), (1, None, 1, 4)])
def test_no_neighbour_is_read_where_the_size_stays(shape: Shape) -> None:
    """Zero times infinity would be NaN."""
    x = random((1, 6, 1, 4), "f32")
    x[0, 3] = np.inf
    hold(resize(shape, (6, 1), "linear", "f32"), "resize", [], inputs=[x])


def test_an_epilogue() -> None:
    view = with_epilogue(
        "resize", ["tensor<1x5x6x24xbf16>"], [1, 10, 12, 24], "bf16",
        'channels_last = true, coordinates = "half_pixel", mode = "linear", nearest_rounding = "floor", '
        "scales = array<f64>, size = array<i64: 10, 12>",
    )  # fmt: skip
    hold(view, "resize", [tuple(each.type.shape) for each in view.operands])


def test_refusals() -> None:
    for view, reason in (
        (resize((1, 5, 5, None), (3, 3), "linear"), "an open number of channels"),
        (resize((0, 5, 5, 4), (3, 3), "linear"), "nothing to compute"),
    ):
        answer = ResizeFamily().plan(view, "sm_90")
        assert isinstance(answer, Refusal)
        assert reason in answer.reason


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(
    ("mode", "shape", "size", "layout"),
    [
        ("linear", (8, 128, 128, 256), (256, 256), True),
        ("nearest", (8, 64, 64, 512), (128, 128), True),
        ("cubic", (8, 3, 224, 224), (448, 448), False),
    ],
    ids=["linear", "nearest", "cubic"],
)
def test_nothing_is_spilled_at_full_size(
    mode: str, shape: Shape, size: Sequence[int], layout: bool, level: str
) -> None:
    if ptxas.find_ptxas() is None:
        pytest.skip("there is no ptxas")
    view = resize(shape, size, mode, channels_last=layout)
    (variant,) = unpack(compile_cuda(view, level, fast=True).code, {}).variants
    assert all(place.kernel.spills == 0 < place.kernel.registers for place in variant.kernels.values())
