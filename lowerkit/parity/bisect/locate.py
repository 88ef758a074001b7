"""Turns a divergence, a kernel fault or a memory fault into a finding: the op, its source line, the cause."""

from __future__ import annotations

from functools import partial

from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import LowerkitError
from lowerkit.mlir import ir
from lowerkit.parity.bisect.cause import cause_of
from lowerkit.parity.bisect.divergence import Divergence
from lowerkit.parity.bisect.evaluation import evaluate, place_of
from lowerkit.parity.bisect.finding import Finding
from lowerkit.parity.bisect.prefixes import Piece
from lowerkit.parity.bisect.recorded_run import KernelFault, MemoryFault, StepFault, agrees
from lowerkit.parity.bisect.testimony import testimony_of
from lowerkit.parity.bisect.units import Unit
from lowerkit.parity.metrics import compare
from lowerkit.parity.permission import permitted_results
from lowerkit.program.locations import origin_of
from lowerkit.runtimes.manifest import ProgramSpec

PREFIXES_AT_MOST = 60
"""Prefixes of a region that are compiled; regions with more ops are named as a whole."""


def pass_finding(stage: str, culprit: str, found: Divergence, details: tuple[str, ...] = ()) -> Finding:
    """Returns the finding for an op that diverges in the IR after a pass (or after capture)."""
    origin = place_of(found.op)
    reference = found.reference
    return Finding(
        stage=stage,
        culprit=culprit,
        op=found.op.name,
        node=f"{origin.node}@{origin.module}",
        location=origin.source_line or "",
        shape=found.value.shape,
        distance=None if reference is None else compare(found.value, reference),
        cause=_no_reference(found) if reference is None else cause_of(found.value, reference, exact=True),
        details=details,
    )


def _no_reference(found: Divergence) -> str:
    return f"no value of its node has {found.value.size} elements: the op computes something else, or too little"


def kernel_finding(fault: KernelFault, program: ProgramSpec, options: CompileOptions) -> tuple[Finding, Piece | None]:
    """Returns the finding for a kernel, named down to an op inside its region, and a program that shows it alone."""
    step = program.steps[fault.step]
    details = [f"step {fault.step} ({step.kind}) of family {step.family}; what it reads agrees"]
    piece, actual, expected = _smallest_prefix(fault, options, details)
    testimony = testimony_of(fault.unit, fault.operands, fault.is_weight, agrees, options)
    op = piece.op if piece is not None else fault.unit.op
    origin = place_of(op) if op.name not in ("lk.region", "lk.call") else origin_of(op.location)
    if not origin.node:
        origin = origin_of(fault.unit.op.location)
    finding = Finding(
        stage="compiled",
        culprit=_culprit(fault.unit, step.family),
        op=op.name,
        node=f"{origin.node}@{origin.module}",
        location=origin.source_line or "",
        shape=actual.shape,
        distance=compare(actual, expected),
        cause=cause_of(actual, expected),
        details=(*details, *(testimony.details if testimony is not None else ())),
        testimony=testimony,
    )
    return finding, piece


def step_finding(fault: StepFault, program: ProgramSpec, options: CompileOptions) -> Finding:
    """Returns the finding for a step that ended the run: its device says what its code must not do and does."""
    step = program.steps[fault.step]
    testimony = testimony_of(fault.unit, fault.operands, fault.is_weight, agrees, options)
    made = place_of(fault.unit.last)
    origin = made if made.node else origin_of(fault.unit.op.location)
    details = (f"step {fault.step} ({step.kind}) of family {step.family}; what it reads agrees", *fault.error.details)
    return Finding(
        stage="compiled",
        culprit=_culprit(fault.unit, step.family),
        op=fault.unit.last.name,
        node=f"{origin.node}@{origin.module}",
        location=origin.source_line or "",
        shape=tuple(fault.unit.types[-1].shape) if fault.unit.types[-1].has_static_shape else (),
        distance=None,
        cause=f"fault: {fault.error.message}",
        details=(*details, *(testimony.details if testimony is not None else ())),
        testimony=testimony,
    )


def _culprit(unit: Unit, family: str) -> str:
    """A family of kernels, of the host or of a target by regions; else the device as a whole."""
    return f"device {unit.target}" if unit.view is not None else f"kernel family {family}"


def _smallest_prefix(
    fault: KernelFault, options: CompileOptions, details: list[str]
) -> tuple[Piece | None, Array, Array]:
    """Compiles the region up to each of its ops; returns the first prefix that is wrong, and its two values."""
    whole = (None, fault.actual, fault.expected)
    if not all(kind.has_static_shape for kind in fault.unit.types):
        details.append("its shapes are symbolic: the region was not cut into prefixes")
        return whole
    agreeing: list[str] = []
    *pieces, whole_piece = fault.unit.pieces(fault.operands, fault.is_weight)
    for piece in [*pieces[:PREFIXES_AT_MOST], whole_piece]:
        try:
            compiled = compile_program(piece.program, options).session.run(*piece.inputs)
            exact = evaluate(piece.program, piece.inputs, float64=True).outputs
            run = partial(_own_outputs, piece)
            own = run()
            moved = permitted_results(options.allow, own, run)
        except LowerkitError as error:
            details.append(f"the region up to {piece.op.name} could not be compiled and run: {error.message}")
            continue
        dtypes = [spec.dtype for spec in piece.program.signature.outputs]
        for dtype, actual, one_own, one_exact, granted in zip(dtypes, compiled, own, exact, moved, strict=True):
            if not agrees(dtype, actual, one_own, one_exact, granted):
                if agreeing:
                    details.append(f"compiled up to {agreeing[-1]} it agrees, with {piece.op.name} it does not")
                return piece, actual, one_exact
        agreeing.append(piece.op.name)
    details.append("every prefix of the region agrees, and so does the region compiled by itself")
    return whole


def _own_outputs(piece: Piece) -> list[Array]:
    return evaluate(piece.program, piece.inputs, float64=False).outputs


def memory_finding(fault: MemoryFault, program: ProgramSpec) -> Finding:
    """Returns the finding for a value that was overwritten while it was still needed."""
    origin = origin_of(fault.unit.op.location)
    writer, reader = program.steps[fault.writer], program.steps[fault.reader]
    made = place_of(fault.unit.last)
    origin = made if made.node else origin
    return Finding(
        stage="compiled",
        culprit="memory plan",
        op=fault.unit.op.name if fault.unit.target else ir.StringAttr(fault.unit.op.attributes["kind"]).value,
        node=f"{origin.node}@{origin.module}",
        location=origin.source_line or "",
        shape=fault.actual.shape,
        distance=compare(fault.actual, fault.expected),
        cause=(
            f"memory: step {fault.writer} ({writer.kind} {writer.name}, {writer.location}) wrote over the value of "
            f"step {fault.maker} before step {fault.reader} ({reader.kind} {reader.name}, {reader.location}) read it"
        ),
        details=("every kernel up to there computed what it should",),
    )
