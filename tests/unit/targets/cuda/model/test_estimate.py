"""Floors and predictions: cases worked out by hand, and figures that were published for kernels in Triton."""

from __future__ import annotations

import msgspec
import pytest

from lowerkit.targets.cuda.model.cards import A100, CARDS, H100, H200, MATRIX_SHARE, MEMORY_SHARE
from lowerkit.targets.cuda.model.estimate import FILL, STEP, TERMS, TURN, Work, estimate, floor_seconds
from lowerkit.targets.cuda.model.products import GemmTile, Product, predict, product_work

CUBE = Product(8192, 8192, 8192, 1, "bf16")


def test_floor_is_the_roofline() -> None:
    assert floor_seconds(H200, "matrix bf16", CUBE.flops, 3 * 8192 * 8192 * 2) == pytest.approx(2 * 8192**3 / 989.4e12)
    assert floor_seconds(H200, "f32", 1000, 1 << 30) == pytest.approx((1 << 30) / 4.8e12)
    work = product_work(CUBE, GemmTile(128, 256, 64, 8, 3), H200)
    assert work.moved == 3 * 8192 * 8192 * 2
    assert estimate(H200, work).floor == pytest.approx(2 * 8192**3 / 989.4e12)


def test_terms_of_a_launch_by_hand() -> None:
    # 264 blocks of 128 threads on 132 SMs, two at a time: one wave, each SM has two blocks.
    flops = 264 * 1_000_000
    work = Work(kind="f32", flops=flops, moved=1, blocks=264, threads=1024, registers=32)
    found = estimate(H100, work)
    clocks = 1_000_000 / (66.9e12 * MATRIX_SHARE / 132 / 1.83e9)
    assert found.occupancy.resident == 2
    assert found.compute == pytest.approx(2 * clocks / 1.83e9)
    assert (found.padding, found.shared) == (0.0, 0.0)
    assert found.waves == pytest.approx(0.0, abs=1e-12)
    assert found.latency == 0.0  # two blocks of 4518 clocks cover one block and its first load
    assert found.total == pytest.approx(1e-6 + found.compute, rel=1e-6)
    assert found.limit == "compute"


def test_a_block_too_many_costs_a_wave() -> None:
    one = Work(kind="f32", flops=264 * 10**7, moved=0, blocks=264, threads=1024, registers=32)
    more = msgspec.structs.replace(one, flops=265 * 10**7, blocks=265)
    first, second = estimate(H100, one), estimate(H100, more)
    assert first.waves == pytest.approx(0.0, abs=1e-12)
    assert second.busy / first.busy == pytest.approx(1.5, rel=0.02)
    assert second.waves == pytest.approx(second.busy - second.compute - second.latency)


def test_steps_and_stages_of_a_block_that_is_alone() -> None:
    work = Work(kind="f32", flops=0, moved=0, blocks=1, threads=128, steps=50, stages=3)
    found = estimate(H100, work)
    assert found.latency == pytest.approx((FILL + 50 * 800 / 2) / H100.clock)
    deep = estimate(H100, msgspec.structs.replace(work, stages=9))
    assert deep.latency == pytest.approx((FILL + 50 * STEP) / H100.clock)
    assert STEP > TURN


def test_padding_is_what_lies_beyond_the_result() -> None:
    work = product_work(Product(129, 256, 64, 1, "bf16"), GemmTile(128, 256, 64, 8, 3), H100)
    assert (work.blocks, work.issued) == (2, 2 * 256 * 256 * 64)
    found = estimate(H100, work)
    assert found.padding / (found.compute + found.padding) == pytest.approx(1 - 129 / 256)


def test_memory_bound_launches_take_the_measured_share_of_the_bandwidth() -> None:
    size = 1 << 30
    copy = Work(kind="f32", flops=0, moved=2 * size, blocks=size // 4096, threads=128, registers=24)
    found = estimate(H200, copy)
    assert found.limit == "dram"
    assert 2 * size / found.total == pytest.approx(4.3e12, rel=0.08)
    assert found.dram == pytest.approx(2 * size / (4.8e12 * MEMORY_SHARE))


def test_few_blocks_cannot_draw_the_whole_bandwidth() -> None:
    work = Work(kind="f32", flops=0, moved=1 << 26, blocks=4, threads=1024, registers=24)
    assert estimate(H200, work).dram == pytest.approx((1 << 26) / (4 * 64 * H200.clock))


def test_plain_loops_do_their_sums_one_after_the_other() -> None:
    work = Work(kind="f32", flops=2 * 4096 * 64, moved=0, blocks=1, threads=64, registers=24)
    loops = msgspec.structs.replace(work, serial=True)
    assert estimate(H100, loops).busy == pytest.approx((FILL + 4 * 4096) / H100.clock)
    assert estimate(H100, loops).busy > estimate(H100, work).busy


@pytest.mark.parametrize("card", CARDS.values(), ids=list(CARDS))
def test_terms_add_up_and_nothing_is_below_the_floor(card: object) -> None:
    assert isinstance(card, type(H100))
    for product in (
        CUBE,
        Product(1, 4096, 4096, 1, "f16"),
        Product(100, 70, 3000, 7, "f32"),
        Product(64, 64, 8, 1, "i8"),
    ):
        for tile in (GemmTile(64, 64, 32, 4, 3), GemmTile(16, 32, 64, 4, 4), GemmTile(16, 32, 64, 4, 4, 2)):
            found = estimate(card, product_work(product, tile, card))
            shares = found.shares()
            assert tuple(shares) == TERMS
            assert min(shares.values()) >= 0
            assert sum(shares.values()) == pytest.approx(found.total)
            assert found.total > found.floor
            assert found.ratio == pytest.approx(found.total / found.floor)


def test_published_products_in_triton() -> None:
    seconds = predict(CUBE, GemmTile(128, 256, 64, 8, 3), H100)
    assert CUBE.flops / seconds == pytest.approx(676e12, rel=0.05)
    measured_ceiling = 790e12
    assert CUBE.flops / predict(CUBE, GemmTile(128, 256, 64, 8, 3), H200) < measured_ceiling


@pytest.mark.parametrize(("features", "published"), [(64, 407e12), (128, 487e12)])
def test_published_attention_in_triton(features: int, published: float) -> None:
    rows, keys, heads = 128, 16384, 2048 // features
    pairs = 16384 * keys * heads
    work = Work(
        kind="matrix bf16", flops=4 * features * pairs, exponentials=pairs, moved=4 * 16384 * heads * features * 2,
        loaded=pairs // rows * features * 2 * 2, blocks=heads * 16384 // rows, threads=256, registers=168,
        shared=96 << 10, steps=keys // 128, stages=3,
    )  # fmt: skip
    assert work.flops / estimate(H100, work).total == pytest.approx(published, rel=0.15)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit on an SM of A100"):
        estimate(A100, Work(kind="f32", flops=1, moved=1, blocks=1, threads=128, shared=200 << 10))
    with pytest.raises(ValueError, match="no arithmetic"):
        estimate(A100, Work(kind="matrix fp4", flops=1, moved=1, blocks=1, threads=128))
