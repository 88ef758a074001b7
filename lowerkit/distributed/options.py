"""What ``init_process_group("lowerkit", pg_options=...)`` takes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from lowerkit.runtimes.collective.tuning.table import TuningTable

Engine = Literal["lowerkit", "mpi", "gloo", "nccl"]


@dataclass(frozen=True)
class Options:
    """Options of the backend; all ranks give the same.

    Attributes:
        engine: who carries operations out. ``lowerkit``: CPU tensors itself, CUDA tensors through NCCL. ``mpi``: CPU
            tensors through mpi4py, in ranks that ``mpirun`` started. ``gloo`` and ``nccl``: that backend of torch, for
            everything, to compare with. Groups made of the default group's ranks have its options unless they are
            given some of their own. Engines refuse options that are not theirs.
        token: the job token as bytes, or the path of its file; None: ``LOWERKIT_JOB_TOKEN``, or one in the store (the
            rule stands in docs/collectives.md).
        interface: name or address of the network interface between hosts; None: the one towards the store's host.
        shared_memory: False: ranks of one host talk by TCP as well.
        tuning: measured values (``TuningTable.load()``); None: the built-in ones.
        record_folder: an existing folder that each rank writes its flight record into when the group fails.
        global_ranks_in_group: set by torch.
        group_name: set by torch.
    """

    engine: Engine = "lowerkit"
    token: bytes | str | os.PathLike[str] | None = None
    interface: str | None = None
    shared_memory: bool = True
    tuning: TuningTable | None = None
    record_folder: str | os.PathLike[str] | None = None
    global_ranks_in_group: list[int] = field(default_factory=list[int])
    group_name: str = ""
