"""One dynamic artifact over several lengths, beside the peers' dynamic models, f32: few rows to many.

Each model is compiled once with a symbolic length; the peers are given one ONNX file with the same symbolic length.
With --static the artifact of each length alone is measured too: what a length known at compile time would bring. All
contenders of a length are interleaved.

    python tools/bench/lengths.py --models bert_base,llama --lengths 1,4,16,37,128,480
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch.export import Dim

import lowerkit
from lowerkit.bench.interleave import Timing, time_interleaved
from lowerkit.bench.peers import openvino_settings, quiet

sys.path.insert(0, str(Path(__file__).parent))

import models

LONGEST = 512
Run = Callable[[torch.Tensor], object]


def dynamic_peers(module: torch.nn.Module, tokens: torch.Tensor, threads: int) -> dict[str, Run]:
    """Returns ONNX Runtime and OpenVINO with the module exported once, its length symbolic."""
    import onnxruntime
    import openvino

    with tempfile.TemporaryDirectory(prefix="lowerkit-bench-") as folder, quiet():
        path = str(Path(folder) / "model.onnx")
        shapes = ({1: Dim("length", min=1, max=LONGEST)},)
        torch.onnx.export(module, (tokens,), path, dynamic_shapes=shapes, dynamo=True, verbose=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        core = openvino.Core()
        compiled = core.compile_model(core.read_model(path), "CPU", openvino_settings("f32", threads))
        request = compiled.create_infer_request()
    (name,) = (value.name for value in session.get_inputs())

    def run_openvino(given: torch.Tensor) -> object:
        request.infer([given.numpy()], share_inputs=True)
        return request.get_output_tensor(0).data

    return {"onnxruntime": lambda given: session.run(None, {name: given.numpy()}), "openvino": run_openvino}


def measure(name: str, lengths: list[int], seconds: float, static: bool, threads: int) -> dict[int, dict[str, Timing]]:
    """Returns the timings of each contender at each length."""
    module, (tokens,) = models.full(name)
    vocabulary = int(tokens.max()) + 1
    compiled = lowerkit.compile(module, (tokens,), dynamic_shapes=({1: Dim("length", min=1, max=LONGEST)},))
    compiled.threads = threads
    peers = dynamic_peers(module, tokens, threads)
    table: dict[int, dict[str, Timing]] = {}
    for length in lengths:
        given = torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(length))
        contenders: dict[str, Callable[[], object]] = {"lowerkit": lambda given=given: compiled.session.run(given)}
        if static:
            alone = lowerkit.compile(module, (given,))
            alone.threads = threads
            contenders["static"] = lambda given=given, alone=alone: alone.session.run(given)
        contenders |= {peer: lambda given=given, run=run: run(given) for peer, run in peers.items()}
        table[length] = time_interleaved(contenders, seconds=seconds)
        click.echo(f"{name} {length:4d}  " + describe(table[length]))
    return table


def describe(timings: dict[str, Timing]) -> str:
    """Returns one line: medians, the ratio to the faster peer, and to the static artifact where it was measured."""
    best = min(timing.median_ms for name, timing in timings.items() if name in ("onnxruntime", "openvino"))
    parts = [f"{name} {t.median_ms:.3f} ms ({t.min_ms:.3f}..{t.p90_ms:.3f})" for name, t in timings.items()]
    ratio = f"to the faster peer {timings['lowerkit'].median_ms / best:.2f}"
    if "static" in timings:
        ratio += f", to static {timings['lowerkit'].median_ms / timings['static'].median_ms:.2f}"
    return "  ".join([*parts, ratio])


@click.command()
@click.option("--models", "names", default="bert_base,llama", show_default=True)
@click.option("--lengths", default="1,4,16,37,128,480", show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="Measuring time of one length.")
@click.option("--static", is_flag=True, help="Also measure an artifact compiled for each length.")
@click.option("--json", "json_path", type=click.Path(path_type=Path))
def main(names: str, lengths: str, seconds: float, static: bool, json_path: Path | None) -> None:
    """Time dynamic artifacts over LENGTHS."""
    threads = len(os.sched_getaffinity(0))
    document: dict[str, Any] = {}
    for name in names.split(","):
        table = measure(name, [int(length) for length in lengths.split(",")], seconds, static, threads)
        document[name] = {
            str(length): {contender: timing.to_json() for contender, timing in timings.items()}
            for length, timings in table.items()
        }
    if json_path is not None:
        json_path.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
