"""`lowerkit plan`: what a model takes on meshes of devices that need not be here, and the smallest that it fits on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.inspect_command import dim_values
from lowerkit.cli.model_options import capture_model, model_options
from lowerkit.cli.output import json_option, note, print_json, progress, quiet_option
from lowerkit.cli.supervise import supervise_targets
from lowerkit.cli.tables.plan import (
    bytes_text,
    describe_machine,
    describe_mesh_cost,
    mesh_text,
    print_plan,
    smallest_text,
)
from lowerkit.cli.target_options import allow_option, mesh_option, shard_option, target_option
from lowerkit.errors import ResourceError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from lowerkit.compiled import CompileOptions
    from lowerkit.passes.shard.plan import MeshPlan
    from lowerkit.program.program import Program
    from lowerkit.runtimes.manifest import ProgramSpec
    from lowerkit.spmd.cost.machine import DeviceModel, LinkModel, Links
    from lowerkit.spmd.cost.mesh_plan import MeshCost
    from lowerkit.spmd.mesh import Mesh

_NAMES = {
    "weights": "weights",
    "states": "states",
    "activations": "activations",
    "scratch": "scratch of kernels",
    "arguments": "inputs and outputs",
}
_MOST_DEVICES = 1 << 16
_MOST_SOUGHT = 4096
"""The smallest mesh is looked for up to this many devices."""


@click.command("plan")
@model_options
@target_option
@allow_option
@click.option(
    "--dim", "dims", multiple=True, metavar="NAME=VALUE", help="Value of a symbolic dim. [default: its minimum]"
)
@click.option("--meta", is_flag=True, help="Run a factory without allocating a weight.")
@click.option("--memory", default="80GiB", show_default=True, help="Memory of a device.")
@click.option("--flops", default="990T", show_default=True, help="Operations a second that a device reaches.")
@click.option("--bandwidth", default="3.35TB/s", show_default=True, help="Between a device and its memory.")
@click.option(
    "--link",
    "link_texts",
    multiple=True,
    metavar="[AXIS=]RATE,LATENCY|FILE",
    help="Between devices: 450GB/s,2us, pp=50GB/s,5us for one axis, or a file that `lowerkit comm tune` wrote or "
    "printed. [default: 450GB/s,2us]",
)
@click.option("--devices", metavar="N[,N...]", help="Numbers of devices; the mesh is chosen. [default: --mesh's, or 8]")
@mesh_option
@shard_option
@click.option(
    "--timeline", type=click.Path(path_type=Path, dir_okay=False), help="Draw a run on the last mesh into this SVG."
)
@click.option(
    "--plan-out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write how the last mesh is split into this file, which --shard takes.",
)
@json_option
@quiet_option
def command(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    target: str,
    allow: tuple[str, ...],
    dims: tuple[str, ...],
    meta: bool,
    memory: str,
    flops: str,
    bandwidth: str,
    link_texts: tuple[str, ...],
    devices: str | None,
    mesh: str | None,
    plan: Path | None,
    timeline: Path | None,
    plan_out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Plan MODEL (anything `compile` takes) for meshes of devices, without compiling it or reading a weight.

    Bytes are those that the runtime allocates; times are those of a roofline and of links, with what overlaps.
    Exit code 7 (LK7006): it fits on no mesh that was asked for.
    """
    from lowerkit.spmd.cost.machine import DeviceModel
    from lowerkit.spmd.cost.quantities import parse_bytes, parse_operations, parse_rate

    device = DeviceModel(
        parse_operations(flops, "--flops"), parse_rate(bandwidth, "--bandwidth"), parse_bytes(memory, "--memory")
    )
    links, shown_links = _links(link_texts)
    counts = _counts(devices, mesh, plan)
    supervise_targets(target)

    from lowerkit.compiler import CompileOptions
    from lowerkit.spmd.auto.mesh_search import MeshSearch
    from lowerkit.spmd.mesh import Mesh
    from lowerkit.spmd.sharding import sharding_of

    options = CompileOptions(target=target, allow=frozenset(allow), golden=False)
    with progress(quiet) as show:
        show("capturing")
        program = capture_model(model, inputs, dynamic, seed, use_cache=not meta, meta=meta)

        def plan_mesh(asked: Mesh, sharding: MeshPlan | None) -> MeshCost:
            show(f"planning {asked}")
            return _planned(program, options, (asked, sharding), dims, device, links)

        search = MeshSearch(program, device, links, plan_mesh)
        if mesh is None:
            costs = [_best(search, count, model) for count in counts]
        elif plan is None or str(plan) == "auto":
            costs = [search.of(Mesh.parse(mesh))]
        else:
            costs = [plan_mesh(Mesh.parse(mesh), sharding_of(mesh, plan))]
        show("looking for the smallest mesh")
        smallest = search.smallest(_MOST_SOUGHT)
    meshes = [describe_mesh_cost(cost, device) for cost in costs]
    document: dict[str, Any] = {
        "source": model,
        "weight_bytes": search.weight_bytes,
        "machine": describe_machine(device, shown_links),
        "compared": search.compared,
        "meshes": meshes,
        "smallest": None if smallest is None else describe_mesh_cost(smallest, device),
    }
    if timeline is not None:
        _draw(costs[-1], model, timeline)
    if plan_out is not None:
        _write_plan(costs[-1], plan_out)
        note(f"wrote {plan_out}: --mesh {costs[-1].mesh} --shard {plan_out}", quiet)
    if as_json:
        print_json("plan", document)
    else:
        print_plan(model, document)
    if not any(each["fits"] for each in meshes):
        raise _too_large(model, meshes[-1], document["smallest"], device)


def _links(texts: tuple[str, ...]) -> tuple[Links, dict[str, LinkModel]]:
    """Reads the values of ``--link``; returns the links, and them by axis for the document (empty: all others)."""
    from lowerkit.spmd.cost.machine import NVLINK4, LinkModel, Links
    from lowerkit.spmd.cost.measured_link import read_link

    found: dict[str, LinkModel] = {}
    for text in texts:
        axis, equals, value = text.partition("=")
        axis, value = (axis, value) if equals else ("", text)
        if axis in found:
            of = f"the axis {axis!r}" if axis else "all axes"
            raise UsageError("LK1009", f"--link is given twice for {of}", hint="one link for each axis")
        found[axis] = LinkModel.parse(value) if "," in value else read_link(Path(value))
    default = found.setdefault("", NVLINK4)
    return Links(default, {axis: link for axis, link in found.items() if axis}), found


def _counts(devices: str | None, mesh: str | None, plan: Path | None) -> list[int]:
    """Reads ``--devices``; refuses what contradicts it."""
    if mesh is not None and devices is not None:
        raise UsageError("LK1004", "--devices has no effect with --mesh, which says how many there are")
    if mesh is None and plan is not None and str(plan) != "auto":
        raise UsageError("LK1011", f"the plan {plan} is given and no mesh", hint="name it: --mesh tp=8")
    if mesh is not None:
        return []
    try:
        counts = list(dict.fromkeys(int(word) for word in (devices or "8").split(",")))
    except ValueError:
        counts = []
    if not counts or not all(1 <= count <= _MOST_DEVICES for count in counts):
        raise UsageError(
            "LK1009", f"--devices is {devices!r}, expected numbers from 1 to {_MOST_DEVICES}, such as 8,16,64"
        )
    return counts


def _planned(
    program: Program,
    options: CompileOptions,
    split: tuple[Mesh, MeshPlan | None],
    dims: tuple[str, ...],
    device: DeviceModel,
    links: Links,
) -> MeshCost:
    from lowerkit.compiler import plan_program
    from lowerkit.spmd.auto.plan_cost import plan_cost

    def plan_stages(own: Program, sharding: MeshPlan | None) -> list[ProgramSpec]:
        parts = plan_program(own, replace(options, sharding=sharding))
        return [each for each in parts.manifest.programs if each.label == parts.program.label]

    return plan_cost(program, *split, plan_stages, lambda each: dim_values(each, dims), device, links)


def _best(search: Any, count: int, model: str) -> MeshCost:
    found = search.best(count)
    if found is None:
        raise UnsupportedError(
            "LK4007",
            f"nothing of {model} can be split among {count} devices",
            hint="the extents of the model must divide; other numbers of devices are in --devices",
        )
    return found


def _draw(cost: MeshCost, model: str, path: Path) -> None:
    from lowerkit.spmd.cost.timeline_svg import timeline_svg

    text = timeline_svg(cost, f"{model} on {cost.mesh}: {cost.seconds * 1e3:.2f} ms a run, predicted")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("LK1005", f"{path} cannot be written: {error.strerror}") from error


def _write_plan(cost: MeshCost, path: Path) -> None:
    from lowerkit.spmd.plan_file import entries_of

    if cost.plan is None:
        raise UsageError(
            "LK1011", f"nothing is split on {cost.mesh}: there is no plan for {path}", hint="ask for more devices"
        )
    try:
        path.write_text(json.dumps(entries_of(cost.plan), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError("LK1005", f"{path} cannot be written: {error.strerror}") from error


def _too_large(model: str, mesh: dict[str, Any], smallest: dict[str, Any] | None, device: DeviceModel) -> ResourceError:
    memory = {name: size for name, size in mesh["memory"].items() if name != "communication"}
    largest = max(memory, key=lambda name: memory[name])
    found = f"no mesh of up to {_MOST_SOUGHT} such devices holds it"
    return ResourceError(
        "LK7006",
        f"{model} does not fit on {mesh_text(mesh)}: a rank needs {bytes_text(mesh['rank_bytes'])}, a device has "
        f"{bytes_text(device.memory)}; {_NAMES[largest]} take {bytes_text(memory[largest])} of it",
        details=[f"{_NAMES[name]}: {bytes_text(size)}" for name, size in memory.items()],
        hint=found if smallest is None else f"the smallest mesh that fits: {smallest_text(smallest)}",
    )
