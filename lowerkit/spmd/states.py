"""The states of the ranks of a mesh: which part of each a rank has, and which of them a stage uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lowerkit.mlir import ir, walk
from lowerkit.runtimes.manifest import TensorSpec
from lowerkit.runtimes.mesh.structs import StateCut

if TYPE_CHECKING:
    from lowerkit.passes.shard.plan import ShardingPlan
    from lowerkit.program.program import Program


def cut_states(program: Program, plan: ShardingPlan) -> None:
    """Gives a program that was split along an axis the shapes of the states of its ranks, in place."""
    cuts = {name: StateCut(plan.axis, each.axis, each.parts) for name, each in plan.report.states.items()}
    states = [_part(spec, cuts[spec.name]) if spec.name in cuts else spec for spec in program.signature.states]
    program.signature = replace(program.signature, states=states)
    before = program.state_cuts
    program.state_cuts = {**before, **{name: [*before.get(name, []), cut] for name, cut in cuts.items()}}


def keep_used_states(program: Program) -> None:
    """Takes the states that a program neither reads nor writes out of its signature, in place."""
    used: set[str] = set()

    def note(op: ir.Operation) -> None:
        if op.name in ("lk.state_read", "lk.state_write"):
            used.add(ir.StringAttr(op.attributes["symbol"]).value)

    walk(program.module.operation, note)
    states = [spec for spec in program.signature.states if spec.name in used]
    program.signature = replace(program.signature, states=states)
    program.state_cuts = {name: cuts for name, cuts in program.state_cuts.items() if name in used}


def _part(spec: TensorSpec, cut: StateCut) -> TensorSpec:
    extent = spec.shape[cut.dim]
    assert isinstance(extent, int), "the shape of a state is known"
    return replace(spec, shape=[*spec.shape[: cut.dim], extent // cut.parts, *spec.shape[cut.dim + 1 :]])
