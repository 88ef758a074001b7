"""Launches of a program, priced: whose figures count, and what a damaged description of a product does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lowerkit.runtimes.cuda.image import CompiledKernel, Function, ImageError, Kernel, Launch, Product, pack, unpack
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.manifest import DeviceSpec, KernelEntry, ProgramSpec, Signature, Step
from lowerkit.targets.cuda.model.cards import A100, H200
from lowerkit.targets.cuda.model.launches import ProgramReport, default_card, report_program

PTX = b".visible .entry k() { fma.rn.f32 %r1, %r2, %r3, %r4; }"
KERNEL = CompiledKernel(Kernel("threads", registers=40, shared=1024), PTX, b"")


def program(function: Function, flops: Expr, moved: Expr, level: str = "sm_90") -> tuple[ProgramSpec, bytes]:
    """A program of one step on the card and one on the host; the step's dim is ``n``."""
    names = {launch.kernel for launch in function.launches}
    data, (start,) = pack([{level: function}], {(level, name): KERNEL for name in names})
    steps = [
        Step(0, [], ["n"] if function.dims else [], name="sum", location="x.py:3", flops=flops, bytes=moved),
        Step(-1, [], name="copy"),
    ]
    entry = KernelEntry(start, "", "cuda", len(data) - start)
    return ProgramSpec(Signature(), [], steps, [entry], devices=[DeviceSpec("cuda", level)]), data


def launch(**fields: Any) -> Launch:
    return Launch("k", [0, 1], ("ceildiv", ("dim", 0), 128), 128, shared=512, **fields)


def report(launches: list[Launch], flops: Expr = ("mul", "n", 10), moved: Expr = ("mul", "n", 3)) -> ProgramReport:
    function = Function([("mul", ("dim", 0), 4)], [("mul", ("dim", 0), 4)], [], 1, launches)
    return report_program(*program(function, flops, moved), {"n": 1280}, H200)


def test_a_launch_that_states_its_figures_keeps_them() -> None:
    found = report([launch(flops=("mul", ("dim", 0), 7), read=("mul", ("dim", 0), 4), written=100)])
    (each,) = found.launches
    assert (each.flops, each.bytes, each.stated, each.blocks) == (7 * 1280, 4 * 1280 + 100, "launch", 10)
    assert (each.registers, each.shared, each.arithmetic, each.location) == (40, 1536, "f32", "x.py:3")
    assert (found.level, found.elsewhere) == ("sm_90", 1)
    assert found.predicted == each.prediction.total and found.floor == each.prediction.floor


def test_a_silent_launch_has_those_of_its_step_or_of_its_buffers() -> None:
    (each,) = report([launch()]).launches
    assert (each.flops, each.bytes, each.stated) == (12800, 3840, "step")
    (each,) = report([launch()], flops=0, moved=0).launches
    assert (each.flops, each.bytes, each.stated) == (0, 2 * 4 * 1280, "buffers")
    first, second = report([launch(), launch()]).launches
    assert (first.flops, first.bytes, first.stated) == (6400, 2 * 4 * 1280, "buffers")
    assert second.flops == 6400
    first, second = report([launch(flops=10000), launch()]).launches
    assert (first.flops, second.flops) == (10000, 2800)


def test_a_launch_without_blocks_is_none() -> None:
    function = Function([0], [0], [], 1, [launch()])
    assert report_program(*program(function, 0, 0), {"n": 0}, H200).launches == []


def test_product_is_priced_by_its_tiles() -> None:
    product = Product(("dim", 0), 256, 512, 1, "f32", (64, 64, 32), 3)
    plain = launch(flops=2 * 1280 * 256 * 512, read=1 << 20, written=1 << 20)
    priced = msgspec.structs.replace(plain, product=product)
    ((before,), (after,)) = (report([each]).launches for each in (plain, priced))
    assert before.prediction.padding == 0 and before.prediction.floor == after.prediction.floor
    assert after.prediction.l2 > before.prediction.l2  # each tile of A and B is loaded several times
    assert after.prediction.latency > before.prediction.latency


def test_windows_of_an_image_come_out_of_device_memory_once() -> None:
    pixels, channels = 200_000, 64
    product = Product(pixels, channels, 9 * channels, 1, "f32", (64, 64, 32), 3)
    dram_of_image, dram_of_matrix = (
        report([launch(flops=2, read=read, written=pixels * channels * 4, product=product)]).launches[0].prediction.dram
        for read in (pixels * channels * 4, 9 * pixels * channels * 4)
    )
    assert 4 < dram_of_matrix / dram_of_image < 6  # ten times the bytes beside twice


def test_what_goes_between_launches_is_in_no_floor() -> None:
    sizes: list[Expr] = [("mul", ("dim", 0), 4)]
    plain, between = (
        report_program(*program(Function(sizes, sizes, [each], 1, [reading]), 10, 10), {"n": 1280}, H200)
        for each, reading in (
            (1, msgspec.structs.replace(launch(flops=2, read=3 << 20, written=1 << 20), pointers=[0, 1])),
            (3 << 20, msgspec.structs.replace(launch(flops=2, read=3 << 20, written=1 << 20), pointers=[0, 1, 2])),
        )
    )
    (before,), (after,) = plain.launches, between.launches
    assert before.bytes == after.bytes
    assert after.prediction.floor == pytest.approx(before.prediction.floor / 4)
    assert after.prediction.dram == pytest.approx(before.prediction.dram / 4)
    assert after.prediction.l2 == before.prediction.l2


@pytest.mark.parametrize(
    ("product", "words"),
    [
        (Product(1, 1, 1, 1, "f32", (0, 64, 32), 3), "tiles of"),
        (Product(1, 1, 1, 1, "f32", (64, 64, 32), 0), "tiles of"),
        (Product("batch", 1, 1, 1, "f32", (64, 64, 32), 3), "no dim of it"),
    ],
)
def test_a_product_that_is_none_is_refused(product: Product, words: str) -> None:
    function = Function([4], [4], [], 1, [launch(product=product)])
    _, data = program(function, 0, 0)
    with pytest.raises(ImageError, match=words):
        unpack(data, {})


def test_a_product_of_unknown_elements_is_refused() -> None:
    with pytest.raises(ImageError, match="elements 'f7'"):
        report([launch(product=Product(1, 1, 1, 1, "f7", (64, 64, 32), 3))])


def test_card_of_several_levels_is_that_of_the_latest() -> None:
    assert default_card("sm_80,sm_90") is H200
    assert default_card("sm_90,sm_80") is H200
    assert default_card("sm_80") is A100
