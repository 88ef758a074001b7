"""The thread pool: each task runs exactly once, whatever else happens."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections.abc import Callable

import pytest

from lowerkit.runtimes import _native
from tests.support.native_programs import SANITIZERS, NativeRun


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 64, 1001])
def test_each_task_runs_once_a_round(threads: int, tasks: int) -> None:
    pool = _native.ThreadPool(threads)
    assert pool.threads == threads
    rounds = 300 if threads <= 3 else 20
    assert pool.count_visits(tasks, rounds).tolist() == [rounds] * tasks


def test_many_short_jobs() -> None:
    assert _native.ThreadPool(2).count_visits(3, 50_000).tolist() == [50_000] * 3


def test_workers_that_sleep_wake_up() -> None:
    pool = _native.ThreadPool(2)
    for _ in range(20):
        time.sleep(0.002)  # longer than a worker spins
        assert pool.count_visits(4, 2).tolist() == [2] * 4


def test_sleeping_workers_use_no_cpu() -> None:
    """Three workers that spun for a third of a second would use more, also where they shared one processor."""
    pool = _native.ThreadPool(4)
    pool.count_visits(4, 10)
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


def test_a_task_may_use_the_pool_that_runs_it() -> None:
    assert _native.ThreadPool(3).count_visits(50, 200, nested=True).tolist() == [200] * 50


def test_two_python_threads_may_use_one_pool() -> None:
    pool = _native.ThreadPool(2)
    results: list[list[int]] = []
    workers = [threading.Thread(target=lambda: results.append(pool.count_visits(5, 2000).tolist())) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [[2000] * 5] * 4


def test_pools_do_not_disturb_each_other() -> None:
    pools = [_native.ThreadPool(2) for _ in range(6)]
    for _ in range(50):
        for pool in pools:
            assert pool.count_visits(4, 5).tolist() == [5] * 4


def test_pools_come_and_go() -> None:
    for threads in list(range(1, 9)) * 5:
        _native.ThreadPool(threads).count_visits(threads, 1)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("used_after", [False, True])
def test_a_child_process_has_workers_of_its_own(used_before: bool, used_after: bool) -> None:
    pool = _native.ThreadPool(3)
    if used_before:
        pool.count_visits(3, 10)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            right = not used_after or pool.count_visits(9, 100).tolist() == [100] * 9
            del pool
            status = 0 if right else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.count_visits(9, 100).tolist() == [100] * 9


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_absurd_sizes_are_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"not {threads}"):
        _native.ThreadPool(threads)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("run", [NativeRun(sanitizer, "thread_pool_test") for sanitizer in SANITIZERS], ids=str)
def test_workers_that_do_not_run(run: NativeRun, require_native: Callable[[NativeRun], None]) -> None:
    """The native test holds workers at their claims: nobody waits for them, and they take nothing of older jobs."""
    require_native(run)


def test_a_fork_join_is_measured() -> None:
    """The bound of two microseconds is for an idle machine; here only that the figure is one."""
    assert 0 < _native.ThreadPool(2).fork_join_nanoseconds(1000) < math.inf
