"""Runs conversions of others on a module: in this process, or in a worker that they may crash or never leave.

torch-mlir's conversions end the process (a failed assertion, a fatal error of LLVM) or never come to an end on input
that nobody has tried. Who calls them says what is well known and runs that here; the rest goes to a worker
(:mod:`lowerkit.worker_process`) as MLIR byte code, with a bound on its processor time, and comes back with its
locations.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec

from lowerkit.dialect.context import new_context
from lowerkit.mlir import ir, run_pipeline
from lowerkit.worker_process import TaskError, WorkerDiedError, call_in_worker

MODULE_SECONDS = 20.0
SECONDS_PER_OP = 0.02
"""Processor time for a whole module: two thousand ops take about one second."""
OP_SECONDS = 10.0
"""Processor time for one op alone."""


class ConversionError(Exception):
    """The conversions failed, crashed or did not end; the text says which.

    Attributes:
        died: whether they crashed or did not end.
    """

    def __init__(self, text: str, *, died: bool = False) -> None:
        super().__init__(text)
        self.died = died

    @property
    def reason(self) -> str:
        """What to say of the one op whose conversion this was; empty where it is only that nothing converts it."""
        return f"its conversion does not end or crashes ({self})" if self.died else ""


class _Job(msgspec.Struct):
    pipelines: list[str]
    module: bytes


def module_seconds(op_count: int) -> float:
    """Returns the most processor time for a module of so many ops."""
    return MODULE_SECONDS + SECONDS_PER_OP * op_count


def run_here(module: ir.Module, pipelines: Sequence[str]) -> None:
    """Runs pipelines on ``module`` in place.

    Raises:
        ConversionError: a pass failed, and the module may be half converted.
    """
    try:
        for pipeline in pipelines:
            run_pipeline(module, pipeline)
    except ir.MLIRError as failure:
        raise ConversionError(_first_line(failure)) from failure


def run_in_worker(module: ir.Module, pipelines: Sequence[str], seconds: float) -> None:
    """Runs pipelines on ``module`` in a worker and gives it the ops that come back.

    Args:
        module: its context must know the dialects that :func:`lowerkit.dialect.context.new_context` loads.
        pipelines: one after another.
        seconds: the most processor time.

    Raises:
        ConversionError: a pass failed, crashed, did not end or gave invalid IR; the module is as it was.
    """
    job = msgspec.msgpack.encode(_Job(list(pipelines), _bytecode(module)))
    try:
        converted = call_in_worker(f"{__name__}:run_job", job, seconds)
    except TaskError as failure:
        raise ConversionError(str(failure).removeprefix(f"{ConversionError.__name__}: ")) from failure
    except WorkerDiedError as failure:
        raise ConversionError(str(failure), died=True) from failure
    try:
        result = ir.Module.parse(converted, context=module.context)
    except ir.MLIRError as invalid:  # conversions make IR that does not verify of operands that do not fit
        raise ConversionError(_first_line(invalid)) from invalid
    _replace(module, result)


def run_job(data: bytes) -> bytes:
    """Runs the pipelines of an encoded job on its module and returns that as byte code: the task of a worker."""
    job = msgspec.msgpack.decode(data, type=_Job)
    module = ir.Module.parse(job.module, context=new_context())
    run_here(module, job.pipelines)
    return _bytecode(module)


def _bytecode(module: ir.Module) -> bytes:
    data = io.BytesIO()
    module.operation.write_bytecode(data)
    return data.getvalue()


def _first_line(failure: ir.MLIRError) -> str:
    diagnostics = failure.error_diagnostics
    return diagnostics[0].message.splitlines()[0] if diagnostics else str(failure).splitlines()[0]


def _replace(module: ir.Module, other: ir.Module) -> None:
    """Gives ``module`` the ops of ``other`` in place of its own."""
    for op in list(module.body.operations):
        op.operation.erase()
    with module.context, ir.Location.unknown():
        for op in list(other.body.operations):
            op.operation.detach_from_parent()
            ir.InsertionPoint(module.body).insert(op.operation)
