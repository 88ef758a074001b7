"""What `lowerkit plan` says of meshes: memory by part, work, collectives, time, and which is the smallest that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.output import print_table

if TYPE_CHECKING:
    from lowerkit.spmd.cost.machine import DeviceModel, LinkModel
    from lowerkit.spmd.cost.mesh_plan import MeshCost

_GB = 1e9
_COLUMNS = (
    "devices", "mesh", "weights", "states", "activations", "of these comm.", "in and out", "GB a rank", "fits",
    "TFLOP a rank", "compute ms", "waiting ms", "step ms",
)  # fmt: skip


def describe_mesh_cost(cost: MeshCost, device: DeviceModel) -> dict[str, Any]:
    """Returns a mesh as the ``plan`` schema has it."""
    from lowerkit.spmd.plan_file import entries_of

    memory = cost.memory[cost.fullest]
    return {
        "devices": cost.mesh.size,
        "mesh": [{"name": axis.name, "size": axis.size} for axis in cost.mesh.axes],
        "fits": cost.fits(device),
        "stages": len(cost.memory),
        "rank_bytes": cost.rank_bytes,
        "memory": {
            "weights": memory.weights,
            "states": memory.states,
            "activations": memory.activations,
            "communication": memory.communication,
            "inputs_and_outputs": memory.arguments,
        },
        "flops": cost.flops,
        "bytes": cost.moved,
        "seconds": {"step": cost.seconds, "compute": cost.compute_seconds, "waiting": cost.waited_seconds},
        "collectives": [
            {
                "kind": each.kind,
                "axis": each.axis,
                "ranks": each.ranks,
                "count": each.count,
                "bytes": each.moved,
                "seconds": each.seconds,
                "waiting": each.waited,
            }
            for each in cost.traffic
        ],
        "plan": None if cost.plan is None else entries_of(cost.plan),
    }


def describe_machine(device: DeviceModel, links: Mapping[str, LinkModel]) -> dict[str, Any]:
    """Returns what was planned for, as the ``plan`` schema has it."""
    return {
        "memory": device.memory,
        "flops": device.flops,
        "bandwidth": device.bandwidth,
        "links": {axis: {"bandwidth": link.bandwidth, "latency": link.latency} for axis, link in links.items()},
    }


def print_plan(model: str, meshes: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> None:
    """Prints the meshes of a ``plan`` document, then the collectives of each, then the smallest that fits."""
    machine = document["machine"]
    click.echo(
        f"{model}: {document['parameters'] / 1e9:.1f} GB of weights; devices of {machine['memory'] / _GB:.1f} GB, "
        f"{machine['flops'] / 1e12:.0f} TFLOP/s, {machine['bandwidth'] / 1e12:.2f} TB/s"
    )
    print_table("bytes of the fullest rank in GB", _COLUMNS, [_row(mesh) for mesh in meshes])
    columns = ["mesh", "collective", "axis", "ranks", "count", "GB a rank", "ms", "waiting ms"]
    rows = [
        [mesh_text(mesh), each["kind"], each["axis"], each["ranks"], each["count"], each["bytes"] / _GB,
         each["seconds"] * 1e3, each["waiting"] * 1e3]
        for mesh in meshes for each in mesh["collectives"]
    ]  # fmt: skip
    if rows:
        print_table("collectives of a rank", columns, rows)
    smallest = document["smallest"]
    if smallest is not None:
        click.echo(f"the smallest mesh that fits: {smallest_text(smallest)}")


def mesh_text(mesh: Mapping[str, Any]) -> str:
    """Returns a mesh as a user writes it."""
    return ",".join(f"{axis['name']}={axis['size']}" for axis in mesh["mesh"])


def smallest_text(mesh: Mapping[str, Any]) -> str:
    """Returns a mesh with its devices and the memory of a rank."""
    count = "1 device" if mesh["devices"] == 1 else f"{mesh['devices']} devices"
    return f"{mesh_text(mesh)} ({count}), {mesh['rank_bytes'] / _GB:.1f} GB a rank"


def _row(mesh: Mapping[str, Any]) -> list[object]:
    memory, seconds = mesh["memory"], mesh["seconds"]
    parts = ("weights", "states", "activations", "communication", "inputs_and_outputs")
    return [
        mesh["devices"],
        mesh_text(mesh),
        *(memory[part] / _GB for part in parts),
        mesh["rank_bytes"] / _GB,
        "yes" if mesh["fits"] else "no",
        mesh["flops"] / 1e12,
        *(seconds[name] * 1e3 for name in ("compute", "waiting", "step")),
    ]
