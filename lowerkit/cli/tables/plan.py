"""What `lowerkit plan` says of meshes: memory by part, work, collectives, time, and which is the smallest that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.output import print_table

if TYPE_CHECKING:
    from lowerkit.spmd.cost.machine import DeviceModel, LinkModel
    from lowerkit.spmd.cost.mesh_plan import MeshCost

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_FLOPS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
PARTS = ("weights", "states", "activations", "communication", "scratch", "arguments")
"""Of the memory of a rank; communication is a part of the activations."""

Units = Sequence[tuple[float, str]]


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
            "scratch": memory.scratch,
            "communication": memory.communication,
            "arguments": memory.arguments,
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
        "alike_layers": cost.alike_layers,
    }


def describe_machine(device: DeviceModel, links: Mapping[str, LinkModel]) -> dict[str, Any]:
    """Returns what was planned for, as the ``plan`` schema has it."""
    return {
        "memory": device.memory,
        "flops": device.flops,
        "bandwidth": device.bandwidth,
        "links": {axis: {"bandwidth": link.bandwidth, "latency": link.latency} for axis, link in links.items()},
    }


def print_plan(model: str, document: Mapping[str, Any]) -> None:
    """Prints the meshes of a ``plan`` document, then the collectives of each, then the smallest that fits."""
    machine, meshes = document["machine"], document["meshes"]
    links = "; ".join(
        f"links{f' of {axis}' if axis else ''} of {amount(link['bandwidth'], _BYTES)}/s, "
        f"{amount(link['latency'], _SECONDS)}"
        for axis, link in machine["links"].items()
    )
    click.echo(
        f"{model}: {amount(document['weight_bytes'], _BYTES)} of weights; devices of "
        f"{amount(machine['memory'], _BYTES)}, {amount(machine['flops'], _FLOPS)}/s, "
        f"{amount(machine['bandwidth'], _BYTES)}/s; {links}"
    )
    size, bytes_name = _unit(max(mesh["rank_bytes"] for mesh in meshes), _BYTES)
    work, flops_name = _unit(max(mesh["flops"] for mesh in meshes), _FLOPS)
    time, time_name = _unit(max(mesh["seconds"]["step"] for mesh in meshes), _SECONDS)
    columns = [
        "devices", "mesh", "weights", "states", "activations", "of these comm.", "scratch", "in and out", "in all",
        "fits", flops_name, f"compute {time_name}", f"waiting {time_name}", f"step {time_name}",
    ]  # fmt: skip
    rows: list[list[object]] = [
        [
            mesh["devices"], mesh_text(mesh), *(mesh["memory"][part] / size for part in PARTS),
            mesh["rank_bytes"] / size, "yes" if mesh["fits"] else "no", mesh["flops"] / work,
            *(mesh["seconds"][part] / time for part in ("compute", "waiting", "step")),
        ]
        for mesh in meshes
    ]  # fmt: skip
    print_table(f"a rank of the fullest stage, {bytes_name}", columns, rows)
    rows = [
        [
            mesh_text(mesh), each["kind"], each["axis"], each["ranks"], each["count"], each["bytes"] / size,
            each["seconds"] / time, each["waiting"] / time,
        ]
        for mesh in meshes for each in mesh["collectives"]
    ]  # fmt: skip
    if rows:
        columns = ["mesh", "collective", "axis", "ranks", "count", bytes_name, time_name, f"waiting {time_name}"]
        print_table("collectives of a rank", columns, rows)
    smallest = document["smallest"]
    if smallest is not None:
        click.echo(f"the smallest mesh that fits: {smallest_text(smallest)}")
    click.echo(document["compared"])
    if left_out := max(mesh["alike_layers"] for mesh in meshes):
        click.echo(f"up to {left_out} layers take what one more layer adds to the plan of a few: they are alike")


def mesh_text(mesh: Mapping[str, Any]) -> str:
    """Returns a mesh as a user writes it."""
    return ",".join(f"{axis['name']}={axis['size']}" for axis in mesh["mesh"])


def smallest_text(mesh: Mapping[str, Any]) -> str:
    """Returns a mesh with its devices and the memory of a rank."""
    count = "1 device" if mesh["devices"] == 1 else f"{mesh['devices']} devices"
    return f"{mesh_text(mesh)} ({count}), {amount(mesh['rank_bytes'], _BYTES)} a rank"


def bytes_text(count: float) -> str:
    """Returns bytes with their unit."""
    return amount(count, _BYTES)


def amount(value: float, units: Units) -> str:
    """Returns a quantity with the largest unit of which there is one."""
    size, name = _unit(value, units)
    return f"{value / size:.4g} {name}"


def _unit(value: float, units: Units) -> tuple[float, str]:
    return next((unit for unit in units if value >= unit[0]), units[-1])
