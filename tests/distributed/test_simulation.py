"""Ranks as threads in a simulation: right numbers, the same moments in every run, and faults that are named."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.calls import Array
from lowerkit.runtimes.collective.failures import RankDied
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.simulation.simulation import Simulation, simulate
from lowerkit.runtimes.collective.tracing.flight_record_file import read_flight_record
from lowerkit.runtimes.collective.work import Plan
from tests.support.ranks import PATIENCE
from tests.support.suite.randomness import RANDOM

pytestmark = pytest.mark.usefixtures("few_objects")

SIZE = 4
ROUGH: dict[str, Any] = {"latency": 50e-6, "jitter": 80e-6, "reorder": 0.2}


@pytest.fixture(autouse=True)
def nobody_is_left_behind(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Time must pass by itself: not because a rank that should go on is no longer waited for."""
    yield
    left = [record for record in caplog.get_records("call") if "computed for longer" in record.getMessage()]
    assert bool(left) == (request.function is test_a_rank_that_computes_too_long_is_not_waited_for)


def succeed(simulation: Simulation, function: Callable[[Group], Any]) -> list[Any]:
    outcomes = simulation.run(function)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


@pytest.mark.parametrize("count", [0, 1, 7, 60_000])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_operations_give_what_numpy_gives(size: int, count: int) -> None:
    data = RANDOM.integers(1, 5, (size, size, count)).astype(np.float64)

    def run(group: Group) -> None:
        calls, rank, root = group.calls, group.rank, size - 1
        group.run(calls.barrier())
        np.testing.assert_array_equal(group.run(calls.all_reduce(data[rank])), data.sum(0))
        np.testing.assert_array_equal(group.run(calls.broadcast(data[rank].copy(), root)), data[root])
        reduced = group.run(calls.reduce(data[rank], root, "max"))
        assert reduced is None if rank != root else bool((reduced == data.max(0)).all())
        np.testing.assert_array_equal(np.array(group.run(calls.all_gather(data[rank]))), data)
        gathered = group.run(calls.gather(data[rank], root))
        assert gathered is None if rank != root else bool((np.array(gathered) == data).all())
        parts = list(data[rank]) if rank == root else None
        np.testing.assert_array_equal(group.run(calls.scatter(parts, np.empty(count), root)), data[root][rank])
        np.testing.assert_array_equal(group.run(calls.reduce_scatter(list(data[rank]))), data.sum(0)[rank])
        np.testing.assert_array_equal(np.array(group.run(calls.all_to_all(list(data[rank])))), data[:, rank])
        plan = Plan()
        total = plan.add(group, calls.all_reduce(data[rank], "avg"))
        plan.run()
        np.testing.assert_allclose(total, data.sum(0) / size)

    with simulate(size, **ROUGH) as simulation:
        succeed(simulation, run)


def program(group: Group) -> tuple[list[int], dict[str, Any]]:
    """Work behind the caller, messages from any source, looks, groups of groups: whatever could depend on threads."""
    calls, rank = group.calls, group.rank
    order: list[int] = []
    for step in range(3):
        behind = group.start(calls.all_reduce(np.ones(10 + 20_000 * step)))
        if rank == step:
            for _ in range(2 * (SIZE - 1)):
                taken = group.start(calls.receive(np.empty(3), tag=step))
                taken.wait()
                order.append(taken.source)
        else:
            sent = [group.start(calls.send(np.full(3, float(rank)), step, tag=step)) for _ in range(2)]
            while not sent[-1].done():
                pass
            sent[0].wait()
        assert (behind.wait() == SIZE).all()
    half = group.split(rank % 2, key=-rank)
    assert half is not None
    half.run(half.calls.all_gather(np.array([rank])))
    records = [half.flight_record(), group.flight_record()]
    half.close()
    return order, {str(number): record for number, record in enumerate(records)}


def test_a_seed_gives_the_same_deliveries_at_the_same_moments() -> None:
    runs: list[tuple[float, list[Any]]] = []
    for seed in (5, 5, 5, 6):
        with simulate(SIZE, seed=seed, **ROUGH) as simulation:
            outcomes = succeed(simulation, program)
            runs.append((simulation.now, outcomes))
    # Flight records hold the moment of each beginning and end, and whom each rank waited for how long.
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][0] != runs[3][0]
    orders = {tuple(map(tuple, (order for order, _ in outcomes))) for _, outcomes in runs}
    assert len(orders) == 2, "another seed, another order"


def test_time_is_what_the_messages_take() -> None:
    with simulate(2, latency=0.5, timeout=6000.0) as simulation:
        start = time.monotonic()

        def run(group: Group) -> float:
            if group.rank == 0:
                simulation.sleep(0, 1000.0)
                group.run(group.calls.send(np.ones(1), 1))
                return 0.0
            group.run(group.calls.receive(np.empty(1), 0))
            return simulation.now

        assert succeed(simulation, run)[1] == pytest.approx(1001.5)
        assert time.monotonic() - start < PATIENCE


def test_messages_wait_for_those_before_them_on_their_way() -> None:
    """1936 bytes and a header take 2 s at 1000 bytes a second; all groups share the way, and each direction is one."""
    payload = np.zeros(242)

    def run(group: Group) -> list[float]:
        half = group.split(group.rank // 2)
        assert half is not None
        if group.rank > 1:
            return []
        peer, start = 1 - group.rank, simulation.now
        sent = [group.start(group.calls.send(payload, peer)), half.start(half.calls.send(payload, peer))]
        moments: list[float] = []
        for here in (group, half):
            here.run(here.calls.receive(np.empty(242), peer))
            moments.append(simulation.now - start)
        for work in sent:
            work.wait()
        half.close()
        return moments

    with simulate(4, latency=0.25, bandwidth=1000.0) as simulation:
        outcomes = succeed(simulation, run)
        assert outcomes[0] == outcomes[1] == pytest.approx([2.25, 4.25])


def test_rules_that_are_held_back_begin_with_each_rank() -> None:
    def run(group: Group) -> tuple[float, tuple[int, int], float]:
        send, receive = group.calls.send(np.ones(2), 1 - group.rank), group.calls.receive(np.empty(2), 1 - group.rank)
        start = simulation.now
        behind = group.start(send)
        group.run(receive)
        behind.wait()
        before = simulation.now - start
        simulation.begin(group.rank)
        behind = group.start(send)
        group.run(receive)
        behind.wait()
        return before, simulation.sent(group.rank), simulation.now - start

    with simulate(2, latency=0.5, bandwidth=160.0, death={1: 1}, held_back=True) as simulation:
        for before, sent, seconds in succeed(simulation, run):
            assert before < 1e-6
            assert sent == (1, 80)
            assert seconds == pytest.approx(1.0)


def rounds(group: Group, count: int = 100) -> str:
    try:
        for _ in range(count):
            group.run(group.calls.all_reduce(np.ones(4)))
    except LowerkitError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("frames", [0, 3, 41])
def test_a_death_is_named_and_the_others_go_on(frames: int, tmp_path: Path) -> None:
    def run(group: Group) -> tuple[str, float]:
        said = rounds(group)
        assert group.aborted is not None
        smaller = group.shrink()
        total = smaller.run(smaller.calls.all_reduce(np.array([float(group.rank)])))
        return said, float(total[0])

    def outcome() -> list[Any]:
        with simulate(SIZE, latency=20e-6, death={1: frames}, record_folder=tmp_path) as simulation:
            return simulation.run(run)

    outcomes = outcome()
    assert isinstance(outcomes.pop(1), RankDied)
    assert [total for _, total in outcomes] == [5.0, 5.0, 5.0]
    assert any("LK8009" in said for said, _ in outcomes)
    assert all(("rank 1" in said and "all_reduce #" in said) or "all_gather #1" in said for said, _ in outcomes)
    record = read_flight_record(tmp_path / "world.rank0.json")
    assert record.aborted is not None and record.dead in ([1], [])
    assert not (tmp_path / "world.rank1.json").exists(), "the dead write nothing"
    again = outcome()
    assert isinstance(again.pop(1), RankDied)
    assert again == outcomes


def test_a_death_ends_what_runs_behind_the_caller() -> None:
    def run(group: Group) -> None:
        works = [group.start(group.calls.all_reduce(np.ones(5))) for _ in range(50)]
        for work in works:
            work.wait()

    with simulate(3, death={2: 30}) as simulation:
        first, second, third = simulation.run(run)
    assert isinstance(third, RankDied) and not isinstance(third, Exception)
    assert isinstance(first, LowerkitError) and isinstance(second, LowerkitError)


def test_a_partition_ends_in_timeouts_that_cost_no_time() -> None:
    start = time.monotonic()
    with simulate(SIZE, island=[3], cut_at=5, timeout=6000.0) as simulation:
        said = succeed(simulation, rounds)
        assert simulation.now > 6000.0
    assert time.monotonic() - start < PATIENCE
    assert all(said)
    assert sum("LK8008" in text and "within 6000 s" in text for text in said) >= 1


def test_a_lost_message_is_a_timeout_or_missed() -> None:
    codes: set[str] = set()
    for seed in range(6):
        with simulate(3, loss=0.03, seed=seed, timeout=60.0) as simulation:
            codes |= {said[6:12] for said in succeed(simulation, rounds)}
    assert codes <= {"LK8008", "LK8009", "LK8011", "LK8012"} and codes & {"LK8008", "LK8012"}


def test_a_late_rank_is_left_out_when_the_others_shrink() -> None:
    with simulate(3, latency=1e-3, timeout=5.0) as simulation:

        def run(group: Group) -> list[float]:
            if group.rank == 2:
                simulation.sleep(2, 100.0)
            with pytest.raises(LowerkitError, match=r"LK8008|LK8009|LK8011"):
                group.run(group.calls.barrier())
            smaller = group.shrink(timeout=3.0)
            return smaller.run(smaller.calls.all_reduce(np.array([float(group.rank)]))).tolist()

        first, second, late = simulation.run(run)
    assert first == second == [1.0]
    assert isinstance(late, LowerkitError) and late.code == "LK8007" and "[0, 1] went on" in str(late)


def test_a_rank_that_computes_too_long_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lowerkit.collective")
    released = threading.Event()

    def run(group: Group) -> str:
        if group.rank == 1:
            released.wait(PATIENCE)
        said = rounds(group, 1)
        released.set()
        return said

    with simulate(2, timeout=50.0, patience=1.0) as simulation:
        said, late = succeed(simulation, run)
    assert "LK8008" in said and "rank 1" in said
    assert late
    assert "ranks [1] computed for longer" in caplog.text


def test_a_sender_that_is_far_ahead_waits_for_room() -> None:
    def run(group: Group) -> Array:
        if group.rank == 0:
            works = [group.start(group.calls.send(np.full(5_000, float(tag)), 1, tag=tag)) for tag in range(600)]
            for work in works:
                work.wait()
            return np.empty(0)
        got = [group.run(group.calls.receive(np.empty(5_000), 0, tag=tag))[0] for tag in range(600)]
        return np.array(got)

    with simulate(2, **ROUGH) as simulation:
        np.testing.assert_array_equal(succeed(simulation, run)[1], np.arange(600.0))


@pytest.mark.parametrize(
    "arguments",
    [
        {"ranks": 0}, {"ranks": 2000}, {"bandwidth": -1.0}, {"bandwidth": float("nan")}, {"loss": 1.5},
        {"reorder": -0.1}, {"latency": -1.0}, {"death": {2: 1}},
        {"island": [-1]}, {"timeout": 0.0}, {"patience": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    given: dict[str, Any] = {"ranks": 2, **arguments}
    with pytest.raises(LowerkitError, match="LK1010"), simulate(**given):
        pass


def test_descriptors_and_threads_are_given_back() -> None:
    def once() -> tuple[int, int]:
        with simulate(SIZE, **ROUGH) as simulation:
            succeed(simulation, program)
        gc.collect()  # also of what tests before this one left
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    once()  # what tests before this one left may be closed meanwhile, by threads of theirs
    descriptors, threads = once()
    later = [once() for _ in range(5)]  # fewer where a thread of another test ends in between
    assert max(one for one, _ in later) <= descriptors
    assert max(one for _, one in later) <= threads
