"""Stages of a pipeline beside each other: messages, meetings, micro-batches, and stages that wait for ever."""

from __future__ import annotations

import pytest

from lowerkit.spmd.cost.collective_time import Algorithm
from lowerkit.spmd.cost.planned_steps import Exchange, Piece
from lowerkit.spmd.cost.stage_runs import run_stages


def work(seconds: float) -> Piece:
    return Piece("work", "matmul", "", 1, 1, seconds)


def exchange(kind: str, buffer: int, seconds: float, peer: int = -1, phase: str = "run") -> Piece:
    call = Exchange(kind, "pp", 2, peer, 8, Algorithm("direct", 1, 8), phase, (buffer,))
    return Piece(kind, kind, "", 0, 0, seconds, call)


def test_a_stage_waits_for_what_the_one_before_sends() -> None:
    first, second = run_stages(
        [[work(3.0), exchange("send", 0, 1.0, peer=1)], [exchange("receive", 0, 1.0, peer=0), work(2.0)]], "pp"
    )
    assert first.seconds == 4.0
    assert second.seconds == 6.0
    assert second.exchanges[0].span.waited == 4.0


def test_micro_batches_keep_both_stages_at_work() -> None:
    count, seconds = 4, 2.0
    sender = [
        piece
        for number in range(count)
        for piece in (work(seconds), exchange("send", number, 0.5, peer=1, phase="start"))
    ]
    sender += [exchange("send", number, 0.5, peer=1, phase="done") for number in range(count)]
    reader = [piece for number in range(count) for piece in (exchange("receive", number, 0.5, peer=0), work(seconds))]
    first, second = run_stages([sender, reader], "pp")
    assert first.seconds == count * seconds + 0.5
    assert second.seconds == (count + 1) * seconds + 0.5


def test_all_stages_meet_in_a_broadcast() -> None:
    runs = run_stages([[work(1.0), exchange("broadcast", 0, 0.5)], [work(4.0), exchange("broadcast", 0, 0.5)]], "pp")
    assert [run.seconds for run in runs] == [4.5, 4.5]
    assert [run.exchanges[0].span.waited for run in runs] == [3.5, 0.5]


def test_a_message_that_nobody_sends_is_named() -> None:
    with pytest.raises(ValueError, match="stage 1 waits for ever in step 'receive'"):
        run_stages([[work(1.0)], [exchange("receive", 0, 1.0, peer=0)]], "pp")
