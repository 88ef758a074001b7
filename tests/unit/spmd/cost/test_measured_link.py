"""Links out of what `lowerkit comm tune --json` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lowerkit.errors import InputError
from lowerkit.runtimes.collective.tuning.table import SCHEMA, Tuning, TuningTable
from lowerkit.spmd.cost.collective_time import fastest
from lowerkit.spmd.cost.machine import LinkModel
from lowerkit.spmd.cost.measured_link import link_of, read_link


def document(link: LinkModel, ranks: int, sizes: tuple[int, ...] = (64, 1 << 24)) -> dict[str, Any]:
    medians = {str(size): fastest("all_reduce", ranks, size, link).seconds(link) for size in sizes}
    others = {size: seconds * 9 for size, seconds in medians.items()}
    trials: list[dict[str, Any]] = [
        {"field": "tile_bytes", "value": 0, "ratio": 1.0, "median_seconds": medians, "chosen": True},
        {"field": "tile_bytes", "value": 65536, "ratio": 9.0, "median_seconds": others, "chosen": False},
    ]
    return {"schema": "lowerkit.comm_tune", "version": 2, "ranks": {str(ranks): {"tuning": {}, "trials": trials}}}


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_times_of_a_link_give_the_link(ranks: int, tmp_path: Path) -> None:
    link = LinkModel(bandwidth=3e9, latency=4e-6)
    path = tmp_path / "tune.json"
    path.write_text(json.dumps(document(link, ranks)))
    found = read_link(path)
    assert found.bandwidth == pytest.approx(link.bandwidth)
    assert found.latency == pytest.approx(link.latency)


def test_the_table_of_comm_tune_gives_the_same_link(tmp_path: Path) -> None:
    link, path = LinkModel(bandwidth=3e9, latency=4e-6), tmp_path / "table.json"
    medians = {size: fastest("all_reduce", 2, size, link).seconds(link) for size in (64, 1 << 24)}
    TuningTable("a processor", 2, {2: Tuning()}, seconds={2: medians}).save(path)
    found = read_link(path)
    assert (found.bandwidth, found.latency) == (pytest.approx(link.bandwidth), pytest.approx(link.latency))
    old = {"schema": SCHEMA, "version": 1, "processor": "a processor", "processors": 2, "ranks": {"2": {}}}
    path.write_text(json.dumps(old))
    with pytest.raises(InputError, match="holds no times"):
        read_link(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    with pytest.raises(InputError) as caught:
        read_link(path)
    assert caught.value.code == "LK1001"
    wrong = document(LinkModel(1e9, 1e-6), 2)
    for text in ("{", json.dumps({**wrong, "schema": "lowerkit.bench"}), json.dumps({**wrong, "ranks": {}})):
        path.write_text(text)
        with pytest.raises(InputError) as caught:
            read_link(path)
        assert caught.value.code == "LK1002"


def test_times_that_no_link_has_are_refused() -> None:
    with pytest.raises(ValueError, match="no link explains"):
        link_of({64: 1e-3, 1 << 20: 1e-3}, 2)
    with pytest.raises(ValueError, match="two sizes"):
        link_of({64: 1e-3}, 2)
