"""Graphs are traced again only where something has to be, and then once: each round is as long as the export."""

# What capture replaces in torch.export is private.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch._export import utils
from torch.export import ExportedProgram, exported_program

from lowerkit.capture.capture import capture
from lowerkit.capture.torch_export.graph.decomposing import run_decompositions


class Powers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.pow(2).mean(-1, keepdim=True) ** 1.5


class Cache(nn.Module):
    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return self.kept.index_copy_(0, place, x) * 2


def rounds(monkeypatch: pytest.MonkeyPatch, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    count = 0
    traced = ExportedProgram.run_decompositions

    def counted(self: ExportedProgram, *arguments: object, **named: object) -> ExportedProgram:
        nonlocal count
        count += 1
        return traced(self, *arguments, **named)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(ExportedProgram, "run_decompositions", counted)
    capture(module.eval(), inputs)
    return count


def test_powers_of_floats_are_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds(monkeypatch, Powers(), (torch.randn(2, 3),)) == 0


def test_powers_of_integers_take_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cubes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x**3

    assert rounds(monkeypatch, Cubes(), (torch.arange(4),)) == 0


def test_a_state_that_changes_in_place_takes_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rounds(monkeypatch, Cache(), (torch.ones(1, 3), torch.tensor([2]))) == 1


class Composites(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.linear(x, x).std(1).unsqueeze(0)
        return torch.einsum("ij,jk->ik", y, x)


def test_decomposing_gives_what_pytorch_gives_and_restores_its_operators() -> None:
    exported = torch.export.export(Composites(), (torch.randn(3, 3),))
    aten = torch.ops.aten
    operators = (aten.linear.default, aten.einsum.default, aten.std.dim)
    tables: list[dict[Any, Any]] = [{}, {aten.linear.default: lambda x, y: x @ y.t()}]
    for table in tables:
        wanted = exported.run_decompositions(table)
        before = [dict(operator.py_kernels) for operator in operators]
        assert str(run_decompositions(exported, table).graph) == str(wanted.graph)
        assert [dict(operator.py_kernels) for operator in operators] == before
        assert ("aten.linear" in str(wanted.graph)) == (not table)


def test_threads_that_decompose_at_once_restore_pytorchs_functions() -> None:
    before = exported_program._override_composite_implicit_decomp, utils._materialize_cpp_cia_ops
    graphs = [torch.export.export(Composites(), (torch.randn(3, 3),)) for _ in range(4)]
    with ThreadPoolExecutor(len(graphs)) as pool:
        texts = {str(one.graph) for one in pool.map(lambda graph: run_decompositions(graph, {}), graphs)}
    assert len(texts) == 1
    assert (exported_program._override_composite_implicit_decomp, utils._materialize_cpp_cia_ops) == before
