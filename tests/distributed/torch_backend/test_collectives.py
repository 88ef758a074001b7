"""Every function of torch.distributed over the backend, on fresh random tensors, against what torch computes alone."""

# Older spellings are tested too, and those that torch keeps for itself.
# pyright: reportDeprecated=false, reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.support.processes import run_processes
from tests.support.suite.randomness import RANDOM
from tests.support.torch_groups import process_group

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip
COMPLEX = [torch.complex64, torch.complex128]
SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (129, 33), (0,), (4, 0)]


def values(seed: int, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns what ``rank`` contributes: small integers in every dtype, so that sums are exact in any order."""
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    drawn = torch.randint(0, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(drawn.double(), torch.randint(-3, 4, shape, generator=generator).double()).to(dtype)
    return drawn.to(dtype)


def everyone(seed: int, size: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([values(seed, rank, shape, dtype) for rank in range(size)])


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    assert torch.equal(actual, expected), (actual, expected)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.int64)


def reductions(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder):
        for index, dtype in enumerate([*FLOATS, *INTEGERS]):
            for shape in SHAPES:
                case = seed + index
                stacked = wide(everyone(case, size, shape, dtype))
                expected = {
                    dist.ReduceOp.SUM: stacked.sum(0), dist.ReduceOp.PRODUCT: stacked.prod(0),
                    dist.ReduceOp.MIN: stacked.amin(0), dist.ReduceOp.MAX: stacked.amax(0),
                }  # fmt: skip
                if dtype in INTEGERS:
                    folded = stacked[0].clone(), stacked[0].clone(), stacked[0].clone()
                    for row in stacked[1:]:
                        folded = folded[0] & row, folded[1] | row, folded[2] ^ row
                    expected.update(
                        zip((dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR), folded, strict=True)
                    )
                for op, result in expected.items():
                    tensor = values(case, rank, shape, dtype)
                    dist.all_reduce(tensor, op)
                    same(tensor, result.to(dtype))
                root = case % size
                tensor = values(case, rank, shape, dtype)
                dist.reduce(tensor, root, dist.ReduceOp.MAX)
                if rank == root:
                    same(tensor, stacked.amax(0).to(dtype))
        for dtype in COMPLEX:
            tensor = values(seed, rank, (3, 5), dtype)
            dist.all_reduce(tensor)
            same(tensor, everyone(seed, size, (3, 5), dtype).sum(0))
            with pytest.raises(ValueError):
                dist.all_reduce(tensor, dist.ReduceOp.MAX)
        for dtype in FLOATS:
            tensor = values(seed, rank, (6, 3), dtype) * size
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            same(tensor, wide(everyone(seed, size, (6, 3), dtype)).sum(0).to(dtype))
            for factor in (0.5, torch.tensor([0.25])):
                tensor = values(seed, rank, (6, 3), dtype)
                premultiplied: Any = dist._make_nccl_premul_sum(factor)
                dist.all_reduce(tensor, premultiplied)
                same(tensor, (everyone(seed, size, (6, 3), dtype).double().sum(0) * float(factor)).to(dtype))
        truth = torch.rand(40, generator=torch.Generator().manual_seed(seed + rank)) < 0.5
        every = torch.stack(
            [torch.rand(40, generator=torch.Generator().manual_seed(seed + r)) < 0.5 for r in range(size)]
        )
        for op, result in ((dist.ReduceOp.SUM, every.any(0)), (dist.ReduceOp.MIN, every.all(0))):
            tensor = truth.clone()
            dist.all_reduce(tensor, op)
            same(tensor, result)


def movements(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder):
        every_dtype = [*FLOATS, *INTEGERS, *COMPLEX, torch.bool, torch.float8_e4m3fn]
        for index, dtype in enumerate(every_dtype):
            plain = torch.uint8 if dtype is torch.float8_e4m3fn else dtype
            for shape in SHAPES:
                stacked = everyone(seed + index, size, shape, plain)
                if plain is not dtype:
                    stacked = stacked.view(dtype)
                mine = stacked[rank].clone()
                root = (seed + index) % size

                tensor = mine.clone()
                dist.broadcast(tensor, root)
                same(bits(tensor), bits(stacked[root]))

                outputs = [torch.empty_like(mine) for _ in range(size)]
                dist.all_gather(outputs, mine)
                same(bits(torch.stack(outputs)), bits(stacked))

                if shape:
                    whole = torch.empty((size * shape[0], *shape[1:]), dtype=dtype)
                    dist.all_gather_into_tensor(whole, mine)
                    same(bits(whole), bits(stacked.flatten(0, 1)))

                parts = [torch.empty_like(mine) for _ in range(size)] if rank == root else None
                dist.gather(mine, parts, root)
                if parts is not None:
                    same(bits(torch.stack(parts)), bits(stacked))

                tensor = torch.empty_like(mine)
                dist.scatter(tensor, list(stacked) if rank == root else None, root)
                same(bits(tensor), bits(mine))

                outputs = [torch.empty_like(mine) for _ in range(size)]
                dist.all_to_all(outputs, [stacked[(rank + other) % size].clone() for other in range(size)])
                same(bits(torch.stack(outputs)), bits(torch.stack([stacked[(rank + r) % size] for r in range(size)])))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor


def scatters(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder):
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            for rows in (0, 1, 5, 300):
                stacked = everyone(seed + rows, size, (size * rows, 3), dtype)
                expected = stacked.view(size, size, rows, 3)[:, rank]
                output = torch.empty(rows, 3, dtype=dtype)
                dist.reduce_scatter_tensor(output, stacked[rank].clone())
                same(output, wide(expected).sum(0).to(dtype))
                dist.reduce_scatter(output, list(stacked[rank].clone().chunk(size)) if rows else [output] * size)
                same(output, wide(expected).sum(0).to(dtype))
                if dtype.is_floating_point:
                    dist.reduce_scatter_tensor(output, stacked[rank].clone() * size, dist.ReduceOp.AVG)
                    same(output, wide(expected).sum(0).to(dtype))
        # all_to_all_single: rank r sends (r + s) % 3 rows to rank s.
        sizes = [(rank + other) % 3 for other in range(size)]
        sent = [values(seed, 100 * rank + other, ((rank + other) % 3, 4), torch.float32) for other in range(size)]
        came = [values(seed, 100 * other + rank, ((rank + other) % 3, 4), torch.float32) for other in range(size)]
        output = torch.empty(sum(sizes), 4)
        dist.all_to_all_single(output, torch.cat(sent), sizes, sizes)
        same(output, torch.cat(came))
        equal = torch.empty(size * 2, 3)
        dist.all_to_all_single(equal, values(seed, rank, (size * 2, 3), torch.float32))
        every = everyone(seed, size, (size, 2, 3), torch.float32)
        flat = everyone(seed, size, (size * 2, 3), torch.float32).view(size, size, 2, 3)
        assert every.shape == flat.shape
        same(equal, flat[:, rank].reshape(size * 2, 3))


def layouts(rank: int, size: int, folder: str, seed: int) -> None:
    """Tensors that are not contiguous, alone and as parts, at once and later."""
    with process_group(rank, size, folder):
        for asynchronous in (False, True):
            every = everyone(seed, size, (4, 6), torch.float32)

            def strided(source: torch.Tensor) -> torch.Tensor:
                return torch.zeros(6, 8).t()[2:6].copy_(source)

            def wait(work: Any) -> None:
                if work is not None:
                    work.wait()

            tensor = strided(every[rank])
            assert not tensor.is_contiguous()
            wait(dist.all_reduce(tensor, async_op=asynchronous))
            same(tensor.contiguous(), every.sum(0))
            tensor = strided(every[rank])
            wait(dist.broadcast(tensor, size - 1, async_op=asynchronous))
            same(tensor.contiguous(), every[size - 1])
            outputs = [strided(torch.zeros(4, 6)) for _ in range(size)]
            wait(dist.all_gather(outputs, strided(every[rank]), async_op=asynchronous))
            same(torch.stack(outputs), every)
            output = strided(torch.zeros(4, 6))
            wait(dist.reduce_scatter(output, [strided(every[rank]) for _ in range(size)], async_op=asynchronous))
            same(output.contiguous(), every.sum(0))
            tensor = strided(torch.zeros(4, 6))
            parts = [strided(row) for row in every] if rank == 0 else None
            wait(dist.scatter(tensor, parts, 0, async_op=asynchronous))
            same(tensor.contiguous(), every[rank])
            wait(dist.reduce(tensor := strided(every[rank]), 0, async_op=asynchronous))
            same(tensor.contiguous(), every.sum(0) if rank == 0 else every[rank])
            conjugated = values(seed, rank, (5,), torch.complex64).conj()
            outputs = [torch.zeros(5, dtype=torch.complex64) for _ in range(size)]
            wait(dist.all_gather(outputs, conjugated.resolve_conj(), async_op=asynchronous))
            same(torch.stack(outputs), everyone(seed, size, (5,), torch.complex64).conj().resolve_conj())


def sparse(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder):
        for shape, dense in (((7,), 0), ((4, 5), 0), ((6, 3, 2), 1)):
            every = everyone(seed, size, shape, torch.float32)
            every[every < 2] = 0
            for op, expected in ((dist.ReduceOp.SUM, every.sum(0)), (dist.ReduceOp.AVG, every.sum(0) / size)):
                tensor = every[rank].to_sparse(len(shape) - dense)
                work = dist.all_reduce(tensor, op, async_op=dense == 1)
                assert work is None or work.get_future().wait()[0] is not None
                assert tensor.is_sparse and tensor.is_coalesced()
                torch.testing.assert_close(tensor.to_dense(), expected)
        with pytest.raises(dist.DistBackendError, match="shapes"):
            dist.all_reduce(torch.eye(3 + rank).to_sparse())


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    "worker", [reductions, movements, scatters, layouts, sparse], ids=lambda worker: worker.__name__
)
def test_collectives(worker: Callable[..., None], size: int, tmp_path: Path) -> None:
    run_processes(worker, size, str(tmp_path), int(RANDOM.integers(1 << 24)))


def asynchronous(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder):
        tensors = [values(seed + index, rank, (50,), torch.float32) for index in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works if work is not None]
        for index, future in enumerate(futures):
            (result,) = future.wait()
            same(result, everyone(seed + index, size, (50,), torch.float32).sum(0))
            assert result.data_ptr() == tensors[index].data_ptr()
        assert all(work is not None and work.is_completed() and work.is_success() for work in works)
        work = dist.barrier(async_op=True)
        assert work is not None and work.wait()
        chained = dist.all_reduce(torch.ones(3), async_op=True)
        assert chained is not None
        assert torch.equal(
            chained.get_future().then(lambda done: done.value()[0] * 2).wait(), torch.full((3,), 2.0 * size)
        )
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in (first := torch.ones(4), second := torch.full((2, 3), 2.0)):
                dist.all_reduce(tensor)
        manager.wait()
        same(first, torch.full((4,), float(size)))
        same(second, torch.full((2, 3), 2.0 * size))
        gathered = [torch.empty(2 * size), torch.empty(3 * size)]
        with dist._coalescing_manager():
            dist.all_gather_into_tensor(gathered[0], torch.full((2,), float(rank)))
            dist.all_gather_into_tensor(gathered[1], torch.full((3,), float(rank)))
        same(gathered[1], torch.arange(size).repeat_interleave(3).float())
        dist.all_reduce_coalesced([first, second])
        same(first, torch.full((4,), float(size * size)))


def messages(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder):
        following, preceding = (rank + 1) % size, (rank - 1) % size
        for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int64):
            for length in (0, 1, 1000, 100_000):
                sent = values(seed, rank, (length,), dtype)
                received = torch.empty(length, dtype=dtype)
                work = dist.isend(sent, following, tag=length)
                assert dist.recv(received, preceding, tag=length) == preceding
                assert work is not None
                work.wait()
                same(received, values(seed, preceding, (length,), dtype))
        pairs = [
            dist.P2POp(dist.irecv, received := torch.empty(9), preceding),
            dist.P2POp(dist.isend, torch.full((9,), float(rank)), following),
        ]
        for work in dist.batch_isend_irecv(pairs):
            work.wait()
        same(received, torch.full((9,), float(preceding)))
        if rank == 0:
            seen = set[int]()
            for _ in range(size - 1):
                tensor = torch.empty(3)
                source = dist.recv(tensor)
                same(tensor, torch.full((3,), float(source)))
                seen.add(source)
            assert seen == set(range(1, size))
        else:
            dist.send(torch.full((3,), float(rank)), 0)
        strided = torch.zeros(6, 4).t()
        if rank == 0:
            dist.send(torch.arange(24.0).reshape(6, 4).t(), 1)
        elif rank == 1:
            dist.recv(strided, 0)
            same(strided.contiguous(), torch.arange(24.0).reshape(6, 4).t().contiguous())


def objects(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder):
        mine = {"rank": rank, "text": "x" * (100 * rank), "seed": seed}
        every: list[Any] = [None] * size
        dist.all_gather_object(every, mine)
        assert [one["rank"] for one in every] == list(range(size)) and len(every[-1]["text"]) == 100 * (size - 1)
        gathered: list[Any] | None = [None] * size if rank == 1 else None
        dist.gather_object(mine, gathered, 1)
        assert gathered is None or [one["rank"] for one in gathered] == list(range(size))
        listed: list[Any] = [mine, rank] if rank == 0 else [None, None]
        dist.broadcast_object_list(listed, 0)
        assert listed[0]["rank"] == 0 and listed[1] == 0
        scattered: list[Any] = [None]
        dist.scatter_object_list(scattered, [f"for {r}" for r in range(size)] if rank == 0 else None, 0)
        assert scattered == [f"for {rank}"]


def subgroups(rank: int, size: int, folder: str, seed: int) -> None:
    with process_group(rank, size, folder):
        even = dist.new_group([r for r in range(size) if r % 2 == 0])
        odd = dist.new_group([r for r in range(size) if r % 2 == 1])
        mine = even if rank % 2 == 0 else odd
        assert isinstance(mine, dist.ProcessGroup)
        members = [r for r in range(size) if r % 2 == rank % 2]
        for _ in range(3):
            tensor = torch.tensor([float(rank)])
            dist.all_reduce(tensor, group=mine)
            same(tensor, torch.tensor([float(sum(members))]))
        tensor = torch.tensor([rank])
        dist.broadcast(tensor, members[-1], group=mine)
        assert tensor.item() == members[-1]
        assert dist.get_process_group_ranks(mine) == members
        dist.barrier()
        dist.destroy_process_group(mine)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == size


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("worker", [asynchronous, messages, objects, subgroups], ids=lambda worker: worker.__name__)
def test_functions(worker: Callable[..., None], size: int, tmp_path: Path) -> None:
    run_processes(worker, size, str(tmp_path), int(RANDOM.integers(1 << 24)))
