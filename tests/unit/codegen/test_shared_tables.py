"""A table that a look-up and a product read is stored once, and both read it right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lowerkit
from lowerkit.parity.metrics import compare
from lowerkit.targets.cpu.levels import runs_on_host


class Tied(torch.nn.Module):
    """Returns the rows that were looked up, exactly, and their products with the whole table."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rows)
        self.table = torch.nn.Parameter(torch.randn(rows, width, generator=generator).to(dtype))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        looked_up = torch.nn.functional.embedding(ids, self.table)
        return looked_up, torch.nn.functional.linear(looked_up * 0.5, self.table)


@pytest.mark.parametrize("cpu", ["host", "x86-64-v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(7, 5), (64, 32), (101, 33), (250, 3)])
def test_rows_come_out_of_panels_exactly(rows: int, width: int, dtype: torch.dtype, cpu: str) -> None:
    module = Tied(rows, width, dtype)
    ids = torch.tensor([[0, rows - 1, rows // 2], [1, rows - 1, -1]])
    positive = torch.where(ids < 0, ids + rows, ids)
    compiled = lowerkit.compile(module, (positive,), target=f"cpu:{cpu}")
    looked_up, products = compiled.session.run(positive)
    with torch.no_grad():
        expected = module(positive)
    np.testing.assert_array_equal(looked_up.astype(np.float32), expected[0].float().numpy())
    least = 120 if dtype == torch.float32 else 40
    assert compare(products.astype(np.float32), expected[1].float().numpy()).sqnr_db > least
    random = torch.randint(0, rows, (2, 3))
    np.testing.assert_array_equal(
        compiled.session.run(random)[0].astype(np.float32), module.table.detach()[random].float().numpy()
    )


def stored_tables(compiled: lowerkit.Compiled) -> list[str]:
    return [name for name, weight in compiled.parts.weights.items() if weight.nbytes > 4000]


def test_a_tied_table_is_stored_once() -> None:
    compiled = lowerkit.compile(
        Tied(100, 32, torch.float32), (torch.zeros(1, 4, dtype=torch.int64),), target="cpu:x86-64-v4"
    )
    (name,) = stored_tables(compiled)
    assert "matmul_panels" in name
    (note,) = [entry.note for entry in compiled.parts.ledger if entry.kind == "gather"]
    assert "from panels of" in note


class Untied(torch.nn.Module):
    """Another table for the product, and a table that is multiplied from the other side."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.randn(100, 32))
        self.second = torch.nn.Parameter(torch.randn(64, 32))

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        looked_up = torch.nn.functional.embedding(ids, self.first)
        return torch.nn.functional.linear(looked_up, self.second), x @ self.first


@pytest.mark.skipif(not runs_on_host("x86-64-v4"), reason="this machine is below x86-64-v4")
def test_other_tables_are_looked_up_where_they_are() -> None:
    module, inputs = Untied(), (torch.tensor([[3, 99]]), torch.randn(5, 100))
    compiled = lowerkit.compile(module, inputs, target="cpu:x86-64-v4")
    assert "first" in stored_tables(compiled)
    for ours, eager in zip(compiled.session.run(*inputs), module(*inputs), strict=True):
        assert compare(ours, eager.detach().numpy()).sqnr_db > 110


def test_tiles_are_no_panels() -> None:
    """AMX tiles hold pairs of rows: the look-up takes the table as it is."""
    module = Tied(128, 64, torch.bfloat16)
    compiled = lowerkit.compile(module, (torch.zeros(1, 64, dtype=torch.int64),), target="cpu:sapphirerapids")
    assert len(stored_tables(compiled)) == 2
