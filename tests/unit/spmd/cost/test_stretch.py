"""The cost of many alike layers out of those of a few, and where two short programs do not say it."""

from __future__ import annotations

from dataclasses import replace

from lowerkit.spmd.cost.collective_time import Algorithm
from lowerkit.spmd.cost.memory import RankMemory
from lowerkit.spmd.cost.planned_steps import Exchange, Piece
from lowerkit.spmd.cost.stage_cost import StageCost
from lowerkit.spmd.cost.stage_runs import run_stages
from lowerkit.spmd.cost.stretch import stretch

MEMORY = RankMemory(weights=100, states=10, activations=50, scratch=5, communication=20, arguments=7)


def compute(seconds: float, flops: int = 1) -> Piece:
    return Piece("op", "matmul", "", flops, 1, seconds)


def exchange(phase: str, buffer: int, seconds: float = 5.0) -> Piece:
    what = Exchange("all_reduce", "tp", 2, -1, 8, Algorithm("direct", 1, 8), phase, (buffer, buffer))
    return Piece("sum", "all_reduce", "", 0, 0, seconds, what)


def layer(number: int) -> list[Piece]:
    return [compute(1.0, 2), exchange("start", number), compute(2.0, 3), exchange("done", number)]


def stage(layers: int, memory: RankMemory = MEMORY) -> StageCost:
    inner = [piece for number in range(layers) for piece in layer(number)]
    weights = memory.weights + layers * 30
    return StageCost(replace(memory, weights=weights), [compute(9.0, 9), *inner, compute(4.0, 4)])


def test_layers_that_are_missing_are_put_between() -> None:
    found = stretch(stage(3), stage(4), 7)
    assert found is not None
    whole = stage(10)
    assert found.memory == whole.memory
    (run,), (expected,) = run_stages([found.pieces]), run_stages([whole.pieces])
    assert run.seconds == expected.seconds == 9 + 10 * (1 + 5) + 4
    assert [event.span for event in run.exchanges] == [event.span for event in expected.exchanges]


def test_collectives_that_run_beyond_their_layer() -> None:
    def overlapping(layers: int) -> StageCost:
        inner = [exchange("start", 0)]
        for number in range(layers):
            inner += [compute(1.0), exchange("start", number + 1), exchange("done", number)]
        return StageCost(MEMORY, [*inner, exchange("done", layers)])

    found = stretch(overlapping(3), overlapping(4), 5)
    assert found is not None
    (run,), (expected,) = run_stages([found.pieces]), run_stages([overlapping(8).pieces])
    assert run.seconds == expected.seconds


def test_a_stage_without_alike_layers_stays() -> None:
    assert stretch(stage(2), stage(2), 0) == stretch(stage(2), stage(2), 5)


def test_what_grows_otherwise_has_no_answer() -> None:
    more = stage(4, replace(MEMORY, activations=51))
    assert stretch(stage(3), more, 2) is None
    changed = stage(4)
    changed.pieces[0] = compute(8.0, 8)
    assert stretch(stage(3), changed, 2) is None
