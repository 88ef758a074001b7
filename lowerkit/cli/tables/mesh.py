"""What `lowerkit inspect` says of a mesh: its axes, the weights that ranks share, and the collectives between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.output import print_table
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import ITEM_SIZES
from lowerkit.runtimes.mesh.places import part_number, place_text
from lowerkit.runtimes.mesh.state_parts import whole_shape

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import ProgramSpec, Step, TensorSpec
    from lowerkit.runtimes.mesh.structs import StateCut

_COLLECTIVE_FIELDS = ("operation", "axis", "dtype", "reduction", "phase", "bytes")
_MOST_ROWS = 20
_STAGE_FIELDS = {"weights": "weights", "states": "state_bytes", "activations": "activations"}


def describe_mesh(program: ProgramSpec, values: Mapping[str, int]) -> dict[str, Any]:
    """Returns the fields ``mesh``, ``sharded`` and ``shared_states`` of ``inspect``; they are empty without a mesh."""
    sizes = {axis.name: axis.size for axis in program.mesh}
    rank_bytes = {
        (buffer.weight, buffer.shard): evaluate(buffer.size, values)
        for buffer in program.buffers
        if buffer.kind == "weight" and buffer.shard
    }
    return {
        "mesh": [{"name": name, "size": size} for name, size in sizes.items()],
        "sharded": [
            {"name": name, "axis": axes, "bytes": size * part_number(program.mesh, axes, {})[1], "rank_bytes": size}
            for (name, axes), size in sorted(rank_bytes.items())
        ],
        "shared_states": [_shared(spec, program.state_cuts[spec.name]) for spec in _cut_states(program)],
    }


def _cut_states(program: ProgramSpec) -> list[TensorSpec]:
    return [spec for spec in program.signature.states if spec.name in program.state_cuts]


def _shared(spec: TensorSpec, cuts: Sequence[StateCut]) -> dict[str, Any]:
    own = [evaluate(extent, {}) for extent in spec.shape]
    whole = list(whole_shape(own, cuts))
    return {
        "name": spec.name,
        "cuts": [{"axis": cut.axis, "dim": cut.dim, "parts": cut.parts} for cut in cuts],
        "shape": whole,
        "bytes": math.prod(whole) * ITEM_SIZES[spec.dtype],
        "rank_bytes": math.prod(own) * ITEM_SIZES[spec.dtype],
    }


def describe_stages(programs: Sequence[ProgramSpec], shown: ProgramSpec, dims: Mapping[str, int]) -> dict[str, Any]:
    """Returns the field ``stages`` of ``inspect``: what the ranks at each place hold, where they run several programs.

    Args:
        programs: of the artifact.
        shown: one of them.
        dims: the value of each symbolic dim.
    """
    from lowerkit.spmd.cost.memory import memory_of

    stages = [each for each in programs if (each.name, each.label) == (shown.name, shown.label) and each.place]
    found: list[dict[str, Any]] = []
    for stage in stages:
        memory, names = memory_of(stage, dims), [spec.name for spec in stage.signature.states]
        sizes = {"weights": memory.weights, "state_bytes": memory.states, "activations": memory.activations}
        found.append({"place": stage.place, "states": names, **sizes})
    return {"stages": found}


def rank_weight_bytes(program: ProgramSpec, values: Mapping[str, int], stored: int) -> int:
    """Returns the bytes of weights of a rank that runs a program, of weights that ranks share its own parts.

    Args:
        program: of the artifact; of one that only some ranks run, the weights that it reads are counted.
        values: of the symbolic dims.
        stored: bytes of all weights of the artifact.
    """
    own = {
        (buffer.weight, buffer.shard): evaluate(buffer.size, values)
        for buffer in program.buffers
        if buffer.kind == "weight"
    }
    if program.place:
        return sum(own.values())
    parts = {(name, axes): part_number(program.mesh, axes, {})[1] if axes else 1 for name, axes in own}
    return stored - sum(size * (parts[key] - 1) for key, size in own.items())


def describe_collective(program: ProgramSpec, step: Step, values: Mapping[str, int]) -> dict[str, Any] | None:
    """Returns what a collective step does, and the bytes that each rank brings; None for any other step."""
    call = step.collective
    if call is None:
        return None
    brought = 0 if call.operation == "receive" else evaluate(program.buffers[step.buffers[0]].size, values)
    return {
        "operation": call.operation,
        "axis": call.axis,
        "dtype": call.dtype,
        "reduction": call.reduction,
        "phase": call.phase,
        "root": call.root if call.operation in ("broadcast", "reduce") else None,
        "peer": call.peer if call.operation in ("send", "receive") else None,
        "bytes": brought,
    }


def print_mesh(document: Mapping[str, Any], show_all: bool) -> None:
    """Prints the mesh of an ``inspect`` document, where it has one; the largest rows of each table, or all."""
    if not document["mesh"]:
        return
    totals = document["totals"]
    axes = ",".join(f"{axis['name']}={axis['size']}" for axis in document["mesh"])
    own, whole = (totals[field] / 1e6 for field in ("rank_weight_bytes", "weight_bytes"))
    sharded = sorted(document["sharded"], key=lambda entry: -entry["bytes"])
    calls = [(step["name"], step["location"], step["collective"]) for step in document["steps"] if step["collective"]]
    # What is started and ended by two steps is one collective.
    moved = [call["bytes"] for _, _, call in calls if call["phase"] != "done"]
    click.echo(
        f"mesh {axes}: a rank has {own:.2f} MB of the {whole:.2f} MB of weights, {len(sharded)} of them in parts, "
        f"and brings {sum(moved) / 1e6:.2f} MB to {len(moved)} collectives"
    )
    for stage in document["stages"]:
        sizes = ", ".join(f"{name} {stage[field] / 1e6:.2f} MB" for name, field in _STAGE_FIELDS.items())
        click.echo(f"a rank at {place_text(stage['place'])}: {sizes}")
    shown = slice(None) if show_all else slice(_MOST_ROWS)
    title = "{}" if show_all else f"{{}}, at most {_MOST_ROWS}"
    rows = [[entry[field] for field in ("name", "axis", "rank_bytes", "bytes")] for entry in sharded[shown]]
    if rows:
        columns = ["weight", "axis", "bytes of a rank", "bytes of all"]
        print_table(title.format("weights in parts, largest first"), columns, rows)
    rows = [
        [each["name"], *_cut_text(each), each["rank_bytes"], each["bytes"]] for each in document["shared_states"][shown]
    ]
    if rows:
        columns = ["state", "axis", "cut", "bytes of a rank", "bytes of all"]
        print_table("states in parts" if show_all else f"states in parts, at most {_MOST_ROWS}", columns, rows)
    rows = [[name, *(call[field] for field in _COLLECTIVE_FIELDS), place] for name, place, call in calls[shown]]
    if rows:
        print_table(title.format("collectives in their order"), ["step", *_COLLECTIVE_FIELDS, "location"], rows)


def _cut_text(shared: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the axes along which a state is cut, and how: ``dim 1 in 2``."""
    cuts = shared["cuts"]
    return ",".join(cut["axis"] for cut in cuts), ", ".join(f"dim {cut['dim']} in {cut['parts']}" for cut in cuts)
