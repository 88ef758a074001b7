"""The check of indices of the native executor: which element it finds, and what a run does behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes import _native

CHECK, COPY = _native.index_check_address(), _native.copy_kernel_address()

Indices = np.ndarray[Any, Any]


def array(*values: int) -> Indices:
    return np.array(values, np.int64)


def run(indices: Indices, dims: list[int], threads: int = 1) -> tuple[tuple[int, int, int, int] | None, bool]:
    """Returns what the run says, and whether the copy behind the check was made."""
    source, target = np.array([7], np.int64), np.array([0], np.int64)
    table = _native.StepTable(
        [CHECK, COPY], array(1, 1), array(0, 1, 3), array(0, 1, 2), array(0, 0, 0),
        array(0, len(dims), len(dims) + 1), array(*dims, 8), array(-1, -1), array(-1, -1), 3,
    )  # fmt: skip
    bases = [indices.ctypes.data, source.ctypes.data, target.ctypes.data]
    scratch = _native.Memory(0)
    found = table.run(_native.ThreadPool(threads), bases, scratch, 0)
    assert table.profile(_native.ThreadPool(threads), bases, scratch, 0)[1] == found
    return found, target[0] == 7


def dims(indices: Indices, *extents: int, wraps: bool = False, exempt: int | None = None) -> list[int]:
    return [indices.size, indices.itemsize, int(wraps), int(exempt is not None), exempt or 0, *extents]


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
def test_every_width(kind: type[np.signedinteger[Any]]) -> None:
    least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    for value, wraps, inside in (
        (0, False, True), (9, False, True), (10, False, False), (-1, False, False), (-1, True, True), (-10, True, True),
        (-11, True, False), (least, False, False), (least, True, False), (most, False, False), (most, True, False),
    ):  # fmt: skip
        indices = np.array([3, value, 4], kind)
        found, copied = run(indices, dims(indices, 10, wraps=wraps))
        assert found == (None if inside else (0, 0, 1, value))
        assert copied == inside


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 16 * 1024, 100_001])
def test_the_first_of_many(size: int, threads: int) -> None:
    indices = np.arange(size, dtype=np.int64) % 5
    assert run(indices, dims(indices, 5), threads) == (None, True)
    for place in sorted({size - 1, size // 2, 0}, reverse=True) if size else ():
        indices[place] = -9
        assert run(indices, dims(indices, 5), threads) == ((0, 0, place, -9), False)


def test_an_exempt_value() -> None:
    indices = np.array([1, -100, 2, -99], np.int64)
    assert run(indices, dims(indices, 5, exempt=-100))[0] == (0, 0, 3, -99)
    assert run(indices[:3], dims(indices[:3], 5, exempt=-100))[0] is None


def test_an_extent_for_each_part() -> None:
    indices = np.array([[3, 1], [1, 3], [0, 4]], np.int64)
    assert run(indices, dims(indices, 4, 5))[0] is None
    assert run(indices, dims(indices, 5, 4))[0] == (0, 0, 5, 4)
    assert run(indices, dims(indices, 0, 5))[0] == (0, 0, 0, 3)


@pytest.mark.parametrize("wrong", [[3, 8, 0, 0, 0], [3, 3, 0, 0, 0, 5], [-1, 8, 0, 0, 0, 5], [3, 8, 0, 0, 0, -5], []])
def test_what_is_no_check(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="check of indices"):
        run(np.zeros(3, np.int64), wrong)
