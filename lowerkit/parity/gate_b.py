"""Gate B: a quantized model against the float model, never mixed with gate A.

Two distances for each activation that was quantized: ``local``, what its own rounding costs on the float model's
values, and ``cumulative``, the quantized model's value against the float model's. The gate looks at the cumulative
one, and at the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowerkit.dialect.reference.quantize import dequantize, quantize
from lowerkit.parity.metrics import Metrics, compare

Array = np.ndarray[Any, Any]

TENSOR_WANTED_DB, TENSOR_WARNING_DB, TENSOR_FAILURE_DB = 35.0, 30.0, 20.0
OUTPUT_DB, OUTPUT_COSINE = 25.0, 0.999


@dataclass(frozen=True)
class Activation:
    """One quantized activation.

    Attributes:
        name, location: of the product that reads it first.
        scale, zero_point: as chosen.
        saturated: share of the float model's values beyond the range.
        local: rounding alone; cumulative: along the running model.
    """

    name: str
    location: str
    scale: float
    zero_point: int
    saturated: float
    local: Metrics
    cumulative: Metrics

    @property
    def verdict(self) -> str:
        """``ok``, ``below 35 dB``, ``warning`` or ``FAIL``."""
        found = self.cumulative.sqnr_db
        if not self.cumulative.special_equal or found < TENSOR_FAILURE_DB:
            return "FAIL"
        if found < TENSOR_WARNING_DB:
            return "warning"
        return "ok" if found >= TENSOR_WANTED_DB else f"below {TENSOR_WANTED_DB:.0f} dB"

    def to_json(self) -> dict[str, Any]:
        """Returns the row for the ``quantize`` schema."""
        return {
            "name": self.name,
            "location": self.location,
            "scale": self.scale,
            "zero_point": self.zero_point,
            "saturated": self.saturated,
            "local": self.local.to_json(),
            "cumulative": self.cumulative.to_json(),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Output:
    """One output of the model against eager in floats."""

    name: str
    metrics: Metrics

    @property
    def passed(self) -> bool:
        """Whether SQNR and cosine reach the gate."""
        metrics = self.metrics
        return metrics.special_equal and metrics.sqnr_db >= OUTPUT_DB and metrics.cosine >= OUTPUT_COSINE

    def to_json(self) -> dict[str, Any]:
        """Returns the row for the ``quantize`` schema."""
        return {"name": self.name, "passed": self.passed, "to_float": self.metrics.to_json()}


@dataclass
class GateB:
    """The verdict over a quantized model. ``refused`` are products that stayed in floats, each with its reason."""

    source: str
    method: str
    samples: int
    outputs: list[Output]
    activations: list[Activation]
    refused: list[str] = field(default_factory=list[str])

    @property
    def passed(self) -> bool:
        """Whether every output reaches the gate and no activation fails."""
        return all(output.passed for output in self.outputs) and all(
            activation.verdict != "FAIL" for activation in self.activations
        )

    @property
    def first_failure(self) -> Activation | None:
        """The first activation, in program order, that lost too much."""
        return next((activation for activation in self.activations if activation.verdict == "FAIL"), None)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields of the ``quantize`` schema."""
        return {
            "source": self.source,
            "method": self.method,
            "samples": self.samples,
            "passed": self.passed,
            "outputs": [output.to_json() for output in self.outputs],
            "activations": [activation.to_json() for activation in self.activations],
            "refused": self.refused,
        }


def judge_activation(
    name: str, location: str, scaling: tuple[float, int], floats: Array, quantized: Array
) -> Activation:
    """Compares one activation.

    Args:
        name, location: of the product that reads it.
        scaling: scale and zero point, for 0 to 255.
        floats: the float model's values.
        quantized: what the quantized model's product reads, dequantized.
    """
    scale, zero_point = np.array(scaling[0], np.float32), np.array(scaling[1], np.int32)
    limits: dict[str, Any] = {"axis": 0, "formula": "divide"}
    stored = quantize(floats, scale, zero_point, minimum=0, maximum=255, **limits)
    wide = quantize(floats, scale, zero_point, minimum=-(1 << 30), maximum=1 << 30, **limits)
    rounded = dequantize(stored, scale, zero_point, axis=0)
    beyond = float(np.mean((wide < 0) | (wide > 255))) if wide.size else 0.0
    return Activation(
        name, location, scaling[0], scaling[1], beyond, compare(rounded, floats), compare(quantized, floats)
    )
