"""`lowerkit opt`: passes over an MLIR file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lowerkit.cli.output import json_option, note, print_json
from lowerkit.errors import InputError, VerifyError

if TYPE_CHECKING:
    from lowerkit.mlir import ir
    from lowerkit.program.weights import WeightStore


@click.command("opt")
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--passes", "pipeline", default="", help="Such as fold-constants{bound=4096},simplify.")
@click.option("--list", "list_passes", is_flag=True, help="List the passes with their options and leave.")
@click.option("--locations", is_flag=True, help="Print locations too.")
@json_option
def command(file: Path, pipeline: str, list_passes: bool, locations: bool, as_json: bool) -> None:
    """Run passes over FILE (- for standard input) and print the module. With --list, FILE is not read."""
    from lowerkit.passes.registry import parse_pipeline

    if list_passes:
        _print_passes(as_json)
        return
    passes = parse_pipeline(pipeline)
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("LK1001", f"{file} cannot be read: {error}") from error

    from lowerkit.dialect.context import new_context
    from lowerkit.mlir import ir
    from lowerkit.passes.base import PassContext
    from lowerkit.pipeline import run_passes
    from lowerkit.program.program import Program
    from lowerkit.program.weights import WeightStore
    from lowerkit.runtimes.manifest import Signature

    context = new_context()
    try:
        module = ir.Module.parse(text, context=context)
    except ir.MLIRError as error:
        raise VerifyError("LK3002", f"{file} does not parse or verify: {error}") from error
    weights = WeightStore()
    add_placeholder_weights(module, weights)
    program = Program(context, module, weights, Signature([], [], [], []), str(file))
    pass_context = PassContext(weights=weights)
    timings = run_passes(program, passes, pass_context)
    for remark in pass_context.remarks:
        note(f"remark: {remark}")
    if as_json:
        passes_run = [{"name": t.name, "seconds": t.seconds, "modified": t.modified} for t in timings]
        print_json("opt", {"module": program.text(locations=locations), "passes": passes_run})
    else:
        click.echo(program.text(locations=locations))


def add_placeholder_weights(module: ir.Module, weights: WeightStore) -> None:
    """Gives every weight that the file names the value zero: passes need shapes, and an .mlir file has no data."""
    import numpy as np

    from lowerkit.mlir import ir, walk
    from lowerkit.program.dtypes import NUMPY_DTYPES

    def add(operation: ir.Operation) -> None:
        if operation.name == "lk.weight":
            symbol = ir.StringAttr(operation.attributes["symbol"]).value
            tensor_type = ir.RankedTensorType(operation.results[0].type)
            if symbol not in weights:
                weights.add(symbol, np.zeros(tensor_type.shape, NUMPY_DTYPES[str(tensor_type.element_type)]))

    walk(module.operation, add)


def _print_passes(as_json: bool) -> None:
    from dataclasses import fields

    from lowerkit.cli.output import print_table
    from lowerkit.passes.registry import find_pass, pass_names

    rows: list[list[object]] = []
    for name in pass_names():
        pass_class = find_pass(name)
        options = ", ".join(f"{option.name}={option.default}" for option in fields(pass_class))
        rows.append([name, options, (pass_class.__doc__ or "").strip().splitlines()[0]])
    if as_json:
        print_json("passes", {"passes": [dict(zip(("name", "options", "summary"), row, strict=True)) for row in rows]})
    else:
        print_table("", ["pass", "options", "summary"], rows)
