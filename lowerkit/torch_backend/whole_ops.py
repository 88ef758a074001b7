"""Ops that stay whole where no gradient is asked for: ``linear``, ``layer_norm``, ``scaled_dot_product_attention``.

AOTAutograd writes them out, as their gradients need; capture and the passes know the whole ones better.
"""

# The overrides that torch.export uses are private; the versions of torch are pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx
from torch.export import exported_program

from lowerkit.capture.torch_export.graph.decomposing import overridden_composites


def whole_ops(graph: fx.GraphModule, inputs: Sequence[Any]) -> AbstractContextManager[None]:
    """Keeps ops whole while it lasts, unless ``graph`` may record gradients of ``inputs``."""
    if _may_record(graph, inputs):
        return nullcontext()
    kept, _ = exported_program._split_decomp_table_to_cia_and_python_decomp({})
    return overridden_composites(kept)


def _may_record(graph: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    if torch.is_grad_enabled():
        return any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    nodes = [node for module in graph.modules() if isinstance(module, fx.GraphModule) for node in module.graph.nodes]
    return any(node.target is torch._C._set_grad_enabled for node in nodes)
