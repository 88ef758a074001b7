"""Finds the mesh for a number of devices, and the smallest one on which a program fits.

Vocabulary
    estimate  what a mesh costs by the shortened program of :mod:`lowerkit.spmd.auto`: enough to tell meshes apart
    planned   what it costs by the program as it is compiled: the bytes that the runtime allocates

Steps, for a number of devices:
    1. write it as dp * pp * tp in all ways: dp divides the batch, pp is at most the parts that the model has;
    2. choose a plan for each by :mod:`lowerkit.spmd.auto` and estimate it;
    3. plan those that should fit, the fastest first, until one does; where none does, the one that needs least.
The smallest mesh is found from the number of devices on that hold the weights and states, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lowerkit.errors import UnsupportedError
from lowerkit.passes.shard.plan import MeshPlan, ShardingPlan
from lowerkit.program.program import Program
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.auto.draft import Draft, draft_of
from lowerkit.spmd.auto.one_axis import choose_along
from lowerkit.spmd.auto.stage_choice import choose_stages
from lowerkit.spmd.auto.trial import Machine, Trial
from lowerkit.spmd.cost.machine import DeviceModel, Links
from lowerkit.spmd.cost.mesh_plan import MeshCost
from lowerkit.spmd.mesh import Mesh

_TRIED = 2
"""Meshes of one number of devices that are planned, at most, before the next number's turn."""

PlanMesh = Callable[[Mesh, MeshPlan | None], MeshCost]
"""Compiles a program for a mesh as far as its plan, and costs it."""


@dataclass(frozen=True)
class Estimate:
    """A mesh that may be planned.

    Attributes:
        mesh, plan: it, and how the program is split; None for one device.
        seconds: of a run.
        rank_bytes: of the rank with the most.
    """

    mesh: Mesh
    plan: MeshPlan | None
    seconds: float
    rank_bytes: int


class MeshSearch:
    """Looks for meshes of one program.

    Args:
        program: at stage ``canonical`` at most, of one device; it is not changed.
        device, links: what it is to run on.
        plan_mesh: plans the program for a mesh.
    """

    def __init__(self, program: Program, device: DeviceModel, links: Links, plan_mesh: PlanMesh) -> None:
        self._device, self._links, self._plan_mesh = device, links, plan_mesh
        self._draft = draft_of(program, Machine(device, links, {}))
        self._batch = _batch(self._draft)
        self._split: dict[tuple[MeshAxis, ...], tuple[tuple[ShardingPlan, ...], Trial] | None] = {}
        self._planned: dict[Mesh, MeshCost] = {}

    @property
    def weight_bytes(self) -> int:
        """Of the whole program."""
        return self._draft.trial.cost.weight_bytes

    @property
    def compared(self) -> str:
        """What meshes were compared by, in words."""
        removed = len(self._draft.trial.counts.removed)
        if not removed:
            return "meshes were compared by the whole program"
        return (
            f"meshes were compared by a program without {removed} layers that are like others, which count for them; "
            "bytes and times of what is shown are those of the whole program"
        )

    def of(self, mesh: Mesh) -> MeshCost:
        """Returns what a mesh costs, with the plan that is chosen for it.

        Raises:
            UnsupportedError: LK4007, the program cannot be split so.
        """
        found = self.estimate(mesh)
        if found is None:
            raise UnsupportedError(
                "LK4007",
                f"nothing of {self._draft.source} can be split along an axis of {mesh}",
                hint="the name of an axis says what is split: tp weights, dp the batch, ep experts, sp sequences, "
                "pp stages",
            )
        return self._plan(found)

    def best(self, devices: int) -> MeshCost | None:
        """Returns the fastest mesh that fits, else the one that needs least; None where nothing can be split."""
        estimates = [found for mesh in self._meshes(devices) if (found := self.estimate(mesh)) is not None]
        if not estimates:
            return None
        fitting = sorted((each for each in estimates if self._may_fit(each)), key=lambda each: each.seconds)
        least = min(estimates, key=lambda each: each.rank_bytes)
        planned: list[MeshCost] = []
        for each in fitting[:_TRIED]:
            planned.append(self._plan(each))
            if planned[-1].fits(self._device):
                return planned[-1]
        planned.append(self._plan(least))
        return min(planned, key=lambda cost: (not cost.fits(self._device), cost.rank_bytes))

    def smallest(self, most: int) -> MeshCost | None:
        """Returns the mesh with the fewest devices that fits, of at most ``most``; None where there is none."""
        cost = self._draft.trial.cost
        held = cost.weight_bytes + cost.state_bytes
        for devices in range(max(1, -(-held // self._device.memory)), most + 1):
            estimates = [found for mesh in self._meshes(devices) if (found := self.estimate(mesh)) is not None]
            if any(map(self._may_fit, estimates)):
                found = self.best(devices)
                if found is not None and found.fits(self._device):
                    return found
        return None

    def estimate(self, mesh: Mesh) -> Estimate | None:
        """Returns what a mesh should cost; None where the program cannot be split so."""
        pipeline = next((axis for axis in mesh.axes if axis.name == "pp" and axis.size > 1), None)
        sizes = {axis.name: axis.size for axis in mesh.axes}
        found = self._along(tuple(axis for axis in mesh.axes if axis != pipeline and axis.size > 1))
        if found is None:
            return None
        plans, trial = found
        cost, stages = trial.cost, None
        seconds, held = cost.seconds, cost.weight_bytes + cost.state_bytes
        if pipeline is not None:
            own = replace(trial, machine=replace(trial.machine, mesh=sizes))
            stages = choose_stages(pipeline, self._draft, own, plans)
            if stages is None:
                return None
            seconds, held = stages.seconds, stages.weight_bytes
        plan = MeshPlan(tuple(sizes.items()), plans, None if stages is None else stages.plan)
        split = bool(plans) or stages is not None
        return Estimate(mesh, plan if split else None, seconds, held + cost.activation_bytes)

    def _along(self, axes: tuple[MeshAxis, ...]) -> tuple[tuple[ShardingPlan, ...], Trial] | None:
        if axes not in self._split:
            sizes = {axis.name: axis.size for axis in axes}
            trial: Trial | None = replace(self._draft.trial, machine=Machine(self._device, self._links, sizes))
            plans: list[ShardingPlan] = []
            for axis in axes:
                found = None if trial is None else choose_along(axis, self._draft, trial)
                trial = None if found is None else found.trial
                plans += [] if found is None else [found.plan]
            self._split[axes] = None if trial is None else (tuple(plans), trial)
        return self._split[axes]

    def _meshes(self, devices: int) -> Iterator[Mesh]:
        for batch in _divisors(devices):
            if self._batch % batch:
                continue
            for stages in _divisors(devices // batch):
                sizes = (("dp", batch), ("pp", stages), ("tp", devices // batch // stages))
                axes = tuple(MeshAxis(name, size) for name, size in sizes if size > 1)
                yield Mesh(axes or (MeshAxis("tp", 1),))

    def _may_fit(self, estimate: Estimate) -> bool:
        return estimate.rank_bytes <= self._device.memory

    def _plan(self, estimate: Estimate) -> MeshCost:
        if estimate.mesh not in self._planned:
            self._planned[estimate.mesh] = self._plan_mesh(estimate.mesh, estimate.plan)
        return self._planned[estimate.mesh]


def _batch(draft: Draft) -> int:
    """The leading extent that all inputs with one have in common: what a batch may be split into."""
    extents = {extent for extent in draft.inputs.values() if extent is not None}
    only = extents.pop() if len(extents) == 1 else "1"
    return int(only) if only.isdigit() else 1


def _divisors(number: int) -> Sequence[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
