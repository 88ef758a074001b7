"""What a weight of a rank is, is known by its derivation; a derivation that is something else is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import VerifyError
from lowerkit.program.weights import Shard, WeightStore
from lowerkit.spmd.certificate.facts import Chunks, Cut, Fact, Rows, Slices
from lowerkit.spmd.certificate.graph import Form, Graph, Op
from lowerkit.spmd.certificate.probing import facts_of

Array = np.ndarray[Any, Any]
NOTHING = Graph([], [], [""], [], [], [])


def reading(kind: str) -> Graph:
    """A program that reads the weight ``w@tp``."""
    return Graph([kind], [Form("lk.weight", {"symbol": "w@tp"})], [""], [], [Op(0, [], [0])], [])


def slices(axis: int, ranks: int) -> Callable[[Array], Array]:
    def stacked(array: Array) -> Array:
        size = -(-array.shape[axis] // ranks)
        padding = [(0, ranks * size - extent if place == axis else 0) for place, extent in enumerate(array.shape)]
        cut = np.pad(array, padding).reshape(*array.shape[:axis], ranks, size, *array.shape[axis + 1 :])
        return np.moveaxis(cut, axis, 0)

    return stacked


def fact(shape: tuple[int, ...], derived: Callable[..., Array], parts: tuple[int, ...], ranks: int = 2) -> Fact:
    """The fact of a weight that is never read: it is declared."""
    store = WeightStore()
    store.declare("w", "f32", shape)
    store.derive("w@tp", ["w"], derived, dtype="f32", shape=parts, shard=Shard((("tp", ranks),)))
    (found,) = facts_of(NOTHING, reading("f32[1]"), store, "tp", ranks)
    return found


@pytest.mark.parametrize(("axis", "ranks"), [(0, 2), (1, 2), (2, 2), (0, 3), (1, 4)])
def test_slices_along_each_dimension(axis: int, ranks: int) -> None:
    shape = (6, 8, 300)
    derived = slices(axis, ranks)
    parts = derived(np.zeros(shape)).shape
    assert fact(shape, derived, parts, ranks) == Slices("w@tp", "w", "f32[6,8,300]", axis)


def test_slices_that_are_padded() -> None:
    assert fact((7, 5), slices(0, 3), (3, 3, 5), 3) == Slices("w@tp", "w", "f32[7,5]", 0)


@pytest.mark.parametrize(
    "derived",
    [
        lambda array: slices(0, 2)(array)[::-1],  # the other way round
        lambda array: slices(0, 2)(np.roll(array, 1, axis=0)),
        lambda array: slices(0, 2)(array[:, ::-1]),
        lambda array: slices(0, 2)(array) + 1,
        lambda array: np.stack([array[:4]] * 2),
        lambda array: np.stack([array[::2], array[1::2]]),  # rows in turn
        lambda array: np.moveaxis(slices(0, 2)(array), 1, 2),
    ],
)  # fmt: skip
def test_what_is_no_slices_is_refused(derived: Callable[[Array], Array]) -> None:
    parts = derived(np.zeros((8, 8))).shape
    with pytest.raises(VerifyError, match="are not the slices of w along a dimension"):
        fact((8, 8), derived, parts)


def test_a_weight_that_other_axes_share_is_cut_in_each_part() -> None:
    store = WeightStore()
    store.declare("w", "f32", (6, 8))
    store.derive("w@dp", ["w"], slices(0, 3), dtype="f32", shape=(3, 2, 8), shard=Shard((("dp", 3),)))

    def again(array: Array) -> Array:
        return np.moveaxis(array.reshape(3, 2, 2, 4), 2, 1)

    shard = Shard((("dp", 3), ("tp", 2)))
    store.derive("w@tp", ["w@dp"], again, dtype="f32", shape=(3, 2, 2, 4), shard=shard)
    (found,) = facts_of(NOTHING, reading("f32[2,4]"), store, "tp", 2)
    assert found == Slices("w@tp", "w@dp", "f32[2,8]", 1)


def block(kind: str, *steps: tuple[Callable[..., Array], str, Sequence[int], Shard | None], **reads: str) -> list[Fact]:
    """The facts of ``w@tp``, which is derived of ``w``, f32[6,8,300], step by step; no data is read."""
    store = WeightStore()
    store.declare("w", "f32", (6, 8, 300))
    source = "w"
    for number, (derived, dtype, shape, shard) in enumerate(steps, 1):
        name = "w@tp" if number == len(steps) else f"step.{number}"
        store.derive(name, [source], derived, dtype=dtype, shape=shape, shard=shard)
        source = name
    before = reading(reads.get("w", "f32[6,8,300]"))
    forms = [Form("lk.weight", {"symbol": "w"})]
    return facts_of(Graph(before.types, forms, [""], [], before.ops, []), reading(kind), store, "", 1)


PARTS = (slices(0, 3), "f32", (3, 2, 8, 300), Shard((("micro-batch", 3),)))


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_row_of_stacked_parts_is_a_block(part: int) -> None:
    """What micro-batches read of a weight that is as long as the batch."""

    def row(array: Array) -> Array:
        return array[part]

    found = block("f32[2,8,300]", PARTS, (row, "f32", (2, 8, 300), None))
    assert found == [Cut("w@tp", "w", "f32[6,8,300]", [2 * part, 0, 0])]


def test_a_block_may_be_cut_along_several_dimensions() -> None:
    def inner(array: Array) -> Array:
        return array[1:5, 2:, 256:300]

    found = block("f32[4,6,44]", (inner, "f32", (4, 6, 44), None))
    assert found == [Cut("w@tp", "w", "f32[6,8,300]", [1, 2, 256])]


@pytest.mark.parametrize(
    "row",
    [
        lambda array: array[0][::-1],  # the other way round
        lambda array: array[0] * 2,
        lambda array: array[:2, 0],  # of each part the first row
        lambda array: np.roll(array[0], 1, axis=2),
        lambda array: np.pad(array[0, 1:], ((1, 0), (0, 0), (0, 0))),
        lambda array: np.stack([array[0, 0]] * 2),
        lambda array: np.zeros_like(array[0]),
    ],
)  # fmt: skip
def test_of_what_is_no_block_nothing_is_known(row: Callable[[Array], Array]) -> None:
    """Then it is another weight, which no op before has read."""
    assert not block("f32[2,8,300]", PARTS, (row, "f32", (2, 8, 300), None))


def test_a_block_keeps_its_elements_and_its_dimensions() -> None:
    def same(array: Array) -> Array:
        return array

    def narrow(array: Array) -> Array:
        return array.astype(np.float16)

    shape = (6, 8, 300)
    assert block("f32[6,8,300]", (same, "f32", shape, None))
    assert not block("f32[6,8,300]", (narrow, "f16", shape, None), (same, "f32", shape, None))
    assert not block("f16[6,8,300]", (narrow, "f16", shape, None))
    assert not block("f32[48,300]", (same, "f32", shape, None))


def test_a_weight_of_two_weights_is_no_block() -> None:
    store = WeightStore()
    for name in ("w", "v"):
        store.declare(name, "f32", (6, 8))
    store.derive("w@tp", ["w", "v"], lambda first, second: first[:2], dtype="f32", shape=(2, 8))
    before = Graph(["f32[6,8]"], [Form("lk.weight", {"symbol": "w"})], [""], [], [Op(0, [], [0])], [])
    assert not facts_of(before, reading("f32[2,8]"), store, "", 1)


def table(rows: Array, ranks: int) -> Fact:
    store = WeightStore()
    store.derive("w@tp", (), lambda: rows, dtype="i64", shape=rows.shape, shard=Shard((("tp", ranks),)))
    (found,) = facts_of(NOTHING, reading("i64[1]"), store, "tp", ranks)
    return found


@pytest.mark.parametrize(
    ("rows", "stated"),
    [
        (np.arange(4) * 25, Rows("w@tp", -1, 25)),
        (np.arange(12).reshape(4, 3), Rows("w@tp", 3, 3, 1)),
        (np.arange(4).reshape(4, 1) * 2 // 4, Rows("w@tp", 1, 1, 0, 0, 2)),
        (np.full((4, 2), 5), Rows("w@tp", 2, 0, 0, 5)),
    ],
)
def test_rows_are_a_function_of_the_rank(rows: Array, stated: Rows) -> None:
    assert table(rows, 4) == stated


@pytest.mark.parametrize("rows", [np.array([0, 25, 51, 75]), np.array([[0, 1, 2], [3, 4, 5], [6, 8, 7], [9, 10, 11]])])
def test_other_rows_are_refused(rows: Array) -> None:
    with pytest.raises(VerifyError, match="no linear function of the rank"):
        table(rows, 4)


def test_parts_for_other_ranks_are_refused() -> None:
    with pytest.raises(VerifyError, match="2 parts for 4 ranks"):
        facts_of(NOTHING, reading("f32[1]"), _shared(2), "tp", 4)


def _shared(ranks: int) -> WeightStore:
    store = WeightStore()
    store.declare("w", "f32", (8, 8))
    store.derive("w@tp", ["w"], slices(0, 2), dtype="f32", shape=(2, 4, 8), shard=Shard((("tp", ranks),)))
    return store


@pytest.mark.parametrize("size", [3, 4])
def test_chunks_are_cut_along_a_dimension_with_zeros_behind(size: int) -> None:
    """``[2, 4, 6, size]`` of ``[6, 24]``, in eight chunks, or in six and two of zeros."""

    def chunked(array: Array) -> Array:
        wide = np.pad(array, [(0, 0), (0, 8 * size - 24)])
        return np.ascontiguousarray(np.moveaxis(wide.reshape(6, 2, 4, size), (1, 2), (0, 1)))

    def other(array: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(chunked(array), 0, 1)).reshape(2, 4, 6, size)

    for derivation, facts in ((chunked, [Chunks("w@tp", "w", "f32[6,24]", 1, 8, size)]), (other, [])):
        store = WeightStore()
        store.declare("w", "f32", (6, 24))
        store.derive("w@tp", ["w"], derivation, dtype="f32", shape=(2, 4, 6, size))
        before = Graph(["f32[6,24]"], [Form("lk.weight", {"symbol": "w"})], [""], [], [Op(0, [], [0])], [])
        assert facts_of(before, reading(f"f32[2,4,6,{size}]"), store, "", 1) == facts
