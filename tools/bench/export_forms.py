"""Writes one model in its three file forms (.pt2, TorchScript .pt, .onnx) with its input as x.npy, for the demo.

python tools/bench/export_forms.py tools/bench/models.py:resnet50 --folder demo --name resnet50
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from pathlib import Path
from types import ModuleType

import click
import numpy as np
import torch
from torch import nn


class WithInputX(nn.Module):
    """The model with its only input called ``x``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)


def load_file(path: Path) -> ModuleType:
    """Imports a Python file by its path."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@click.command()
@click.argument("factory")
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--name", required=True)
@click.option("--forms", default="pt2,pt,onnx", show_default=True)
def main(factory: str, folder: Path, name: str, forms: str) -> None:
    """Write the model that FACTORY (file.py:function) returns into FOLDER as NAME.pt2, NAME.pt and NAME.onnx."""
    file, _, function = factory.partition(":")
    module, inputs = getattr(load_file(Path(file)), function)()
    model = WithInputX(module).eval()
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", inputs[0].numpy())
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with torch.no_grad():
        if "pt2" in forms.split(","):
            torch.export.save(torch.export.export(model, inputs), folder / f"{name}.pt2")
        if "pt" in forms.split(","):
            torch.jit.save(torch.jit.trace(model, inputs), str(folder / f"{name}.pt"))
        if "onnx" in forms.split(","):
            torch.onnx.export(model, inputs, str(folder / f"{name}.onnx"), dynamo=True, verbose=False)
    for path in sorted(folder.glob(f"{name}.*")):
        click.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
