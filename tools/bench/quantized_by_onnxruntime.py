"""Models as ONNX Runtime's own quantizers write them: int8 weights per channel, uint8 activations.

static    QDQ; calibration: min-max over a few seeded inputs, as the quantizer does by default
dynamic   DynamicQuantizeLinear and MatMulInteger

:func:`quantize` writes ``NAME.onnx`` and the quantized file into a folder; ``tools/bench/int8.py`` calls it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import models

CALIBRATION_BATCHES = 4


class _Reader:
    """What the quantizer calls for inputs."""

    def __init__(self, feeds: Sequence[dict[str, Any]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def file_name(name: str, *, dynamic: bool) -> str:
    """Returns the name of the quantized file."""
    return f"{name}.{'dynamic' if dynamic else 'q'}.onnx"


def quantize(name: str, folder: Path, *, tiny: bool = False, dynamic: bool = False) -> Path:
    """Exports a model of :mod:`models` and quantizes it; returns the path of the quantized file."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    CalibrationDataReader.register(_Reader)
    module, inputs = (models.tiny if tiny else models.full)(name)
    path, quantized = folder / f"{name}.onnx", folder / file_name(name, dynamic=dynamic)
    torch.onnx.export(module, inputs, str(path), dynamo=True, verbose=False, input_names=["x"], external_data=False)
    seeds = [models.SEED + 1 + index for index in range(CALIBRATION_BATCHES)]
    feeds = [{"x": models.example_inputs(name, tiny=tiny, seed=seed)[0].numpy()} for seed in seeds]
    with tempfile.TemporaryDirectory() as scratch:
        prepared = Path(scratch) / "prepared.onnx"
        quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
        if dynamic:
            quantize_dynamic(str(prepared), str(quantized), per_channel=True, weight_type=QuantType.QInt8)
            return quantized
        quantize_static(
            str(prepared),
            str(quantized),
            _Reader(feeds),  # pyright: ignore[reportArgumentType]  # registered as the abstract class
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            quant_format=QuantFormat.QDQ,
        )
    return quantized
