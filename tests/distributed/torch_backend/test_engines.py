"""Engines of torch behind a group: gloo for every operation, and what NCCL is handed, by a stand-in for it."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportDeprecated=false

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensorMode

from lowerkit.distributed import Options
from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.runtimes.collective.tuning.table import TuningTable
from tests.distributed.torch_backend.test_functions import of_functions
from tests.support.examples import example
from tests.support.processes import run_processes
from tests.support.torch_groups import process_group


def everything(rank: int, size: int, folder: str) -> None:
    """Every operation through engine="gloo", in the default group and in one made of its ranks."""
    with process_group(rank, size, folder, options=Options(engine="gloo")):
        whole = torch.arange(float(size * 2))
        for group in (dist.group.WORLD, dist.new_group(list(range(size)))):
            assert isinstance(group, dist.ProcessGroup) and not isinstance(group, ProcessGroup)
            assert isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
            mine = torch.full((2,), float(rank))

            def done(work: Any) -> None:
                work.wait()
                assert work.is_completed()

            for op, expected in ((dist.ReduceOp.SUM, sum(range(size))), (dist.ReduceOp.MAX, size - 1)):
                dist.all_reduce(tensor := mine.clone(), op, group=group)
                assert tensor.tolist() == [expected] * 2
                dist.reduce(tensor := mine.clone(), 1, op, group=group)
                assert rank != 1 or tensor.tolist() == [expected] * 2
            done(dist.all_reduce(tensor := mine.clone(), group=group, async_op=True))
            assert tensor.tolist() == [sum(range(size))] * 2
            dist.broadcast(tensor := mine.clone(), 1, group=group)
            assert tensor.tolist() == [1, 1]
            rows = [torch.empty(2) for _ in range(size)]
            dist.all_gather(rows, mine, group=group)
            assert [row.tolist() for row in rows] == [[one] * 2 for one in range(size)]
            dist.all_gather_into_tensor(gathered := torch.empty(2 * size), mine, group=group)
            assert gathered.tolist() == [one for one in range(size) for _ in range(2)]
            dist.gather(mine, rows if rank == 0 else None, 0, group=group)
            dist.scatter(tensor, rows if rank == 0 else None, 0, group=group)
            assert torch.equal(tensor, mine)
            dist.reduce_scatter_tensor(tensor, whole, group=group)
            assert tensor.tolist() == [size * 2 * rank, size * (2 * rank + 1)]
            dist.reduce_scatter(tensor, list(whole.chunk(size)), group=group)
            assert tensor.tolist() == [size * 2 * rank, size * (2 * rank + 1)]
            dist.all_to_all(rows, [mine] * size, group=group)
            assert [row.tolist() for row in rows] == [[one] * 2 for one in range(size)]
            dist.all_to_all_single(gathered, mine.repeat(size), group=group)
            assert gathered.tolist() == [one for one in range(size) for _ in range(2)]
            work = dist.isend(mine, (rank + 1) % size, group=group)
            dist.recv(tensor, (rank - 1) % size, group=group)
            done(work)
            assert tensor.tolist() == [(rank - 1) % size] * 2
            objects: list[Any] = [None] * size
            dist.all_gather_object(objects, {"rank": rank}, group=group)
            assert objects == [{"rank": one} for one in range(size)]
            dist.all_reduce_coalesced([first := mine.clone(), second := mine.clone()], group=group)
            assert first.tolist() == second.tolist() == [sum(range(size))] * 2
            dist.barrier(group=group)
            dist.monitored_barrier(group)
        if size == 2:
            of_functions(rank, folder)
        assert all(bool(one.isfinite().all()) for one in example("ddp").train())


@pytest.mark.parametrize("size", [2, 3])
def test_gloo_carries_every_operation_out(size: int, tmp_path: Path) -> None:
    run_processes(everything, size, str(tmp_path))


@pytest.mark.parametrize("engine", ["gloo", "nccl"])
def test_engines_of_torch_refuse_options_that_are_not_theirs(engine: Any) -> None:
    options = Options(engine, token=b"0" * 16, interface="lo", shared_memory=False, tuning=TuningTable("", 1, {}),
                      record_folder="/tmp")  # fmt: skip
    with pytest.raises(dist.DistBackendError, match="LK1010.*token, interface, shared_memory, tuning, record_folder"):
        dist.init_process_group("lowerkit", store=HashStore(), rank=0, world_size=2, pg_options=options)


class Recorder:
    """Stands in for ProcessGroupNCCL: notes what it is handed."""

    made: ClassVar[list[Recorder]] = []

    class Options:
        _timeout = timedelta(0)

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        self.arguments = (store, rank, size, options)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.made.append(self)

    def __getattr__(self, name: str) -> Callable[..., str]:
        def noted(*arguments: Any) -> str:
            self.calls.append((name, arguments))
            return f"work of {name}"

        return noted


def alone(**options: Any) -> Any:
    dist.init_process_group(
        "lowerkit", store=HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=17),
        pg_options=Options(**options),
    )  # fmt: skip
    return dist.group.WORLD


def on_cuda(count: int = 1) -> list[torch.Tensor]:
    """Returns tensors that say they are on a CUDA device; they have no memory."""
    with FakeTensorMode():
        return [torch.empty(4, device="cuda") for _ in range(count)]


def test_cuda_tensors_are_handed_over_to_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", Recorder, raising=False)
    monkeypatch.setattr(Recorder, "made", [])
    group = alone()
    try:
        tensor, output = on_cuda(2)
        calls: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: group.allreduce([tensor]),
            "reduce": lambda: group.reduce([tensor], 0),
            "broadcast": lambda: group.broadcast([tensor], 0),
            "allgather": lambda: group.allgather([[output]], [tensor]),
            "_allgather_base": lambda: group.all_gather_single(output, tensor),
            "gather": lambda: group.gather([[output]], [tensor], root=0),
            "scatter": lambda: group.scatter([output], [[tensor]], root=0),
            "reduce_scatter": lambda: group.reduce_scatter([output], [[tensor]]),
            "_reduce_scatter_base": lambda: group.reduce_scatter_single(output, tensor),
            "alltoall": lambda: group.alltoall([output], [tensor]),
            "alltoall_base": lambda: group.all_to_all_single(output, tensor, [], []),
            "send": lambda: group.send([tensor], 0, 3),
            "recv": lambda: group.recv([output], 0, 3),
        }
        for name, call in calls.items():
            assert call() == f"work of {name}"
            (noted,) = Recorder.made  # made once
            called, arguments = noted.calls.pop()
            assert called == name
            handed = [one for one in flat(arguments) if isinstance(one, torch.Tensor)]
            assert handed and all(one is tensor or one is output for one in handed), name
        store, rank, size, options = Recorder.made[0].arguments
        assert (rank, size, options._timeout) == (0, 1, timedelta(seconds=17))
        store.set("key", "value")
        assert group.get_group_store().check(["nccl//key"])  # keys of its own in the group's store
        assert dist.all_reduce(torch.ones(2)) is None  # CPU tensors stay ours
        assert not Recorder.made[0].calls
    finally:
        dist.destroy_process_group()


def flat(value: Any) -> list[Any]:
    return [one for item in value for one in flat(item)] if isinstance(value, list | tuple) else [value]


def test_cuda_tensors_without_nccl_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    group = alone()
    try:
        (tensor,) = on_cuda()
        with pytest.raises(dist.DistBackendError, match=r"LK1010.*tensors on cuda:0(?s:.*)install NCCL"):
            group.allreduce([tensor])
        monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
        monkeypatch.setattr(dist, "ProcessGroupNCCL", Recorder, raising=False)
        with pytest.raises(dist.DistBackendError, match="LK1010.*different devices"):
            group.allgather([[tensor]], [torch.ones(4)])  # what is gathered is on the CPU
    finally:
        dist.destroy_process_group()
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(dist.DistBackendError, match="LK1010.*engine='nccl': this torch has no NCCL"):
        alone(engine="nccl")
