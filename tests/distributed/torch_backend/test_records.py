"""Groups of torch.distributed that fail leave their flight records."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lowerkit.distributed.options import Options
from lowerkit.runtimes.collective.tracing.flight_record_file import read_flight_record
from lowerkit.runtimes.collective.tracing.trace import Trace
from tests.support.processes import run_processes
from tests.support.torch_groups import process_group


def part(rank: int, size: int, folder: str) -> None:
    with process_group(rank, size, folder, options=Options(record_folder=folder)):
        dist.all_reduce(torch.ones(3))
        # Rank 1 is told behind its caller, rank 0 at once.
        work = dist.all_reduce(torch.ones(4), async_op=True) if rank else None
        with pytest.raises(dist.DistBackendError):
            dist.barrier() if work is None else work.wait()
        assert len(list(Path(folder).glob(f"*.rank{rank}.json"))) == 1


def test_a_failure_leaves_its_records(tmp_path: Path) -> None:
    run_processes(part, 2, str(tmp_path))
    trace = Trace.of(map(read_flight_record, sorted(tmp_path.glob("*.json"))))
    assert trace.first_mismatch is not None and trace.size == 2
    assert any("barrier" in call for call in trace.first_mismatch.mismatch)
