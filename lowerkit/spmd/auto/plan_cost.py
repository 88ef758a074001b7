"""What a mesh costs by the program as it is compiled, equal layers planned once where that says the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lowerkit.passes.shard.plan import MeshPlan
from lowerkit.program.program import Program
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.spmd.auto.alike_layers import alike_layers
from lowerkit.spmd.cost.machine import DeviceModel, Links
from lowerkit.spmd.cost.mesh_plan import MeshCost, cost_of_mesh
from lowerkit.spmd.cost.stage_cost import StageCost, cost_of_stage
from lowerkit.spmd.cost.stretch import stretch
from lowerkit.spmd.mesh import Mesh

PlanStages = Callable[[Program, MeshPlan | None], Sequence[ProgramSpec]]
"""Compiles a program, which may be changed, as far as its plan; returns what the ranks of each stage run."""


def plan_cost(
    program: Program,
    mesh: Mesh,
    plan: MeshPlan | None,
    plan_stages: PlanStages,
    dims: Callable[[ProgramSpec], Mapping[str, int]],
    device: DeviceModel,
    links: Links,
) -> MeshCost:
    """Returns what a mesh costs.

    Args:
        program: of one device; where it was only captured, its alike layers are not planned one by one.
        mesh, plan: how it is split; no plan for one device.
        plan_stages: compiles it as far as its plan.
        dims: gives the values of the symbolic dims.
        device, links: what it is to run on.

    Raises:
        LowerkitError: it cannot be split so, or not be lowered.
    """

    def costs(own: Program, split: MeshPlan | None) -> list[StageCost]:
        return [cost_of_stage(each, dims(each), device, links) for each in plan_stages(own, split)]

    alike = alike_layers(program, plan)
    if alike is not None:
        short, longer = costs(alike.short, alike.plans[0]), costs(alike.longer, alike.plans[1])
        pairs = enumerate(zip(short, longer, strict=True))
        stages = [stretch(*pair, alike.missing.get(number, 0)) for number, pair in pairs]
        found = [stage for stage in stages if stage is not None]
        if len(found) == len(stages):
            return cost_of_mesh(mesh, plan, found, alike.left_out)
    return cost_of_mesh(mesh, plan, costs(replace(program.copy(), weights=program.weights.fork()), plan))
