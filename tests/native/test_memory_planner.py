"""The memory planner: buffers that live at one time never overlap, and the arena stays near its lower bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowerkit.runtimes.memory_plan import plan_memory

buffers = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 30)).map(
        lambda b: (b[0], min(b[1], b[2]), max(b[1], b[2]))
    ),
    max_size=60,
)


def columns(items: list[tuple[int, int, int]]) -> list[list[int]]:
    return [[item[i] for item in items] for i in range(3)]


@settings(max_examples=300, deadline=None)
@given(buffers, st.sampled_from([1, 64, 4096]))
def test_live_buffers_never_overlap(items: list[tuple[int, int, int]], alignment: int) -> None:
    sizes, first, last = columns(items)
    offsets, total = plan_memory(sizes, first, last, alignment)
    for i, (size, begin, end) in enumerate(items):
        assert offsets[i] % alignment == 0
        assert offsets[i] >= 0
        assert offsets[i] + size <= total
        for j in range(i):
            if size and sizes[j] and begin <= last[j] and first[j] <= end:
                assert offsets[i] + size <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
    live = max((sum(s for s, f, t in items if f <= step <= t) for step in range(31)), default=0)
    assert total >= live
    rounded = sum(-(-size // alignment) * alignment for size in sizes)
    assert total <= rounded


def test_a_chain_needs_two_buffers() -> None:
    steps = 50
    offsets, total = plan_memory([1000] * steps, list(range(steps)), [i + 1 for i in range(steps)])
    assert total == 2 * 1024
    assert set(offsets) == {0, 1024}


def test_the_smallest_gap_that_fits_is_taken() -> None:
    sizes = [1024, 512, 448, 256, 192, 100]  # placed in this order, one behind the other, but for the last
    first = [0, 0, 0, 0, 0, 2]
    last = [9, 1, 9, 1, 9, 9]
    offsets, total = plan_memory(sizes, first, last)
    assert offsets == [0, 1024, 1536, 1984, 2240, 1984], "512 and 256 bytes are free from step 2 on"
    assert total == 2432


def test_the_plan_does_not_depend_on_chance() -> None:
    generator = np.random.default_rng(3)
    sizes = generator.integers(1, 9, 500) * 64
    first = generator.integers(0, 200, 500)
    arguments: tuple[list[int], list[int], list[int]] = (
        sizes.tolist(),
        first.tolist(),
        (first + generator.integers(0, 9, 500)).tolist(),
    )
    assert plan_memory(*arguments) == plan_memory(*arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (([-1], [0], [0]), "size -1"),
        (([1], [2], [1]), "lives from step 2 to 1"),
        (([1, 2], [0], [0]), "differ in length"),
        (([1 << 61, 1 << 61], [0, 0], [0, 0]), "do not fit"),
        (([(1 << 63) - 1], [0], [0]), "do not fit"),
        (([1], [0], [0], 48), "power of two"),
    ],
)
def test_nonsense_is_refused(arguments: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        plan_memory(*arguments)
