"""Flight records merged: who waited for whom, where the ranks parted, what each did last."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lowerkit.cli.main import cli
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.rendezvous import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.collective.tracing.chrome_trace import chrome_trace
from lowerkit.runtimes.collective.tracing.flight_record_file import FlightRecord, read_flight_record, to_flight_record
from lowerkit.runtimes.collective.tracing.flight_recorder import flight_record, write_flight_record
from lowerkit.runtimes.collective.tracing.trace import Trace, group_records
from tests.support.ranks import PATIENCE, run_ranks, succeed

OPTIONS = RendezvousOptions(token=b"t" * 32, timeout=PATIENCE)


def entry(
    sequence: int, started: int, waited: int = 0, waited_for: int | None = None, **changed: Any
) -> dict[str, Any]:
    return {
        "sequence": sequence, "operation": "all_reduce", "dtype": "float32", "reduction": "sum", "root": None,
        "count": 12, "tag": 0, "shape": [3, 4], "started": started, "finished": started + waited + 10,
        "waited": waited, "waited_for": waited_for, "status": "ok", **changed,
    }  # fmt: skip


def document(rank: int, *entries: dict[str, Any], size: int = 3, **changed: Any) -> FlightRecord:
    return to_flight_record(
        {
            "schema": "lowerkit.flight_record", "version": 1, "group": "world", "rank": rank, "size": size,
            "host": "here", "process": 100 + rank, "written": 10_000, "aborted": None, "dead": [],
            "records": list(entries), **changed,
        }
    )  # fmt: skip


def test_a_wait_is_laid_on_the_rank_at_the_end_of_the_chain() -> None:
    # Rank 0 waits for 1, which waits for 2, which is late.
    trace = Trace.of(
        [
            document(1, entry(7, 100, 880, 2)),
            document(0, entry(7, 0, 1000, 1)),
            document(2, entry(7, 1000)),
        ]
    )
    (step,) = trace.steps
    assert step.culprits == {0: 2, 1: 2} and step.last == 2 and step.spread == 1000
    assert [row.caused for row in trace.ranks] == [0, 0, 1880]
    assert [row.waited for row in trace.ranks] == [1000, 880, 0]
    assert trace.first_mismatch is None and trace.missing == () and step.behind == ()


def test_a_short_wait_on_the_way_is_no_excuse() -> None:
    trace = Trace.of([document(0, entry(7, 0, 1000, 1)), document(1, entry(7, 900, 50, 2)), document(2, entry(7, 950))])
    assert trace.steps[0].culprits == {0: 1, 1: 2}


def test_ranks_that_wait_for_each_other_end_the_chain() -> None:
    trace = Trace.of([document(0, entry(7, 0, 100, 1)), document(1, entry(7, 0, 100, 0)), document(2, entry(7, 0))])
    assert trace.steps[0].culprits == {0: 1, 1: 0}


def test_a_wait_is_followed_into_earlier_operations() -> None:
    # Rank 0 waits in 9 for rank 1, which meanwhile waits in 7 for rank 2: that is late for 7. Rank 2 waits later for a
    # rank that is late for 8: that excuses nothing.
    trace = Trace.of(
        [
            document(0, entry(7, 0), entry(8, 20), entry(9, 40, 1000, 1), size=4),
            document(1, entry(7, 0, 1000, 2), entry(8, 1020), entry(9, 1040), size=4),
            document(2, entry(7, 1000), entry(8, 1020, 5000, 3), size=4),
            document(3, entry(7, 0), entry(8, 6000), size=4),
        ]
    )
    assert [step.culprits for step in trace.steps] == [{1: 2}, {2: 3}, {0: 2}]
    assert [row.caused for row in trace.ranks] == [0, 0, 2000, 5000]


def test_waits_of_another_time_excuse_nobody() -> None:
    before = [entry(6, 0, 1000, 2), entry(7, 3000)]
    later = [entry(7, 3000), entry(8, 3010, 1000, 2)]
    for others in (before, later):
        trace = Trace.of([document(0, entry(7, 1900, 1100, 1)), document(1, *others), document(2, entry(6, 1000))])
        assert next(step.culprits[0] for step in trace.steps if step.sequence == 7) == 1


def test_many_short_waits_are_one_long_one() -> None:
    waits = [entry(number, 100 * number, 90, 2) for number in range(1, 10)]
    trace = Trace.of([document(0, entry(12, 50, 1000, 1)), document(1, *waits, entry(12, 1040)), document(2)])
    assert trace.steps[-1].culprits == {0: 2}


def test_waits_for_messages_are_followed() -> None:
    received = entry(0, 0, 1000, 1, operation="receive", reduction=None, root=1, shape=[])
    trace = Trace.of([document(0, received), document(1, entry(3, 0, 900, 2)), document(2, entry(3, 900))])
    assert [row.caused for row in trace.ranks] == [0, 0, 1900]
    first = entry(2, 0, 1000, 1)
    trace = Trace.of([document(0, first), document(1, {**received, "waited_for": 2}, entry(2, 1000)), document(2)])
    assert [row.caused for row in trace.ranks] == [0, 0, 2000]


def test_the_first_mismatch_and_who_fell_behind() -> None:
    trace = Trace.of(
        [
            document(0, entry(1, 0), entry(2, 10), entry(3, 20)),
            document(1, entry(1, 0), entry(2, 10, shape=[12]), entry(3, 20, operation="barrier")),
            document(2, entry(1, 0)),
        ]
    )
    assert trace.first_mismatch is not None and trace.first_mismatch.sequence == 2
    assert trace.first_mismatch.mismatch == (
        "rank 0: all_reduce(sum, float32 x 12, shape 3x4)",
        "rank 1: all_reduce(sum, float32 x 12, shape 12)",
    )
    assert [step.behind for step in trace.steps] == [(), (2,), (2,)]
    unequal = [document(rank, entry(1, 0, operation="all_gather", count=rank, shape=[])) for rank in range(3)]
    assert Trace.of(unequal).first_mismatch is None


def test_what_the_recorder_forgot_is_not_behind() -> None:
    trace = Trace.of([document(0, entry(1, 0), entry(2, 10)), document(1, entry(2, 10)), document(2, entry(2, 10))])
    assert [step.behind for step in trace.steps] == [(), ()]


def test_messages_count() -> None:
    received = entry(0, 5, 70, 2, operation="receive", reduction=None, root=2, shape=[])
    trace = Trace.of([document(0, received), document(2), document(1, entry(0, 9_000, finished=0, status="pending"))])
    assert [row.caused for row in trace.ranks] == [0, 0, 70]
    assert [row.running for row in trace.ranks] == [0, 1_000, 0]
    assert trace.ranks[2].last is None and trace.messages[0][0].text == "receive(float32 x 12, rank 2)"


def test_records_that_do_not_belong_together() -> None:
    with pytest.raises(LowerkitError, match=r"LK1002.*two records are of rank 0"):
        Trace.of([document(0), document(0)])
    with pytest.raises(LowerkitError, match=r"LK1002.*different groups"):
        Trace.of([document(0), document(1, size=4)])
    assert [trace.group for trace in group_records([document(0), document(0, group="b")])] == ["b", "world"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": "lowerkit.check"}',
        "\x80",
        json.dumps({"schema": "lowerkit.flight_record", "version": 2}),
    ],
)
def test_foreign_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    with pytest.raises(LowerkitError, match="LK1002"):
        read_flight_record(path)
    with pytest.raises(LowerkitError, match="LK1001"):
        read_flight_record(tmp_path / "none.json")


@pytest.mark.parametrize(
    "changed",
    [
        {"size": 1 << 40}, {"size": 0}, {"rank": -1}, {"written": -1}, {"process": 1 << 70}, {"dead": [9]},
        {"operation": "sum"}, {"dtype": "f32"}, {"reduction": "mean"}, {"status": "lost"}, {"sequence": -1},
        {"started": -5}, {"waited": 1 << 64}, {"waited_for": 7}, {"count": -1}, {"shape": [1] * 9}, {"shape": [-1]},
        {"root": -2}, {"deep": 0},
    ],
    ids=str,
)  # fmt: skip
def test_records_with_impossible_values_are_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    whole = {
        "schema": "lowerkit.flight_record", "version": 1, "group": "world", "rank": 0, "size": 3, "host": "here",
        "process": 1, "written": 10, "aborted": None, "dead": [], "records": [entry(1, 5)],
    }  # fmt: skip
    path = tmp_path / "record.json"
    path.write_text(json.dumps(whole))
    assert read_flight_record(path).size == 3
    whole["records"] = [entry(1, 5) | {name: value for name, value in changed.items() if name not in whole}]
    text = json.dumps(whole | {name: value for name, value in changed.items() if name in whole})
    if "deep" in changed:
        text = '{"x": ' + "[" * 100_000 + text[1:]
    path.write_text(text)
    result = CliRunner().invoke(cli, ["comm", "trace", str(path)], standalone_mode=False)
    assert isinstance(result.exception, LowerkitError) and result.exception.code == "LK1002"


def test_names_do_nothing_to_the_terminal(tmp_path: Path) -> None:
    escape = "\x1b[2Jgroup\r\n\u202e"
    whole = {
        "schema": "lowerkit.flight_record", "version": 1, "group": escape, "rank": 0, "size": 1, "host": escape,
        "process": 1, "written": 10, "aborted": escape, "dead": [], "records": [entry(1, 5)],
    }  # fmt: skip
    path = tmp_path / "record.json"
    path.write_text(json.dumps(whole))
    printed = CliRunner().invoke(cli, ["comm", "trace", str(path)]).stdout
    assert "\\x1b[2Jgroup\\r\\n\\u202e" in printed
    assert all(character.isprintable() or character == "\n" for character in printed)


def test_ranks_beyond_the_group_are_refused() -> None:
    with pytest.raises(ValueError, match="0 to 2"):
        document(3)
    with pytest.raises(ValueError, match="0 to 2"):
        document(0, entry(1, 0, 5, 3))


def test_a_real_group_names_who_was_slow(tmp_path: Path) -> None:
    store = MemoryStore()

    def run(rank: int) -> Path:
        group = Group.join(store, "world", rank, 3, OPTIONS, timeout=PATIENCE)
        for step in range(4):
            if (rank, step) == (1, 2):
                time.sleep(1.0)  # longer than a busy machine holds another rank up
            group.run(group.calls.all_reduce(np.ones(1000, np.float32)))
        path = tmp_path / f"{rank}.json"
        write_flight_record(path, flight_record(group.native, group.name, rank, 3))
        group.close()
        return path

    paths = succeed(3, run)
    trace = Trace.of(map(read_flight_record, paths))
    assert max(trace.ranks, key=lambda row: row.caused).rank == 1
    assert max(trace.steps, key=lambda step: step.longest_wait).sequence == 3
    assert trace.steps[2].last == 1 and trace.steps[2].longest_wait > 200_000_000

    chrome = tmp_path / "chrome.json"
    result = CliRunner().invoke(cli, ["comm", "trace", *map(str, paths), "--json", "--chrome", str(chrome)])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    (group,) = printed["groups"]
    assert printed["schema"] == "lowerkit.comm_trace" and group["size"] == 3 and group["first_mismatch"] is None
    assert group["steps"][0]["sequence"] == 3 and {wait["culprit"] for wait in group["steps"][0]["waits"]} == {1}
    events = json.loads(chrome.read_text())["traceEvents"]
    bars = [event for event in events if event["ph"] == "X"]
    assert len(bars) == 12 and min(event["ts"] for event in bars) == 0 and all(event["dur"] > 0 for event in bars)
    table = CliRunner().invoke(cli, ["comm", "trace", str(paths[0]), str(paths[2])]).stdout
    assert "group world, 3 ranks" in table and "no record of rank 1" in table


def test_an_operation_that_runs_is_a_bar_without_an_end() -> None:
    running = entry(4, 500, finished=0, status="pending")
    events = chrome_trace([Trace.of([document(0, running)])])["traceEvents"]
    (bar,) = [event for event in events if event["ph"] == "B"]
    assert bar["name"] == "all_reduce #4" and bar["args"]["status"] == "pending"


def test_a_failure_leaves_its_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    caplog.set_level(logging.WARNING)

    def run(rank: int) -> None:
        group = Group.join(store, "my/world", rank, 2, OPTIONS, timeout=PATIENCE, record_folder=tmp_path)
        group.run(group.calls.barrier())
        try:
            if rank:
                group.start(group.calls.all_reduce(np.ones(3))).wait()
            else:
                group.run(group.calls.barrier())
        finally:
            group.close()

    results = run_ranks(2, run)
    assert all(isinstance(result, LowerkitError) for result in results), results
    paths = [tmp_path / f"my_world.rank{rank}.json" for rank in (0, 1)]
    assert sorted(tmp_path.iterdir()) == paths
    assert all(str(path) in caplog.text for path in paths)
    printed = CliRunner().invoke(cli, ["comm", "trace", *map(str, paths)]).stdout
    assert (
        "the ranks parted at operation #2: rank 0: barrier(); rank 1: all_reduce(sum, float64 x 3, shape 3)" in printed
    )


def test_no_failure_leaves_nothing(tmp_path: Path) -> None:
    group = Group.join(MemoryStore(), "alone", 0, 1, OPTIONS, record_folder=tmp_path)
    group.run(group.calls.barrier())
    group.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(LowerkitError, match="is no folder"):
        Group.join(MemoryStore(), "alone", 0, 1, OPTIONS, record_folder=tmp_path / "none")
