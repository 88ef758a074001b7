"""The six models of the README beside eager, Inductor, ONNX Runtime and OpenVINO, one `lowerkit bench` run each.

Prints a table, writes JSON, and with --markdown the table that docs/results/performance.md holds. Each model runs in a
process of its own, all contenders of a model interleaved in it with equal threads.

    python tools/bench/six_models.py --json six.json --markdown docs/results/performance.md
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

NAMES = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama")
PEERS = ("eager", "inductor", "onnxruntime", "openvino")
MODELS = Path(__file__).with_name("models.py")


def bench(name: str, dtype: str, seconds: float, peers: str) -> dict[str, Any]:
    """Runs `lowerkit bench` for one model and returns its document."""
    command = [sys.executable, "-c", "from lowerkit.cli.main import main; main()", "bench", f"{MODELS}:{name}"]
    options = ["--peers", peers, "--dtype", dtype, "--seconds", str(seconds), "--json", "-q"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise click.ClickException(f"{name}: exit code {result.returncode}\n{result.stderr[-2000:]}")
    return json.loads(result.stdout)


def row(name: str, document: dict[str, Any]) -> list[str]:
    """Returns the cells: our median, each peer's, and the ratio of ours to the fastest peer."""
    ours = document["lowerkit"]["median_ms"]
    peers = document["peers"]
    cells = [name, f"{ours:.2f} ({document['lowerkit']['min_ms']:.2f}..{document['lowerkit']['p90_ms']:.2f})"]
    cells += [f"{peers[peer]['median_ms']:.2f}" if peer in peers else "-" for peer in PEERS]
    fastest = min(peers.values(), key=lambda timing: timing["median_ms"])["median_ms"]
    return [*cells, f"{ours / fastest:.2f}", f"{document['lowerkit']['setup_seconds']:.1f}"]


def markdown(rows: list[list[str]], dtype: str, threads: int) -> str:
    """Returns the table with a line on how it was made."""
    header = ["model", "lowerkit ms (min..p90)", *PEERS, "ratio to fastest", "set-up s"]
    lines = ["| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows]]
    machine = (
        f"{platform.machine()}, {threads} threads, {dtype}, batch 1; medians, all contenders interleaved in one run"
    )
    return "\n".join([*lines, "", f"Measured on {machine}."])


@click.command()
@click.option("--only", multiple=True, type=click.Choice(NAMES))
@click.option("--dtype", type=click.Choice(["f32", "bf16"]), default="f32", show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Measuring time of one model.")
@click.option("--peers", default=",".join(PEERS), show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path))
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path))
def main(
    only: tuple[str, ...],
    dtype: str,
    seconds: float,
    peers: str,
    json_path: Path | None,
    markdown_path: Path | None,
) -> None:
    """Time the six models beside their peers."""
    documents: dict[str, Any] = {}
    rows: list[list[str]] = []
    for name in only or NAMES:
        documents[name] = bench(name, dtype, seconds, peers)
        rows.append(row(name, documents[name]))
        click.echo("  ".join(f"{cell:>12}" for cell in rows[-1]))
    threads = next(iter(documents.values()))["threads"]
    if json_path is not None:
        json_path.write_text(json.dumps(documents, indent=2))
    table = markdown(rows, dtype, threads)
    if markdown_path is not None:
        command = f"`python tools/bench/six_models.py --dtype {dtype} --markdown {markdown_path}`"
        markdown_path.write_text(f"# Performance\n\nPrinted by {command}.\n\n{table}\n")
    click.echo(table)


if __name__ == "__main__":
    main()
