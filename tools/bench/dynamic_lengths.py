"""One artifact of Llama over every length of a range: parity with eager, and the arena beside its lower bound.

The model is compiled once; each length is run in a shuffled order. The bound is the largest sum of temporaries that
are live at one step: no plan can need less. Prints one line for the worst of each, and all lengths with --json.

    python tools/bench/dynamic_lengths.py --maximum 300
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from pathlib import Path
from typing import Any

import click
import torch
from torch.export import Dim

import lowerkit
from lowerkit.codegen.memory import arena_use
from lowerkit.parity.gates import judge_model
from lowerkit.runtimes.memory_plan import arena_bytes


def measure(module: Any, compiled: Any, lengths: list[int], vocabulary: int) -> list[dict[str, Any]]:
    """Runs every length against eager; returns one row for each."""
    program = compiled.parts.program
    (dim,) = (entry.name for entry in program.signature.dims)
    rows: list[dict[str, Any]] = []
    for length in lengths:
        tokens = torch.randint(vocabulary, (1, length))
        with torch.no_grad():
            expected = module(tokens).numpy()
        verdict = judge_model("f32", compiled(tokens), expected)
        planned, bound = arena_bytes(program, {dim: length}), arena_use(program.buffers, {dim: length}).peak_bytes
        rows.append(
            {
                "length": length,
                "passed": verdict.passed,
                "reason": verdict.reason,
                "sqnr_db": verdict.to_eager.sqnr_db,
                "arena_bytes": planned,
                "bound_bytes": bound,
                "ratio": planned / bound,
            }
        )
    return sorted(rows, key=lambda row: row["length"])


@click.command()
@click.option("--maximum", default=300, show_default=True, help="The lengths are 1 to this.")
@click.option("--tiny", is_flag=True, help="The small model of the tests.")
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(maximum: int, tiny: bool, json_path: Path | None) -> None:
    """Run one dynamic Llama artifact over lengths 1 to MAXIMUM."""
    spec = importlib.util.spec_from_file_location("models", Path(__file__).with_name("models.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules["models"] = models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    module, _ = models.tiny("llama") if tiny else models.full("llama")
    vocabulary = 100 if tiny else 32000
    shapes = ({1: Dim("length", min=1, max=maximum)},)
    compiled = lowerkit.compile(module, (torch.zeros((1, 7), dtype=torch.int64),), dynamic_shapes=shapes)
    lengths = list(range(1, maximum + 1))
    random.Random(0).shuffle(lengths)
    rows = measure(module, compiled, lengths, vocabulary)
    worst = max(rows, key=lambda row: row["ratio"])
    nearest = min(rows, key=lambda row: row["sqnr_db"])
    failed = [row["length"] for row in rows if not row["passed"]]
    click.echo(f"{len(rows)} lengths, one artifact of {len(compiled.parts.program.kernels)} kernels")
    click.echo(f"gate A: {len(rows) - len(failed)} of {len(rows)} pass; lowest SQNR {nearest['sqnr_db']:.1f} dB")
    click.echo(
        f"arena / bound: worst {worst['ratio']:.3f} at length {worst['length']} "
        f"({worst['arena_bytes']} / {worst['bound_bytes']} bytes)"
    )
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=1))
    if failed:
        raise click.ClickException(f"lengths that differ from eager: {failed}")


if __name__ == "__main__":
    main()
