"""Passes that recognize and raise what a captured module holds to the lk dialect.

:func:`raising_passes` is their order: names are restored before ops are raised, and attention is raised before the
matrix products and repeats that it consists of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowerkit.passes.base import Pass

ORDER = (
    "raise-index-checks",
    "fold-empty-tensors",
    "simplify-torch",
    "raise-quantization",
    "decompose-lists",
    "recognize-linear",
    "recognize-gelu",
    "recognize-layer-norm",
    "recognize-rms-norm",
    "recognize-rope",
    "recognize-attention",
    "raise-attention",
    "raise-matmul",
    "raise-convolution",
    "raise-softmax",
    "raise-normalization",
    "raise-pooling",
    "raise-reductions",
    "raise-gather",
    "raise-scatter",
    "raise-resize",
    "raise-sorting",
    "raise-cumulative",
    "promote-operands",
    "widen-elementwise",
    "decompose-elementwise",
    "decompose-divisions",
    "decompose-limits",
    "decompose-moves",
    "raise-views",
    "torch-to-linalg",
)
"""Captured -> raised, by name."""


def raising_passes() -> list[Pass]:
    """Returns the passes from captured to raised, with their default options."""
    from lowerkit.passes.registry import find_pass

    return [find_pass(name)() for name in ORDER]
