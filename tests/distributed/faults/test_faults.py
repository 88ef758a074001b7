"""Failures end within their deadline and name the rank, the operation and its number."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lowerkit.distributed as backend
from tests.support.processes import await_files, collect, run_processes, start_ranks
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group


def caught(function: Any) -> str:
    """Returns the message of what ``function`` raises."""
    with pytest.raises(dist.DistBackendError) as error:
        function()
    return str(error.value)


def dies(rank: int, size: int, folder: str, how: int) -> str:
    # Only the deadline of the group reveals that a rank is stopped; ranks may be late to the start on a busy machine.
    timeout = timedelta(seconds=PATIENCE if how == signal.SIGKILL else 2.0)
    with process_group(rank, size, folder):
        group = dist.new_group(timeout=timeout)
        dist.all_reduce(torch.ones(3), group=group)
        if rank == 1:
            os.kill(os.getpid(), how)
        message = caught(lambda: dist.all_reduce(torch.ones(3), group=group))
        again = caught(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert "LK8011" in again, again
        return message


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stops_is_named(how: signal.Signals, tmp_path: Path) -> None:
    ranks = start_ranks(dies, 3, str(tmp_path), int(how))
    first, third = collect([ranks[0], ranks[2]], PATIENCE)
    process, connection = ranks[1]
    process.kill()
    process.join()
    connection.close()
    for message in (first, third):
        assert "rank 1" in message and "all_reduce #2" in message, message
    assert ("LK8009" if how == signal.SIGKILL else "LK8008") in first + third  # by its death, by its silence


def differs(rank: int, size: int, folder: str, what: str) -> str:
    with process_group(rank, size, folder):
        odd = rank == size - 1
        if what == "shape":
            return caught(lambda: dist.all_reduce(torch.ones(4 if odd else 3)))
        if what == "dtype":
            return caught(lambda: dist.all_reduce(torch.ones(3, dtype=torch.float64 if odd else torch.float32)))
        if what == "reduction":
            return caught(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM))
        if what == "root":
            # Who believes to be the root of a small broadcast waits for nobody: the next operation tells it.
            return caught(lambda: (dist.broadcast(torch.ones(3), 1 if odd else 0), dist.barrier()))
        return caught(lambda: dist.barrier() if odd else dist.all_reduce(torch.ones(3)))


@pytest.mark.parametrize("what", ["shape", "dtype", "reduction", "root", "operation"])
def test_calls_that_do_not_belong_together_are_shown_side_by_side(what: str, tmp_path: Path) -> None:
    messages = run_processes(differs, 3, str(tmp_path), what)
    assert any("LK8010" in message for message in messages), messages
    sides = {"shape": ("shape 4", "shape 3"), "dtype": ("f64", "f32"), "reduction": ("max", "sum"),
             "root": ("root 1", "root 0"), "operation": ("barrier", "all_reduce")}[what]  # fmt: skip
    shown = next(message for message in messages if "LK8010" in message)
    assert all(side in shown for side in sides), shown


def late(rank: int, size: int, folder: str) -> str:
    with process_group(rank, size, folder):
        if rank == 2:
            await_files(Path(folder) / "told0", Path(folder) / "told1")
        message = caught(lambda: backend.monitored_barrier(timeout=timedelta(seconds=2.0), wait_all_ranks=True))
        (Path(folder) / f"told{rank}").touch()
        dist.monitored_barrier()  # who came late is told, and the next one is for all again
        return message


def test_monitored_barrier_names_who_is_missing(tmp_path: Path) -> None:
    messages = run_processes(late, 3, str(tmp_path))
    assert all("Rank 2 failed to pass" in message for message in messages), messages


def passes(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        for _ in range(3):
            backend.monitored_barrier()
        backend.write_flight_record(f"{folder}/{rank}.json")


def test_monitored_barrier_lets_all_through(tmp_path: Path) -> None:
    run_processes(passes, 3, str(tmp_path))
    assert all((tmp_path / f"{rank}.json").exists() for rank in range(3))


def refuses(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        sparse = torch.eye(3).to_sparse()
        assert "to_dense" in caught(lambda: dist.all_reduce(sparse, dist.ReduceOp.MAX))
        assert "to_dense" in caught(lambda: dist.broadcast(sparse, 0))
        assert "meta" in caught(lambda: dist.all_reduce(torch.ones(2, device="meta")))
        assert "LK1010" in caught(lambda: dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND))
        assert "float8" in caught(lambda: dist.all_reduce(torch.zeros(3, dtype=torch.float8_e4m3fn)))
        assert "LK1010" in caught(lambda: dist.all_gather_single(torch.ones(3), torch.ones(4)))
        with pytest.raises(dist.DistBackendError, match="parts of 5 rows"):
            dist.all_to_all_single(torch.ones(5), torch.ones(5), [1] * size, [1] * size)
        total = torch.ones(1)
        dist.all_reduce(total)  # a refused call harms nobody
        assert total.item() == size


def test_calls_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    run_processes(refuses, 2, str(tmp_path))


def pending(rank: int, size: int, folder: str) -> str:
    with process_group(rank, size, folder):
        if rank == 1:
            await_files(Path(folder) / "aborted")
            return ""
        work = dist.all_reduce(torch.ones(2), async_op=True)
        assert work is not None and not work.is_completed()
        with pytest.raises(dist.DistBackendError, match="LK8008"):
            work.wait(timedelta(seconds=0.1))
        future = work.get_future()
        dist.group.WORLD.abort()  # pyright: ignore[reportOptionalMemberAccess]
        (Path(folder) / "aborted").touch()
        with pytest.raises(Exception, match="abort"):
            future.wait()
        return caught(work.wait)


def test_abort_ends_what_is_in_flight(tmp_path: Path) -> None:
    messages = run_processes(pending, 2, str(tmp_path))
    assert "LK8011" in messages[0], messages


def absent(rank: int, size: int, folder: str) -> str:
    with pytest.raises(dist.DistBackendError) as error, process_group(rank, size + 1, folder, timeout=3.0):
        pass
    return str(error.value)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    for message in run_processes(absent, 2, str(tmp_path)):
        assert "LK8007" in message and "rank 2 did not come" in message, message
