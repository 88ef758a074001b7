"""The bisection itself: eager, the exported graph, the module after every pass, the compiled model.

Steps
    1. eager against the exported graph, and that against the graph that capture imports;
    2. the module after capture and after each stage, interpreted in float64 against the graph in float64: both are
       without rounding, so what is lost there is a bug. In the first stage that loses, the module after each pass;
       in the first pass, the first op (:mod:`divergence`);
    3. the compiled model step by step, each step by itself (:mod:`recorded_run`); in the first wrong step, the
       region up to each of its ops, compiled (:mod:`locate`).
The first finding is kept; the waterfall goes on to the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lowerkit.compiler import CompileOptions, compile_program, lowering_context
from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import LowerkitError, UsageError
from lowerkit.mlir import ir
from lowerkit.parity.bisect.divergence import EXACT_DB, exact_limit, first_divergence, same
from lowerkit.parity.bisect.evaluation import Evaluation, evaluate, wide
from lowerkit.parity.bisect.finding import Bisection, StageRow
from lowerkit.parity.bisect.graph import (
    GraphValues,
    decomposition_finding,
    eager_finding,
    exported_values,
    graph_values,
)
from lowerkit.parity.bisect.locate import kernel_finding, memory_finding, pass_finding, step_finding
from lowerkit.parity.bisect.ranks import Judge, search_ranks
from lowerkit.parity.bisect.recorded_run import KernelFault, StepFault, recorded_run
from lowerkit.parity.bisect.reproducer import kernel_reproducer, memory_reproducer, pass_reproducer
from lowerkit.parity.gates import GATES
from lowerkit.parity.metrics import compare
from lowerkit.pipeline import run_passes, stage_passes
from lowerkit.runtimes.manifest import HOST

if TYPE_CHECKING:
    from lowerkit.passes.base import PassContext
    from lowerkit.passes.shard.plan import MeshPlan
    from lowerkit.program.program import Program

STAGES = ("captured", "raised", "canonical", "partitioned", "layout", "fused")
DOUBTED_DB = 40.0
"""Below this distance a stage is not called the same, however much the model magnifies rounding."""
_PIPELINE = ("raised", "canonical", "partitioned", "layout", "fused")
_BEFORE_SPLIT = ("raised", "canonical")


@dataclass
class _Snapshot:
    """The module before a pass that changed it, and after; the pass is of the host or of a target by regions."""

    name: str
    before: ir.Operation
    after: ir.Operation
    target: str


def bisect_program(
    program: Program,
    *,
    target: str = "cpu",
    device: str | None = None,
    allow: Sequence[str] = (),
    sharding: MeshPlan | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Bisection:
    """Finds the first op of a captured program that computes something else than the model.

    Args:
        program: just captured, with inputs; it is lowered in place.
        target: what to compile for, such as ``cpu:x86-64-v3``.
        device: the device that takes the place of the target's.
        allow: what accelerators may compute less exactly; a kernel may be as far off as that moves its region.
        sharding: how it is split among ranks, which are searched behind the split (:mod:`.ranks`); None: one device.
        on_progress: called with a line for people.

    Raises:
        UsageError: LK1003, there are no example inputs to run with.
        LowerkitError: the model cannot be compiled.
    """
    if program.example_inputs is None or program.eager is None:
        raise UsageError(
            "LK1003", "a bisection needs inputs to run with", hint="give --input NAME=@FILE.npy or NAME:SHAPE:DTYPE"
        )
    options = CompileOptions(target=target, allow=frozenset(allow), golden=False, device=device, sharding=sharding)
    return _Search(program, program.example_inputs, options, on_progress or (lambda _text: None)).run()


class _Search:
    def __init__(
        self,
        program: Program,
        inputs: Sequence[Array],
        options: CompileOptions,
        on_progress: Callable[[str], None],
    ) -> None:
        self.program = program
        self.inputs = inputs
        self.options = options
        self.show = on_progress
        self.result = Bisection([])
        self.reference: list[Array] = []
        self.limit = EXACT_DB
        self.graph = GraphValues({}, [], "")

    def run(self) -> Bisection:
        self.graphs()
        context = lowering_context(self.program, self.options)
        self.stage("captured", [], context)
        split = self.options.sharding is not None
        for stage in _BEFORE_SPLIT if split else _PIPELINE:
            self.stage(stage, self.lower(stage, context), context)
        if split:
            judge = Judge(self.decibels, self.same_outputs)
            search_ranks(self.program, self.inputs, self.options, judge, self.result, self.show)
        else:
            self.compiled()
        return self.result

    # --- eager and the graphs -------------------------------------------------------------------------------------

    def graphs(self) -> None:
        """Eager, the exported graph and the imported graph; their float64 values are the reference of all stages."""
        program, inputs = self.program, self.inputs
        assert program.eager is not None, "the caller checked"
        self.show("running eager")
        eager = program.eager(*inputs)
        self.show("running the graph in float64")
        self.graph = graph_values(program, inputs)
        exported = exported_values(program, inputs)
        self.reference = exported.outputs or self.graph.outputs
        note = self.graph.note or exported.note
        if not self.reference:
            captured, _ = self.evaluation(program, float64=True)
            self.reference = [wide(value) for value in eager] if captured is None else captured.outputs
            stands_in = "eager" if captured is None else "the captured module in float64"
            note = f"{note or 'no float64 reference'}: {stands_in} takes its place"
        distance = self.decibels(eager)
        self.result.stages.append(StageRow("eager", distance, None, note))
        narrowest = min((spec.dtype for spec in program.signature.outputs), key=_fineness, default="f32")
        self.limit = exact_limit(narrowest, distance)
        if "eager takes its place" in note and narrowest in GATES:
            self.limit = GATES[narrowest].model_sqnr_db
        if program.functional is None:
            return
        own = graph_values(program, inputs, float64=False)
        self.result.stages.append(StageRow("exported", self.decibels(own.outputs), None, own.note))
        limit = min(self.limit, (distance or EXACT_DB) - 6.0)
        self.result.finding = decomposition_finding(program, exported, self.graph, limit)
        if self.result.finding is None and self.graph.outputs:
            self.reference = self.graph.outputs  # constants that capture computed are part of what is compiled
        if self.result.finding is None and own.outputs:
            self.result.finding = eager_finding(program, inputs, eager, own)
        if self.result.finding is not None:
            self.result.reproducer_note = "the model and its export are the reproducer: there is no IR yet to cut"

    # --- the module, stage by stage -------------------------------------------------------------------------------

    def lower(self, stage: str, context: PassContext) -> list[_Snapshot]:
        """Runs the passes of a stage one by one; returns the module around those that changed it."""
        snapshots: list[_Snapshot] = []
        own = [(each, HOST) for each in stage_passes(stage)]
        targets = self.options.spec.accelerator_targets if stage in ("layout", "fused") else ()
        theirs = [(each, one.name) for one in targets if one.unit == "region" for each in one.passes(stage)]
        for one_pass, target in [*own, *theirs]:
            self.show(one_pass.name)
            before = self.program.module.operation.clone().operation
            if run_passes(self.program, [one_pass], context, target=target)[0].modified:
                after = self.program.module.operation.clone().operation
                snapshots.append(_Snapshot(one_pass.name, before, after, target))
        self.program.stage = stage
        return snapshots

    def stage(self, stage: str, snapshots: Sequence[_Snapshot], context: PassContext) -> None:
        self.show(f"interpreting stage {stage}")
        own, note = self.evaluation(self.program, float64=False)
        exact, exact_note = self.evaluation(self.program, float64=True)
        row = StageRow(
            stage,
            None if own is None else self.decibels(own.outputs),
            None if exact is None else self.decibels(exact.outputs),
            note or exact_note,
        )
        self.result.stages.append(row)
        if self.result.finding is not None:
            return
        if exact is None:
            self.result.doubts.append(f"stage {stage} was {exact_note}")
            return
        distance = "other shapes" if row.exact is None else f"{row.exact:.1f} dB"
        if self.sound(exact):
            if not self.sound(exact, DOUBTED_DB):
                eager = self.result.stages[0].own
                itself = "of other shapes" if eager is None else f"at {eager:.1f} dB"
                self.result.doubts.append(
                    f"stage {stage} is at {distance} to the graph in float64, where eager itself is {itself}"
                )
            return
        if stage == "captured":
            self.name_import()
        else:
            self.name_pass(stage, snapshots)
        if self.result.finding is None:
            self.result.doubts.append(f"stage {stage} differs from the graph in float64 ({distance})")

    def sound(self, evaluation: Evaluation, least: float = -math.inf) -> bool:
        return self.same_outputs(evaluation.outputs, least)

    def same_outputs(self, outputs: Sequence[Array], least: float = -math.inf) -> bool:
        limit = max(self.limit, least)
        return all(same(*pair, limit) for pair in zip(outputs, self.reference, strict=True))

    def evaluation(self, program: Program, *, float64: bool, keep: bool = False) -> tuple[Evaluation | None, str]:
        try:
            return evaluate(program, self.inputs, float64=float64, keep=keep), ""
        except LowerkitError as error:
            return None, f"not interpreted: {error.message}"
        except Exception as error:  # PyTorch and numpy raise what they like for an op that cannot be run so
            return None, f"not interpreted: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"

    def name_import(self) -> None:
        evaluation = evaluate(self.program, self.inputs, float64=True, keep=True)
        found = first_divergence(evaluation, self.graph.nodes, self.reference, None, self.limit)
        if found is not None:
            self.result.finding = pass_finding("captured", "capture", found)
            self.result.reproducer_note = (
                "the model is the reproducer: the module differs from its graph from the start"
            )

    def name_pass(self, stage: str, snapshots: Sequence[_Snapshot]) -> None:
        """Finds the first pass of a stage whose result differs, and in it the first op."""
        for number, snapshot in enumerate(snapshots):
            self.show(f"interpreting after {snapshot.name}")
            after = self.at(snapshot.after)
            evaluation, _ = self.evaluation(after, float64=True)
            if evaluation is None or self.sound(evaluation):
                continue
            evaluation = evaluate(after, self.inputs, float64=True, keep=True)
            before, _ = self.evaluation(self.at(snapshot.before), float64=True, keep=True)
            found = first_divergence(evaluation, self.graph.nodes, self.reference, before, self.limit)
            if found is None:
                return
            details = tuple(f"{earlier.name} before it agrees" for earlier in snapshots[max(number - 1, 0) : number])
            self.result.finding = pass_finding(stage, f"pass {snapshot.name}", found, details)
            if before is not None:
                piece = pass_reproducer(
                    self.at(snapshot.before), snapshot.name, before, self.result.finding, snapshot.target
                )
                self.result.reproducer, self.result.reproducer_note = piece
            return

    def at(self, module: ir.Operation) -> Program:
        """Returns the program with another module; weights and all else are shared."""
        text = module.get_asm(enable_debug_info=True)
        return replace(self.program, module=ir.Module.parse(text, self.program.context))

    # --- the compiled model ---------------------------------------------------------------------------------------

    def compiled(self) -> None:
        program = self.program
        fused, note = self.evaluation(program, float64=False, keep=True)
        self.show("compiling")
        compiled = compile_program(program, self.options, self.show)
        session = compiled.session
        if fused is None:
            outputs = session.run(*self.inputs)
            self.result.stages.append(StageRow("compiled", self.decibels(outputs), None, note))
            self.result.doubts.append(f"the compiled model was not run step by step: its stage fused was {note}")
            return
        self.show("running step by step")
        recorded = recorded_run(session, self.inputs, fused, self.options.allow)
        row = StageRow("compiled", self.decibels(recorded.outputs), None, "; ".join(recorded.notes))
        self.result.stages.append(row)
        self.result.steps = recorded.steps
        fault = recorded.fault
        if self.result.finding is not None or fault is None:
            return
        if isinstance(fault, KernelFault):
            self.show("compiling prefixes of the region")
            finding, piece = kernel_finding(fault, session.program, self.options)
            self.result.finding = finding
            if piece is None:
                self.result.reproducer_note = "no part of the region shows it when it is compiled by itself"
            else:
                self.result.reproducer = kernel_reproducer(piece, finding, self.options)
                self.result.reproducer_note = "one region, cut behind the op, with the very bytes that it read"
        elif isinstance(fault, StepFault):
            self.result.finding = step_finding(fault, session.program, self.options)
            self.result.reproducer_note = "the step ends the run: the model is the reproducer"
        else:
            self.result.finding = memory_finding(fault, session.program)
            found = self.result.finding
            self.result.reproducer = memory_reproducer(program, self.inputs, found, self.options)
            self.result.reproducer_note = "the whole fused module: a memory plan cannot be cut"

    def decibels(self, outputs: Sequence[Array]) -> float | None:
        """Returns the least SQNR of the outputs to the float64 reference."""
        pairs = [
            compare(actual, wanted)
            for actual, wanted in zip(outputs, self.reference, strict=False)
            if actual.shape == wanted.shape
        ]
        if len(pairs) != len(self.reference):
            return None
        return min((m.sqnr_db if m.special_equal else float("-inf") for m in pairs), default=float("inf"))


def _fineness(dtype: str) -> float:
    """Orders element types by how coarsely they round: integers, which do not round, come last."""
    return GATES[dtype].epsilon * -1.0 if dtype in GATES else 0.0
