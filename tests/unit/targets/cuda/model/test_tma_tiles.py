"""Tiles of the TMA unit: which products get them, what they take of an SM, and what several tiles a block save."""

from __future__ import annotations

import msgspec
import pytest

from lowerkit.runtimes.cuda import image
from lowerkit.runtimes.cuda.image import Launch
from lowerkit.runtimes.cuda.tensor_maps import TensorMap
from lowerkit.targets.cuda.levels import LEVELS
from lowerkit.targets.cuda.model.cards import A100, H100, H200, card_of
from lowerkit.targets.cuda.model.estimate import FILL, estimate
from lowerkit.targets.cuda.model.products import (
    GemmTile,
    Product,
    best_tile,
    predict,
    product_fits,
    product_work,
    rank,
    shortlist,
)
from lowerkit.targets.cuda.model.tma_tiles import (
    PIECE_BYTES,
    pieces_of,
    runs_of,
    tma_candidates,
    tma_fits,
    tma_registers,
    tma_shared_bytes,
)
from tests.unit.targets.cuda.model.test_launches import launch, report

LARGE = Product(4096, 4096, 4096, 1, "bf16", described=True)
MODEL = Product(1024, 3072, 768, 1, "bf16", described=True)
WIDE = GemmTile(128, 256, 64, 8, 4, tma=True, persistent=True)


def test_runs_are_powers_of_two_that_add_up() -> None:
    assert (runs_of(128), runs_of(192), runs_of(96)) == ((128,), (128, 64), (64, 32))


def test_pieces_hold_few_values_and_little_shared_memory() -> None:
    assert pieces_of(WIDE, 256, 2) == 2  # 64 values of a thread
    assert pieces_of(WIDE, 256, 4) == 4  # 32 KiB
    assert pieces_of(GemmTile(256, 192, 64, 8, 3, tma=True), 128, 2) == 4  # beside 192 sums
    assert pieces_of(GemmTile(64, 32, 64, 4, 3, tma=True), 32, 4) == 1
    for tile in tma_candidates(LARGE, H200):
        for run in runs_of(tile.n):
            for widest in (1, 2, 4, 8):
                count = pieces_of(tile, run, widest)
                assert run // count >= 32
                assert tile.m * run // count * widest <= PIECE_BYTES or run // count == 32


def test_only_products_that_the_unit_can_load_get_such_tiles_and_only_at_hopper() -> None:
    assert best_tile(LARGE, "sm_90").tma
    assert not best_tile(msgspec.structs.replace(LARGE, described=False), "sm_90").tma
    for level in LEVELS:
        found = shortlist(LARGE, level)
        assert any(each.tile.tma for each in found) == (level == "sm_90")
    assert tma_candidates(msgspec.structs.replace(LARGE, rows=16), H200) == []
    assert tma_candidates(msgspec.structs.replace(LARGE, depth=32), H200) == []
    assert tma_candidates(LARGE, A100) == []
    assert not tma_fits(msgspec.structs.replace(LARGE, element="f32"), WIDE)


@pytest.mark.parametrize("product", [LARGE, MODEL, Product(1576, 768, 3072, 1, "f16", described=True)])
def test_candidates_fit(product: Product) -> None:
    found = tma_candidates(product, H200)
    ranked = rank(product, found, H200)
    assert ranked
    for tile in (each.tile for each in ranked):
        assert product_fits(product, tile, "sm_90")
        assert tma_registers(tile) <= 255 and tma_shared_bytes(tile, product.element) <= 227 << 10
        assert tile.stages * (tile.m + tile.n) * tile.k * 2 < tma_shared_bytes(tile, product.element)
    assert {len(runs_of(tile.n)) for tile in found if tile.persistent} <= {1}


def test_a_tile_that_is_no_power_of_two_fills_the_card() -> None:
    """3072 columns are 16 times 192: 128 blocks for 132 SMs; tiles of 128 columns are 192 blocks."""
    tile = best_tile(MODEL, "sm_90")
    assert (tile.m, tile.n, tile.tma, tile.persistent) == (128, 192, True, False)
    assert predict(MODEL, tile, H200) < 0.9 * predict(MODEL, GemmTile(128, 128, 64, 8, 3), H200)


def test_several_tiles_a_block_wait_once_for_their_first_loads() -> None:
    one, several = (msgspec.structs.replace(WIDE, persistent=each) for each in (False, True))
    first, second = (estimate(H100, product_work(LARGE, tile, H100)) for tile in (one, several))
    turns = -(-LARGE.rows // 128 * LARGE.columns // 256 // 132)
    saved = (first.latency - second.latency) * H100.clock
    assert saved == pytest.approx((turns - 1) * FILL)
    assert first.waves == pytest.approx(second.waves) and first.l2 == second.l2
    assert (first.occupancy.waves, second.occupancy.waves) == (512 / 132, 1.0)


def test_equal_predictions_go_to_the_unit() -> None:
    product = msgspec.structs.replace(LARGE, rows=2048, columns=2048, depth=2048)
    threads, unit = GemmTile(128, 256, 64, 8, 3), GemmTile(128, 256, 64, 8, 4, tma=True)
    ranked = rank(product, [threads, unit], card_of("sm_90"))
    assert ranked[0].seconds == ranked[1].seconds
    assert [each.tile for each in ranked] == [unit, threads]


def test_a_persistent_launch_is_priced_by_its_tiles() -> None:
    def described(blocks: int) -> Launch:
        map_ = TensorMap(0, [1280], [], 0, "bf16", [64], 128)
        return msgspec.structs.replace(
            launch(flops=2 * 4096**3, read=1 << 26, written=1 << 25),
            product=image.Product(4096, 4096, 4096, 1, "bf16", (128, 256, 64), 4),
            blocks=blocks,
            block=256,
            maps=[map_, map_],
        )

    ((few,), (all_,)) = (report([described(blocks)]).launches for blocks in (132, 512))
    assert (few.blocks, all_.blocks) == (132, 512)
    assert few.prediction.compute == pytest.approx(all_.prediction.compute)
    assert few.prediction.waves / few.prediction.compute == pytest.approx(4 * 132 / 512 - 1)  # four turns for 512 tiles
    assert few.prediction.l2 == all_.prediction.l2
