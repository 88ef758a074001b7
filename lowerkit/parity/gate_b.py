"""Gate B: a quantized model against the float model, never mixed with gate A.

Two distances for each activation that a product reads: ``local``, what its own rounding costs on the float model's
values, and ``cumulative``, the quantized model's value against the float model's. The gate looks at the cumulative
one, and at the outputs. An activation that is not rounded, because the products that read it were kept in floats, is
judged all the same: it carries the errors of the products before it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lowerkit.dialect.reference.quantize import dequantize, quantize
from lowerkit.parity.metrics import Metrics, compare

Array = np.ndarray[Any, Any]

TENSOR_WANTED_DB, TENSOR_WARNING_DB, TENSOR_FAILURE_DB = 35.0, 30.0, 20.0
OUTPUT_DB, OUTPUT_COSINE = 25.0, 0.999


@dataclass(frozen=True)
class Activation:
    """One activation that products read.

    Attributes:
        name, location: of the product that reads it first.
        scale, zero_point: as chosen; None where it stays in floats.
        saturated: share of the float model's values beyond the range.
        local: rounding alone; cumulative: along the running model.
    """

    name: str
    location: str
    scale: float | None
    zero_point: int | None
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


@dataclass(frozen=True)
class KeptInFloats:
    """A product that could be quantized and was kept in floats.

    Attributes:
        name, module_path, location: of the product.
        asked: by the user; otherwise because gate B would not hold.
        flops_share, weight_share: of the FLOPs and weight bytes of all products that can be quantized, 0 to 1.
        alone_db: SQNR of the worst output with this product alone in int8; None where it was not measured.
        gained_db: SQNR of the worst output that keeping it gains with the others as they are; as ``alone_db``.
    """

    name: str
    module_path: str
    location: str
    asked: bool
    flops_share: float
    weight_share: float
    alone_db: float | None = None
    gained_db: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the row for the ``quantize`` schema; an infinite gain becomes None."""
        document = asdict(self)
        for key in ("alone_db", "gained_db"):
            document[key] = document[key] if document[key] is not None and math.isfinite(document[key]) else None
        return document


@dataclass
class GateB:
    """The verdict over a quantized model.

    Attributes:
        source, method, samples: what was quantized, and how its ranges were chosen.
        outputs, activations: the distances.
        refused: products that cannot be quantized, each with its reason.
        products: how many can.
        kept: those that were kept in floats.
        without_choice: the outputs before products were chosen to be kept in floats; empty where none were chosen.
        chosen_again: the choice held on the calibration samples only, and was made again with the gate's inputs among
            them: the verdict is then no independent one.
    """

    source: str
    method: str
    samples: int
    outputs: list[Output]
    activations: list[Activation]
    refused: list[str] = field(default_factory=list[str])
    products: int = 0
    kept: list[KeptInFloats] = field(default_factory=list[KeptInFloats])
    without_choice: list[Output] = field(default_factory=list[Output])
    chosen_again: bool = False

    @property
    def flops_in_floats(self) -> float:
        """The share of the FLOPs of all products that can be quantized, 0 to 1."""
        return sum(row.flops_share for row in self.kept)

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
            "products": self.products,
            "kept": [row.to_json() for row in self.kept],
            "flops_in_floats": self.flops_in_floats,
            "without_choice": [output.to_json() for output in self.without_choice],
            "chosen_again": self.chosen_again,
        }


def judge_activation(
    name: str,
    location: str,
    scaling: tuple[float, int] | None,
    floats: Array,
    quantized: Array,
    factors: Array | None = None,
) -> Activation:
    """Compares one activation.

    Args:
        name, location: of the product that reads it.
        scaling: scale and zero point, for 0 to 255; None where it is not rounded.
        floats: the float model's values.
        quantized: what the quantized model's product reads, dequantized.
        factors: smoothing, f32 along the last dimension: values were divided by it before they were rounded, and
            ``quantized`` still is. Distances are taken with it undone.
    """
    if scaling is None:
        return Activation(name, location, None, None, 0.0, compare(floats, floats), compare(quantized, floats))
    back = np.ones((), np.float32) if factors is None else factors
    given = floats if factors is None else floats * (np.float32(1) / factors)
    scale, zero_point = np.array(scaling[0], np.float32), np.array(scaling[1], np.int32)
    limits: dict[str, Any] = {"axis": 0, "formula": "divide"}
    stored = quantize(given, scale, zero_point, minimum=0, maximum=255, **limits)
    wide = quantize(given, scale, zero_point, minimum=-(1 << 30), maximum=1 << 30, **limits)
    rounded = dequantize(stored, scale, zero_point, axis=0) * back
    beyond = float(np.mean((wide < 0) | (wide > 255))) if wide.size else 0.0
    local, cumulative = compare(rounded, floats), compare(quantized * back, floats)
    return Activation(name, location, scaling[0], scaling[1], beyond, local, cumulative)
