"""`lowerkit doctor`: what this installation and this machine can do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys

import click

from lowerkit import __version__
from lowerkit.cli.output import json_option, print_json, print_table
from lowerkit.errors import UsageError
from lowerkit.torch_version import torch_problem

_PACKAGES = {
    "numpy": "run artifacts",
    "msgspec": "run artifacts",
    "torch": "capture",
    "torch-mlir": "compile",
    "llvmlite": "compile",
    "safetensors": "compile",
    "onnx": "capture .onnx (extra: onnx)",
    "onnxruntime": "bench peers, .onnx parity (extra: bench)",
    "openvino": "bench peers (extra: bench)",
    "transformers": "bench models (extra: bench)",
}
_REQUIRED = ("numpy", "msgspec", "torch", "torch-mlir", "llvmlite", "safetensors")


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Report versions, the CPU level and what is missing; exit code 2 when a required part is missing."""
    rows: list[tuple[str, str, str]] = []
    missing: list[str] = []
    for package, purpose in _PACKAGES.items():
        try:
            rows.append((package, importlib.metadata.version(package), purpose))
        except importlib.metadata.PackageNotFoundError:
            rows.append((package, "missing", purpose))
            if package in _REQUIRED:
                missing.append(f"{package} is missing: {purpose}")
    problem = torch_problem()
    if problem is not None and "torch" not in [row[0] for row in rows if row[1] == "missing"]:
        missing.append(problem)
    try:
        from lowerkit.runtimes import _native

        native = "ok"
        features = sorted(_native.cpu_features())
    except ImportError as error:
        native, features = f"missing: {error}", []
        missing.append("the native runtime is missing")
    machine = {
        "lowerkit": __version__,
        "python": platform.python_version(),
        "platform": sys.platform,
        "cores": len(os.sched_getaffinity(0)),
        "native_runtime": native,
        "cpu_features": features,
    }
    if as_json:
        packages = [dict(zip(("name", "version", "purpose"), row, strict=True)) for row in rows]
        print_json("doctor", {"machine": machine, "packages": packages, "problems": missing})
    else:
        print_table("", ["package", "version", "needed to"], rows)
        shown = [(key, " ".join(value) if isinstance(value, list) else str(value)) for key, value in machine.items()]
        print_table("", ["machine", ""], shown)
    if missing:
        raise UsageError(
            "LK1007", "this installation is not complete", details=missing, hint="pip install 'lowerkit[onnx]'"
        )
