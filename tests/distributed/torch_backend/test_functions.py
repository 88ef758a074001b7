"""Functions of torch.distributed beside the collectives: what torch asks of a group, subgroups, autograd, compilation.

Each runs with gloo too, so that no test asks for what no backend does.
"""

# torch keeps some of these for itself, and says so.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportDeprecated=false

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import checkpoint
from torch.distributed.nn import functional as differentiable
from torch.nn.parallel import DistributedDataParallel

from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def questions(rank: int, folder: str) -> None:
    """What torch asks of a group before it uses it."""
    world: Any = dist.group.WORLD
    assert torch.device("cpu") in world._device_types
    backend = world._get_backend(torch.device("cpu"))
    # torch 2.15 calls it otherwise.
    estimates = getattr(backend, "supports_time_estimate", None) or getattr(backend, "_supports_time_estimate", None)
    assert backend.rank() == rank and not estimates
    with pytest.raises(RuntimeError, match="meta"):
        world._get_backend(torch.device("meta"))
    before = world._get_sequence_number_for_group()
    dist.all_reduce(ones(3))
    assert world._get_sequence_number_for_group() > before
    assert dist.distributed_c10d._get_pg_default_device(world) in {torch.device("cpu"), torch.device("cuda")}
    assert dist.get_global_rank(world, 1) == 1 and dist.get_process_group_ranks(world) == [0, 1]
    assert str(dist.get_backend_config()) == f"cpu:{dist.get_backend()},cuda:{dist.get_backend()}"
    with pytest.raises(NotImplementedError), dist._time_estimator(device=torch.device("cpu")):  # pyright: ignore
        pass
    dist.monitored_barrier(wait_all_ranks=True, timeout=timedelta(seconds=PATIENCE))


def async_checkpoint(rank: int, folder: str) -> None:
    state = {"values": torch.arange(5.0) + 1}
    checkpoint.async_save(state, checkpoint_id=f"{folder}/saved").result()  # type: ignore[union-attr]
    loaded = {"values": torch.zeros(5)}
    checkpoint.load(loaded, checkpoint_id=f"{folder}/saved")
    assert torch.equal(loaded["values"], state["values"])


def subgroups(rank: int, folder: str) -> None:
    alone, _ = dist.new_subgroups(1)
    enumerated, _ = dist.new_subgroups_by_enumeration([[0], [1]])
    local = dist.new_group([rank], use_local_synchronization=True)
    for group in (alone, enumerated, local):
        dist.all_reduce(tensor := ones(2), group=group)
        assert torch.equal(tensor, ones(2))
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:  # torch 2.10 always sorts them
        turned = dist.new_group([1, 0], sort_ranks=False, group_desc="turned", timeout=timedelta(seconds=PATIENCE))
        assert isinstance(turned, dist.ProcessGroup) and turned.rank() == 1 - rank and turned.group_desc == "turned"
        dist.broadcast(tensor := ones(1) * rank, group_src=0, group=turned)
        assert tensor.item() == 1
    mesh = dist.init_device_mesh("cpu", (2, 1), mesh_dim_names=("rows", "columns"))
    for name, expected in (("rows", 2.0), ("columns", 1.0)):
        dist.all_reduce(tensor := ones(1), group=mesh[name].get_group())
        assert tensor.item() == expected
    received = ones(2)
    operations = [
        dist.P2POp(dist.isend, ones(2) * rank, group_peer=1 - rank),
        dist.P2POp(dist.irecv, received, group_peer=1 - rank),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(received, ones(2) * (1 - rank))
    objects: list[Any] = [None]
    if rank == 0:
        dist.send_object_list(["sent"], 1)
    else:
        dist.recv_object_list(objects, 0)
        assert objects == ["sent"]
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(2)]
    dist.all_gather_coalesced(lists, [ones(2) * rank, ones(3) * rank])
    assert [[float(one.sum()) for one in row] for row in lists] == [[0.0, 0.0], [2.0, 3.0]]


def of_functions(rank: int, folder: str) -> None:
    """Functional collectives, and their gradients."""
    world: Any = dist.group.WORLD
    mine = ones(2) * (rank + 1)
    assert functional.all_reduce(mine, "sum", world).tolist() == [3, 3]
    assert functional.all_gather_tensor(mine, 0, world).tolist() == [1, 1, 2, 2]
    assert functional.reduce_scatter_tensor(mine, "sum", 0, world).tolist() == [3]
    assert functional.broadcast(mine, 1, world).tolist() == [2, 2]
    assert functional.all_to_all_single(mine, None, None, world).tolist() == [1, 2]
    assert functional.permute_tensor(mine, [1, 0], world).tolist() == [2 - rank] * 2
    (summed,) = functional.all_reduce_coalesced([mine], "sum", world)
    (gathered,) = functional.all_gather_into_tensor_coalesced([mine], world)
    (scattered,) = functional.reduce_scatter_tensor_coalesced([mine], "sum", [0], world)
    assert (summed.tolist(), gathered.tolist(), scattered.tolist()) == ([3, 3], [1, 1, 2, 2], [3])
    weights = torch.arange(4.0)
    cases: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[float]]] = {
        "all_gather": (lambda x: (functional.all_gather_tensor_autograd(x, 0, world) * weights).sum(),
                       [4.0 * rank, 4.0 * rank + 2]),
        "all_to_all": (lambda x: (functional.all_to_all_single_autograd(x, None, None, world) * weights[:2]).sum(),
                       [float(rank), float(rank)]),
        "all_reduce": (lambda x: (differentiable.all_reduce(x) * (rank + 1)).sum(), [3.0, 3.0]),
        "broadcast": (lambda x: (differentiable.broadcast(x, 0) * (rank + 1)).sum(),
                      [3.0, 3.0] if rank == 0 else [0.0, 0.0]),
        "gather": (lambda x: (torch.stack(differentiable.gather(x, 0)) * weights.view(2, 2)).sum(),
                   [2.0 * rank, 2.0 * rank + 1]),
        "to_all": (lambda x: (differentiable.all_to_all_single(torch.empty(2), x) * weights[:2]).sum(),
                   [float(rank), float(rank)]),
    }  # fmt: skip
    for name, (function, gradient) in cases.items():
        leaf = mine.clone().requires_grad_()
        function(leaf).backward()
        assert leaf.grad is not None and leaf.grad.tolist() == gradient, (name, leaf.grad, gradient)


def compiled(rank: int, folder: str) -> None:
    world: Any = dist.group.WORLD

    def in_functions(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", world) + functional.all_gather_tensor(x, 0, world)[:2]

    def in_place(x: torch.Tensor) -> torch.Tensor:
        doubled, gathered = x * 2, torch.zeros(4)
        dist.all_reduce(doubled)
        dist.all_gather_into_tensor(gathered, x)
        return doubled + gathered[2:] * dist.get_world_size()

    for function, expected in ((in_functions, [7.0, 7.0]), (in_place, [10.0, 10.0])):
        torch._dynamo.reset()
        run = torch.compile(function, fullgraph=True, backend="aot_eager")
        assert run(ones(2) * (rank + 1)).tolist() == expected


def compiled_training(rank: int, folder: str) -> None:
    """Dynamo looks at every frame below a compiled module, those of a process group in Python too."""
    gradients: list[list[torch.Tensor]] = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model: Any = DistributedDataParallel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
        step = torch.compile(model, backend="aot_eager") if is_compiled else model
        for _ in range(2):
            model.zero_grad()
            step(torch.full((5, 3), rank + 1.0)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, traced in zip(*gradients, strict=True):
        torch.testing.assert_close(traced, plain)


def splitting(rank: int, folder: str) -> None:
    """torch's own split_group refuses every group where there is no accelerator."""
    parts = [[0], [1]] if dist.get_world_size() == 2 else [[0, 2], [1]]
    dist.new_group([0])  # ranks that are in different numbers of groups find each other all the same
    parent: Any
    for parent in (None, dist.new_group(list(range(dist.get_world_size())))):
        split = dist.split_group(parent, parts, group_desc="split", timeout=timedelta(seconds=PATIENCE))
        members = next((part for part in parts if rank in part), [])
        assert (split is not None) == bool(members)
        if split is not None:
            assert split.size() == len(members) and split.group_desc == "split"
            dist.all_reduce(tensor := torch.tensor([rank + 1.0]), group=split)
            assert tensor.item() == sum(member + 1 for member in members)
            dist.destroy_process_group(split)
    for wrong in (None, [], [[]], [[0], [0, 1]], [[0, 9]]):
        with pytest.raises(ValueError):
            dist.split_group(split_ranks=wrong)
    with pytest.raises(dist.DistBackendError, match="LK1010"):
        dist.split_group(split_ranks=parts, backend="gloo")


@pytest.mark.parametrize("size", [2, 4])
def test_split_group(size: int, tmp_path: Path) -> None:
    run_processes(worker, size, str(tmp_path), splitting, "lowerkit")


def worker(rank: int, size: int, folder: str, function: Callable[[int, str], None], backend: str) -> None:
    with process_group(rank, size, folder, backend=backend):
        function(rank, folder)


@pytest.mark.parametrize("backend", ["lowerkit", pytest.param("gloo", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "function",
    [questions, async_checkpoint, subgroups, of_functions, compiled, compiled_training],
    ids=lambda function: function.__name__,
)
def test_functions(function: Callable[[int, str], None], backend: str, tmp_path: Path) -> None:
    run_processes(worker, 2, str(tmp_path), function, backend)
