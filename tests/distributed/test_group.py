"""Groups for numpy arrays: every operation at once, later and in plans; split, shrink, arena, records."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.calls import REDUCTIONS, Array, Call
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.collective.shrink import agree_on_survivors
from lowerkit.runtimes.collective.tracing.flight_recorder import flight_record, write_flight_record
from lowerkit.runtimes.collective.work import Plan
from tests.support.ranks import PATIENCE, run_ranks, succeed
from tests.support.suite.randomness import RANDOM

pytestmark = pytest.mark.usefixtures("few_objects")

SIZE = 3
OPTIONS = RendezvousOptions(token=b"t" * 32, timeout=PATIENCE)
Issue = Callable[[Group, Call[Any]], Any]


def with_groups(function: Callable[[Group], Any], size: int = SIZE, options: RendezvousOptions = OPTIONS) -> list[Any]:
    """Runs a function of a group on each rank."""
    store = MemoryStore()

    def run(rank: int) -> Any:
        group = Group.join(store, "world", rank, size, options, timeout=PATIENCE)
        try:
            return function(group)
        finally:
            gc.collect()
            group.close()

    return succeed(size, run)


def at_once(group: Group, call: Call[Any]) -> Any:
    return group.run(call)


def later(group: Group, call: Call[Any]) -> Any:
    return group.start(call).wait()


def planned(group: Group, call: Call[Any]) -> Any:
    plan = Plan()
    result = plan.add(group, call)
    plan.run()
    plan.run()
    return result


@pytest.mark.parametrize("issue", [at_once, later, planned], ids=lambda issue: issue.__name__)
@pytest.mark.parametrize("apart", [False, True], ids=["shared-memory", "tcp"])
def test_operations(issue: Issue, apart: bool) -> None:
    data = RANDOM.integers(1, 4, (SIZE, SIZE, 5, 3)).astype(np.float64)

    def run(group: Group) -> None:
        calls, rank = group.calls, group.rank
        mine = data[rank]
        assert issue(group, calls.barrier()) is None
        np.testing.assert_array_equal(issue(group, calls.all_reduce(mine)), data.sum(0))
        np.testing.assert_array_equal(issue(group, calls.all_reduce(mine, "max")), data.max(0))
        reduced = issue(group, calls.reduce(mine, 1, "product"))
        assert (reduced is None) == (rank != 1)
        if reduced is not None:
            np.testing.assert_array_equal(reduced, data.prod(0))
        np.testing.assert_array_equal(issue(group, calls.broadcast(mine.copy(), 2)), data[2])
        np.testing.assert_array_equal(issue(group, calls.all_gather(mine)), data)
        gathered = issue(group, calls.gather(mine, 0))
        assert (gathered is None) == (rank != 0)
        if gathered is not None:
            np.testing.assert_array_equal(gathered, data)
        scattered = issue(group, calls.scatter(list(data) if rank == 1 else None, np.empty_like(mine), 1))
        np.testing.assert_array_equal(scattered, mine)
        np.testing.assert_array_equal(issue(group, calls.reduce_scatter(list(mine))), data.sum(0)[rank])
        np.testing.assert_array_equal(issue(group, calls.all_to_all(list(mine))), data[:, rank])

    with_groups(run, options=RendezvousOptions(b"t" * 32, shared_memory=not apart, timeout=PATIENCE))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(reduction: Any) -> None:
    floats = reduction in ("avg", "premul_sum")
    data = RANDOM.integers(0, 200, (SIZE, 41)).astype(np.float32 if floats else np.uint8)
    expected = {
        "sum": lambda: data.sum(0, dtype=data.dtype), "product": lambda: data.prod(0, dtype=data.dtype),
        "min": lambda: data.min(0), "max": lambda: data.max(0), "avg": lambda: data.sum(0) / SIZE,
        "premul_sum": lambda: 0.5 * data.sum(0), "band": lambda: np.bitwise_and.reduce(data),
        "bor": lambda: np.bitwise_or.reduce(data), "bxor": lambda: np.bitwise_xor.reduce(data),
    }[reduction]()  # fmt: skip
    for result in with_groups(lambda group: group.run(group.calls.all_reduce(data[group.rank], reduction, factor=0.5))):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_messages() -> None:
    data = RANDOM.random((SIZE, 1000))

    def run(group: Group) -> None:
        following, preceding = (group.rank + 1) % SIZE, (group.rank - 1) % SIZE
        sent = group.start(group.calls.send(data[group.rank], following, tag=7))
        got = group.run(group.calls.receive(np.empty(1000), preceding, tag=7))
        sent.wait()
        np.testing.assert_array_equal(got, data[preceding])
        if group.rank == 0:
            works = [group.start(group.calls.receive(np.empty(1), tag=8)) for _ in range(SIZE - 1)]
            assert sorted(work.wait()[0] for work in works) == [1, 2]
            assert sorted(work.source for work in works) == [1, 2]
        else:
            group.run(group.calls.send(np.array([float(group.rank)]), 0, tag=8))

    with_groups(run)


def test_arrays_that_cannot_be_used_are_refused() -> None:
    def run(group: Group) -> None:
        calls = group.calls
        read_only = np.zeros(3)
        read_only.flags.writeable = False
        wrong: list[Callable[[], Any]] = [
            lambda: calls.all_reduce(np.zeros((4, 4))[:, 1]),
            lambda: calls.all_reduce(np.zeros(3, ">f4")),
            lambda: calls.all_reduce(np.zeros(3, np.complex64)),
            lambda: calls.all_reduce(np.zeros(3), output=np.zeros(4)),
            lambda: calls.all_reduce(np.zeros(3), output=read_only),
            lambda: calls.all_reduce(np.zeros(3), "mean"),  # pyright: ignore[reportArgumentType]
            lambda: calls.all_gather(np.zeros(3), parts=[np.zeros(3)]),
            lambda: calls.reduce_scatter([np.zeros(3), np.zeros(3, np.float32), np.zeros(3)]),
            lambda: calls.all_to_all([]),
            lambda: Plan().add(group, calls.send(np.zeros(1), SIZE, tag=3)),
            lambda: calls.all_reduce([1.0]),  # pyright: ignore[reportArgumentType]
            lambda: calls.all_gather(np.float64(1.0)),  # pyright: ignore[reportArgumentType]
        ]
        for make in wrong:
            with pytest.raises(LowerkitError, match="LK1010"):
                make()
        assert group.run(calls.all_reduce(np.ones(1)))[0] == SIZE

    with_groups(run)


def test_memory_that_overlaps_is_refused() -> None:
    def run(group: Group) -> None:
        calls, rank = group.calls, group.rank
        row, square = np.zeros(20), np.zeros((SIZE, 10))
        wrong: list[Call[Any]] = [
            calls.all_reduce(row[:10], output=row[5:15]),
            calls.reduce(row[:10], rank, output=row[5:15]),
            calls.all_gather(square[(rank + 1) % SIZE], parts=list(square)),
            calls.all_gather(row[:4], parts=[row[4:8], row[8:12], row[11:15]]),
            calls.gather(square[(rank + 1) % SIZE], rank, parts=list(square)),
            calls.scatter(list(square), square[(rank + 1) % SIZE], rank),
            calls.reduce_scatter(list(square), output=square[(rank + 1) % SIZE]),
            calls.all_to_all(list(square), list(square)),
            calls.all_to_all(list(square), [np.zeros(10), square[0], np.zeros(10)]),
        ]
        for call in wrong:
            with pytest.raises(LowerkitError, match=r"LK1010.*overlap in memory"):
                group.run(call)
        # A rank's own part may stay where it is.
        data = np.arange(SIZE * 10.0).reshape(SIZE, 10) + 1000 * rank
        own = data.copy()
        group.run(calls.all_gather(own[rank], parts=list(own)))
        assert [row[0] for row in own] == [1010.0 * one for one in range(SIZE)]
        own = data.copy()
        group.run(calls.reduce_scatter(list(own), output=own[rank]))
        np.testing.assert_array_equal(own[rank], SIZE * data[rank] + 1000 * (SIZE * (SIZE - 1) // 2 - SIZE * rank))
        own = data.copy()
        group.run(calls.scatter(list(own), own[rank], 1))
        np.testing.assert_array_equal(own[rank], data[rank] - 1000 * rank + 1000)

    with_groups(run)


def test_messages_in_plans_and_shorter_than_their_arrays() -> None:
    def run(group: Group) -> None:
        following, preceding = (group.rank + 1) % SIZE, (group.rank - 1) % SIZE
        sent, plan = np.zeros(3), Plan()
        plan.add(group, group.calls.send(sent, following, tag=9))
        received = plan.add(group, group.calls.receive(np.full(5, -1.0), preceding, tag=9), timeout=PATIENCE)
        for step in range(3):
            sent[:] = 10 * step + group.rank
            plan.run()
            assert received.tolist() == [10.0 * step + preceding] * 3 + [-1.0] * 2
        work = group.start(group.calls.receive(np.zeros(8, np.int16), tag=2))
        group.run(group.calls.send(np.arange(5, dtype=np.int16), following, tag=2))
        assert work.wait().tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
        assert (work.count, work.source) == (5, preceding)

    with_groups(run)


@pytest.mark.parametrize("apart", [False, True], ids=["shared-memory", "tcp"])
def test_work_that_nobody_holds_keeps_its_arrays(apart: bool) -> None:
    def run(group: Group) -> None:
        alive: list[weakref.ref[Array]] = []
        for _ in range(100):
            given = np.full(50_000, 1.0)
            alive.append(weakref.ref(given))
            group.start(group.calls.all_reduce(given))
            del given
        assert alive[-1]() is not None
        for _ in range(60):  # each looks at two of them
            last = group.start(group.calls.all_reduce(np.ones(3)))
            assert (last.wait() == SIZE).all()
        assert not any(one() is not None for one in alive), "those that are over are let go"
        group.close()
        gc.collect()
        assert not any(one() is not None for one in alive)

    with_groups(run, options=RendezvousOptions(b"t" * 32, shared_memory=not apart, timeout=PATIENCE))


def test_a_group_of_one() -> None:
    with Group.join(MemoryStore(), "alone", 0, 1) as group:
        calls, row = group.calls, np.arange(3.0)
        np.testing.assert_array_equal(group.run(calls.all_reduce(row, "premul_sum", factor=2.0)), 2 * row)
        np.testing.assert_array_equal(group.run(calls.all_to_all([row]))[0], row)
        np.testing.assert_array_equal(group.start(calls.reduce_scatter([row], "avg")).wait(), row)
        refused: list[Call[Any]] = [calls.receive(np.zeros(1)), calls.send(np.zeros(1), 0)]
        for call in refused:
            with pytest.raises(LowerkitError, match="LK1010"):
                group.run(call)
        half = group.split(0)
        assert half is not None and half.size == 1
        half.close()
        half.close()


def test_split_by_colour_and_key() -> None:
    def run(group: Group) -> tuple[int, int, float] | None:
        part = group.split(-1 if group.rank == 4 else group.rank % 2, key=-group.rank)
        if part is None:
            return None
        total = part.run(part.calls.all_reduce(np.array([float(group.rank)])))[0]
        result = part.rank, part.size, float(total)
        part.close()
        return result

    assert with_groups(run, 5) == [(1, 2, 2.0), (1, 2, 4.0), (0, 2, 2.0), (0, 2, 4.0), None]


def lost(group: Group) -> LowerkitError | None:
    try:
        group.run(group.calls.all_reduce(np.ones(2)), timeout=PATIENCE)
    except LowerkitError as error:
        return error
    return None


def test_survivors_shrink_and_go_on() -> None:
    leaves = threading.Event()

    def run(group: Group) -> float:
        if group.rank == 1:
            leaves.wait(PATIENCE)
            return -1.0  # closes its group: for the others it is lost
        leaves.set()
        # Whether the other is seen to be gone at once or at the second call is a matter of time.
        for error in (lost(group), lost(group)):
            assert error is None or error.code in ("LK8008", "LK8009", "LK8011")
        assert group.aborted is not None
        smaller = group.shrink(timeout=PATIENCE)
        total = smaller.run(smaller.calls.all_reduce(np.array([float(group.rank)])))
        assert (smaller.rank, smaller.size) == (group.rank // 2, 2)
        smaller.close()
        return float(total[0])

    assert with_groups(run) == [2.0, -1.0, 2.0]


def test_who_knows_of_a_death_spares_the_others_the_wait() -> None:
    store = MemoryStore()
    started = time.monotonic()
    known: list[set[int]] = [set(), set(), {1, 3}]  # rank 0 asks for the dead rank 1 before it hears rank 2
    ranks = {0: 0, 1: 2}
    agreed = succeed(2, lambda rank: agree_on_survivors(store, "p", ranks[rank], 4, known[ranks[rank]], 2 * PATIENCE))
    assert agreed == [[0, 2], [0, 2]]
    assert time.monotonic() - started < PATIENCE


def test_a_death_that_a_part_noticed_spares_the_whole_group_the_wait() -> None:
    started = time.monotonic()
    leaves = threading.Event()

    def run(group: Group) -> int:
        part = group.subgroup("part", [2, 1, 0])
        if group.rank == 1:
            leaves.wait(PATIENCE)
            return 0
        leaves.set()
        assert lost(part) is not None
        with group.shrink(timeout=2 * PATIENCE) as smaller:
            return smaller.size

    assert with_groups(run) == [2, 0, 2]
    assert time.monotonic() - started < PATIENCE


def test_a_failure_in_a_subgroup_is_told_to_those_outside_it() -> None:
    def run(group: Group) -> str:
        part = group.split(group.rank // 2)
        assert part is not None
        if group.rank < 2:
            with pytest.raises(LowerkitError):  # the ranks of the subgroup differ
                part.run(part.calls.all_reduce(np.ones(2 + group.rank)))
        else:
            with pytest.raises(LowerkitError, match=r"shrinks the group after: .*all_reduce #1 .*/1\.0', rank [01]"):
                group.run(group.calls.barrier())
        smaller = group.shrink(timeout=PATIENCE)
        size = smaller.size
        smaller.close()
        part.close()
        return str(size)

    assert with_groups(run) == ["3", "3", "3"]


def test_who_comes_late_to_shrink_is_told() -> None:
    store = MemoryStore()
    first, second = run_ranks(2, lambda rank: agree_on_survivors(store, "p", rank, 3, set(), 1.5))
    assert first == second == [0, 1]
    with pytest.raises(LowerkitError, match=r"LK8007.*ranks \[0, 1\] went on"):
        agree_on_survivors(store, "p", 2, 3, set(), 0.1)


def test_shrinking_again_under_one_name() -> None:
    """What an earlier group of the name left in the store does not decide who is left."""
    store = MemoryStore()
    for left in ([0, 1], [1, 2], [0, 2]):

        def run(rank: int, left: list[int] = left) -> list[int]:
            with Group.join(store, "world", rank, 3, RendezvousOptions(timeout=PATIENCE), timeout=PATIENCE) as group:
                group.run(group.calls.barrier())
                if rank not in left:
                    return []
                with group.shrink(timeout=1.0) as smaller:
                    return [int(row[0]) for row in smaller.run(smaller.calls.all_gather(np.array([rank])))]

        assert [members for members in succeed(3, run) if members] == [left, left]


@pytest.mark.parametrize("size", [1, 3])
def test_arena(size: int) -> None:
    def run(group: Group) -> None:
        arena = group.arena(1 << 16)
        first = arena.empty((100, 7), np.float32)
        first[:] = group.rank + 1
        assert first.ctypes.data % 64 == 0
        result = group.run(group.calls.all_reduce(first, output=first))
        assert (result == sum(range(1, size + 1))).all()
        with pytest.raises(LowerkitError, match="LK7004"):
            arena.empty((1 << 16,))
        with pytest.raises(LowerkitError, match=r"LK1010.*in use"):
            arena.close()
        with pytest.raises(LowerkitError, match="LK1010"):
            group.arena(1 << 12)
        del first, result
        gc.collect()
        whole = arena.empty((1 << 14,), np.float32)  # pieces that were given back are one again
        assert whole.nbytes == 1 << 16
        del whole

    with_groups(run, size)


def test_flight_record(tmp_path: Path) -> None:
    def run(group: Group) -> Array:
        total = group.run(group.calls.all_reduce(np.ones((2, 3)), "max"))
        group.run(group.calls.barrier())
        document = flight_record(group.native, group.name, group.rank, group.size)
        write_flight_record(tmp_path / f"{group.rank}.json", document)
        group.run(group.calls.barrier())
        return total

    with_groups(run)
    for rank in range(SIZE):
        document = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (document["schema"], document["rank"], document["size"]) == ("lowerkit.flight_record", rank, SIZE)
        first, second = document["records"][:2]
        assert first["operation"] == "all_reduce" and first["reduction"] == "max" and first["dtype"] == "float64"
        assert first["sequence"] == 1 and first["shape"] == [2, 3] and first["status"] == "ok"
        assert second["operation"] == "barrier" and second["dtype"] is None
        assert first["started"] <= first["finished"] <= second["finished"]
    with pytest.raises(LowerkitError, match="LK1010"):
        write_flight_record(tmp_path / "none" / "x.json", {})
