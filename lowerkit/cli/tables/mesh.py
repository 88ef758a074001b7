"""What `lowerkit inspect` says of a mesh: its axes, the weights that ranks share, and the collectives between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.output import print_table
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.mesh.places import part_number

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import ProgramSpec, Step

_COLLECTIVE_FIELDS = ("operation", "axis", "dtype", "reduction", "phase", "bytes")
_MOST_ROWS = 20


def describe_mesh(program: ProgramSpec, values: Mapping[str, int]) -> dict[str, Any]:
    """Returns the fields ``mesh`` and ``sharded`` of the ``inspect`` schema; both are empty without a mesh."""
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
    }


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
    shown = slice(None) if show_all else slice(_MOST_ROWS)
    title = "{}" if show_all else f"{{}}, at most {_MOST_ROWS}"
    rows = [[entry[field] for field in ("name", "axis", "rank_bytes", "bytes")] for entry in sharded[shown]]
    if rows:
        columns = ["weight", "axis", "bytes of a rank", "bytes of all"]
        print_table(title.format("weights in parts, largest first"), columns, rows)
    rows = [[name, *(call[field] for field in _COLLECTIVE_FIELDS), place] for name, place, call in calls[shown]]
    if rows:
        print_table(title.format("collectives in their order"), ["step", *_COLLECTIVE_FIELDS, "location"], rows)
