"""Gate A on the six models at full size: every way in, f32 and bf16, op by op, one `lowerkit check` each.

    python tools/bench/parity_matrix.py --markdown docs/results/parity-matrix.md

The reference of ONNX in bf16 is ONNX Runtime in f32, rounded to bf16 after each node: its CPU provider has no bf16.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

NAMES = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "gpt2", "llama")
FORMS = ("export", "torchscript", "onnx")
MODELS = Path(__file__).with_name("models.py")


def write_form(name: str, form: str, dtype: str, folder: Path) -> list[str]:
    """Writes the model where it is a file; returns the arguments that name it and its input."""
    if form == "export":
        return [f"{MODELS}:{name}", "--dtype", dtype]
    from export_forms import load_file

    module, inputs = load_file(MODELS).full(name)
    wanted = torch.bfloat16 if dtype == "bf16" else torch.float32
    module = module.to(wanted)
    inputs = tuple(value.to(wanted) if value.is_floating_point() else value for value in inputs)
    path = folder / f"{name}.{'pt' if form == 'torchscript' else 'onnx'}"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with torch.no_grad():
        if form == "torchscript":
            torch.jit.save(torch.jit.trace(module, inputs, check_trace=False), path)
        else:
            # Optimizing, PyTorch folds batch norms into float32 filters between bfloat16 values: an invalid model.
            normalized = any(isinstance(inner, torch.nn.BatchNorm2d) for inner in module.modules())
            optimize = not (dtype == "bf16" and normalized)
            torch.onnx.export(
                module, inputs, str(path), dynamo=True, verbose=False, opset_version=22, optimize=optimize
            )
    argument = "pixel_values" if inputs[0].is_floating_point() else "input_ids"
    if dtype == "bf16" and inputs[0].is_floating_point():
        return [str(path), "--input", f"{argument}:{'x'.join(map(str, inputs[0].shape))}:bf16"]
    np.save(folder / "x.npy", inputs[0].numpy())
    return [str(path), "--input", f"{argument}=@{folder / 'x.npy'}"]


def check(name: str, form: str, dtype: str) -> dict[str, Any]:
    """Returns the `check` document, or {"error": first line} where the command gave none."""
    with tempfile.TemporaryDirectory(prefix="lowerkit-matrix-") as folder:
        try:
            arguments = write_form(name, form, dtype, Path(folder))
        except Exception as error:  # an exporter of PyTorch that cannot take the model is its own result
            return {"error": f"PyTorch's exporter: {str(error).splitlines()[0][:100]}"}
        command = [
            sys.executable,
            "-c",
            "from lowerkit.cli.main import main; main()",
            "check",
            *arguments,
            "--json",
            "-q",
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if not result.stdout:
        return {"error": result.stderr.strip().splitlines()[0][:160] if result.stderr else "no output"}
    return json.loads(result.stdout)


def cells(document: dict[str, Any]) -> list[str]:
    """Returns verdict, ops compared, and the reason of the first output."""
    if "error" in document:
        return ["-", "", document["error"]]
    ops = document["ops"]
    passed = sum(row["passed"] for row in ops)
    return ["pass" if document["passed"] else "FAIL", f"{passed}/{len(ops)}", document["outputs"][0]["reason"]]


@click.command()
@click.option("--only", multiple=True, type=click.Choice(NAMES))
@click.option("--form", "forms", multiple=True, type=click.Choice(FORMS))
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(["f32", "bf16"]))
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path))
def main(only: tuple[str, ...], forms: tuple[str, ...], dtypes: tuple[str, ...], markdown_path: Path | None) -> None:
    """Check the six models by every way in; exit code 6 when one fails."""
    sys.path.insert(0, str(MODELS.parent))
    header = ["model", "form", "dtype", "gate A", "ops", "first output"]
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header))]
    failed = False
    for dtype in dtypes or ("f32", "bf16"):
        for name in only or NAMES:
            for form in forms or FORMS:
                row = [name, form, dtype, *cells(check(name, form, dtype))]
                failed |= row[3] == "FAIL"
                lines.append("| " + " | ".join(row) + " |")
                click.echo(lines[-1])
    if markdown_path is not None:
        command = f"`python tools/bench/parity_matrix.py --markdown {markdown_path}`"
        text = f"# Gate A, six models at full size\n\nPrinted by {command}.\n\n" + "\n".join(lines) + "\n"
        markdown_path.write_text(text)
    if failed:
        raise SystemExit(6)


if __name__ == "__main__":
    main()
