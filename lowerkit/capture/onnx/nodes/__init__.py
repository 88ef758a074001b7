"""Rules that turn ONNX nodes into ops of the torch dialect: operator -> rule (see :mod:`node`)."""

from __future__ import annotations

from collections.abc import Mapping

from lowerkit.capture.onnx.nodes import (
    activations,
    constants,
    elementwise,
    indexing,
    moves,
    normalization,
    products,
    reductions,
    regions,
    resizing,
    softmax,
    windows,
)
from lowerkit.capture.onnx.nodes.node import Rule

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **activations.RULES,
    **reductions.RULES,
    **softmax.RULES,
    **constants.RULES,
    **indexing.RULES,
    **moves.RULES,
    **normalization.RULES,
    **products.RULES,
    **regions.RULES,
    **resizing.RULES,
    **windows.RULES,
}
