"""`lowerkit quantize`: a float model and calibration data in, an int8 artifact and the verdict of gate B out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lowerkit.cli.compile_command import check_output, describe
from lowerkit.cli.model_options import capture_model, model_options, refuse_given
from lowerkit.cli.output import json_option, note, print_json, print_table, progress, quiet_option, verbose_option
from lowerkit.cli.supervise import supervise_targets
from lowerkit.cli.target_options import allow_option, device_option, target_option
from lowerkit.errors import ParityError
from lowerkit.parity.gate_b import GateB, KeptInFloats
from lowerkit.quantization.methods import METHODS

if TYPE_CHECKING:
    from lowerkit.program.program import Program


@click.command("quantize")
@model_options
@click.option(
    "--calib",
    required=True,
    type=click.Path(path_type=Path),
    help="An .npz file: for each input an array of its shape, or with samples in front.",
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The artifact to write.")
@click.option(
    "--method", type=click.Choice(list(METHODS)), default="min-max", show_default=True, help="How ranges are chosen."
)
@click.option("--percentile", default=99.99, show_default=True, help="Of --method percentile.")
@click.option(
    "--keep-float",
    "keep_float",
    multiple=True,
    default=("auto",),
    show_default=True,
    metavar="auto|none|PATTERN",
    help="Products to keep in floats: a pattern of node names or module paths, or auto: where gate B would fail, the "
    "fewest FLOPs with which it holds. Repeatable.",
)
@click.option(
    "--smooth",
    default=0.0,
    show_default=True,
    metavar="ALPHA",
    help="0 to 1: how much of the large channels behind norms moves into weights (SmoothQuant); 0.7 is usual.",
)
@target_option
@allow_option
@device_option
@json_option
@verbose_option
@quiet_option
def command(
    model: str,
    inputs: tuple[str, ...],
    dynamic: tuple[str, ...],
    seed: int,
    calib: Path,
    output: Path,
    method: str,
    percentile: float,
    keep_float: tuple[str, ...],
    smooth: float,
    target: str,
    allow: tuple[str, ...],
    device: str | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Quantize MODEL (f32) to int8 with calibration data and compile it; exit code 6 when gate B does not hold."""
    supervise_targets(target)
    check_output(model, output)
    from lowerkit.capture.load_model import capture_path
    from lowerkit.compiler import CompileOptions
    from lowerkit.quantization.calibration_data import Sample, read_calibration, samples_of
    from lowerkit.quantization.quantize import Quantization, quantize_program

    if method != "percentile":
        refuse_given(["percentile"], "without --method percentile")
    arrays = read_calibration(calib)
    with progress(quiet) as show:
        show("capturing")
        program = capture_model(model, inputs, dynamic, seed)
        samples = samples_of(program.signature, arrays)

        def captured_for(sample: Sample) -> Program:
            positional, named = (sample, {}) if program.arguments is None else program.arguments(sample)
            return capture_path(model, example_inputs=positional, kwargs=named)

        settings = Quantization(method, percentile, keep_float, smooth)
        quantized = quantize_program(
            program,
            samples,
            settings,
            CompileOptions(target=target, allow=frozenset(allow), device=device),
            show,
            captured_for,
        )
        show("writing")
        quantized.compiled.save(output)
    report, summary = quantized.report, quantized.compiled.summary()
    if verbose:
        for remark in quantized.compiled.remarks:
            note(f"remark: {remark}")
    for line in report.refused:
        note(f"left in floats: {line}", quiet)
    for row in report.kept:
        note(f"kept in floats: {kept_line(row)}", quiet)
    for each in quantized.compiled.offload:
        note(each.render(), quiet)
    if report.chosen_again:
        note(
            "the first choice of products held on the calibration samples but not on the inputs of gate B; it was made "
            "again with them: more calibration data would make the verdict independent",
            quiet,
        )
    if as_json:
        document = {"output": str(output), "bytes": output.stat().st_size, **summary, **report.to_json()}
        print_json("quantize", document)
    else:
        print_report(report, verbose)
        click.echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB, {describe(summary)}")
    if not report.passed:
        failure = report.first_failure
        raise ParityError(
            "LK6002",
            "the quantized model is too far from the float model (gate B)",
            op=None if failure is None else failure.name,
            location=None if failure is None or not failure.location else failure.location,
            hint="the artifact is written; --keep-float auto, more calibration data or another --method may help "
            f"({', '.join(METHODS)})",
        )


def kept_line(row: KeptInFloats) -> str:
    """Returns a line on a product kept in floats: where it is, its share of the work, what keeping it gains."""
    place = f"{row.name} ({row.module_path})" if row.module_path else row.name
    parts = ["asked for"] if row.asked else []
    parts.append(f"{row.flops_share:.1%} of the FLOPs")
    if row.alone_db is not None:
        parts.append(f"alone in int8 {row.alone_db:.1f} dB at the outputs")
    if row.gained_db is not None:
        parts.append(f"gains {row.gained_db:.1f} dB")
    return f"{place} at {row.location or 'unknown source'}: {', '.join(parts)}"


def print_report(report: GateB, verbose: bool) -> None:
    """Prints the outputs and the ten worst activations (all with ``verbose``)."""
    worst = sorted(report.activations, key=lambda row: row.cumulative.sqnr_db)[:10]
    shown = [row for row in report.activations if verbose or row in worst]
    title = f"{report.source}: {len(report.activations)} activations, {report.method} over {report.samples} samples"
    columns = ["activation of", "scale", "zero", "saturated", "local dB", "SQNR dB", "verdict", "source"]
    rows = [
        [
            row.name,
            "float" if row.scale is None else f"{row.scale:.4g}",
            "" if row.zero_point is None else row.zero_point,
            f"{row.saturated:.3%}",
            f"{row.local.sqnr_db:.1f}",
            f"{row.cumulative.sqnr_db:.1f}",
            row.verdict,
            row.location,
        ]
        for row in shown
    ]
    print_table(title, columns, rows)
    for output in report.outputs:
        verdict = "ok" if output.passed else "FAIL"
        metrics = output.metrics
        click.echo(
            f"output {output.name}: SQNR {metrics.sqnr_db:.1f} dB, cosine {metrics.cosine:.6f}, gate B: {verdict}"
        )
    for output in report.without_choice:
        metrics = output.metrics
        click.echo(
            f"output {output.name} without products kept for gate B: SQNR {metrics.sqnr_db:.1f} dB, "
            f"cosine {metrics.cosine:.6f}"
        )
    if report.kept:
        weights = sum(row.weight_share for row in report.kept)
        click.echo(
            f"kept in floats: {len(report.kept)} of {report.products} products, {report.flops_in_floats:.1%} of their "
            f"FLOPs, {weights:.1%} of their weights"
        )
