"""Runs the compiled model step by step and judges each step by itself: its kernel, and the memory it is given.

Vocabulary
    step      one kernel call; units of the fused module and steps that are no copies correspond in order.
    unit      what a step computes, as IR: a region of the host, a function of an accelerator.
    kernel fault   a step's results are not what its unit computes from the very bytes the step read.
    step fault     a step ended the run: its device found that its code does what none may.
    memory fault   bytes that a later step reads were changed by a step that does not write them.

The expected results are the unit's, interpreted in float64 from the operands that the step read, so that errors
before it do not count. Nothing is tapped: code, addresses and the memory plan are those of every other run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from lowerkit.codegen.index_checks import checks_first
from lowerkit.codegen.memory import VIEW_OPS
from lowerkit.dialect.reference.numeric import Array
from lowerkit.dialect.types import numpy_dtype
from lowerkit.errors import RuntimeFault
from lowerkit.mlir import ir
from lowerkit.parity.bisect.evaluation import Evaluation, place_of
from lowerkit.parity.bisect.finding import StepRow
from lowerkit.parity.bisect.units import Unit, units_of
from lowerkit.parity.gates import GATES, judge_op
from lowerkit.parity.metrics import compare
from lowerkit.parity.permission import Permitted, permitted_results
from lowerkit.runtimes.manifest import CHECK_KERNEL, JUMP_KERNEL, ProgramSpec
from lowerkit.runtimes.mesh.pairs import phase_of
from lowerkit.runtimes.session import Session
from lowerkit.runtimes.stepwise import StepwiseRun


@dataclass(frozen=True)
class KernelFault:
    """A step whose code computes something else than its unit: the unit, what it read, what it wrote."""

    step: int
    unit: Unit
    operands: list[Array]
    is_weight: list[bool]
    result: int
    actual: Array
    expected: Array


@dataclass(frozen=True)
class MemoryFault:
    """A step that wrote over bytes which another step made and a third one reads later."""

    writer: int
    maker: int
    reader: int
    unit: Unit
    actual: Array
    expected: Array


@dataclass(frozen=True)
class StepFault:
    """A step that ended the run, what it read, and what its device says."""

    step: int
    unit: Unit
    operands: list[Array]
    is_weight: list[bool]
    error: RuntimeFault


@dataclass
class RecordedRun:
    """Outputs of the run (none where a step ended it), the first fault, and what each step loses by itself."""

    outputs: list[Array]
    fault: KernelFault | MemoryFault | StepFault | None = None
    steps: list[StepRow] = field(default_factory=list[StepRow])
    notes: list[str] = field(default_factory=list[str])


def recorded_run(
    session: Session, inputs: Sequence[Array], fused: Evaluation, allowed: Collection[str] = ()
) -> RecordedRun:
    """Runs all steps and judges each; the first fault is kept.

    Args:
        session: of the artifact that was compiled from the module that ``fused`` evaluated.
        inputs: in the order of the signature.
        fused: its evaluation in the model's element types, with values.
        allowed: what targets may compute less exactly.

    Raises:
        RuntimeFault: a step that is no kernel ended the run.
    """
    program = session.program
    in_order = checks_first([op.operation for op in fused.block.operations])
    units = units_of(in_order)
    if any(step.kernel == JUMP_KERNEL for step in program.steps):
        whole = "branches and loops are run as a whole: only the outputs were compared"
        return RecordedRun(session.run(*inputs), notes=[whole])
    kernel_steps = [number for number, step in enumerate(program.steps) if step.kernel >= 0]
    run = StepwiseRun(session, *inputs)
    recorded = RecordedRun(run.outputs)
    if len(units) != len(kernel_steps):
        recorded.notes.append("the steps do not correspond to the regions: only the outputs were compared")
        kernel_steps = []
    unit_of = dict(zip(kernel_steps, units, strict=False))
    watch = _Watch(program, run)
    for number in range(len(program.steps)):
        unit = unit_of.get(number)
        operands = None if unit is None else _operands(run, program, number, unit, fused)
        try:
            run.run_step(number)
        except RuntimeFault as error:
            if unit is None or operands is None or error.code != "LK8016":
                raise
            recorded.fault = recorded.fault or StepFault(number, unit, *operands, error)
            recorded.notes.append(f"step {number} ended the run")
            recorded.outputs = []
            return recorded
        if program.steps[number].kernel == CHECK_KERNEL:  # it writes nothing
            continue
        overwritten = watch.after(number) if recorded.fault is None else None
        if overwritten is not None:
            buffer, maker, before, now = overwritten
            made = unit_of.get(maker, unit)
            if made is not None:
                kind, shape = _type_of_buffer(program, maker, buffer, made, fused)
                actual, expected = (data.view(kind).reshape(shape) for data in (now, before))
                reader = watch.next_reader(buffer, number)
                recorded.fault = MemoryFault(number, maker, reader, made, actual, expected)
        if unit is not None and operands is not None:
            local, fault = _judge(run, program, number, unit, operands, allowed)
            step = program.steps[number]
            place = place_of(unit.last)
            node = f"{place.node}@{place.module}" if place.node else step.name
            recorded.steps.append(StepRow(node, step.kind, step.family, step.location, local, fault is None))
            recorded.fault = recorded.fault or fault
    return recorded


class _Watch:
    """Remembers the bytes of every temporary from the step that makes it to the last that reads it."""

    def __init__(self, program: ProgramSpec, run: StepwiseRun) -> None:
        self.program = program
        self.run = run
        self.last = {buffer: number for number, step in enumerate(program.steps) for buffer in step.buffers}
        self.kept: dict[int, tuple[int, Array]] = {}

    def after(self, number: int) -> tuple[int, int, Array, Array] | None:
        """Returns (buffer, its maker, bytes before, bytes now) of a value that step ``number`` wrote over."""
        step = self.program.steps[number]
        own, phase = step.buffers, phase_of(step)
        if phase:  # a collective may write where its operand is, and until its done whenever others have come
            self.kept.pop(own[1], None)
        for buffer, (maker, before) in list(self.kept.items()):
            now = self.run.read(buffer)
            if buffer not in own and not np.array_equal(now, before):
                return buffer, maker, before, now
            if self.last[buffer] <= number:
                del self.kept[buffer]
        settled = [buffer for buffer in own if phase != "start" or buffer != own[1]]
        for buffer in settled:
            if self.program.buffers[buffer].kind == "arena" and self.last[buffer] > number and buffer not in self.kept:
                self.kept[buffer] = (number, self.run.read(buffer))
        return None

    def next_reader(self, buffer: int, after: int) -> int:
        steps = self.program.steps
        return next(number for number in range(after, len(steps)) if number > after and buffer in steps[number].buffers)


def _operands(
    run: StepwiseRun, program: ProgramSpec, number: int, unit: Unit, fused: Evaluation
) -> tuple[list[Array], list[bool]]:
    arrays: list[Array] = []
    stored: list[bool] = []
    buffers = program.steps[number].buffers
    if unit.view is not None:  # weights are handed over as they are
        for kind, buffer in zip(unit.types[: len(unit.block.arguments)], buffers, strict=False):
            arrays.append(run.read(buffer).view(numpy_dtype(kind.element_type)).reshape(kind.shape))
            stored.append(program.buffers[buffer].kind == "weight")
        return arrays, stored
    for operand, buffer in zip(unit.op.operands, buffers, strict=False):
        value = _value(operand, fused, unit)
        is_stored = _is_stored(operand)
        if not is_stored:
            bytes_now = run.read(buffer)
            value = bytes_now.view(numpy_dtype(ir.RankedTensorType(operand.type).element_type)).reshape(value.shape)
        arrays.append(value)
        stored.append(is_stored)
    return arrays, stored


def _judge(
    run: StepwiseRun,
    program: ProgramSpec,
    number: int,
    unit: Unit,
    operands: tuple[list[Array], list[bool]],
    allowed: Collection[str],
) -> tuple[float, KernelFault | None]:
    """Returns the least decibels of the step's results to its unit in float64, and the first that is wrong."""
    arrays, stored = operands
    own = unit.run(arrays, float64=False)
    moved = permitted_results(allowed, own, lambda: unit.run(arrays, float64=False))
    exact = unit.run(arrays, float64=True)
    results = program.steps[number].buffers[len(arrays) :]
    least, fault = math.inf, None
    for place, (value, buffer) in enumerate(zip(unit.op.results, results, strict=True)):
        element = ir.RankedTensorType(value.type).element_type
        actual = run.read(buffer).view(numpy_dtype(element)).reshape(own[place].shape)
        distance = compare(actual, exact[place])
        least = min(least, distance.sqnr_db if distance.special_equal else -math.inf)
        if fault is None and not agrees(str(element), actual, own[place], exact[place], moved[place]):
            fault = KernelFault(number, unit, arrays, stored, place, actual, exact[place])
    return least, fault


def agrees(dtype: str, actual: Array, own: Array, exact: Array, permitted: Permitted | None = None) -> bool:
    """Whether a kernel's value is its region's: by the rules of gate A, or within the noise gate A grants a model.

    The second is for long sums: the interpreter rounds a dot product once, a kernel after each step.
    """
    if judge_op(dtype, actual, own, exact, None, permitted).passed:
        return True
    if dtype not in GATES:
        return False
    distance = compare(actual, exact)
    allowed = 10 ** (-GATES[dtype].model_sqnr_db / 20)
    finite = np.abs(exact[np.isfinite(exact)])
    largest = float(finite.max()) if finite.size else 0.0
    return (
        distance.special_equal
        and distance.sqnr_db >= GATES[dtype].model_sqnr_db
        and distance.max_abs <= 4 * allowed * largest
    )


def _value(value: ir.Value, fused: Evaluation, unit: Unit) -> Array:
    """Returns what the interpreter computed for a value of ``@main``, or of the function that the unit stands in."""
    value = unit.outer.get(value, value)
    owner = value.owner
    if isinstance(owner, ir.Block):
        return fused.arguments[ir.BlockArgument(value).arg_number]
    return fused.values.get(owner.operation)[ir.OpResult(value).result_number]


def _is_stored(value: ir.Value) -> bool:
    """Whether a value is stored in the artifact: a weight or a constant, looked at through views."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    if owner.operation.name in VIEW_OPS:
        return _is_stored(owner.operation.operands[0])
    return owner.operation.name in ("lk.weight", "arith.constant")


def _type_of_buffer(
    program: ProgramSpec, maker: int, buffer: int, unit: Unit, fused: Evaluation
) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    place = program.steps[maker].buffers.index(buffer) - len(unit.block.arguments)
    value = unit.op.results[place]
    return numpy_dtype(ir.RankedTensorType(value.type).element_type), _value(value, fused, unit).shape
