"""What 16-bit floats and few rows cost beside the best peers: the two tables of docs/results/performance.md.

    1. bf16: the six models beside eager, Inductor and OpenVINO in bf16 (``six_models.py``), and one GEMM of 2,048
       beside a loop of dot products in registers (``kernels.py``).
    2. few rows: one dynamic artifact of BERT and Llama, f32, over lengths from 1 on, beside ONNX Runtime and OpenVINO
       (``lengths.py``).

Contenders are interleaved in one run; medians, with minimum and 90th percentile. Takes less than ten minutes.

    python tools/bench/formats.py --json formats.json --write docs/results/performance.md
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent))

import six_models

FOLDER = Path(__file__).parent
PEERS = ("eager", "inductor", "openvino")


def run_json(script: str, *options: str) -> Any:
    """Runs a script of this folder with ``--json`` and returns what it wrote."""
    with tempfile.TemporaryDirectory(prefix="lowerkit-bench-") as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, str(FOLDER / script), *options, "--json", str(path)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise click.ClickException(f"{script}: exit code {result.returncode}\n{result.stderr[-2000:]}")
        return json.loads(path.read_text())


def table(header: list[str], rows: list[list[str]]) -> str:
    """Returns a table in markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows])


def spread(timing: dict[str, float]) -> str:
    """Returns the median with minimum and 90th percentile."""
    return f"{timing['median_ms']:.2f} ({timing['min_ms']:.2f}..{timing['p90_ms']:.2f})"


def models_section(documents: dict[str, Any], gemm: list[dict[str, Any]], seconds: float) -> str:
    """Returns the section on bf16."""
    rows: list[list[str]] = []
    ratios: list[float] = []
    for name, document in documents.items():
        ours, peers = document["lowerkit"], document["peers"]
        cells = [spread(peers[peer]) if peer in peers else "-" for peer in PEERS]
        ratios.append(ours["median_ms"] / peers["openvino"]["median_ms"])
        rows.append([name, spread(ours), *cells, f"{ratios[-1]:.2f}"])
    mean = math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
    lines = [
        f"Printed by `python tools/bench/formats.py --seconds {seconds:g}`: milliseconds, medians with minimum and",
        "90th percentile, 2 threads, batch 1, all contenders of a model interleaved in one run. The processor has",
        "AVX512_BF16 and no AMX. ONNX Runtime has no bf16 on CPUs.",
        "",
        table(["model", "lowerkit", *PEERS, "ratio to openvino"], rows),
        "",
        f"Geometric mean of the ratios to OpenVINO: {mean:.2f}.",
    ]
    for row in gemm:
        share = row["gflops"] / row["peak_gflops"]
        shape = row["name"].removeprefix("matmul ")
        lines.append(
            f"A product of {shape} on one thread: {row['gflops']:.0f} GFLOP/s, {share:.0%} of what a loop of dot "
            f"products in registers reaches in the same run ({row['peak_gflops']:.0f}); eager's takes "
            f"{row['torch_ms'] / row['kernel_ms']:.2f} times as long."
        )
    return "\n".join(lines)


def lengths_section(document: dict[str, Any], seconds: float) -> str:
    """Returns the section on symbolic lengths."""
    rows: list[list[str]] = []
    for name, lengths in document.items():
        for length, timings in lengths.items():
            peers = {peer: timings[peer] for peer in ("onnxruntime", "openvino")}
            best = min(timing["median_ms"] for timing in peers.values())
            ratio = timings["lowerkit"]["median_ms"] / best
            rows.append([name, length, spread(timings["lowerkit"]), *map(spread, peers.values()), f"{ratio:.2f}"])
    lines = [
        f"Printed by the same command (`python tools/bench/lengths.py --seconds {seconds:g}`): one artifact a model,",
        "compiled with a symbolic length, beside the peers' models with the same symbolic length.",
        "",
        table(["model", "length", "lowerkit", "onnxruntime", "openvino", "ratio to the faster"], rows),
    ]
    return "\n".join(lines)


def replace_section(text: str, title: str, body: str) -> str:
    """Returns the page with the section of that title, up to the next one, replaced; appended where there is none."""
    section = f"## {title}\n\n{body}\n\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(text) is None:
        return text.rstrip("\n") + "\n\n" + section
    return pattern.sub(lambda _: section, text, count=1)


@click.command()
@click.option("--seconds", default=3.0, show_default=True, help="Measuring time of one model, and of one length.")
@click.option("--json", "json_path", type=click.Path(path_type=Path))
@click.option("--write", "page", type=click.Path(path_type=Path, exists=True), help="The page whose tables to replace.")
def main(seconds: float, json_path: Path | None, page: Path | None) -> None:
    """Time bf16 and few rows beside the peers."""
    documents: dict[str, Any] = {}
    for name in six_models.NAMES:
        documents[name] = six_models.bench(name, "bf16", seconds, ",".join(PEERS))
        ours, peers = documents[name]["lowerkit"], documents[name]["peers"]
        ratio = ours["median_ms"] / peers["openvino"]["median_ms"]
        click.echo(f"{name:14}{spread(ours):>26}  openvino {spread(peers['openvino']):>26}  ratio {ratio:.2f}")
    gemm = run_json("kernels.py", "--dtype", "bf16", "--only", "2048x2048", "--seconds", str(seconds))
    lengths = run_json("lengths.py", "--seconds", str(seconds))
    sections = {
        "Time of a run, bf16": models_section(documents, gemm, seconds),
        "Symbolic lengths, f32": lengths_section(lengths, seconds),
    }
    for title, body in sections.items():
        click.echo(f"\n## {title}\n\n{body}")
    if json_path is not None:
        threads = len(os.sched_getaffinity(0))
        json_path.write_text(json.dumps({"threads": threads, "bf16": documents, "gemm": gemm, "lengths": lengths}))
    if page is not None:
        text = page.read_text()
        for title, body in sections.items():
            text = replace_section(text, title, body)
        page.write_text(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
