"""Launches as graphs: captured when they come again, made one by one where a run goes another way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from lowerkit.runtimes.device import HostMemoryDevice
from lowerkit.runtimes.launch_sequences import LaunchSequences


class Recorder(HostMemoryDevice):
    """A device that keeps a log of what it is asked for."""

    captures: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []
        self.captured: list[Any] | None = None
        self.refused = "fails"

    def load(self, code: Any) -> Any:
        return code

    def launch(self, program: Any, addresses: Sequence[int], dims: Sequence[int], queue: int) -> None:
        if program == self.refused:
            raise ValueError("no")
        (self.log if self.captured is None else self.captured).append((program, *addresses, *dims))

    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        (self.log if self.captured is None else self.captured).append(("copy", target, source, size))

    def begin_capture(self, queue: int) -> None:
        self.captured = []

    def end_capture(self, queue: int) -> Any:
        graph, self.captured = tuple(self.captured or ()), None
        return graph

    def launch_graph(self, graph: Any, queue: int) -> None:
        self.log.append(("graph", *graph))

    def destroy_graph(self, graph: Any) -> None:
        self.log.append(("destroyed", *graph))


def made() -> tuple[Recorder, LaunchSequences]:
    device = Recorder()

    def ask(method: Callable[..., Any], *arguments: Any) -> Any:
        return method(*arguments)

    return device, LaunchSequences(device, ask, 0)


def run(sequences: LaunchSequences, *names: str, address: int = 256) -> None:
    for name in names:
        sequences.launch(ord(name[0]), name, [address], [7])
    sequences.flush()


A, B, C = (("a", 256, 7), ("b", 256, 7), ("c", 256, 7))


def test_what_comes_again_is_one_graph() -> None:
    device, sequences = made()
    for _ in range(3):
        run(sequences, "a", "b", "c")
    assert device.log == [A, B, C, ("graph", A, B, C), ("graph", A, B, C)]


def test_another_way_is_made_one_by_one_in_order_and_then_known() -> None:
    device, sequences = made()
    run(sequences, "a", "b", "c")
    run(sequences, "a", "b", "b")
    assert device.log[3:] == [A, B, B]
    run(sequences, "a", "b", "b")
    assert device.log[6:] == [("graph", A, B, B)]


def test_a_run_that_ends_early_makes_what_waited() -> None:
    device, sequences = made()
    run(sequences, "a", "b", "c")
    run(sequences, "a", "b")
    assert device.log[3:] == [A, B]


def test_a_longer_run_goes_on_behind_the_graph() -> None:
    device, sequences = made()
    run(sequences, "a", "b")
    run(sequences, "a", "b", "c", "a")
    assert device.log[2:] == [("graph", A, B), C, A]


def test_other_addresses_are_another_sequence() -> None:
    device, sequences = made()
    run(sequences, "a", "b")
    run(sequences, "a", "b", address=512)
    assert device.log[2:] == [("a", 512, 7), ("b", 512, 7)]


def test_memory_that_moved_makes_a_new_graph() -> None:
    device, sequences = made()
    for _ in range(2):
        run(sequences, "a", "b")
    device.epoch += 1
    run(sequences, "a", "b")
    assert device.log[2:] == [("graph", A, B), ("destroyed", A, B), A, B]  # whatever has to grow has grown then
    run(sequences, "a", "b")
    assert device.log[6:] == [("graph", A, B)]
    sequences.clear()
    assert device.log[-1] == ("destroyed", A, B)
    run(sequences, "a", "b")
    assert device.log[-2:] == [A, B]


def test_each_of_several_ways_is_a_graph() -> None:
    device, sequences = made()
    ways = ("a", "b", "c"), ("a", "b"), ("a", "c")
    for way in ways:
        run(sequences, *way)
    device.log.clear()
    for way in ways:
        run(sequences, *way)
    assert device.log == [("graph", A, B, C), ("graph", A, B), ("graph", A, C)]


def test_a_copy_within_the_device_is_part_of_a_graph_where_that_is_kept() -> None:
    device, sequences = made()
    device.captures_copies = True  # pyright: ignore[reportAttributeAccessIssue]
    sequences = LaunchSequences(device, lambda method, *arguments: method(*arguments), 0)
    for _ in range(2):
        sequences.launch(ord("a"), "a", [256], [7])
        sequences.copy(512, 256, 16)
        sequences.flush()
    copy = ("copy", 512, 256, 16)
    assert device.log == [A, copy, ("graph", A, copy)]


def test_a_copy_that_no_capture_keeps_stands_between_graphs() -> None:
    device, sequences = made()
    for _ in range(2):
        for name in ("a", "b"):
            sequences.launch(ord(name), name, [256], [7])
        sequences.copy(512, 256, 16)
        sequences.flush()
    copy = ("copy", 512, 256, 16)
    assert device.log == [A, B, copy, ("graph", A, B), copy]


def test_a_launch_that_fails_within_a_capture_leaves_no_graph() -> None:
    device, sequences = made()
    run(sequences, "a", "b")
    device.refused = "b"
    with pytest.raises(ValueError, match="no"):
        run(sequences, "a", "b")
    assert device.log[2:] == [("destroyed", A)]
    sequences.drop()
    device.refused = "fails"
    run(sequences, "a", "b")
    assert device.log[3:] == [("graph", A, B)]


def test_what_failed_is_not_remembered() -> None:
    device, sequences = made()
    sequences.launch(1, "a", [256], [7])
    with pytest.raises(ValueError, match="no"):
        sequences.launch(2, "fails", [256], [7])
    sequences.drop()
    sequences.flush()
    run(sequences, "a", "b")
    assert device.log == [A, A, B]


def test_a_single_launch_is_no_sequence_and_old_ones_are_given_back() -> None:
    device, sequences = made()
    for _ in range(2):
        run(sequences, "a")
    assert device.log == [A, A]
    run(sequences, "a", "b")
    run(sequences, "a", "b")
    for address in range(512, 512 + 256 * 70, 256):
        run(sequences, "a", "b", address=address)
    assert ("destroyed", A, B) in device.log
