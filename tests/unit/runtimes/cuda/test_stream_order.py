"""Queues of the simulated driver: what is put into two of them needs an order where the bytes are the same; graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.driver import LaunchBuffer
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.stream_order import StreamOrder, Touch
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver
from tests.unit.runtimes.cuda.ptx_programs import kernel

COPY = kernel(
    """.reg .b32 %r<4>; .reg .b64 %d<4>; ld.param.u64 %d0, [from]; ld.param.u64 %d1, [to]; mov.u32 %r0, %tid.x;
    mul.wide.u32 %d2, %r0, 4; add.u64 %d0, %d0, %d2; add.u64 %d1, %d1, %d2; ld.global.u32 %r1, [%d0];
    add.u32 %r1, %r1, 1; st.global.u32 [%d1], %r1; ret;""",
    ".param .u64 from, .param .u64 to",
)
SIZE = 128  # bytes of a buffer
RACE = "launches and copies without an order between them"


class Queues:
    """A driver, one allocation of four buffers, and a kernel that puts one buffer plus 1 into another."""

    def __init__(self) -> None:
        self.driver = SimulatedDriver()
        self.kernel = self.driver.kernel(self.driver.load(COPY.encode(), b"", "sm_90"), "k")
        self.memory = self.driver.allocate(4 * SIZE)

    def write(self, buffer: int, value: int, queue: int) -> None:
        data = np.full(SIZE // 4, value, np.uint32).view(np.uint8)
        self.driver.write(self.memory + buffer * SIZE, data, queue)

    def read(self, buffer: int, queue: int) -> int:
        data = np.zeros(SIZE, np.uint8)
        self.driver.read(data, self.memory + buffer * SIZE, queue)
        return int(data.view(np.uint32)[0])

    def launch(self, source: int, target: int, queue: int) -> None:
        buffers = [
            LaunchBuffer(self.memory + source * SIZE, SIZE, "operand 0", writable=False),
            LaunchBuffer(self.memory + target * SIZE, SIZE, "result 0"),
        ]
        self.driver.launch(self.kernel, 1, SIZE // 4, 0, buffers, queue)


@pytest.fixture
def queues() -> Queues:
    return Queues()


def test_one_queue_is_in_order(queues: Queues) -> None:
    queues.write(0, 5, 0)
    queues.launch(0, 1, 0)
    queues.launch(1, 0, 0)
    assert queues.read(0, 0) == 7


def test_queues_with_other_bytes_need_no_order(queues: Queues) -> None:
    queues.write(0, 5, 0)
    queues.write(2, 6, 1)
    queues.launch(0, 1, 0)
    queues.launch(2, 3, 1)
    assert (queues.read(1, 0), queues.read(3, 1)) == (6, 7)


def test_both_may_read(queues: Queues) -> None:
    queues.write(0, 5, 0)
    queues.driver.synchronize(0)
    queues.launch(0, 1, 0)
    queues.launch(0, 2, 1)
    assert queues.read(2, 1) == 6


def test_a_read_of_what_another_queue_writes(queues: Queues) -> None:
    queues.write(0, 5, 0)
    words = (
        rf"{RACE}: a launch of k reads operand 0 \(128 bytes\) in queue 1, after "
        "a copy from the host writes 128 bytes at byte 0 of allocation 1 in queue 0"
    )
    with pytest.raises(KernelFault, match=words):
        queues.launch(0, 1, 1)
    queues.driver.wait(queues.driver.record(0), 1)
    queues.launch(0, 1, 1)
    with pytest.raises(
        KernelFault, match="a copy to the host reads .* in queue 0, after a launch of k writes result 0"
    ):
        queues.read(1, 0)
    assert queues.read(1, 1) == 6


def test_a_write_over_what_another_queue_reads(queues: Queues) -> None:
    queues.write(0, 5, 0)
    queues.driver.synchronize(0)
    queues.launch(0, 1, 0)
    with pytest.raises(
        KernelFault, match="a copy from the host writes .* in queue 1, after a launch of k reads operand 0"
    ):
        queues.write(0, 6, 1)
    queues.driver.synchronize(0)
    queues.write(0, 6, 1)


def test_an_event_stands_for_what_was_there_when_it_was_recorded(queues: Queues) -> None:
    queues.write(0, 5, 0)
    event = queues.driver.record(0)
    queues.launch(0, 1, 0)
    queues.driver.wait(event, 1)
    queues.launch(0, 2, 1)
    with pytest.raises(KernelFault, match=RACE):
        queues.launch(1, 3, 1)
    with pytest.raises(KernelFault, match="waited for twice"):
        queues.driver.wait(event, 2)


def test_events_pass_on_what_they_have_learned(queues: Queues) -> None:
    queues.write(0, 5, 0)
    queues.driver.wait(queues.driver.record(0), 1)
    queues.driver.wait(queues.driver.record(1), 2)
    queues.launch(0, 1, 2)


def test_temporaries_at_the_same_bytes(queues: Queues) -> None:
    """The middle of buffers that overlap by half."""
    queues.write(0, 1, 0)
    half = queues.memory + SIZE // 2
    with pytest.raises(KernelFault, match=RACE):
        queues.driver.write(half, np.zeros(SIZE, np.uint8), 1)
    queues.driver.write(half + SIZE // 2, np.zeros(SIZE, np.uint8), 1)


def test_memory_that_was_given_back_is_new(queues: Queues) -> None:
    queues.write(0, 5, 0)
    queues.driver.free(queues.memory)
    queues.memory = queues.driver.allocate(4 * SIZE)
    queues.write(0, 5, 1)


def test_intervals_against_bytes() -> None:
    """The map of intervals says what a list of single bytes says."""
    random = np.random.default_rng(11)
    for _ in range(60):
        order = StreamOrder()
        known = {queue: dict.fromkeys(range(3), 0) for queue in range(3)}
        times = dict.fromkeys(range(3), 0)
        written: list[tuple[int, int] | None] = [None] * 40
        read: list[dict[int, int]] = [{} for _ in range(40)]
        for _ in range(40):
            queue, other = random.integers(0, 3, 2).tolist()
            if random.random() < 0.25:
                order.wait(order.record(other), queue)
                seen = known[other] | {other: times[other]}
                known[queue] = {each: max(known[queue][each], seen[each]) for each in range(3)}
                continue
            start, end = sorted(random.integers(0, 41, 2).tolist())
            writes = bool(random.random() < 0.5)
            times[queue] += 1
            bad = False
            for byte in range(start, end):
                before = [written[byte], *(read[byte].items() if writes else ())]
                bad |= any(each and each[0] != queue and each[1] > known[queue][each[0]] for each in before)
            touch = Touch(start, end, writes, "bytes")
            if bad:
                with pytest.raises(KernelFault, match=RACE):
                    order.work(queue, "work", [touch])
                break
            order.work(queue, "work", [touch])
            for byte in range(start, end):
                if writes:
                    written[byte], read[byte] = (queue, times[queue]), {}
                else:
                    read[byte][queue] = times[queue]


def captured(queues: Queues) -> Any:
    queues.driver.begin_capture(0)
    queues.launch(0, 1, 0)
    queues.launch(1, 2, 0)
    return queues.driver.end_capture(0)


def test_a_graph_runs_what_was_captured_again_and_again(queues: Queues) -> None:
    graph = captured(queues)
    assert queues.driver.launches == 0
    for value in (5, 8):
        queues.write(0, value, 0)
        queues.driver.launch_graph(graph, 0)
        assert queues.read(2, 0) == value + 2
    assert queues.driver.launches == 4
    queues.driver.destroy_graph(graph)
    with pytest.raises(KernelFault, match="given back"):
        queues.driver.launch_graph(graph, 0)


def test_what_is_forgotten_in_a_capture_is_forgotten_in_each_launch(queues: Queues) -> None:
    queues.write(0, 5, 0)
    queues.driver.begin_capture(0)
    queues.driver.forget(queues.memory + SIZE, SIZE)
    queues.launch(1, 2, 0)
    graph = queues.driver.end_capture(0)
    queues.write(1, 5, 0)
    with pytest.raises(KernelFault, match="nothing has written there"):
        queues.driver.launch_graph(graph, 0)


def test_a_graph_keeps_to_the_order_of_queues(queues: Queues) -> None:
    graph = captured(queues)
    queues.write(0, 5, 1)
    with pytest.raises(KernelFault, match=RACE):
        queues.driver.launch_graph(graph, 0)
    queues.driver.wait(queues.driver.record(1), 0)
    queues.driver.launch_graph(graph, 0)


def test_a_graph_whose_memory_has_moved(queues: Queues) -> None:
    graph = captured(queues)
    queues.driver.free(queues.memory)
    queues.memory = queues.driver.allocate(4 * SIZE)
    queues.write(0, 5, 0)
    words = r"k with a stale address: operand 0 lay in allocation 1 \(512 bytes at 0x\w+\), which was given back"
    with pytest.raises(KernelFault, match=words):
        queues.driver.launch_graph(graph, 0)
    queues.driver.launch_graph(captured(queues), 0)
    assert queues.read(2, 0) == 7


def test_what_no_capture_may_hold(queues: Queues) -> None:
    event = queues.driver.record(1)
    with pytest.raises(KernelFault, match="no capture that could end"):
        queues.driver.end_capture(0)
    queues.driver.begin_capture(0)
    for what, call in {
        "a copy from the host": lambda: queues.write(0, 1, 0),
        "a copy to the host": lambda: queues.read(0, 0),
        "an allocation": lambda: queues.driver.allocate(8),
        "the end of an allocation": lambda: queues.driver.free(queues.memory),
        "a synchronize": lambda: queues.driver.synchronize(0),
        "a wait for an event": lambda: queues.driver.wait(event, 0),
        "another capture": lambda: queues.driver.begin_capture(1),
    }.items():
        with pytest.raises(KernelFault, match=f"{what} in a capture"):
            call()
    queues.write(0, 1, 1)  # another queue goes on
    queues.driver.end_capture(0)
