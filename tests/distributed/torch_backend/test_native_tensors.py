"""Operations that run natively from the tensors on, beside ranks whose tensors have to go the long way."""

# Those that torch renamed are called by their present name.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.runtimes.collective.calls import Operation
from tests.support.processes import run_processes
from tests.support.suite.randomness import RANDOM
from tests.support.torch_groups import process_group

Layout = Callable[[torch.Tensor], torch.Tensor]
ROWS, COLUMNS = 4, 3


def plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t()


def strided(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def negative(tensor: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-tensor)


def parameter(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(tensor.clone(), requires_grad=tensor.is_floating_point())


def offset(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)


LAYOUTS: list[Layout] = [plain, transposed, strided, negative, parameter, offset]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.uint8]


def drawn(seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 9, (ROWS, COLUMNS), generator=generator).to(dtype)


def every_operation(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder), torch.no_grad():
        for round_, dtype in enumerate(DTYPES * 4):
            inputs = [drawn(seed + round_ * size + other, dtype) for other in range(size)]
            total = torch.stack([one.to(torch.int64) for one in inputs]).sum(0)
            # Ranks choose apart: on some the tensors are read natively, on others copied first.
            layout = LAYOUTS[(seed + round_ * (rank + 1)) % len(LAYOUTS)]
            other = LAYOUTS[(seed + round_ * (rank + 2) + 1) % len(LAYOUTS)]
            mine = layout(inputs[rank])
            empty = [other(torch.zeros(ROWS, COLUMNS, dtype=dtype)) for _ in range(size)]

            reduced = layout(inputs[rank])
            dist.all_reduce(reduced)
            assert torch.equal(reduced, total.to(dtype)), (layout, dtype)
            root = round_ % size
            reduced = layout(inputs[rank])
            dist.reduce(reduced, root)
            assert torch.equal(reduced, total.to(dtype) if rank == root else inputs[rank])
            sent = layout(inputs[rank])
            dist.broadcast(sent, root)
            assert torch.equal(sent, inputs[root])

            dist.all_gather(empty, mine)
            assert all(torch.equal(one, two) for one, two in zip(empty, inputs, strict=True))
            gathered = other(torch.zeros(size * ROWS, COLUMNS, dtype=dtype))
            dist.all_gather_single(gathered, mine)
            assert torch.equal(gathered, torch.cat(inputs))
            dist.gather(mine, empty if rank == root else None, root)
            dist.scatter(empty[0], [layout(one) for one in inputs] if rank == root else None, root)
            assert torch.equal(empty[0], inputs[rank])

            half = empty[0]
            dist.reduce_scatter(half, [layout(inputs[rank]) for _ in range(size)])
            assert torch.equal(half, total.to(dtype))
            dist.reduce_scatter_single(half, layout(torch.cat([inputs[rank]] * size)))
            assert torch.equal(half, total.to(dtype))
            dist.all_to_all(empty, [layout(inputs[rank]) for _ in range(size)])
            assert all(torch.equal(one, two) for one, two in zip(empty, inputs, strict=True))
            dist.all_to_all_single(gathered, layout(torch.cat([inputs[rank]] * size)))
            assert torch.equal(gathered, torch.cat(inputs))


@pytest.mark.parametrize("size", [2, 3])
def test_layouts_meet(size: int, tmp_path: Path) -> None:
    seed = int(RANDOM.integers(1 << 24))
    run_processes(every_operation, size, str(tmp_path), seed)


def what_is_plain(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        group = dist.group.WORLD
        assert isinstance(group, ProcessGroup)

        def taken(tensor: torch.Tensor) -> bool:
            return group.at_once(int(Operation.ALL_REDUCE), tensor, tensor, None)

        values = torch.arange(6.0)
        assert taken(values) and torch.equal(values, torch.arange(6.0) * size)
        assert taken(values[2:])
        assert taken(torch.zeros(()))
        assert taken(torch.zeros(0))
        assert taken(torch.zeros(3, requires_grad=True))
        for refused in (
            values[::2],
            torch._neg_view(values),
            torch.zeros(2, dtype=torch.complex64),
            torch.zeros(2, 3).t(),
            torch.zeros(2, device="meta"),
            torch.eye(2).to_sparse(),
        ):
            assert not taken(refused), refused
        # Nothing was done, nothing is out of step.
        dist.barrier()
        assert not group.at_once(int(Operation.ALL_GATHER), [values] * (size + 1), values, None)
        assert not group.at_once(int(Operation.ALL_GATHER), [values.double()] * size, values, None)
        assert not group.at_once(int(Operation.REDUCE_SCATTER), torch.zeros(4), torch.zeros(4 * size + 1), None)
        dist.barrier()


def test_what_goes_the_long_way(tmp_path: Path) -> None:
    run_processes(what_is_plain, 2, str(tmp_path))


def into_expanded(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        one, plain = torch.zeros(1).expand(4), torch.ones(4)
        calls: list[Callable[[], Any]] = [
            lambda: dist.all_reduce(one),
            lambda: dist.all_reduce(one, async_op=True),
            lambda: dist.all_gather([one] * size, plain),
            lambda: dist.reduce_scatter(one, [plain] * size),
            lambda: dist.irecv(one, 1 - rank),
        ]
        for call in calls:
            with pytest.raises(dist.DistBackendError, match=r"LK1010(.|\n)*clone\(\)"):
                call()
        gathered = [torch.empty(4) for _ in range(size)]
        dist.all_gather(gathered, torch.tensor([float(rank)]).expand(4))  # reading is another matter
        assert [row.tolist() for row in gathered] == [[0.0] * 4, [1.0] * 4]


def test_expanded_results_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    run_processes(into_expanded, 2, str(tmp_path))
