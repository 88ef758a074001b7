"""Blocks of an SM and waves of a grid, against numbers worked out by hand from NVIDIA's rules."""

from __future__ import annotations

import pytest

from lowerkit.targets.cuda.levels import LEVELS
from lowerkit.targets.cuda.model.cards import A100, CARDS, H100, L40S, card_of
from lowerkit.targets.cuda.model.occupancy import occupancy


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "resident", "limit"),
    [
        (256, 32, 0, 8, "warps"),  # 8 warps each of 64
        (32, 32, 0, 32, "blocks"),
        (256, 128, 0, 2, "registers"),  # 4096 a warp: 16 warps
        (256, 129, 0, 1, "registers"),  # 136 after rounding: 4352 a warp, 15 warps, 12 in groups of four
        (128, 255, 0, 2, "registers"),  # 8192 a warp: 8 warps
        (128, 32, 98304, 2, "shared"),  # 228 KiB over 97 KiB
        (128, 32, 227 << 10, 1, "shared"),
        (128, 32, (227 << 10) + 1, 0, "shared"),
        (1024, 65, 0, 0, "registers"),  # 2304 a warp: 28 warps of 32
        (1024, 0, 0, 2, "warps"),  # unknown registers are no limit
    ],
)
def test_blocks_of_an_sm(threads: int, registers: int, shared: int, resident: int, limit: str) -> None:
    found = occupancy(H100, 1, threads, registers, shared)
    assert (found.resident, found.limit) == (resident, limit)


def test_waves_and_their_tail() -> None:
    found = occupancy(A100, 325, 256, 80, 0)  # 2560 registers a warp: 24 warps, 3 blocks: 324 of the card
    assert found.resident == 3
    assert found.waves == pytest.approx(325 / 324)
    assert found.tail == pytest.approx(325 / 648)
    assert found.share == pytest.approx(24 / 64)
    assert occupancy(A100, 324, 256, 80, 0).tail == 1.0
    assert occupancy(L40S, 1, 1024, 32, 0).resident == 1  # 48 warps hold one block of 32


def test_a_block_of_nothing_fits_nowhere_and_says_so() -> None:
    found = occupancy(A100, 10, 128, 32, 200 << 10)
    assert (found.resident, found.waves, found.tail, found.limit) == (0, 0.0, 0.0, "shared")


def test_every_level_has_a_card() -> None:
    limits = {
        "sm_80": 163,
        "sm_86": 99,
        "sm_87": 163,
        "sm_89": 99,
        "sm_90": 227,
        "sm_100": 227,
        "sm_103": 227,
        "sm_120": 99,
    }
    assert {level: card_of(level).block_shared >> 10 for level in LEVELS} == limits
    with pytest.raises(ValueError, match="no card for 'sm_70'"):
        card_of("sm_70")


def test_matrix_rates_are_those_of_the_clock() -> None:
    per_clock = {"a100": 2048, "h100": 4096, "h200": 4096, "l40s": 1024, "b200": 8192}
    for name, card in CARDS.items():
        assert card.peak("matrix bf16") / card.sms / card.clock == pytest.approx(per_clock[name], rel=0.02), name
    with pytest.raises(ValueError, match="no arithmetic of matrix fp8"):
        A100.peak("matrix fp8")
