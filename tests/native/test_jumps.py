"""Jumps of the native executor: taken by a byte, in both directions, and out of a loop that never ends by itself."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes import _native

COPY = _native.copy_kernel_address()
BYTE = 8  # bytes that each copy moves


def array(*values: int) -> Any:
    return np.array(values, np.int64)


def table(steps: list[tuple[str, Any]], memory_slots: int) -> Any:
    """Steps over one base of 8-byte slots: ("copy", (source, target)), ("jump", target), ("unless", (slot, target))."""
    kernels: list[int] = []
    tasks: list[int] = []
    begin, slots, dim_begin, dims, targets = [0], [], [0], [], []
    for kind, details in steps:
        kernels.append(COPY if kind == "copy" else 0)
        tasks.append(1 if kind == "copy" else 0)
        if kind == "copy":
            slots += list(details)
            dims.append(BYTE)
            targets.append(-1)
        elif kind == "unless":
            slots.append(details[0])
            targets.append(details[1])
        else:
            targets.append(details)
        begin.append(len(slots))
        dim_begin.append(len(dims))
    return _native.StepTable(
        kernels, array(*tasks), array(*begin), array(*[0] * len(slots)), array(*[BYTE * slot for slot in slots]),
        array(*dim_begin), array(*dims), array(*targets), array(*[-1] * len(targets)), 1,
    )  # fmt: skip


def run(steps: list[tuple[str, Any]], values: list[int], profile: bool = False) -> tuple[list[int], Any]:
    memory = np.array(values, np.int64)
    pool, scratch = _native.ThreadPool(1), _native.Memory(0)
    call = table(steps, len(values))
    times = (call.profile if profile else call.run)(pool, [memory.ctypes.data], scratch, 0)
    return memory.tolist(), times[0] if profile else times


@pytest.mark.parametrize(("predicate", "expected"), [(1, 10), (0, 20), (255, 10), (256, 20)])
def test_one_of_two_branches(predicate: int, expected: int) -> None:
    """The low byte decides: 256 has a low byte of 0."""
    steps = [("unless", (0, 3)), ("copy", (1, 3)), ("jump", 4), ("copy", (2, 3))]
    assert run(steps, [predicate, 10, 20, 0])[0][3] == expected


def test_a_loop_that_shifts_values_until_a_zero() -> None:
    """Slots move down by one each turn; the turn ends when a zero arrives in slot 0."""
    steps = [("unless", (0, 6)), *[("copy", (slot + 1, slot)) for slot in range(4)], ("jump", 0)]
    values, times = run(steps, [1, 1, 1, 0, 7], profile=True)
    assert values[0] == 0
    assert (times[1:5] > 0).all()
    assert times[5] == 0


def test_a_jump_to_the_end() -> None:
    assert run([("jump", 2), ("copy", (0, 1))], [5, 6])[0] == [5, 6]


def test_a_signal_ends_an_endless_loop() -> None:
    class Stop(Exception):
        pass

    def stop(_number: int, _frame: Any) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(Stop):
            run([("copy", (0, 1)), ("jump", 0)], [1, 2])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_loop_that_never_ends_is_given_up() -> None:
    endless = table([("copy", (0, 1)), ("jump", 0)], 2)
    assert endless.most_turns == 1 << 30
    endless.most_turns = 1000
    memory = np.zeros(2, np.int64)
    pool, scratch = _native.ThreadPool(1), _native.Memory(0)
    for call in (endless.run, endless.profile):
        with pytest.raises(OverflowError, match="not ended after 1000 turns"):
            call(pool, [memory.ctypes.data], scratch, 0)
