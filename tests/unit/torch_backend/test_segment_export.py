"""Segments as ExportedPrograms: the numbers that they are given."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from lowerkit.torch_backend.segment import Segment
from lowerkit.torch_backend.segment_export import export_segment


def test_the_size_of_a_tensor_that_is_computed_elsewhere_is_a_number_from_outside() -> None:
    def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y.view(torch.relu(x).numel() // 2, 2)

    traced: Any = make_fx(halves, tracing_mode="symbolic")(torch.randn(3, 4), torch.randn(12))
    (view,) = [node for node in traced.graph.nodes if node.target is torch.ops.aten.view.default]
    assert any(node.target is torch.ops.aten.sym_numel.default for node in traced.graph.nodes)
    exported = export_segment(Segment.of([view], set(), set()), {}, {})
    assert [node.name for node in exported.live] == [view.args[0].name]
    assert all(carrier.dtype is None for carrier in exported.carriers)
    assert torch.ops.aten.relu.default not in {node.target for node in exported.program.graph.nodes}
