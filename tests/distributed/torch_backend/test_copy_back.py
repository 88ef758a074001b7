"""Results for tensors that are copied before and after: every collective that writes, with or without its handle."""

# Older spellings are tested too.
# pyright: reportDeprecated=false, reportPrivateImportUsage=false

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lowerkit.distributed.copy_back import Pending, copy_back, shares_elements
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group

SIZE = 2
ROWS, COLUMNS = 4, 3
Layout = Callable[[torch.dtype], torch.Tensor]


def _negative(dtype: torch.dtype) -> torch.Tensor:
    half = torch.zeros(ROWS, COLUMNS, dtype=torch.complex64 if dtype == torch.float32 else torch.complex128)
    return half.conj().imag  # has the negative bit, and strides of two


LAYOUTS: dict[str, Layout] = {
    "contiguous": lambda dtype: torch.zeros(ROWS, COLUMNS, dtype=dtype),
    "transposed": lambda dtype: torch.zeros(COLUMNS, ROWS, dtype=dtype).t(),
    "every other": lambda dtype: torch.zeros(2 * ROWS, COLUMNS, dtype=dtype)[::2],
    "columns": lambda dtype: torch.zeros(ROWS, 2 * COLUMNS, dtype=dtype)[:, 1:-2],
    "interleaved": lambda dtype: torch.zeros(64, dtype=dtype).as_strided((ROWS, COLUMNS), (3, 4)),
    "conjugate": lambda dtype: torch.zeros(ROWS, COLUMNS, dtype=dtype).conj(),
    "conjugate transposed": lambda dtype: torch.zeros(COLUMNS, ROWS, dtype=dtype).conj().t(),
    "negative": _negative,
}
DTYPES = {name: torch.complex64 if "conj" in name else torch.float32 for name in LAYOUTS}


def data(rank: int, dtype: torch.dtype, rows: int = ROWS) -> torch.Tensor:
    values = torch.arange(rows * COLUMNS, dtype=torch.float32).reshape(rows, COLUMNS) + 100 * rank
    return torch.complex(values, values + 0.5).to(dtype) if dtype.is_complex else values.to(dtype)


def filled(name: str, values: torch.Tensor) -> torch.Tensor:
    tensor = LAYOUTS[name](values.dtype)
    tensor.copy_(values)
    return tensor


def collectives(name: str, rank: int) -> dict[str, tuple[Callable[[], Any], list[torch.Tensor], list[torch.Tensor]]]:
    """Returns by name: the call, the tensors it writes, and what they are to hold."""
    dtype = DTYPES[name]
    own, other = data(rank, dtype), data(1 - rank, dtype)
    both = [data(r, dtype) for r in range(SIZE)]
    total = own + other
    made: dict[str, tuple[Callable[[], Any], list[torch.Tensor], list[torch.Tensor]]] = {}

    def add(
        call: str, function: Callable[..., Any], out: list[torch.Tensor], expected: list[torch.Tensor], *rest: Any
    ) -> None:
        made[call] = (lambda: function(*rest, async_op=True), out, expected)

    t = filled(name, own)
    add("all_reduce", dist.all_reduce, [t], [total], t)
    t = filled(name, own)
    add("broadcast", dist.broadcast, [t], [both[1]], t, 1)
    t = filled(name, own)
    add("reduce", dist.reduce, [t], [total if rank == 0 else own], t, 0)
    out = [filled(name, torch.zeros_like(own)) for _ in range(SIZE)]
    add("all_gather", dist.all_gather, out, both, out, filled(name, own))
    out = [filled(name, torch.zeros_like(own)) for _ in range(SIZE)]
    add("gather", dist.gather, out, both if rank == 0 else [torch.zeros_like(own)] * 2, filled(name, own),
        out if rank == 0 else None, 0)  # fmt: skip
    t = filled(name, torch.zeros_like(own))
    add("scatter", dist.scatter, [t], [own], t, [filled(name, one) for one in both] if rank == 1 else None, 1)
    t = filled(name, torch.zeros_like(own))
    add("reduce_scatter", dist.reduce_scatter, [t], [(both[rank] * SIZE)], t, [filled(name, one) for one in both])
    out = [filled(name, torch.zeros_like(own)) for _ in range(SIZE)]
    add("all_to_all", dist.all_to_all, out, both, out, [filled(name, own), filled(name, own)])
    half = ROWS // 2
    t = filled(name, torch.zeros_like(own))
    add("all_to_all_single", dist.all_to_all_single, [t],
        [torch.cat([one[half * rank : half * rank + half] for one in both])], t, filled(name, own))  # fmt: skip
    t = filled(name, torch.zeros_like(own))
    add("all_gather_into_tensor", dist.all_gather_into_tensor, [t], [torch.cat([one[:half] for one in both])], t,
        filled(name, own)[:half])  # fmt: skip
    whole = torch.cat([filled(name, one)[:half] for one in both])
    t = filled(name, torch.zeros_like(own))[:half]
    add("reduce_scatter_tensor", dist.reduce_scatter_tensor, [t], [both[rank][:half] * SIZE], t, whole)
    return made


def check(name: str, call: str, out: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for tensor, wanted in zip(out, expected, strict=True):
        assert torch.equal(tensor.resolve_conj().resolve_neg(), wanted), (name, call, tensor, wanted)


def begun(
    every: dict[str, tuple[Callable[[], Any], list[torch.Tensor], list[torch.Tensor]]],
) -> dict[str, tuple[Any, list[torch.Tensor], list[torch.Tensor]]]:
    """Starts them all; without those that torch itself refuses, before it asks any backend."""
    found: dict[str, tuple[Any, list[torch.Tensor], list[torch.Tensor]]] = {}
    for call, (start, out, expected) in every.items():
        try:
            found[call] = (start(), out, expected)
        except RuntimeError as error:
            if "unresolved conjugated" not in str(error):
                raise
    return found


def returned(rank: int, size: int, folder: str) -> None:
    del size
    warnings.simplefilter("ignore", FutureWarning)
    with process_group(rank, SIZE, folder):
        for name in LAYOUTS:
            for call, one in collectives(name, rank).items():
                for _, out, expected in begun({call: one}).values():  # nobody holds the handle afterwards
                    del _
                    dist.barrier()
                    check(name, f"{call}, then a barrier", out, expected)
            for call, (work, out, expected) in begun(collectives(name, rank)).items():
                work.wait()
                check(name, f"{call}, waited for", out, expected)
            every = {call: one[1:] for call, one in begun(collectives(name, rank)).items()}
            dist.all_reduce(torch.ones(2), async_op=True).wait()  # pyright: ignore[reportOptionalMemberAccess]
            for call, (out, expected) in every.items():
                check(name, f"{call}, then work", out, expected)
            every = {call: one[1:] for call, one in begun(collectives(name, rank)).items()}
            deadline = time.monotonic() + PATIENCE
            for call, (out, expected) in every.items():  # nobody calls the group
                while not all(torch.equal(a, b) for a, b in zip(out, expected, strict=True)):
                    assert time.monotonic() < deadline, (name, call)
                    time.sleep(0.001)
            dist.barrier()


def test_results_come_back_although_the_handle_was_dropped(tmp_path: Path) -> None:
    run_processes(returned, SIZE, str(tmp_path))


def ordered(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        storage = torch.ones(COLUMNS, ROWS)
        tensor = storage.t()
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
        for work in works:
            assert work is not None
            work.wait()
        assert torch.equal(tensor, torch.full_like(tensor, 8.0)), tensor
        for _ in range(3):
            dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(storage)  # the same memory, contiguous
        assert torch.equal(storage, torch.full_like(storage, 128.0)), storage
        received = torch.zeros(COLUMNS, ROWS)
        dist.irecv(received.t(), 1 - rank)
        dist.send(torch.arange(12.0).reshape(ROWS, COLUMNS), 1 - rank)
        deadline = time.monotonic() + PATIENCE
        while not torch.equal(received.t(), torch.arange(12.0).reshape(ROWS, COLUMNS)):
            assert time.monotonic() < deadline, received
            time.sleep(0.001)
        dist.barrier()


def test_operations_on_one_tensor_follow_each_other(tmp_path: Path) -> None:
    run_processes(ordered, 2, str(tmp_path))


class SlowCopies:
    """Stands for ``copy_back``: lets a test in while a copy is on its way, and then takes its time."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def __call__(self, pending: Pending) -> None:
        self.begun.set()
        time.sleep(0.5)
        copy_back(pending)


def read_during_a_copy(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder), pytest.MonkeyPatch.context() as patch:
        for view in (torch.Tensor.detach, torch.t):  # the same memory, contiguous and not
            storage, copies = torch.ones(COLUMNS, ROWS), SlowCopies()
            patch.setattr("lowerkit.distributed.copy_back.copy_back", copies)
            dist.all_reduce(storage.t(), async_op=True)
            assert copies.begun.wait(PATIENCE)  # by the thread that looks after dropped handles
            dist.all_reduce(view(storage))
            assert torch.equal(storage, torch.full_like(storage, 4.0)), storage
            dist.barrier()


def test_what_reads_memory_waits_for_a_copy_that_another_thread_has_begun(tmp_path: Path) -> None:
    run_processes(read_during_a_copy, 2, str(tmp_path))


def read_behind_an_operation(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        storage = torch.ones(COLUMNS, ROWS)
        if rank == 1:
            time.sleep(0.5)  # until then the other rank's operation is under way
        dist.all_reduce(storage, async_op=True)
        dist.all_reduce(storage.t())
        assert torch.equal(storage, torch.full_like(storage, 4.0)), storage


def test_a_copy_waits_for_the_operation_that_writes_its_memory(tmp_path: Path) -> None:
    run_processes(read_behind_an_operation, 2, str(tmp_path))


def refused(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        for tensor in (torch.zeros(3).expand(2, 3), torch.zeros(8).as_strided((3, 3), (1, 1)),
                       torch.zeros(16).as_strided((3, 4), (3, 2))):  # fmt: skip
            values = torch.zeros(tensor.shape)
            for call in (
                lambda t=tensor: dist.all_reduce(t, async_op=True),
                lambda t=tensor, v=values: dist.all_gather([t, t], v, async_op=True),
                lambda t=tensor, v=values: dist.reduce_scatter(t, [v, v], async_op=True),
                lambda t=tensor, v=values: dist.all_to_all([t, t], [v, v], async_op=True),
                lambda t=tensor: dist.broadcast(t, 1 - rank, async_op=True),
                lambda t=tensor: dist.irecv(t, 1 - rank),
            ):
                with pytest.raises(dist.DistBackendError, match="several elements in one place"):
                    call()
        # What is only read may have several elements in one place.
        out = [torch.zeros(2, 3) for _ in range(size)]
        dist.all_gather(out, torch.full((3,), float(rank)).expand(2, 3))
        assert [one.unique().tolist() for one in out] == [[0.0], [1.0]]


def test_results_with_elements_in_one_place_are_refused(tmp_path: Path) -> None:
    run_processes(refused, 2, str(tmp_path))


def test_which_strides_share_elements() -> None:
    base = torch.zeros(200)
    for sizes in ((2, 3), (3, 4), (1, 5), (4, 1), (0, 3), (2, 2, 3), (5,), ()):
        for number in range(6 ** len(sizes)):
            strides = [number // 6**axis % 6 for axis in range(len(sizes))]
            tensor = base.as_strided(sizes, strides)
            places = torch.arange(200).as_strided(sizes, strides)
            assert shares_elements(tensor) == (places.unique().numel() < places.numel()), (sizes, strides)
