"""Steps that may fail: a status ends the run, which says which step it was, and the table runs again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes import _native

POINTERS, DIMS = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
CALL = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_uint64, POINTERS, DIMS)


def array(*values: int) -> Any:
    return np.array(values, np.int64)


def address(call: Any) -> int:
    return ctypes.cast(call, ctypes.c_void_p).value or 0


def three_steps(call: Any, context: int) -> _native.StepTable:
    """Copies buffer 0 to 1, calls with buffers 1 and 2 and dims 5 and 6, copies buffer 2 to 0."""
    copy = _native.copy_kernel_address()
    return _native.StepTable(
        [copy, address(call), copy], array(1, 0, 1), array(0, 2, 4, 6), array(0, 1, 1, 2, 2, 0), array(*[0] * 6),
        array(0, 1, 3, 4), array(8, 5, 6, 8), array(-1, -1, -1), array(-1, context, -1), 3,
    )  # fmt: skip


def made(function: Callable[[int, Any, Any], int]) -> Any:
    return CALL(function)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_call_gets_its_context_buffers_and_dims(threads: int) -> None:
    seen: list[tuple[int, int, int]] = []

    def add(context: int, buffers: Any, dims: Any) -> int:
        seen.append((context, dims[0], dims[1]))
        source, target = (ctypes.c_int64.from_address(buffers[number]) for number in range(2))
        target.value = source.value + dims[0]
        return 0

    call, values = made(add), [array(30), array(0), array(0)]
    table, scratch = three_steps(call, 2**62), _native.Memory(0)
    bases = [value.ctypes.data for value in values]
    assert table.run(_native.ThreadPool(threads), bases, scratch, 0) is None
    assert [int(value[0]) for value in values] == [35, 30, 35]
    assert seen == [(2**62, 5, 6)]


@pytest.mark.parametrize("status", [1, -7, 2**40])
def test_a_status_ends_the_run(status: int) -> None:
    fails = [True]
    call, values = made(lambda *_: status if fails[0] else 0), [array(30), array(0), array(9)]
    table, scratch, pool = three_steps(call, 0), _native.Memory(0), _native.ThreadPool(2)
    bases = [value.ctypes.data for value in values]
    assert table.run(pool, bases, scratch, 0) == (1, status, 0, 0)
    assert [int(value[0]) for value in values] == [30, 30, 9]
    times, fault = table.profile(pool, bases, scratch, 0)
    assert fault == (1, status, 0, 0)
    assert times[2] == 0
    fails[0] = False
    assert table.run(pool, bases, scratch, 0) is None
    assert int(values[0][0]) == 9


def test_a_call_is_no_jump_and_no_check() -> None:
    parts: list[Any] = [[0], array(0), array(0, 0), array(), array(), array(0, 0), array(), array(0), array(0), 1]
    with pytest.raises(ValueError, match="a call and something else"):
        _native.StepTable(*parts)
