"""How the backend is chosen and configured: registration, engines, tokens, stores, transports."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from lowerkit.distributed import Options, register
from lowerkit.distributed.process_group import ProcessGroup
from lowerkit.distributed.torch_store import TorchStore, interface_towards
from lowerkit.runtimes.collective.rendezvous.job_token import ENVIRONMENT_VARIABLE, draw_token
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group


def test_registration_is_light_and_can_be_repeated() -> None:
    register()
    register()
    assert "lowerkit" in dist.Backend.backend_list
    (entry,) = [one for one in entry_points(group="torch.backends") if one.name == "lowerkit"]
    assert entry.load() is register
    code = (
        "import sys, lowerkit.distributed\n"
        "assert not {'lowerkit.runtimes._collective', 'lowerkit.distributed.process_group'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def reduces(rank: int, size: int, folder: str, options: Any) -> str:
    with process_group(rank, size, folder, options=options):
        tensor = torch.full((5,), rank + 1.0)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((5,), size * (size + 1) / 2))
        return type(dist.group.WORLD).__name__


def test_engines(tmp_path: Path) -> None:
    for engine in ("lowerkit", "gloo"):
        folder = tmp_path / engine
        folder.mkdir()
        assert set(run_processes(reduces, 2, str(folder), Options(engine=engine))) == {"ProcessGroup"}


def test_ranks_of_one_host_can_talk_by_tcp(tmp_path: Path) -> None:
    run_processes(reduces, 3, str(tmp_path), Options(shared_memory=False))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("fast", "pg_options is a str"),
        (Options(engine="ucc"), "no engine 'ucc'"),  # pyright: ignore[reportArgumentType]
        (Options(token=b"short"), "5 bytes"),
        (Options(token="/nowhere/token"), "cannot be read"),
        (Options(interface="0.0.0.0"), "every interface"),
    ],
)
def test_wrong_options_are_refused(options: Any, problem: str) -> None:
    with pytest.raises(dist.DistBackendError, match=f"LK1010.*{problem}"):
        dist.init_process_group("lowerkit", store=HashStore(), rank=0, world_size=2, pg_options=options)
    assert not dist.is_initialized()


def with_token(rank: int, size: int, folder: str, tokens: list[str]) -> str:
    import os

    os.environ[ENVIRONMENT_VARIABLE] = tokens[rank]
    try:
        return reduces(rank, size, folder, None) if len(set(tokens)) == 1 else fails(rank, size, folder)
    finally:
        del os.environ[ENVIRONMENT_VARIABLE]


def fails(rank: int, size: int, folder: str) -> str:
    with pytest.raises(dist.DistBackendError) as error, process_group(rank, size, folder, timeout=3.0):
        pass
    return str(error.value)


def test_the_token_of_the_environment_is_used(tmp_path: Path) -> None:
    token = draw_token()
    (same := tmp_path / "same").mkdir()
    (other := tmp_path / "other").mkdir()
    run_processes(with_token, 2, str(same), [token, token])
    messages = run_processes(with_token, 2, str(other), [token, draw_token()])
    assert "LK8012" in messages[1] and "LK8007" in messages[0], messages


def one_rank(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        group = dist.group.WORLD
        assert isinstance(group, ProcessGroup)
        assert (group.rank(), group.size(), group.name(), dist.get_backend()) == (0, 1, "lowerkit", "lowerkit")
        options = dist.AllreduceOptions()
        options.asyncOp = False
        tensor = torch.ones(3)
        first, second = (group.allreduce([tensor], options) for _ in range(2))
        assert first is second  # what is done at once makes no handle
        gathered = [torch.empty(3)]
        dist.all_gather(gathered, tensor)
        assert torch.equal(gathered[0], tensor)
        dist.barrier()


def test_a_group_of_one_rank(tmp_path: Path) -> None:
    run_processes(one_rank, 1, str(tmp_path))


@pytest.mark.parametrize("kind", ["tcp", "hash", "file"])
def test_stores_of_torch(kind: str, tmp_path: Path) -> None:
    stores: dict[str, Any] = {
        "tcp": lambda: TCPStore("127.0.0.1", 0, 1, True, timeout=timedelta(seconds=10)),
        "hash": HashStore,
        "file": lambda: FileStore(str(tmp_path / "store"), 1),
    }
    under: Store = stores[kind]()
    store = TorchStore(PrefixStore("prefix/", under))
    store.set("k", b"\0v\xff")
    assert store.get("k", 1.0) == b"\0v\xff"
    assert [store.compare_set("c", b"", b"one"), store.compare_set("c", b"", b"two")] == [b"one", b"one"]
    assert store.compare_set("c", b"one", b"two") == b"two"
    assert store.delete("k")
    for timeout in (0.0, 0.1):
        with pytest.raises(TimeoutError, match="'k'"):
            store.get("k", timeout)
    assert interface_towards(PrefixStore("p/", under)) == ("127.0.0.1" if kind == "tcp" else None)


def of_subgroups(rank: int, size: int, folder: str) -> None:
    """Groups beside the default group have its options, but not those of one that is gone."""
    given = Options(shared_memory=False)
    for name, backend, options in (("ours", "lowerkit", given), ("theirs", "gloo", None), ("plain", "lowerkit", None)):
        (place := Path(folder) / name).mkdir(exist_ok=True)
        with process_group(rank, size, str(place), backend=backend, options=options):
            group = dist.new_group(list(range(size)), backend="lowerkit")
            assert isinstance(group, ProcessGroup)
            assert group.options == (given if name == "ours" else Options()), name
            assert len(group.group.local_ranks) == (1 if name == "ours" else size)
            dist.all_reduce(tensor := torch.ones(3), group=group)
            assert tensor.tolist() == [size] * 3


def test_groups_have_the_options_of_the_default_group_that_is_there(tmp_path: Path) -> None:
    run_processes(of_subgroups, 2, str(tmp_path))
