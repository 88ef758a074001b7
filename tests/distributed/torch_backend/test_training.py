"""The examples of docs/distributed: what they train is what one process, or gloo, trains."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.examples import EXAMPLES, example
from tests.support.processes import run_processes
from tests.support.ranks import PATIENCE
from tests.support.torch_groups import process_group


def train(rank: int, size: int, folder: str, name: str, backend: str) -> list[Any]:
    with process_group(rank, size, folder, backend=backend):
        trained = example(name).train()
        return [one.numpy() for one in ([trained] if isinstance(trained, torch.Tensor) else trained)]


@pytest.mark.variants("size")
@pytest.mark.parametrize(("name", "size"), [("ddp", 2), ("fsdp", 2), ("fsdp", 4), ("sgd", 3)])
def test_training_gives_what_gloo_gives(name: str, size: int, tmp_path: Path) -> None:
    results: dict[str, list[Any]] = {}
    for backend in ("lowerkit", "gloo"):
        folder = tmp_path / backend
        folder.mkdir()
        results[backend] = run_processes(train, size, str(folder), name, backend, timeout=PATIENCE)
    first = results["lowerkit"][0]
    for rank in range(size):
        for ours, same, theirs in zip(results["lowerkit"][rank], first, results["gloo"][rank], strict=True):
            assert (ours == same).all()  # all ranks agree, bit for bit
            torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(theirs))


def tensor_parallel(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        module = example("tensor_parallel")
        torch.testing.assert_close(*module.forward())
        moved, original = module.reshard()
        assert torch.equal(moved, original)


def checkpoint(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder):
        first, second = example("checkpoint").save_and_load(f"{folder}/saved")
        assert torch.equal(first, second) and bool(first.abs().max() > 0)


@pytest.mark.parametrize("worker", [tensor_parallel, checkpoint], ids=lambda worker: worker.__name__)
def test_sharded_models(worker: Callable[..., None], tmp_path: Path) -> None:
    run_processes(worker, 2, str(tmp_path), timeout=PATIENCE)


@pytest.mark.slow
def test_torchrun_starts_an_example(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*command, str(EXAMPLES / "sgd.py")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    weights = re.findall(r"rank (\d): weights (\[[^]]*\])", result.stdout)
    assert sorted(rank for rank, _ in weights) == ["0", "1"]
    assert len({text for _, text in weights}) == 1
