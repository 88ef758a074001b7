"""Chooses the plan for a mesh: axis by axis in their order, each on the program that the axes before have made.

The name of an axis says what is split along it: ``tp`` weights, ``dp`` the batch, ``ep`` experts, ``sp`` sequences, and
``pp`` are stages. With another name, it is what is cheapest. Stages come last: they cut what the others have made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lowerkit.errors import UnsupportedError
from lowerkit.passes.shard.plan import MeshPlan, ShardingPlan
from lowerkit.program.program import Program
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.auto.draft import Draft, draft_of
from lowerkit.spmd.auto.fixed_sums import REFERENCE, FixedSums
from lowerkit.spmd.auto.one_axis import STAGES, choose_along
from lowerkit.spmd.auto.stage_choice import StageChoice, choose_stages
from lowerkit.spmd.auto.trial import Estimate, Machine
from lowerkit.spmd.cost.machine import H100, NVLINK4, DeviceModel, LinkModel, Links, machine_of
from lowerkit.spmd.mesh import Mesh


@dataclass(frozen=True)
class AutoChoice:
    """What was chosen.

    Attributes:
        entries: by axis, pattern -> choice or stage: what a file of the plan holds, but for micro-batches.
        reasons: a line for each choice.
        cost: of a rank; with stages, of a run through all of them and of the stage with the most weights.
        plan: to compile with.
    """

    entries: dict[str, dict[str, Any]]
    reasons: list[str]
    cost: Estimate
    plan: MeshPlan


def auto_sharding(program: Program, mesh: Mesh, target: str = "cpu", *, invariant: bool = False) -> MeshPlan:
    """Returns the plan that is chosen for a program by the times of a target; see :func:`choose_plan`."""
    machine = machine_of(target)
    plan = choose_plan(program, mesh, machine.device, machine.link, invariant=invariant).plan
    device, link = machine.device, machine.link
    times = (
        f"times are those of {machine.name}: {device.flops / 1e9:g} GFLOP/s, {device.bandwidth / 1e9:g} GB/s; "
        f"links: {link.bandwidth / 1e9:g} GB/s, {link.latency * 1e6:g} us"
    )
    return replace(plan, reasons=(times, *plan.reasons))


def choose_plan(
    program: Program,
    mesh: Mesh,
    device: DeviceModel = H100,
    link: LinkModel | Links = NVLINK4,
    *,
    invariant: bool = False,
) -> AutoChoice:
    """Chooses how a program is split among the ranks of a mesh.

    Args:
        program: at a stage before ``canonical``, or there; it is not changed, and no weight of it is read that is not
            folded into a constant.
        mesh: the ranks.
        device: each of them.
        link: between them; one for all axes, or by axis.
        invariant: for the plan, whose sums are then those of two ranks (:mod:`.fixed_sums`).

    Raises:
        UnsupportedError: LK4007, nothing can be split along an axis.
        UsageError: LK1011, the program is split already.
        LowerkitError: it cannot be lowered.
    """
    links = link if isinstance(link, Links) else Links(link)
    sizes = {axis.name: axis.size for axis in mesh.axes}
    draft = draft_of(program, Machine(device, links, sizes))
    trial, reasons = draft.trial, list[str]()
    plans: list[ShardingPlan] = []
    pipeline = _pipeline(mesh)
    is_reference = mesh.axes == (MeshAxis(REFERENCE, 2),)
    reference = _reference(program, device, links) if invariant and not is_reference else None
    sums = FixedSums(reference) if invariant and not is_reference else None
    for axis in mesh.axes:
        if axis == pipeline:
            continue
        if axis.size == 1:
            plans += [ShardingPlan(axis.name, 1)] if invariant else []
            reasons.append(f"{axis.name}: one rank, nothing is split")
            continue
        found = choose_along(axis, draft, trial, sums)
        if found is None:
            raise _nothing(axis, draft)
        trial = found.trial
        sums = None if sums is None else sums.behind(found.plan)
        plans.append(found.plan)
        reasons += found.reasons
    cost, stages = trial.estimate, None
    if pipeline is not None:
        stages = choose_stages(pipeline, draft, trial, plans)
        if stages is None:
            raise _nothing(pipeline, draft)
        reasons += stages.reasons
        cost = Estimate(stages.seconds, stages.weight_bytes, cost.collectives)
    if invariant and is_reference:
        (reference,) = plans
    made = MeshPlan(
        tuple(sizes.items()),
        tuple(plans),
        None if stages is None else stages.plan,
        invariant,
        tuple(reasons),
        None if reference is None else ShardingPlan(reference.axis, 1, reference.entries),
    )
    return AutoChoice(_entries(mesh, plans, stages), reasons, cost, made)


def _reference(program: Program, device: DeviceModel, links: LinkModel | Links) -> ShardingPlan | None:
    """Returns the plan by which two ranks share weights; None where they can share none."""
    try:
        (plan,) = choose_plan(program, Mesh((MeshAxis(REFERENCE, 2),)), device, links).plan.axes
    except UnsupportedError as error:
        if error.code != "LK4007":
            raise
        return None
    return plan


def _pipeline(mesh: Mesh) -> MeshAxis | None:
    return next((axis for axis in mesh.axes if axis.name.rstrip("0123456789") == STAGES), None)


def _entries(mesh: Mesh, plans: list[ShardingPlan], stages: StageChoice | None) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {
        plan.axis: {entry.pattern: entry.choice for entry in plan.entries} for plan in plans
    }
    if stages is not None:
        entries[stages.plan.axis] = {entry.pattern: entry.stage for entry in stages.plan.entries}
    return {axis.name: entries[axis.name] for axis in mesh.axes if axis.name in entries}


def _nothing(axis: MeshAxis, draft: Draft) -> UnsupportedError:
    return UnsupportedError(
        "LK4007",
        f"nothing of {draft.source} can be split along {axis.name!r} among {axis.size} ranks",
        hint="the name of an axis says what is split: tp weights, dp the batch, ep experts, sp sequences, pp stages",
    )
