"""What the commands say of an artifact for a mesh of ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.mesh.artifacts import COLUMNS, write_mesh, write_one_rank
from tests.unit.cli.conftest import RunCommand


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_inspect_shows_axes_parts_and_collectives(ranks: int, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    path = write_mesh(tmp_path / "m.lk", ranks)
    outcome = lowerkit_command("inspect", path, "--json")
    assert outcome.code == 0, outcome.err
    facts = json.loads(outcome.out)
    row = 4 * COLUMNS
    assert facts["mesh"] == [{"name": "tp", "size": ranks}]
    assert facts["sharded"] == [{"name": "shards", "axis": "tp", "bytes": ranks * row, "rank_bytes": row}]
    assert facts["totals"]["weight_bytes"] - facts["totals"]["rank_weight_bytes"] == (ranks - 1) * row
    first, second = facts["steps"]
    assert first["collective"] is None
    expected = {
        "operation": "all_reduce",
        "axis": "tp",
        "dtype": "f32",
        "reduction": "sum",
        "phase": "run",
        "bytes": row,
    }
    assert second["collective"] == expected

    text = lowerkit_command("inspect", path).out
    assert f"mesh tp={ranks}" in text
    (weight,) = [line.split() for line in text.splitlines() if line.startswith("shards ")]
    assert weight == ["shards", "tp", str(row), str(ranks * row)]
    (collective,) = [line.split() for line in text.splitlines() if "all_reduce" in line and " sum " in line]
    assert collective[1:7] == ["all_reduce", "tp", "f32", "sum", "run", str(row)]


def test_inspect_says_nothing_of_ranks_where_there_is_one(tmp_path: Path, lowerkit_command: RunCommand) -> None:
    path = write_one_rank(tmp_path / "one.lk")
    facts = json.loads(lowerkit_command("inspect", path, "--json").out)
    assert facts["mesh"] == [] and facts["sharded"] == []
    assert facts["totals"]["rank_weight_bytes"] == facts["totals"]["weight_bytes"]
    assert "mesh" not in lowerkit_command("inspect", path).out
