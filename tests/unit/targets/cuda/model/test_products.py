"""Which tile a product gets: within the limits of its level, large for large products, many blocks for thin ones."""

from __future__ import annotations

import pytest

from lowerkit.targets.cuda.families.gemm_tiles import GemmTile, asked_product, choose_tile
from lowerkit.targets.cuda.levels import LEVELS
from lowerkit.targets.cuda.model import products
from lowerkit.targets.cuda.model.cards import A100, B200, H100, Card, card_of
from lowerkit.targets.cuda.model.products import (
    Product,
    best_tile,
    candidates,
    predict,
    product_work,
    rank,
    registers,
    shared_bytes,
    warp_tile,
)
from lowerkit.targets.plan import dim

SHAPES = (
    (8192, 8192, 8192, 1), (4096, 4096, 4096, 1), (1024, 1024, 1024, 1), (1, 4096, 4096, 1), (16, 4096, 14336, 1),
    (128, 768, 3072, 1), (128, 128, 64, 96), (5, 7, 3, 1), (1, 1, 1, 1), (4096, 17, 33, 2), (197, 3072, 768, 8),
    (16, 16, 65536, 1), (65536, 64, 64, 1),
)  # fmt: skip
ELEMENTS = ("bf16", "f16", "f32", "i8")
KIB = 1 << 10
LIMITS = {
    "sm_80": 163, "sm_86": 99, "sm_87": 163, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_103": 227, "sm_120": 99,
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_no_tile_exceeds_what_a_block_may_have(level: str, element: str) -> None:
    item = {"f32": 4, "i8": 1}.get(element, 2)
    for shape in SHAPES:
        tile = choose_tile(asked_product(element, *shape), level)
        # As many stages as there are, whatever the compiler makes of them.
        assert tile.stages * (tile.m + tile.n) * tile.k * item <= LIMITS[level] * KIB, (shape, tile)
        assert shared_bytes(tile, element, card_of(level)) <= LIMITS[level] * KIB
        assert all(size >= 16 and size & (size - 1) == 0 for size in (tile.m, tile.n, tile.k)), tile
        assert tile.k >= (32 if element == "i8" else 16)
        assert tile.m * tile.n <= 128 * 32 * tile.warps  # sums of a thread


def test_large_products_get_large_tiles() -> None:
    tile = choose_tile(asked_product("bf16", 8192, 8192, 8192, 1), "sm_90")
    assert (tile.m * tile.n, tile.warps, tile.split) == (128 * 256, 8, 1)
    ampere = choose_tile(asked_product("bf16", 8192, 8192, 8192, 1), "sm_80")
    assert ampere.m * ampere.n >= 128 * 128
    assert choose_tile(asked_product("bf16", dim(0), 4096, 4096, 1), "sm_90").m >= 128  # open extents count as many


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
def test_thin_products_get_thin_tiles_and_enough_blocks(level: str) -> None:
    for rows in (1, 16):
        tile = choose_tile(asked_product("bf16", rows, 4096, 4096, 1), level)
        assert tile.m == 16
        blocks = 4096 // tile.n * tile.split
        assert blocks >= 0.5 * card_of(level).sms, tile
    small = choose_tile(asked_product("bf16", 5, 7, 3, 1), level)
    assert (small.m, small.n, small.k) == (16, 16, 16)


def test_a_long_depth_of_few_tiles_is_split_unless_it_is_open() -> None:
    tile = choose_tile(asked_product("bf16", 16, 16, 65536, 1), "sm_90")
    assert tile.split == 16
    assert choose_tile(asked_product("bf16", 16, 16, dim(0), 1), "sm_90").split == 1
    assert choose_tile(asked_product("bf16", 8192, 8192, 8192, 1), "sm_90").split == 1
    product, whole = (Product(16, 16, 65536, 1, "bf16", parts) for parts in (True, False))
    assert predict(product, tile, H100) < predict(product, best_tile(whole, "sm_90"), H100) / 4


def test_candidates_are_ranked_by_prediction_and_all_fit() -> None:
    product = Product(2048, 2048, 2048, 1, "bf16")
    for card in (A100, H100, B200):
        ranked = rank(product, candidates(product), card)
        assert len(ranked) > 20
        assert [each.seconds for each in ranked] == sorted(each.seconds for each in ranked)
        assert ranked[0].seconds == predict(product, ranked[0].tile, card)
        assert all(registers(each.tile, "bf16", card) <= 255 for each in ranked)
        assert ranked[0].tile == best_tile(product, card.level)
    assert rank(product, [GemmTile(256, 256, 64, 8, 3)], H100) == []  # sums alone take 256 registers
    assert rank(product, [GemmTile(128, 256, 128, 8, 4)], A100) == []  # 288 KiB


def test_equal_questions_get_equal_answers_after_few_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model has hundreds of products, and none of them may look at thousands of tiles."""
    first = {
        (shape, element): choose_tile(asked_product(element, *shape), "sm_90")
        for shape in SHAPES
        for element in ELEMENTS
    }
    best_tile.cache_clear()
    candidates.cache_clear()
    predicted: list[Product] = []

    def counted(product: Product, tile: GemmTile, card: Card) -> float:
        predicted.append(product)
        return predict(product, tile, card)

    monkeypatch.setattr(products, "predict", counted)
    assert first == {key: choose_tile(asked_product(key[1], *key[0]), "sm_90") for key in first}
    assert 0 < max(map(predicted.count, set(predicted))) < 500
    assert len(predicted) < 100 * len(first)


def test_work_of_a_product_by_hand() -> None:
    product = Product(200, 300, 100, 3, "bf16")
    work = product_work(product, GemmTile(128, 128, 64, 4, 3), A100)
    assert work.flops == 2 * 3 * 200 * 300 * 100
    assert work.blocks == 3 * 2 * 3
    assert work.steps == 2
    assert work.issued == work.blocks * 2 * 2 * 128 * 128 * 64
    assert work.moved == 3 * 2 * (200 * 100 + 100 * 300 + 200 * 300)
    assert work.loaded == work.blocks * (2 * (128 + 128) * 64 * 2 + 128 * 128 * 2)
    assert work.shared == 2 * (128 + 128) * 64 * 2
    assert (work.kind, work.old_matrix) == ("matrix bf16", True)
    # Each of the four warps reads 64 rows and 64 columns of a step; the step is written once.
    assert work.staged == 2 * (4 * (64 + 64) + 256) * 64 * 2


def test_warps_lie_as_triton_deals_them_out() -> None:
    assert warp_tile(GemmTile(128, 128, 64, 4, 3)) == (64, 64)
    assert warp_tile(GemmTile(128, 256, 64, 8, 3)) == (64, 64)
    assert warp_tile(GemmTile(16, 64, 64, 4, 3)) == (16, 16)
    # Too small for four warps: two of them make the same.
    small = product_work(Product(16, 16, 16, 1, "bf16"), GemmTile(16, 16, 16, 4, 3), A100)
    assert small.issued == 2 * small.flops
