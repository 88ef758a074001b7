"""elect, setmaxnreg, and where threads are in a cluster that is one block."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import WARP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.warp_exchange import members_of
from lowerkit.runtimes.cuda.simulated.text.syntax import SINK, Name

_FEWEST, _MOST, _STEP = 24, 256, 8


def _elect(read: InstructionReader) -> Step:
    """One lane of those in the member mask has the predicate: the lowest, always."""
    read.required("sync")
    read.finish()
    read.count(2)
    first, second = read.pair(read.operand(0))
    if second is None:
        raise read.unknown("the result")
    lane = None if first == Name(SINK) else read.target(first, "b32")
    chosen, member = read.target(second, "pred"), read.source(1, "b32")

    def run(batch: Batch) -> None:
        members_of(read, batch, member)  # all of them run it together
        masks = batch.warps(batch.registers[member]).astype(np.int64)
        leaders = np.log2((masks & -masks).astype(np.float64)).astype(np.uint32)
        lanes = np.arange(WARP, dtype=np.uint32)
        batch.write(chosen, (lanes == leaders).reshape(batch.shape))
        if lane is not None:
            batch.write(lane, leaders.reshape(batch.shape))

    return run


def _registers(read: InstructionReader) -> Step:
    """setmaxnreg moves registers between warps: it changes no value, and must name a number that there is."""
    read.required("inc", "dec")
    read.required("sync")
    read.required("aligned")
    read.required("u32")
    read.finish()
    read.count(1)
    count = read.immediate(0)
    if not _FEWEST <= count <= _MOST or count % _STEP:
        raise read.unknown(f"a number of {count} registers")
    return lambda batch: None


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"elect": _elect, "setmaxnreg": _registers}
