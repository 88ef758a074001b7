"""Tuning: the search on invented timings, tables on disk, groups that are given one, one short measurement."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from lowerkit.cli.main import cli
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.rendezvous import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.collective.tuning import table as tuning
from lowerkit.runtimes.collective.tuning.measure import measure_here
from lowerkit.runtimes.collective.tuning.search import ALL_SIZES, SWEEPS, Measure, search
from lowerkit.runtimes.collective.tuning.table import Tuning, TuningTable, processor_name, processors
from tests.support.ranks import PATIENCE, run_ranks, succeed
from tests.support.suite.randomness import RANDOM

OPTIONS = RendezvousOptions(token=b"t" * 32, timeout=PATIENCE)


def machine(best: Tuning, gain: float) -> Measure:
    """Returns a measure in which each field that equals the best one's saves ``gain`` of the time."""

    def measure(candidates: Sequence[Tuning], ranks: int, sizes: Sequence[int]) -> list[dict[int, float]]:
        assert ranks == 4 and candidates[0] in candidates
        return [
            {
                size: 1e-9 * size * (1 - gain) ** sum(a == b for a, b in zip(one.numbers, best.numbers, strict=True))
                for size in sizes
            }
            for one in candidates
        ]

    return measure


def test_the_best_of_each_field_is_found() -> None:
    best = Tuning(one_shot_limit=32 << 10, tile_bytes=512 << 10, streaming_limit=4 << 20)
    found, trials = search(machine(best, 0.1), 4)
    assert found == best
    assert [trial.value for trial in trials if trial.chosen] == [*best.numbers[:3], 1]
    assert [trial.ratio for trial in trials if trial.chosen] == pytest.approx([0.9] * 3 + [0.9**3])
    assert len(trials) == sum(1 + len(sweep.values) for sweep in SWEEPS) + 2


def test_what_noise_could_explain_changes_nothing() -> None:
    best = Tuning(one_shot_limit=32 << 10, tile_bytes=512 << 10, streaming_limit=4 << 20)
    found, _ = search(machine(best, 0.02), 4)
    assert found == Tuning()


@pytest.mark.parametrize(("loss", "kept"), [(1.05, True), (1.2, False)])
def test_values_that_lose_where_nobody_looked_are_dropped(loss: float, kept: bool) -> None:
    gains = machine(Tuning(tile_bytes=512 << 10), 0.1)

    def measure(candidates: Sequence[Tuning], ranks: int, sizes: Sequence[int]) -> list[dict[int, float]]:
        found = [dict(one) for one in gains(candidates, ranks, sizes)]
        if sizes == ALL_SIZES:
            found[1][16] = loss * found[0][16]
        return found

    found, trials = search(measure, 4)
    assert found == (Tuning(tile_bytes=512 << 10) if kept else Tuning())
    assert [(trial.field, trial.value, trial.chosen) for trial in trials[-2:]] == [
        ("all", 0, not kept),
        ("all", 1, kept),
    ]


def test_every_value_tried_is_one_that_groups_take() -> None:
    for sweep in SWEEPS:
        for value in sweep.values:
            Tuning(**{sweep.field: value}).check()


def test_tables_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "table.json"
    table = TuningTable(processor_name(), processors(), {2: Tuning(tile_bytes=128 << 10), 8: Tuning()})
    table = replace(table, seconds={2: {64: 1e-6, 1 << 20: 4e-5}})
    table.save(path)
    loaded = TuningTable.load(path)
    assert loaded.ranks == table.ranks and loaded.source == str(path) and loaded.seconds == table.seconds
    old = json.loads(path.read_text())
    del old["seconds"]
    (tmp_path / "old.json").write_text(json.dumps({**old, "version": 1}))
    assert replace(TuningTable.load(tmp_path / "old.json"), source="") == replace(table, seconds={})
    assert loaded.for_ranks(2).tile_bytes == 128 << 10 and loaded.for_ranks(3) == Tuning()
    monkeypatch.setattr(tuning, "processor_name", lambda: "another")
    with pytest.raises(LowerkitError, match=r"LK1003.*another"):
        TuningTable.load(path)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "LK1002"),
        ("[]", "LK1002"),
        ('{"schema": "x", "version": 1, "processor": "", "processors": 1, "ranks": {}}', "LK1002"),
        ('{"schema": "lowerkit.collective_tuning", "version": 2}', "LK1002"),
        ("RANKS {\"2\": {\"tile\": 1}}", "LK1002"),
        ("RANKS {\"2\": {\"tile_bytes\": 100}}", "LK1010"),
        ("RANKS {\"2\": {\"spin_nanoseconds\": -1}}", "LK1010"),
        ("RANKS {\"2\": {\"spin_nanoseconds\": 4000000000000000000}}", "LK1010"),
        ("RANKS {\"2\": {\"streaming_limit\": 9223372036854775808}}", "LK1010"),
        ('{"x": ' + "[" * 100_000, "LK1002"),
    ],
)  # fmt: skip
def test_foreign_tables_are_refused(text: str, code: str, tmp_path: Path) -> None:
    if text.startswith("RANKS"):
        ranks = json.loads(text.removeprefix("RANKS "))
        head = {"schema": tuning.SCHEMA, "version": 1, "processor": processor_name(), "processors": processors()}
        text = json.dumps({**head, "ranks": ranks})
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(LowerkitError, match=code):
        TuningTable.load(path)
    with pytest.raises(LowerkitError, match="LK1001"):
        TuningTable.load(tmp_path / "none.json")


@pytest.mark.parametrize("one", [Tuning(one_shot_limit=-1), Tuning(tile_bytes=100), Tuning(spin_nanoseconds=1 << 62)])
def test_no_group_takes_values_out_of_range(one: Tuning) -> None:
    table = TuningTable(processor_name(), processors(), {2: one}, "a table")

    store = MemoryStore()
    results = run_ranks(2, lambda rank: Group.join(store, "world", rank, 2, OPTIONS, tuning=table))
    assert all(isinstance(result, LowerkitError) and result.code == "LK1010" for result in results), results


@pytest.mark.parametrize("one", [Tuning(tile_bytes=64 << 10), Tuning(one_shot_limit=4 << 10, streaming_limit=1 << 20)])
def test_tuned_groups_compute_the_same(one: Tuning, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lowerkit.collective")
    store, table = MemoryStore(), TuningTable(processor_name(), processors(), {3: one, 2: one}, "a table")
    rng = RANDOM
    inputs = {size: rng.integers(-99, 99, (3, size)).astype(np.float32) for size in (3, 5_001, 300_007)}

    def run(rank: int) -> None:
        group = Group.join(store, "world", rank, 3, OPTIONS, timeout=PATIENCE, tuning=table)
        for size, rows in inputs.items():
            total = group.run(group.calls.all_reduce(rows[rank]))
            assert np.array_equal(total, rows.sum(0)), size
        part = group.split(int(rank > 0))
        assert part is not None
        part.run(part.calls.barrier())
        part.close()
        group.close()

    succeed(3, run)
    assert "tuning of a table for 3 ranks" in caplog.text and "tuning of a table for 2 ranks" in caplog.text


def test_tables_that_differ_between_ranks_are_an_error() -> None:
    store = MemoryStore()

    def run(rank: int) -> None:
        table = TuningTable("", 1, {2: Tuning(tile_bytes=(64 << 10) * (1 + rank))}, "a table")
        Group.join(store, "world", rank, 2, OPTIONS, timeout=2.0, tuning=table).close()

    assert isinstance(run_ranks(2, run)[1], LowerkitError)


def test_a_short_measurement() -> None:
    candidates = [Tuning(), Tuning(one_shot_limit=4 << 10)]
    medians = measure_here(candidates, 2, [64, 12 << 10], 0.0)
    assert [sorted(one) for one in medians] == [[64, 12 << 10]] * 2
    assert all(0 < seconds < 5 for one in medians for seconds in one.values())


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = Tuning(tile_bytes=128 << 10)

    def fake(candidates: Sequence[Tuning], ranks: int, sizes: Sequence[int], seconds: float) -> object:
        assert seconds == 0.5
        return machine(best, 0.2)(candidates, 4, sizes)

    monkeypatch.setattr("lowerkit.runtimes.collective.tuning.measure.measure_here", fake)
    path = tmp_path / "table.json"
    common = ["comm", "tune", "--ranks", "4,2", "--seconds", "0.5", "--output", str(path)]
    dry = CliRunner().invoke(cli, [*common, "--dry-run"])
    assert dry.exit_code == 0 and "nothing was written" in dry.output and not path.exists()
    result = CliRunner().invoke(cli, [*common, "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["schema"] == "lowerkit.comm_tune" and printed["file"] == str(path)
    assert printed["ranks"]["2"]["tuning"]["tile_bytes"] == 128 << 10
    assert TuningTable.load(path).ranks == {2: best, 4: best}
    for wrong in ("1", "two", ""):
        assert isinstance(CliRunner().invoke(cli, ["comm", "tune", "--ranks", wrong]).exception, LowerkitError)


def test_info(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tuning, "default_path", lambda: tmp_path / "table.json")
    printed = json.loads(CliRunner().invoke(cli, ["comm", "info", "--json"]).stdout)
    assert printed["processors"] == processors() and "none at" in printed["tuning"] and printed["tuned"] == {}
    TuningTable(processor_name(), processors(), {2: Tuning(tile_bytes=128 << 10)}).save(tmp_path / "table.json")
    assert "for 2 ranks" in CliRunner().invoke(cli, ["comm", "info"]).stdout
