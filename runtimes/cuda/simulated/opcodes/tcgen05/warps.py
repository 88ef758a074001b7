"""Warps that run a tcgen05 instruction together, and the faults of what they do to tensor memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.opcodes.warp_exchange import require_whole_warps
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_memory.cells import BadTensorMemory


@contextmanager
def faults_of(read: InstructionReader, batch: Batch, threads: Array) -> Generator[None]:
    """Makes faults of what cannot be done to tensor memory for ``threads``, in whose order the items are."""
    try:
        yield
    except BadTensorMemory as error:
        raise read.fault(f"{batch.thread_name(int(threads[error.at]))} {error.problem}") from None


def leaders(read: InstructionReader, batch: Batch) -> Array:
    """Returns the first thread of each warp that runs an instruction, int64.

    Raises:
        KernelFault: LK8017, some lanes of a warp do not run it.
    """
    warps = require_whole_warps(read, batch)
    numbers = np.arange(batch.blocks * batch.shape[1] // WARP) if warps is None else np.flatnonzero(warps)
    return numbers * WARP


def same_in_warps(read: InstructionReader, batch: Batch, slot: int, first: Array) -> Array:
    """Returns the value that the warps that begin at threads ``first`` have in a register, one for each, int64.

    Raises:
        KernelFault: LK8017, threads of a warp have different ones.
    """
    values = batch.warps(batch.registers[slot])[first // WARP].astype(np.int64)
    differs = (values != values[:, :1]).any(1)
    if differs.any():
        raise read.fault(f"{batch.thread_name(int(first[int(np.argmax(differs))]))} and others of its warp name others")
    return values[:, 0]


def check_group(read: InstructionReader) -> None:
    """Takes the modifier that says that one block works alone."""
    read.required("cta_group::1")
