"""A canonical program is split among the ranks of a mesh: one axis after the other, then into the stages of a pipeline.

Each run of ``shard-program`` takes the program of one device and gives the one that every rank along an axis runs, so
the next run takes that for the program of one device: its collectives are ops like others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lowerkit.errors import UsageError
from lowerkit.passes.shard.fix_reductions import FixReductions
from lowerkit.passes.shard.invariance import mark_invariant
from lowerkit.passes.shard.micro_batches import split_batch
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.passes.shard.split_stages import split_stages
from lowerkit.pipeline import PassTiming, PipelineOptions, run_passes
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.certificate.recorder import Recorder, with_stages
from lowerkit.spmd.invariant import require_known_targets, require_one_order, seconds_of
from lowerkit.spmd.mesh import Mesh
from lowerkit.spmd.plan_file import AUTO, EXAMPLE_PLAN, Entries, make_plan, read_plan
from lowerkit.spmd.states import cut_states, keep_used_states
from lowerkit.spmd.unused_entries import require_used

if TYPE_CHECKING:
    from lowerkit.passes.base import PassContext
    from lowerkit.passes.shard.plan import MeshPlan, ShardingPlan
    from lowerkit.program.program import Program


def sharding_of(
    mesh: str | None,
    plan: Path | Entries | str | None,
    program: Program | None = None,
    *,
    invariant: bool = False,
    target: str = "cpu",
) -> MeshPlan | None:
    """Returns the sharding that a user names; None where there is neither a mesh nor a plan.

    Args:
        mesh: ``tp=2,dp=2``.
        plan: a file, its content, or ``auto``; None with a mesh is ``auto``.
        program: what a plan is chosen for; a plan that is given does not need it.
        invariant: sums are made in one order, whatever the mesh.
        target: whose times choose.

    Raises:
        UsageError: LK1011, one of them is missing or wrong.
        InputError: LK1001/LK1002, as :func:`read_plan`.
    """
    if mesh is None:
        given = "a plan is given" if plan is not None else "--invariant is given" if invariant else ""
        if not given:
            return None
        raise UsageError(
            "LK1011",
            f"{given} and no mesh",
            hint="give both: --mesh tp=2 --shard plan.json says among how many ranks, and how",
        )
    parsed = Mesh.parse(mesh)
    if plan is None or str(plan) == AUTO:
        from lowerkit.spmd.auto.choose import auto_sharding

        assert program is not None, "a plan is chosen for a program"
        return auto_sharding(program, parsed, target, invariant=invariant)
    if isinstance(plan, str):
        raise UsageError("LK1011", f"the plan is {plan!r}, which is no file and not {AUTO!r}", hint=EXAMPLE_PLAN)
    return make_plan(parsed, read_plan(plan) if isinstance(plan, Path) else plan, invariant=invariant)


def shard(program: Program, plan: MeshPlan, context: PassContext, pipeline: PipelineOptions) -> list[PassTiming]:
    """Makes of a canonical ``program``, in place, what every rank of the mesh runs, but for its stages.

    Raises:
        UnsupportedError: LK4007, the plan splits what cannot be split.
        UsageError: LK1011, it names what it does not split.
        VerifyError: LK3006, what the ranks compute cannot be proved to be what the program computes.
    """
    timings: list[PassTiming] = []
    recorder = Recorder(program.weights, program.signature)
    # The proof looks into how parts are cut of weights; a program without data is planned, and never run.
    proved = all(map(program.weights.has_data, program.weights))
    if plan.stages is not None and plan.stages.micro_batches > 1:
        if proved:
            recorder.before(program.module)
        split_batch(program.module, context, plan.stages.micro_batches)
        if proved:
            recorder.after(program.module, "", 1)
    if plan.invariant:
        recorder.invariant()
        require_known_targets([each.name for each in context.accelerators])
        mark_invariant(program.module)
    context.input_names = [spec.name for spec in program.signature.inputs]
    for axis in plan.axes:
        axis.report.clear()
        context.sharding = axis
        if plan.invariant:
            timings += _fix_reductions(program, axis, context, pipeline, recorder if proved else None)
        if proved:
            recorder.before(program.module)
        timings += run_passes(program, [ShardProgram()], context, pipeline)
        cut_states(program, axis)
        if proved:
            recorder.after(program.module, axis.axis, axis.ranks)
    if plan.sums is not None:
        plan.sums.report.clear()
        context.sharding = plan.sums
        timings += _fix_reductions(program, plan.sums, context, pipeline, recorder if proved else None)
    context.sharding = None
    if plan.invariant:
        require_one_order(program.module)
    require_used(plan)
    program.mesh = [MeshAxis(name, size) for name, size in plan.mesh]
    program.certificate = recorder.certificate(program.mesh) if proved else None
    return timings


def _fix_reductions(
    program: Program,
    axis: ShardingPlan,
    context: PassContext,
    pipeline: PipelineOptions,
    recorder: Recorder | None,
) -> list[PassTiming]:
    """Gives sums one order; notes in the report by how much that makes the program longer, by the cost model."""
    before = seconds_of(program.module)
    if recorder is not None:
        recorder.before(program.module)
    timings = run_passes(program, [FixReductions()], context, pipeline)
    if recorder is not None:
        recorder.after(program.module, "", 1)
    axis.report.price = seconds_of(program.module) / before - 1 if before else 0.0
    return timings


def stage_programs(program: Program, plan: MeshPlan | None) -> list[Program]:
    """Returns the programs of the stages of a sharded ``program``, in their order; itself where there is one stage.

    Raises:
        UnsupportedError: LK4007, it cannot be cut there.
        UsageError: LK1011, the plan names no module that there is, or a stage that reads from a later one.
        VerifyError: LK3006, LK3007, the stages cannot be proved to compute what the program does, or to end.
    """
    if plan is None or plan.stages is None or program.place:
        return [program]
    stages = split_stages(program, plan.stages)
    for stage in stages:
        keep_used_states(stage)
    if program.certificate is not None:
        modules = [stage.module for stage in stages]
        program.certificate = with_stages(program.certificate, program.module, plan.stages.axis, modules)
    return stages
