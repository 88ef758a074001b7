"""int8 on the same path: imported models against their owner, our own quantization against floats, and speed.

    python tools/bench/int8.py imported --folder FOLDER     three models as ONNX Runtime's quantizer writes them
    python tools/bench/int8.py own                          the six models by our quantizer, gate B, mixed precision
    python tools/bench/int8.py speed --folder FOLDER        imported models beside ONNX Runtime and OpenVINO, and f32

With ``--dynamic`` the last two take BERT as ONNX Runtime's dynamic quantizer writes it.

``imported`` runs `lowerkit check` and sums up its regions. Weights are random: they quantize worse than trained ones,
so that the distance to floats says something beside that of the peers only.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

sys.path.insert(0, str(Path(__file__).parent))
import models
import quantized_by_onnxruntime

if TYPE_CHECKING:
    from lowerkit.parity.gate_b import GateB

IMPORTED = ("resnet50", "mobilenet_v2", "bert_base")
DYNAMIC = ("bert_base",)
CALIBRATION_SAMPLES = 4


def table(header: list[str], rows: list[list[str]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows])


def quantized_file(name: str, folder: Path | None, *, dynamic: bool) -> Path:
    """Returns the model quantized by ONNX Runtime; made in ``folder`` where it is not there yet."""
    folder = folder or Path(tempfile.mkdtemp(prefix="lowerkit-int8-"))
    path = folder / quantized_by_onnxruntime.file_name(name, dynamic=dynamic)
    return path if path.exists() else quantized_by_onnxruntime.quantize(name, folder, dynamic=dynamic)


def chosen(only: tuple[str, ...], *, dynamic: bool) -> tuple[str, ...]:
    """Returns the models that are asked for."""
    return only or (DYNAMIC if dynamic else IMPORTED)


dynamic_option = click.option("--dynamic", is_flag=True, help="Activations quantized by what they hold at run time.")


@click.group()
def cli() -> None:
    """Measure int8."""


@cli.command()
@click.option("--folder", type=click.Path(path_type=Path), help="Where the quantized files are kept.")
@click.option("--only", multiple=True, type=click.Choice(models.NAMES))
@dynamic_option
def imported(folder: Path | None, only: tuple[str, ...], dynamic: bool) -> None:
    """Compare every region with the int64 interpreter and with ONNX Runtime."""
    from lowerkit.capture.onnx.capture import capture_onnx
    from lowerkit.parity.check import check_program

    header = ["model", "regions", "exact", "of them 0 LSB", "ops beside ONNX Runtime's", "largest LSB",
              "largest share that differs", "output SQNR dB", "gate A"]  # fmt: skip
    rows: list[list[str]] = []
    for name in chosen(only, dynamic=dynamic):
        inputs = [value.numpy() for value in models.example_inputs(name)]
        report = check_program(capture_onnx(quantized_file(name, folder, dynamic=dynamic), example_inputs=inputs))
        exact = [row for row in report.integers if row.exact]
        shares = [row.differing / row.elements for row in report.owners]
        rows.append([
            name, str(len(report.integers)), str(len(exact)), str(sum(row.differing == 0 for row in exact)),
            str(len(report.owners)), str(max(row.largest for row in report.owners)), f"{max(shares):.4%}",
            f"{report.outputs[0].verdict.to_eager.sqnr_db:.1f}", "holds" if report.passed else "FAILS",
        ])  # fmt: skip
    click.echo(table(header, rows))


@cli.command()
@click.option("--only", multiple=True, type=click.Choice(models.NAMES), default=models.NAMES)
@click.option("--method", default="min-max", show_default=True)
@click.option("--smooth", default=0.0, show_default=True, help="Alpha of smoothing.")
@click.option("--keep", multiple=True, type=click.Choice(["none", "auto"]), default=("none", "auto"), show_default=True)
@click.option("--tiny", is_flag=True, help="The small variants.")
def own(only: tuple[str, ...], method: str, smooth: float, keep: tuple[str, ...], tiny: bool) -> None:
    """Quantize ourselves and print gate B: wholly in int8, and where that fails with products kept in floats."""
    from lowerkit.quantization.quantize import quantize

    header = ["model", "keep float", "activations", "FAIL", "warning", "worst SQNR dB", "worst local dB", "refused",
              "kept", "of the FLOPs", "of the weights", "output SQNR dB", "cosine", "gate B", "seconds"]  # fmt: skip
    rows: list[list[str]] = []
    for name in only:
        module, inputs = (models.tiny if tiny else models.full)(name)
        seeds = [models.SEED + 1 + index for index in range(CALIBRATION_SAMPLES)]
        samples = [models.example_inputs(name, tiny=tiny, seed=seed) for seed in seeds]
        for word in keep:
            started = time.perf_counter()
            report = quantize(module, samples, inputs, method=method, smooth=smooth, keep_float=[word]).report
            rows.append([name, word, *own_row(report), f"{time.perf_counter() - started:.0f}"])
            click.echo("  ".join(rows[-1]), err=True)
            if report.passed:
                break
    click.echo(table(header, rows))


def own_row(report: GateB) -> list[str]:
    """Returns the cells of a report."""
    verdicts = [row.verdict for row in report.activations]
    (output, *_) = report.outputs
    return [
        str(len(verdicts)), str(verdicts.count("FAIL")), str(verdicts.count("warning")),
        f"{min(row.cumulative.sqnr_db for row in report.activations):.1f}",
        f"{min(row.local.sqnr_db for row in report.activations):.1f}", str(len(report.refused)),
        f"{len(report.kept)} of {report.products}", f"{report.flops_in_floats:.1%}",
        f"{sum(row.weight_share for row in report.kept):.1%}", f"{output.metrics.sqnr_db:.1f}",
        f"{output.metrics.cosine:.6f}", "holds" if report.passed else "FAILS",
    ]  # fmt: skip


@cli.command()
@click.option("--folder", type=click.Path(path_type=Path), help="Where the quantized files are kept.")
@click.option("--only", multiple=True, type=click.Choice(models.NAMES))
@dynamic_option
@click.option("--seconds", default=15.0, show_default=True, help="Measuring time of one model.")
@click.option("--threads", default=1, show_default=True)
def speed(folder: Path | None, only: tuple[str, ...], dynamic: bool, seconds: float, threads: int) -> None:
    """Time the same quantized file in all, interleaved, and our f32 beside them."""
    import lowerkit
    from lowerkit.bench.interleave import time_interleaved
    from lowerkit.bench.peers import BenchModel, prepare_peer
    from lowerkit.capture.onnx.capture import capture_onnx
    from lowerkit.compiler import compile_program

    contenders = ["lowerkit f32", "lowerkit int8", "onnxruntime int8", "openvino int8"]
    rows: list[list[str]] = []
    for name in chosen(only, dynamic=dynamic):
        path = quantized_file(name, folder, dynamic=dynamic)
        module, inputs = models.full(name)
        arrays = [value.numpy() for value in inputs]
        floats = lowerkit.compile(module, inputs, threads=threads)
        integers = compile_program(capture_onnx(path))
        integers.threads = threads
        peers = BenchModel(None, path, arrays, ["x"], (tuple(arrays), {}), "f32", threads)
        runs: dict[str, Any] = {
            "lowerkit f32": lambda floats=floats, arrays=arrays: floats.session.run(*arrays),
            "lowerkit int8": lambda integers=integers, arrays=arrays: integers.session.run(*arrays),
            "onnxruntime int8": prepare_peer("onnxruntime", peers),
            "openvino int8": prepare_peer("openvino", peers),
        }
        timings = time_interleaved(runs, seconds=seconds)
        rows.append([name, *(f"{timings[each].median_ms:.1f} ({timings[each].min_ms:.1f})" for each in contenders)])
    click.echo(table(["model, ms (least)", *contenders], rows))
    click.echo(f"{threads} threads, batch 1, medians, interleaved.")


if __name__ == "__main__":
    cli()
