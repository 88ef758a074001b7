"""Artifacts on a cluster: `deployment` serves one by Ray Serve, `LowerkitPredictor` runs one in Ray Data.

Ray comes with ``pip install 'lowerkit[ray]'``; torch and MLIR are not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowerkit.serving.application import deployment
    from lowerkit.serving.predictor import LowerkitPredictor

__all__ = ["LowerkitPredictor", "deployment"]


def __getattr__(name: str) -> Any:
    if name == "deployment":
        from lowerkit.serving.application import deployment

        return deployment
    if name == "LowerkitPredictor":
        from lowerkit.serving.predictor import LowerkitPredictor

        return LowerkitPredictor
    raise AttributeError(f"module 'lowerkit.serving' has no attribute {name!r}")
