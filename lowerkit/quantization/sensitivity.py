"""What int8 costs: the noise that a choice of products leaves at every activation and output."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.parity.gate_b import OUTPUT_COSINE, OUTPUT_DB, TENSOR_FAILURE_DB
from lowerkit.parity.metrics import compare
from lowerkit.quantization.calibration_data import Sample
from lowerkit.quantization.switches import SwitchedModel

Array = np.ndarray[Any, Any]


@dataclass
class Reference:
    """A sample and what the float model makes of it: outputs, then activations."""

    sample: Sample
    tensors: list[Array]
    outputs: int

    @property
    def limits(self) -> Array:
        """The noise that gate B allows at each tensor, float64.

        A cosine c between signal and signal plus independent noise is ``1 / sqrt(1 + noise)``.
        """
        output = min(10 ** (-OUTPUT_DB / 10), OUTPUT_COSINE**-2 - 1)
        tensor = 10 ** (-TENSOR_FAILURE_DB / 10)
        return np.array([output] * self.outputs + [tensor] * (len(self.tensors) - self.outputs))


def reference_of(model: SwitchedModel, sample: Sample, products: int) -> Reference:
    """Runs a sample with all products in floats."""
    outputs, activations = model.run(sample, range(products))
    return Reference(sample, [*outputs, *activations], len(outputs))


def noise_of(model: SwitchedModel, reference: Reference, in_floats: Collection[int]) -> Array:
    """Returns the relative power of the error at each output and activation, float64."""
    outputs, activations = model.run(reference.sample, in_floats)
    pairs = zip([*outputs, *activations], reference.tensors, strict=True)
    return np.array([relative_noise(found, wanted) for found, wanted in pairs])


def sensitivities(
    model: SwitchedModel, reference: Reference, products: int, on_progress: Callable[[str], None] | None
) -> Array:
    """Returns the noise of each product alone, float64 ``[products, tensors]``."""
    rows: list[Array] = []
    for product in range(products):
        if on_progress is not None:
            on_progress(f"measuring product {product + 1} of {products} alone")
        rows.append(noise_of(model, reference, [place for place in range(products) if place != product]))
    return np.array(rows)


def relative_noise(found: Array, wanted: Array) -> float:
    """Returns sum (found - wanted)^2 / sum wanted^2; infinite where NaN or infinities stand elsewhere.

    Tensors of floats are summed in f32, which is good to 1e-4 of the result and much faster; others exactly.
    """
    if wanted.dtype == np.float32:
        with np.errstate(all="ignore"):
            error = np.subtract(found, wanted).ravel()
            noise, signal = float(np.dot(error, error)), float(np.vdot(wanted, wanted))
        if np.isfinite(noise) and np.isfinite(signal) and signal > 0:
            return noise / signal
    metrics = compare(found, wanted)
    if not metrics.special_equal:
        return float(np.inf)
    return float(10 ** (-metrics.sqnr_db / 10))
