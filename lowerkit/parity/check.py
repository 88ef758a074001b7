"""`check`: compile a model, run it, and compare it with eager: op by op, and as a whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lowerkit.errors import LowerkitError, ParityError, RuntimeFault, UsageError
from lowerkit.parity.compare.comparison import Comparison
from lowerkit.parity.report.report import Report
from lowerkit.parity.subgraphs import bodies_of, compare_bodies
from lowerkit.parity.symbolic_sizes import sizes_of, text_of

if TYPE_CHECKING:
    from lowerkit.parity.taps import Tap
    from lowerkit.passes.shard.plan import MeshPlan
    from lowerkit.program.program import Program


def check(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    *,
    target: str = "cpu",
    device: str | None = None,
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    per_op: bool = True,
    bisect: bool = False,
    hard: bool = False,
    allow: Sequence[str] = (),
    mesh: str | None = None,
    shard: Mapping[str, Any] | str | None = None,
    invariant: bool = False,
) -> Report:
    """Compiles ``model`` (as ``lowerkit.compile`` takes it) and compares it with eager by gate A.

    ``device`` is what takes the place of the target's device in this process, such as ``cuda-sim``.

    With ``bisect``, every stage is searched for the first op that computes something else: ``report.bisection``. With
    ``hard``, the outputs are compared on special values too (NaN, infinities, denormals, extremes): ``report.hard``.

    ``allow`` is what accelerators may compute less exactly than the model says: ``tf32`` on ``cuda``. What it grants is
    measured, see :mod:`lowerkit.parity.permission`, and stands in ``report.allowed``.

    With ``mesh``, ``shard`` and ``invariant``, as for ``lowerkit.compile``, all ranks run, simulated, and must give the
    same bits.

    Raises:
        UsageError: LK1003, there are no example inputs to run with.
        LowerkitError: the model cannot be captured or compiled.
    """
    if isinstance(model, (str, os.PathLike)):
        from lowerkit.capture.load_model import capture_path

        def make() -> Program:
            return capture_path(str(model), example_inputs=example_inputs, kwargs=kwargs, dynamic_shapes=dynamic_shapes)
    else:
        from lowerkit.capture.capture import capture
        from lowerkit.capture.torch_export.distributed_tensors import as_plan

        model, mesh, shard = as_plan(model, mesh, shard)

        def make() -> Program:
            return capture(model, example_inputs, dynamic_shapes=dynamic_shapes, kwargs=kwargs)

    from lowerkit.spmd.sharding import sharding_of

    program = make()
    return check_program(
        program,
        target=target,
        device=device,
        per_op=per_op,
        bisect=bisect,
        hard=hard,
        allow=allow,
        sharding=sharding_of(mesh, shard, program, invariant=invariant, target=target),
    )


def check_program(
    program: Program,
    *,
    target: str = "cpu",
    device: str | None = None,
    per_op: bool = True,
    bisect: bool = False,
    hard: bool = False,
    allow: Sequence[str] = (),
    sharding: MeshPlan | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Checks a captured program; it is compiled in the process, with a tap at every region when ``per_op``.

    Raises:
        UsageError: LK1003, there are no inputs; LK1011, the model communicates by itself.
        LowerkitError: the model cannot be compiled.
    """
    from lowerkit.compiler import CompileOptions, compile_program, lower_program

    if program.mesh and sharding is None:
        raise UsageError(
            "LK1011",
            "the model communicates by itself: there is no one device to compare its ranks with",
            hint="check the module before it was distributed, with --mesh",
        )
    inputs = program.example_inputs
    if inputs is None or program.eager is None:
        raise UsageError(
            "LK1003", "a check needs inputs to run with", hint="give --input NAME=@FILE.npy or NAME:SHAPE:DTYPE"
        )
    show = on_progress or (lambda _text: None)
    arguments: dict[str, Any] = {"target": target, "device": device, "allow": allow, "on_progress": on_progress}
    if bisect and sharding is not None:
        return _bisect_ranks(program, sharding, per_op=per_op, hard=hard, **arguments)
    if per_op and sharding is not None and sharding.stages is not None:
        return _check_stages(program, sharding, hard=hard, **arguments)
    captured = program.copy() if bisect else None
    bodies = bodies_of(program) if per_op else []
    unlowered = program.copy() if bodies and not program.signature.dims and sharding is None else None
    fused: Program | None = None
    options = CompileOptions(target=target, allow=frozenset(allow), golden=False, device=device, sharding=sharding)
    model = replace(program)  # with the signature of the model, when taps are added to that of the program
    report = Report(program.source, [], [])
    report.allowed = options.spec.allowed
    if report.allowed and program.onnx_model is not None:
        report.skipped.append("what is allowed: an ONNX model cannot be run with it, so nothing is granted for it")
    taps: list[Tap] = []
    if bodies and unlowered is None:
        why = "the model has symbolic dims" if program.signature.dims else "the program is for a mesh"
        report.skipped.append(f"the ops inside of branches and loops: {why}")
    if per_op:
        from lowerkit.parity.integer.quantized_check import check_quantized
        from lowerkit.parity.integer.source_framework_check import holds_quantization
        from lowerkit.parity.taps import add_taps

        lower_program(program, "canonical", replace(options, sharding=None), on_progress)
        # What rounds to stored integers, not what holds integers: a cast to int8 is no quantization.
        if holds_quantization(program):
            if bisect:
                report.skipped.append("the bisection: stages are not compared for a quantized model")
            if hard:
                report.skipped.append("special values: they are not compared for a quantized model")
            check_quantized(program, options, report, on_progress)
            return report
        lower_program(program, "fused", options, on_progress)
        fused = program.copy() if unlowered is not None else None
        taps, left_out = add_taps(program)
        report.skipped += left_out
    compiled = compile_program(program, options, on_progress)
    report.mesh = compiled.sharding.render() if compiled.sharding else ""
    comparison = Comparison(model, compiled.runner, taps, report, show)
    first, fault = None, None
    try:
        with _own_caches(model):
            first = comparison.at(inputs, text_of(sizes_of(model.signature, inputs)))
            if model.signature.dims:
                comparison.further()
    except RuntimeFault as error:
        if not bisect or error.code != "LK8016":
            raise
        fault = error  # a device that ends a run is what a bisection is for, too
        report.ended = str(error.message)
    if first is not None and unlowered is not None and fused is not None:
        show("comparing inside branches and loops")
        with _own_caches(model):
            compare_bodies(unlowered, fused, first, options, report)
    if hard and fault is None:
        from lowerkit.parity.hard_values import compare_hard

        show("comparing special values")
        with _own_caches(model):
            compare_hard(model, compiled.runner, report)
    if captured is not None:
        from lowerkit.parity.bisect.search import bisect_program

        report.bisection = bisect_program(captured, target=target, device=device, allow=allow, on_progress=on_progress)
    if fault is not None and (report.bisection is None or report.bisection.finding is None):
        raise fault
    return report


def _own_caches(model: Program) -> AbstractContextManager[None]:
    """Returns a context whose runs of the model leave nothing behind in PyTorch; without PyTorch there is nothing."""
    if model.exported is None:
        return nullcontext()
    from lowerkit.parity.references.higher_order import forgotten_by_dynamo

    return forgotten_by_dynamo(model.exported)


def _bisect_ranks(program: Program, sharding: MeshPlan, *, per_op: bool, hard: bool, **arguments: Any) -> Report:
    """Checks a program for a mesh, then searches its ranks, also where two of them gave different bits."""
    from lowerkit.parity.bisect.search import bisect_program

    fault: LowerkitError | None = None
    try:
        report = check_program(program.copy(), sharding=sharding, per_op=per_op, hard=hard, **arguments)
    except (RuntimeFault, ParityError) as error:
        if error.code not in ("LK8016", "LK6001"):
            raise
        fault, report = error, Report(program.source, [], [])
        report.ended = str(error.message)
    if report.integers:
        report.skipped.append("the bisection: stages are not compared for a quantized model")
        return report
    report.bisection = bisect_program(program, sharding=sharding, **arguments)
    if fault is not None and report.bisection.finding is None:
        raise fault
    return report


def _check_stages(program: Program, sharding: MeshPlan, *, hard: bool, **arguments: Any) -> Report:
    """Checks the ops of a program before it is cut into the stages of a pipeline, and the outputs of the stages."""
    uncut = check_program(program.copy(), sharding=sharding.without_stages(), **arguments)
    if uncut.integers:
        return _check_quantized_stages(program, sharding, uncut, hard=hard, **arguments)
    report = check_program(program, sharding=sharding, per_op=False, hard=hard, **arguments)
    report.ops = uncut.ops
    report.skipped = list(dict.fromkeys([*uncut.skipped, *report.skipped]))
    return report


def _check_quantized_stages(
    program: Program,
    sharding: MeshPlan,
    uncut: Report,
    *,
    target: str,
    device: str | None,
    hard: bool,
    allow: Sequence[str],
    on_progress: Callable[[str], None] | None,
) -> Report:
    """Checks the outputs of the stages of a quantized model; ``uncut`` has its regions and ops."""
    from lowerkit.compiler import CompileOptions
    from lowerkit.parity.integer.quantized_check import check_outputs

    options = CompileOptions(target=target, allow=frozenset(allow), golden=False, device=device, sharding=sharding)
    if hard:
        uncut.skipped.append("special values: they are not compared for a quantized model")
    check_outputs(program, program.copy(), options, uncut, on_progress)
    uncut.skipped = list(dict.fromkeys(uncut.skipped))
    return uncut
