"""The text of a region's kernels, run by Triton's own interpreter: what the family wrote, before any lowering."""

from __future__ import annotations

import msgspec

from lowerkit.runtimes.expressions import evaluate
from lowerkit.targets.cuda.planned import FastKernel
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.witness.interpreter_process import FILE, Buffer, Described, Reply, Request, Start
from lowerkit.targets.cuda.witness.placed import PlacedLaunch, PlacedRegion
from lowerkit.targets.cuda.witness.ptx_alone import source_line
from lowerkit.targets.witness import Offence, Witness
from lowerkit.worker_process import TaskError, Worker, WorkerDiedError

NAME = "Triton's interpreter"
LAYER = "the kernel"
SECONDS = 120.0
TASK = "lowerkit.targets.cuda.witness.interpreter_process:interpret_bytes"


def interpreter_witness(placed: PlacedRegion) -> Witness:
    """Returns what Triton's interpreter makes of the kernels of a region, launch for launch."""
    planned = placed.planned
    author = f"family {planned.family}, {placed.kernels}"
    kernels: dict[str, TritonKernel] = {}
    for name, kernel in planned.kernels.items():
        if not isinstance(kernel, FastKernel):
            return Witness(NAME, LAYER, author, missing="its kernels are plain loops, which have no text in Triton")
        kernels[name] = kernel.kernel
    operands = len(planned.function.operands)
    request = Request(
        kernels,
        [_start(each, placed.dims) for each in placed.launches],
        [Buffer(each.name, each.size, each.data, each.writable) for each in placed.buffers],
        placed.dims,
        list(range(operands, operands + len(placed.results))),
    )
    worker = Worker()  # no idle one: those may have Triton in them as a compiler
    try:
        reply = msgspec.msgpack.decode(worker.call(TASK, msgspec.msgpack.encode(request), SECONDS), type=Reply)
    except (TaskError, WorkerDiedError) as error:
        return Witness(NAME, LAYER, author, missing=str(error))
    finally:
        worker.close()
    if reply.offence:
        return Witness(NAME, LAYER, author, offence=Offence(reply.offence, _places(kernels, reply)))
    if reply.missing:
        return Witness(NAME, LAYER, author, missing=reply.missing)
    return Witness(NAME, LAYER, author, placed.arrays(reply.results))


def _start(placed: PlacedLaunch, dims: list[int]) -> Start:
    launch = placed.launch
    tensors = [
        Described(
            each.buffer,
            [evaluate(size, {}, dims) for size in each.sizes],
            [evaluate(stride, {}, dims) for stride in each.strides],
            evaluate(each.offset, {}, dims),
        )
        for each in launch.maps
    ]
    return Start(launch.kernel, list(launch.pointers), tensors, placed.blocks)


def _places(kernels: dict[str, TritonKernel], reply: Reply) -> tuple[str, ...]:
    if not reply.line:
        return (reply.kernel,) if reply.kernel else ()
    line = source_line(f"{FILE}:{reply.line}", kernels[reply.kernel].source, str(reply.line))
    return (line, f"kernel {reply.kernel}")
