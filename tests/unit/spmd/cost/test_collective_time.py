"""Times of collectives against their formulas, and against exchanges of slices that are counted one by one."""

from __future__ import annotations

import pytest

from lowerkit.dialect.ops.collective import KINDS
from lowerkit.spmd.cost.collective_time import algorithms, fastest
from lowerkit.spmd.cost.machine import LinkModel

LINK = LinkModel(bandwidth=1e9, latency=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_kind_of_the_dialect_has_a_time(kind: str, ranks: int) -> None:
    seconds = fastest(kind, ranks, 1 << 20, LINK).seconds(LINK)
    assert (seconds > 0) == (ranks > 1)


def test_a_kind_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="'gossip'"):
        algorithms("gossip", 2, 8)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_ring_sends_what_its_steps_send(ranks: int) -> None:
    size = 24 * ranks
    slices = [size // ranks] * ranks
    sent = 0
    for _step in range(2 * (ranks - 1)):  # sums travel once round, then what was summed
        sent += slices[0]
    ring = next(each for each in algorithms("all_reduce", ranks, size) if each.name == "ring")
    assert (ring.moved, ring.messages) == (sent, 2 * (ranks - 1))


def test_small_sums_go_in_one_shot_and_large_ones_in_slices() -> None:
    assert fastest("all_reduce", 8, 16, LINK).name == "one_shot"
    large = fastest("all_reduce", 8, 1 << 30, LINK)
    assert large.name == "direct"
    assert large.seconds(LINK) == pytest.approx(2e-6 + 2 * (1 << 30) * 7 / 8 / 1e9)


def test_operands_say_how_much_is_moved() -> None:
    moved = {kind: fastest(kind, 4, 4096, LinkModel(1.0, 1e-9)).moved for kind in KINDS}
    assert moved["all_gather"] == 3 * 4096
    assert moved["reduce_scatter"] == moved["all_to_all"] == 3 * 4096 / 4
    assert moved["send"] == moved["receive"] == 4096
