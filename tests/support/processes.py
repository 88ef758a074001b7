"""Ranks as processes, with a deadline: what they return, or what they raised, comes back to the test."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.ranks import PATIENCE
from tests.support.suite.recording import continue_test, current_test

# Forked from one server that has imported what is slow to import.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["__main__", "tests.support.preloaded"])


def start_ranks(function: Callable[..., Any], size: int, *arguments: Any) -> list[tuple[Any, Any]]:
    """Starts ``function(rank, size, *arguments)`` in a process for each rank; returns (process, connection) by rank."""
    ranks: list[tuple[Any, Any]] = []
    for rank in range(size):
        ours, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(
            target=_run, args=(theirs, function, rank, size, arguments, current_test()), daemon=True
        )
        process.start()
        theirs.close()
        ranks.append((process, ours))
    return ranks


def collect(ranks: list[tuple[Any, Any]], timeout: float) -> list[Any]:
    """Returns what the ranks returned; for one that raised, its traceback as text, for one that died, its exit code.

    Ranks that are not done within ``timeout`` seconds are killed, and the test fails.
    """
    deadline = time.monotonic() + timeout
    results: list[Any] = []
    try:
        for rank, (process, connection) in enumerate(ranks):
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                said = [
                    f"rank {one}: {result}" for one, result in enumerate(results) if isinstance(result, Failure | int)
                ]
                raise AssertionError("\n".join([f"rank {rank} is not done within {timeout} s", *said]))
            try:
                results.append(connection.recv())
            except EOFError:
                process.join(PATIENCE)
                results.append(process.exitcode)
    finally:
        for process, connection in ranks:
            connection.close()
            process.join(0 if process.exitcode is not None else 2)
            if process.exitcode is None:
                process.kill()
                process.join()
    return results


def run_processes(
    function: Callable[..., Any], size: int, *arguments: Any, timeout: float = 1.5 * PATIENCE
) -> list[Any]:
    """Runs ranks as processes; fails with the tracebacks of those that raised."""
    results = collect(start_ranks(function, size, *arguments), timeout)
    failures = [f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, Failure | int)]
    assert not failures, "\n".join(failures)
    return results


def await_files(*paths: Path, timeout: float = PATIENCE) -> None:
    """Waits until other ranks have made these files: for what they do, not for a time that it may take them."""
    deadline = time.monotonic() + timeout
    while missing := [path.name for path in paths if not path.exists()]:
        assert time.monotonic() < deadline, f"{missing} were not made within {timeout} s"
        time.sleep(0.01)


class Failure(str):
    """The traceback of a rank."""


def _run(
    connection: Any, function: Callable[..., Any], rank: int, size: int, arguments: tuple[Any, ...], test: str
) -> None:
    continue_test(test)
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        result = function(rank, size, *arguments)
        connection.send({} if result is None else result)
    except BaseException:
        connection.send(Failure(traceback.format_exc()))
    connection.close()
