"""createpolicy, prefetch and griddepcontrol: how memory is cached and launches overlap; they change no value."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.tensor_maps import build_prefetch_of_map
from lowerkit.runtimes.cuda.simulated.text.syntax import Address


def _nothing(_: Batch) -> None:
    return None


def _policy(read: InstructionReader) -> Step:
    """createpolicy: a number that only a cache understands; here it is 0."""
    read.required("fractional")
    read.drop_hints()
    read.kind("b64")
    read.finish()
    read.count(1, 2)
    target = read.target(read.operand(0), "b64")

    def run(batch: Batch) -> None:
        batch.write(target, np.zeros((1, 1), np.uint64))

    return run


def _prefetch(read: InstructionReader) -> Step:
    """prefetch and prefetchu: an address that is not there is no fault, but a tensor map must be one."""
    if "tensormap" in read.instruction.modifiers:
        return build_prefetch_of_map(read)
    read.choice("global", "local")
    read.required("L1", "L2", "L2::evict_last", "L2::evict_normal")
    read.finish()
    read.count(1)
    if not isinstance(read.operand(0), Address):
        raise read.unknown("the address")
    return _nothing


def _dependency(read: InstructionReader) -> Step:
    """griddepcontrol: launches follow one another here, so that nothing needs to wait."""
    read.required("launch_dependents", "wait")
    read.finish()
    read.count(0)
    return _nothing


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {
    "createpolicy": _policy,
    "prefetch": _prefetch,
    "prefetchu": _prefetch,
    "griddepcontrol": _dependency,
}
