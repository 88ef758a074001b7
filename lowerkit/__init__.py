"""lowerkit: from a model file to a verified artifact.

>>> compiled = lowerkit.compile(module, example_inputs)
>>> compiled.save("model.lk")
>>> session = lowerkit.load("model.lk")
>>> outputs = session.run(x)

Nothing heavy is imported before it is used: ``load`` needs numpy only, never torch or MLIR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowerkit.compiler import Compiled, compile
    from lowerkit.launching.loading import load
    from lowerkit.parity.check import check
    from lowerkit.parity.gate_b import GateB
    from lowerkit.parity.report.report import Report
    from lowerkit.quantization.quantize import Quantized, quantize
    from lowerkit.runtimes.session import Session
    from lowerkit.version import __version__

__all__ = [
    "Compiled",
    "GateB",
    "Quantized",
    "Report",
    "Session",
    "__version__",
    "check",
    "compile",
    "load",
    "quantize",
]

_HOMES = {
    "Compiled": "lowerkit.compiler",
    "compile": "lowerkit.compiler",
    "__version__": "lowerkit.version",
    "GateB": "lowerkit.parity.gate_b",
    "Quantized": "lowerkit.quantization.quantize",
    "quantize": "lowerkit.quantization.quantize",
    "Report": "lowerkit.parity.report.report",
    "check": "lowerkit.parity.check",
    "Session": "lowerkit.runtimes.session",
    "load": "lowerkit.launching.loading",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":  # to catch what lowerkit raises needs no import of its own
        return import_module("lowerkit.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'lowerkit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
