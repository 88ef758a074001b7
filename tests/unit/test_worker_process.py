"""Work in processes apart: its results, its errors, its death, its bound on processor time."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest

from lowerkit.worker_process import TaskError, WorkerDiedError, borrowed_worker, call_in_worker, end_idle_workers

HERE = "tests.unit.test_worker_process"


def reverse(data: bytes) -> bytes:
    print("a library's own words")
    return data[::-1]


def refuse(data: bytes) -> bytes:
    raise ValueError(f"{len(data)} bytes are too many")


def crash(data: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGSEGV)
    return data


def turn_for_ever(data: bytes) -> bytes:
    while True:
        pass


@pytest.fixture(autouse=True)
def _no_idle_workers() -> Generator[None]:
    end_idle_workers()
    yield
    end_idle_workers()


def test_a_worker_is_used_again_also_after_an_error() -> None:
    seen: set[int] = set()
    for _ in range(2):
        with borrowed_worker() as worker:
            assert worker.call(f"{HERE}:reverse", b"abc") == b"cba"
            seen.add(worker.process.pid)
        with pytest.raises(TaskError, match="ValueError: 3 bytes are too many"), borrowed_worker() as worker:
            worker.call(f"{HERE}:refuse", b"abc")
    assert len(seen) == 1


def test_a_crash_ends_the_worker_alone() -> None:
    with pytest.raises(WorkerDiedError, match="SIGSEGV") as caught:
        call_in_worker(f"{HERE}:crash", b"")
    assert not caught.value.timed_out
    assert call_in_worker(f"{HERE}:reverse", b"12") == b"21"


def test_processor_time_is_bounded() -> None:
    with pytest.raises(WorkerDiedError, match="more than 0.5 s of processor time") as caught:
        call_in_worker(f"{HERE}:turn_for_ever", b"", 0.5)
    assert caught.value.timed_out


def test_an_idle_worker_that_died_is_replaced() -> None:
    with borrowed_worker() as worker:
        worker.call(f"{HERE}:reverse", b"")
    worker.process.kill()
    worker.process.wait()
    assert call_in_worker(f"{HERE}:reverse", b"12") == b"21"
