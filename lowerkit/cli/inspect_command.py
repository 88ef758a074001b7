"""`lowerkit inspect`: the ops, regions, memory, FLOPs and bytes of an artifact or a model."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lowerkit.cli.model_options import MODEL_OPTIONS, capture_model, is_given, model_options, refuse_given
from lowerkit.cli.output import json_option, print_json, print_table
from lowerkit.cli.supervise import supervise_targets
from lowerkit.cli.tables.card import card_json, card_option, print_card, read_card
from lowerkit.cli.tables.ledger import print_ledger, read_placements
from lowerkit.cli.tables.mesh import describe_collective, describe_mesh, describe_stages, print_mesh, rank_weight_bytes
from lowerkit.cli.target_options import allow_option, target_option
from lowerkit.runtimes.conditions import condition_text
from lowerkit.runtimes.expressions import evaluate, to_text
from lowerkit.runtimes.manifest import HOST, ITEM_SIZES

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import ProgramSpec, TensorSpec

_STEP_FIELDS = ("name", "kind", "family", "flops", "bytes", "tasks", "location")


@click.command("inspect")
@model_options
@target_option
@allow_option
@click.option(
    "--dim", "dims", multiple=True, metavar="NAME=VALUE", help="Value of a symbolic dim. [default: its minimum]"
)
@click.option("--meta", is_flag=True, help="Size a factory's model: no weight is allocated, no kernel compiled.")
@click.option("--all", "show_all", is_flag=True, help="Every step; the twenty with most FLOPs without it.")
@click.option(
    "--ledger", "show_ledger", is_flag=True, help="Which target runs each op, and why no accelerator took it."
)
@card_option
@json_option
def command(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    target: str,
    allow: tuple[str, ...],
    dims: tuple[str, ...],
    meta: bool,
    show_all: bool,
    show_ledger: bool,
    card: str | None,
    as_json: bool,
) -> None:
    """Show what MODEL (an artifact .lk, or anything `compile` takes) is made of.

    JSON fields: source, target, targets, inputs, outputs, states, dims, totals {steps, kernels, flops, bytes,
    weight_bytes, rank_weight_bytes, state_bytes, arena_bytes, code_bytes}, kinds {kind: count}, families {family:
    count}, steps [{name, kind, family, flops, bytes, tasks, location, collective}], mesh [{name, size}], sharded
    [{name, axis, bytes, rank_bytes}], shared_states [{name, cuts [{axis, dim, parts}], shape, bytes, rank_bytes}],
    witness {ops, witnessed_ops, kernels, witnessed_kernels, date, not_compared},
    stages [{place, states, weights, state_bytes, activations}], ledger (models only) [{name, kind, family, note,
    refusals}], placements [{op, node, location, flops, crossing_bytes, target, function, refusals}], cuda {card,
    level, floor_seconds, predicted_seconds, terms {term: seconds}, steps_elsewhere, launches [{step, location,
    kernel, family, arithmetic, registers, spills, shared, blocks, threads, resident, occupancy, waves, flops, bytes,
    stated, floor_seconds, predicted_seconds, limit, terms}]}.
    """
    ledger: list[dict[str, Any]] = []
    if model.endswith(".lk"):
        from lowerkit.runtimes.artifact_reader import open_artifact
        from lowerkit.runtimes.cpu.requirements import programs_for

        refuse_given([*MODEL_OPTIONS, "meta", "allow"], "on an artifact: it is compiled already")
        artifact = open_artifact(Path(model))
        manifest = artifact.manifest
        shown = programs_for(manifest, target if is_given("target") else None)[0]
        weight_bytes = sum(tensor.end - tensor.begin for tensor in artifact.weights.values())
        code_bytes = sum(info.size for name, info in manifest.entries.items() if name.endswith(".bin"))
        entries = [name for memory, name in shown.code.items() if memory != HOST]
        code = {name: artifact.entry_bytes(name).tobytes() for name in entries}
    else:
        supervise_targets(target)

        from lowerkit.compiler import CompileOptions, compile_program, plan_program

        captured = capture_model(model, inputs, dynamic, seed, use_cache=not meta, meta=meta)
        options = CompileOptions(target=target, allow=frozenset(allow), golden=False)
        if meta:
            refuse_given(["card"], "with --meta: no kernel is compiled")
            parts, code = plan_program(captured, options), {}
        else:
            parts = compile_program(captured, options).parts
            code = parts.code
        manifest, shown = parts.manifest, parts.program
        weight_bytes, code_bytes = parts.weight_bytes, parts.code_bytes
        ledger = [
            {
                "name": e.name,
                "kind": e.kind,
                "family": e.family,
                "note": e.note,
                "refusals": [list(r) for r in e.refusals],
            }
            for e in parts.ledger
        ]
    values = dim_values(shown, dims)
    placements = read_placements(shown.metadata)
    document = describe(shown, values, weight_bytes, code_bytes)
    document |= describe_stages(manifest.programs, shown, values)
    document["witness"] = shown.metadata.get("witness")
    document["targets"] = [program.label for program in manifest.programs]
    report = read_card(shown, code, values, card)
    if as_json:
        lists = {"ledger": ledger, "placements": placements, "cuda": card_json(report)}
        print_json("inspect", {"source": model, **document, **lists})
    elif show_ledger:
        print_ledger(placements)
    else:
        _print(model, document, show_all)
        if report is not None:
            print_card(report, show_all)
        for entry in ledger if show_all else []:
            click.echo(f"{entry['name']}: {entry['family']} ({entry['note']})")
            for family, reason in entry["refusals"]:
                click.echo(f"    not {family}: {reason}")


def describe(program: ProgramSpec, values: dict[str, int], weight_bytes: int, code_bytes: int) -> dict[str, Any]:
    """Returns the document of the ``inspect`` schema for one choice of the symbolic dims."""
    from lowerkit.runtimes.memory_plan import arena_bytes

    steps = [
        {
            "name": step.name,
            "kind": step.kind,
            "family": step.family,
            "flops": evaluate(step.flops, values),
            "bytes": evaluate(step.bytes, values),
            "tasks": evaluate(step.tasks, values),
            "location": step.location,
            "collective": describe_collective(program, step, values),
        }
        for step in program.steps
    ]
    signature, mesh = program.signature, describe_mesh(program, values)
    return {
        "target": program.label,
        "inputs": [_spec(spec) for spec in signature.inputs],
        "outputs": [_spec(spec) for spec in signature.outputs],
        "states": [_spec(spec) for spec in signature.states],
        "dims": {dim.name: {"minimum": dim.minimum, "maximum": dim.maximum} for dim in signature.dims},
        "guards": [
            {"condition": condition_text(guard.condition), "location": guard.location} for guard in signature.guards
        ],
        "totals": {
            "steps": len(steps),
            "kernels": len(program.kernels),
            "flops": sum(evaluate(step.flops, values) for step in program.steps),
            "bytes": sum(evaluate(step.bytes, values) for step in program.steps),
            "weight_bytes": weight_bytes,
            "rank_weight_bytes": rank_weight_bytes(program, values, weight_bytes),
            "state_bytes": sum(_bytes(spec, values) for spec in signature.states),
            "arena_bytes": arena_bytes(program, values),
            "code_bytes": code_bytes,
        },
        "kinds": dict(Counter(step["kind"] for step in steps).most_common()),
        "families": dict(Counter(step["family"] for step in steps).most_common()),
        "steps": steps,
        **mesh,
    }


def dim_values(program: ProgramSpec, texts: tuple[str, ...]) -> dict[str, int]:
    """Returns the value of each symbolic dim of a program: that of ``NAME=VALUE``, else its minimum."""
    values = {dim.name: dim.minimum for dim in program.signature.dims}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in values or not value.isdigit():
            known = ", ".join(values) or "none"
            raise click.UsageError(f"--dim {text!r} names no symbolic dim, or no number; the dims are: {known}")
        values[name] = int(value)
    return values


def _bytes(spec: TensorSpec, values: dict[str, int]) -> int:
    return math.prod(evaluate(extent, values) for extent in spec.shape) * ITEM_SIZES[spec.dtype]


def _spec(spec: Any) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": spec.shape}


def _print(model: str, document: dict[str, Any], show_all: bool) -> None:
    totals = document["totals"]
    for role in ("inputs", "outputs", "states"):
        for spec in document[role]:
            click.echo(f"{role[:-1]:7} {spec['name']}: {spec['dtype']} {'x'.join(map(to_text, spec['shape']))}")
    for guard in document["guards"]:
        click.echo("only if " + " at ".join(filter(None, (guard["condition"], guard["location"]))))
    click.echo(
        f"{model} for {document['target']}: {totals['steps']} steps, {totals['kernels']} kernels, "
        f"{totals['flops'] / 1e9:.3f} GFLOP, weights {totals['weight_bytes'] / 1e6:.1f} MB, "
        f"states {totals['state_bytes'] / 1e6:.1f} MB, activations {totals['arena_bytes'] / 1e6:.1f} MB, "
        f"code {totals['code_bytes'] / 1e3:.0f} kB"
    )
    others = [label for label in document["targets"] if label != document["target"]]
    if others:
        click.echo(f"also for {', '.join(others)}: --target shows it; weights and code are those of all programs")
    if document["witness"]:
        from lowerkit.parity.witness.counts import describe as describe_witness

        click.echo(describe_witness(document["witness"]))
    print_mesh(document, show_all)
    print_table("regions by kind", ["kind", "count"], list(document["kinds"].items()))
    print_table("kernels by family", ["family", "count"], list(document["families"].items()))
    steps = document["steps"]
    if not show_all:
        steps = sorted(steps, key=lambda step: -step["flops"])[:20]
    rows = [[step[field] for field in _STEP_FIELDS] for step in steps]
    print_table("steps" if show_all else "the twenty steps with most FLOPs", list(_STEP_FIELDS), rows)
