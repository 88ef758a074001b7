"""Process groups of torch.distributed for tests: joined through a file, left in the end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lowerkit.distributed import Options
from lowerkit.distributed.options import Engine
from tests.support.ranks import PATIENCE

# Who carries operations out in groups of this process that choose nobody; tests of other engines set it.
default_engine: list[Engine] = ["lowerkit"]


@contextmanager
def process_group(
    rank: int, size: int, folder: str, *, backend: str = "lowerkit", timeout: float = PATIENCE, options: Any = None
) -> Generator[None]:
    """Joins the default group of ``size`` ranks that meet in ``folder``."""
    torch.set_num_threads(1)
    if options is None and backend == "lowerkit":
        options = Options(engine=default_engine[0])
    dist.init_process_group(
        backend, init_method=f"file://{Path(folder) / 'rendezvous'}", rank=rank, world_size=size,
        timeout=timedelta(seconds=timeout), pg_options=options,
    )  # fmt: skip
    try:
        yield
    finally:
        dist.destroy_process_group()
