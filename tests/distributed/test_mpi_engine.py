"""The engine mpi: what the native engine computes, through mpirun and mpi4py; its refusals and its failures."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed as dist

from lowerkit.errors import LowerkitError, UsageError
from lowerkit.runtimes.collective.calls import DTYPES, REDUCTIONS, Call
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.mpi.group import MpiGroup
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore, MemoryStore
from lowerkit.runtimes.collective.work import Plan
from tests.support.examples import example
from tests.support.mpi_rank import MISSING, MPIRUN, run_with_mpi
from tests.support.processes import await_files, run_processes
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group

needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason=MISSING)
TORCH = "tests.distributed.torch_backend.test_collectives"
OF_TORCH = [
    "reductions", "movements", "scatters", "layouts", "sparse", "asynchronous", "messages", "objects", "subgroups",
]  # fmt: skip
HERE = "tests.distributed.test_mpi_engine"


def numbers(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def drawn(seed: int, rank: int, name: str) -> np.ndarray[Any, Any]:
    """Returns any bits of a dtype: in floats infinities and NaN, in integers what overflows."""
    generator = np.random.default_rng([seed, rank])
    if name == "bool":
        return generator.random(257) < 0.5
    return generator.integers(0, 256, 257 * numbers(name).itemsize, np.uint8).view(numbers(name))


def same(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    """Compares bits, and NaN with any other NaN."""
    if first.dtype.kind in "fV" or first.dtype == numbers("bfloat16"):
        with np.errstate(all="ignore"):
            return np.array_equal(first.astype(np.float64), second.astype(np.float64), equal_nan=True)
    return np.array_equal(first, second)


def as_native(rank: int, size: int, folder: str, seed: int) -> None:
    """Every dtype and reduction, on any bits: as the native engine has it. Two ranks leave no choice of order."""
    ours = Group.join(DirectoryStore(f"{folder}/native"), "native", rank, size, timeout=PATIENCE)
    theirs = Group.join(DirectoryStore(f"{folder}/mpi"), "mpi", rank, size, timeout=PATIENCE, engine="mpi")
    assert isinstance(theirs.native, MpiGroup) and theirs.local_ranks == (0, 1)
    for name in DTYPES:
        for reduction in REDUCTIONS:
            values = drawn(seed, rank, name)
            factor = 0.37 if reduction == "premul_sum" else 1.0

            def all_reduce(group: Group, values: Any = values, reduction: Any = reduction, factor: Any = factor) -> Any:
                try:
                    return group.run(group.calls.all_reduce(values, reduction, factor=factor))
                except UsageError as error:
                    return error.code

            expected, actual = all_reduce(ours), all_reduce(theirs)
            if isinstance(expected, str):
                assert actual == expected == "LK1010", (name, reduction)
            elif name in {"float16", "bfloat16"} and reduction == "premul_sum":
                continue  # summed in f32 by the native engine, rounded once a rank here
            else:
                assert same(actual, expected), (name, reduction, actual, expected)
            in_place = values.copy()
            if not isinstance(expected, str):
                theirs.run(theirs.calls.all_reduce(in_place, reduction, output=in_place, factor=factor))
                assert same(in_place, actual), (name, reduction)
                root = theirs.run(theirs.calls.reduce(values, 1, reduction, factor=factor))
                assert root is None if rank == 0 else root is not None and same(root, actual), (name, reduction)
                parts = [values[:100], values[100:]]
                part = theirs.run(theirs.calls.reduce_scatter(parts, reduction, factor=factor))
                assert same(part, [actual[:100], actual[100:]][rank]), (name, reduction)
    ours.close()
    theirs.close()


def arrays(rank: int, size: int, folder: str, seed: int) -> None:
    """What torch's functions leave out: parts of different lengths, shared memory of what is sent and received."""
    group = Group.join(DirectoryStore(folder), "world", rank, size, timeout=PATIENCE, engine="mpi")
    calls = group.calls
    whole = np.zeros(sum(range(1, size + 1)), np.int32)
    begins = [sum(range(1, one + 1)) for one in range(size)]
    parts = [whole[begin : begin + one + 1] for one, begin in enumerate(begins)]
    parts[rank][...] = rank
    group.run(calls.all_gather(parts[rank], parts=parts))  # its own part lies where it belongs
    assert whole.tolist() == [one for one in range(size) for _ in range(one + 1)]
    backwards = parts[::-1] if size == 2 else parts
    mixed = [np.full(one + 1, -1, np.int32) for one in range(size)]
    group.run(calls.scatter(parts if rank == 0 else None, parts[rank] if rank == 0 else mixed[rank]))
    assert rank == 0 or (mixed[rank] == rank).all()
    gathered = group.run(calls.gather(np.full(rank, rank, np.int8), size - 1, parts=[
        np.zeros(one, np.int8) for one in range(size)] if rank == size - 1 else None))  # fmt: skip
    assert gathered is None or [one.tolist() for one in gathered] == [[one] * one for one in range(size)]
    sums = group.run(calls.reduce_scatter(parts, output=parts[rank].copy()))
    assert (sums == rank * size).all()
    group.run(calls.reduce_scatter(backwards, output=backwards[rank]))  # written where it is read
    assert (backwards[rank] == (size * (size - 1 - rank) if size == 2 else size * rank)).all()
    swapped = [np.full(3, 10 * rank + other) for other in range(size)]
    group.run(calls.all_to_all(swapped, swapped))
    assert [one.tolist() for one in swapped] == [[10 * other + rank] * 3 for other in range(size)]
    work = group.start(calls.all_reduce(np.full(70_000, 1.5)))
    later = group.start(calls.all_gather(np.array([rank])))
    assert [int(one[0]) for one in later.wait()] == list(range(size))
    assert (work.wait() == 1.5 * size).all() and work.done()
    received = group.start(calls.receive(np.empty(4), tag=7)) if rank == 0 else None
    if rank == size - 1:
        group.run(calls.send(np.arange(4.0), 0, tag=7))
    if received is not None:
        assert received.wait().tolist() == [0, 1, 2, 3] and received.source == size - 1
    halves = group.split(rank % 2, key=-rank)
    assert halves is not None and isinstance(halves.native, MpiGroup)
    members = [one for one in range(size) if one % 2 == rank % 2][::-1]
    assert halves.run(calls.all_reduce(np.array([rank]))).tolist() == [sum(members)]
    assert halves.rank == members.index(rank)
    halves.close()
    shrunk = group.shrink(timeout=PATIENCE)
    assert shrunk.size == size and shrunk.run(shrunk.calls.all_reduce(np.ones(1))).tolist() == [size]
    records = shrunk.native.records()
    assert [record["finished"] != 0 for record in records] == [True]
    with pytest.raises(LowerkitError, match="LK8011.*shrinks"):
        group.run(group.calls.barrier())
    for refused in (lambda: shrunk.arena(1 << 16), lambda: Plan().add(shrunk, shrunk.calls.barrier())):
        with pytest.raises(UsageError, match="LK1010.*another engine"):
            refused()

    def refused_call(make: Callable[[], Call[Any]]) -> None:
        with pytest.raises(UsageError, match="LK1010"):
            shrunk.run(make())

    refused_call(lambda: shrunk.calls.send(np.ones(1), rank))
    refused_call(lambda: shrunk.calls.send(np.ones(1), 1 - min(rank, 1), tag=-2))
    refused_call(lambda: shrunk.calls.broadcast(np.ones(1), size))
    refused_call(lambda: shrunk.calls.all_reduce(np.ones(1), "band"))
    refused_call(lambda: shrunk.calls.all_gather(np.ones(1), parts=[np.ones(2)] * size))
    assert shrunk.run(shrunk.calls.all_reduce(np.ones(1))).tolist() == [size]  # a refusal harms nothing
    shrunk.close()
    group.close()


def desync(rank: int, size: int, folder: str, seed: int) -> None:
    """Ranks that call different things are told so, both sides of it; no rank waits for ever."""
    one = rank == 0
    cases: dict[str, tuple[str, Callable[[Group], Call[Any]]]] = {
        "operation": ("barrier #1.*all_reduce #1|all_reduce #1.*barrier #1",
                      lambda g: g.calls.barrier() if one else g.calls.all_reduce(np.ones(3))),
        "dtype": ("float64.*float32|float32.*float64", lambda g: g.calls.all_reduce(np.ones(3, "f4" if one else "f8"))),
        "count": (r"\(3,\).*\(5,\)|\(5,\).*\(3,\)", lambda g: g.calls.all_reduce(np.ones(3 if one else 5))),
        "root": ("root 0.*root 1|root 1.*root 0", lambda g: g.calls.broadcast(np.ones(3), 0 if one else 1)),
        "reduction": ("max.*min|min.*max", lambda g: g.calls.all_reduce(np.ones(3), "max" if one else "min")),
        "parts": ("in parts", lambda g: g.calls.all_gather(np.ones(1), parts=[np.ones(1), np.ones(1 if one else 2)][
            :: 1 if one else -1])),
        "lengths": ("sends 4 elements|sends 2 elements|another rank sent more",
                    lambda g: g.calls.all_to_all([np.ones(4 if one else 2)] * 2)),
    }  # fmt: skip
    for name, (words, call) in cases.items():
        group = Group.join(DirectoryStore(folder), name, rank, size, timeout=PATIENCE, engine="mpi")
        with pytest.raises(LowerkitError, match=f"(?s)LK8010.*rank {rank}.*({words})"):
            group.run(call(group))
        with pytest.raises(LowerkitError, match="LK8011"):
            group.run(group.calls.barrier())
        group.close()
    for sent, expected in ((3, 5), (5, 3)):
        group = Group.join(DirectoryStore(folder), f"message {sent}", rank, size, timeout=PATIENCE, engine="mpi")
        if one:
            group.run(group.calls.send(np.ones(sent), 1))
        else:
            with pytest.raises(LowerkitError, match="LK8010"):
                group.run(group.calls.receive(np.ones(expected), 0))
        group.close()


def late(rank: int, size: int, folder: str, seed: int) -> None:
    """A rank that does not come: the deadline ends the operation, and processes end in order."""
    group = Group.join(DirectoryStore(folder), "world", rank, size, timeout=PATIENCE, engine="mpi")
    group.run(group.calls.barrier())
    if rank == 0:
        work = group.start(group.calls.all_reduce(np.ones(3)), timeout=1.0)
        with pytest.raises(LowerkitError, match="LK8008.*it goes on"):
            work.wait(0.1)
        assert not work.done()
        with pytest.raises(LowerkitError, match="LK8008.*all_reduce #2 of group 'world', rank 0"):
            work.wait()
        assert group.aborted is not None and group.native.records()[-1]["status"] == 2
        (Path(folder) / "told").touch()
    else:
        await_files(Path(folder) / "told")
    group.close()


def of_torch(rank: int, size: int, folder: str, seed: int) -> None:
    """Groups made of the default group's ranks have its engine; its errors are torch's; DDP trains."""
    with process_group(rank, size, folder):
        for group in (dist.group.WORLD, dist.new_group([0, 1])):
            assert isinstance(getattr(group, "group").native, MpiGroup)  # noqa: B009
        dist.monitored_barrier()
        parameters = example("ddp").train()
        assert all(bool(one.isfinite().all()) for one in parameters)
        total = torch.cat([one.flatten() for one in parameters])
        copies = [torch.empty_like(total) for _ in range(size)]
        dist.all_gather(copies, total)
        assert all(torch.equal(one, total) for one in copies)
        for refused in (torch.empty(3, device="meta"),):
            with pytest.raises(dist.DistBackendError, match="LK1010.*meta"):
                dist.all_reduce(refused)
        strided = torch.zeros(4, 6).t()
        work = dist.all_reduce(strided, async_op=True)
        assert work is not None
        work.wait()
        with pytest.raises(dist.DistBackendError, match="LK8010"):
            dist.all_reduce(torch.ones(3 + rank))


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[str]]:
    """What became of each function on 2 and 3 ranks; one mpirun for each number of ranks."""
    results: dict[tuple[int, str], list[str]] = {}
    for size in (2, 3):
        functions = [f"{TORCH}:{name}" for name in OF_TORCH] + [f"{HERE}:arrays"]
        if size == 2:
            functions += [f"{HERE}:{name}" for name in ("as_native", "desync", "of_torch", "late")]
        raised = run_with_mpi(size, tmp_path_factory.mktemp("mpi"), functions)
        results.update({(size, name.partition(":")[2]): texts for name, texts in raised.items()})
    return results


@needs_mpirun
@pytest.mark.every_combination  # one mpirun for each size has run them all
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", [*OF_TORCH, "arrays"])
def test_operations(name: str, size: int, verdicts: dict[tuple[int, str], list[str]]) -> None:
    assert verdicts[size, name] == [""] * size, "\n".join(verdicts[size, name])


@needs_mpirun
@pytest.mark.parametrize("name", ["as_native", "desync", "of_torch", "late"])
def test_two_ranks(name: str, verdicts: dict[tuple[int, str], list[str]]) -> None:
    assert verdicts[2, name] == [""] * 2, "\n".join(verdicts[2, name])


def alone(rank: int, size: int, folder: str) -> str:
    """A rank that mpirun did not start."""
    with pytest.raises(LowerkitError) as error:
        Group.join(
            DirectoryStore(folder), "world", rank, size, RendezvousOptions(timeout=5.0), engine="mpi", timeout=5.0
        )
    return str(error.value)


@needs_mpirun
def test_ranks_that_mpirun_did_not_start_are_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for text in run_processes(alone, 2, str(tmp_path)):
        assert "LK8007" in text and "rank 1 is rank 0 of 1 in MPI" in text and "mpirun" in text, text


@needs_mpirun
def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    assert MPIRUN is not None
    code = (
        "from lowerkit.runtimes.collective.group import Group, RendezvousOptions\n"
        "from lowerkit.runtimes.collective.rendezvous.store import MemoryStore\n"
        "Group.join(MemoryStore(), 'world', 1, 3, RendezvousOptions(timeout=0.3), engine='mpi')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "LK8007" in done.stderr and "ranks 0, 2 did not come within 0.3 s" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("sys.modules['mpi4py'] = None", r"LK1007.*needs mpi4py(?s:.*)pip install 'lowerkit\[mpi\]'"),
        ("os.environ['MPI4PY_LIBMPI'] = '/nowhere/libmpi.so'", "LK1007.*no MPI library"),
    ],
)
def test_what_is_not_installed_is_named(setting: str, words: str) -> None:
    code = (
        f"import os, sys\n{setting}\n"
        "from lowerkit.errors import LowerkitError\n"
        "from lowerkit.runtimes.collective.mpi.library import load_mpi\n"
        "try: load_mpi()\n"
        "except LowerkitError as error: print(error.render())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert re.search(words, done.stdout), done.stdout


def test_options_that_mpi_has_no_use_for_are_refused() -> None:
    options = RendezvousOptions(token=b"0" * 16, interface="lo", shared_memory=False)
    with pytest.raises(UsageError, match="LK1010.*token, interface, shared_memory"):
        Group.join(MemoryStore(), "world", 0, 2, options, engine="mpi")
    unknown: Any = "ucx"
    with pytest.raises(UsageError, match="no engine 'ucx'"):
        Group.join(MemoryStore(), "world", 0, 2, engine=unknown)
