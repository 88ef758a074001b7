"""Tensor maps and launches that start early, as a libcuda is asked for them."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes.cuda.driver import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.driver_errors import CudaError, no_symbol
from lowerkit.runtimes.cuda.launch_memory import EncodedTensorMap
from lowerkit.runtimes.cuda.libcuda import LibCuda
from tests.support.cuda.fake_driver import Fake


def opened(fake: Fake) -> tuple[LibCuda, int, LaunchTensorMap]:
    driver = fake.open()
    kernel = driver.kernel(driver.load(b".version 8.0", b"", "sm_90"), "k")
    buffer = LaunchBuffer(driver.allocate(1 << 16), 1 << 16, "operand 0")
    return driver, kernel, LaunchTensorMap(buffer, (72, 30, 4), (144, 4320), (64, 16, 1), 9, 3, 288)


def test_a_tensor_map_is_encoded_once_and_passed_by_its_bytes(fake: Fake) -> None:
    driver, kernel, described = opened(fake)
    ready = driver.prepared(described)
    assert isinstance(ready, EncodedTensorMap)
    assert ready.place % 128 == 0
    words = np.frombuffer(ctypes.string_at(ready.place, 128), np.uint64)
    assert words.tolist() == [7000 + number for number in range(16)], "all 128 bytes"
    for _ in range(2):
        driver.launch(kernel, 5, 128, 0, [ready, ready.buffer, 30], 0)
    calls = [call for call in fake.calls() if call.startswith(("map", "launch"))]
    assert calls == [
        "map 9 from 288: 72 30 4 by 144 4320 box 64/1 16/1 1/1 0 3 2 0",
        "launch 5 1 1 128 1 1 0: 7000 buffer 30",
        "launch 5 1 1 128 1 1 0: 7000 buffer 30",
    ]


def test_a_tensor_map_that_is_not_ready_is_encoded_for_its_launch(fake: Fake) -> None:
    driver, kernel, described = opened(fake)
    row = replace(described, sizes=(72,), strides=(), box=(64,), element=6, swizzle=0, offset=0)
    driver.launch(kernel, 1, 32, 0, [1, row, 2], 0)
    assert fake.calls()[-2:] == ["map 6 from 0: 72 by box 64/1 0 0 2 0", "launch 1 1 1 32 1 1 0: 1 7000 2"]


def test_a_map_of_no_elements_is_not_encoded(fake: Fake) -> None:
    driver, kernel, described = opened(fake)
    driver.launch(kernel, 1, 32, 0, [driver.prepared(replace(described, sizes=(72, 0, 4))), 1, 2], 0)
    assert fake.calls()[-1] == "launch 1 1 1 32 1 1 0: 0 1 2"
    assert not any(call.startswith("map") for call in fake.calls())


@pytest.mark.parametrize("changed", [{"offset": 8}, {"strides": (140, 4320)}])
def test_what_the_driver_does_not_encode_is_said_in_full(fake: Fake, changed: dict[str, object]) -> None:
    driver, _, described = opened(fake)
    with pytest.raises(CudaError, match=r"cuTensorMapEncodeTiled failed.*the tensor map of operand 0: sizes") as caught:
        driver.prepared(replace(described, **changed))
    assert caught.value.hint is not None and "multiples of 16 bytes" in caught.value.hint


def test_a_driver_without_tensor_maps(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _, described = opened(fake)
    right = driver._call  # pyright: ignore[reportPrivateUsage]

    def older(name: str, *arguments: object) -> None:
        if name == "cuTensorMapEncodeTiled":
            raise no_symbol(fake.path, name)
        right(name, *arguments)

    monkeypatch.setattr(driver, "_call", older)
    with pytest.raises(RuntimeFault, match="LK8020.*no function cuTensorMapEncodeTiled"):
        driver.prepared(described)


def test_an_early_launch_says_so_behind_a_launch_alone(fake: Fake) -> None:
    driver, kernel, described = opened(fake)
    buffer = described.buffer
    driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0, early=True)
    driver.launch(kernel, 7, 64, 9, [buffer, -3, 1 << 40], 0, early=True)
    driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0)
    driver.launch(kernel, 1, 32, 0, [1, 2, 3], 1, early=True)
    driver.copy(buffer.address, buffer.address + 64, 64, 0)
    driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0, early=True)
    driver.wait(driver.record(1), 0)
    driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0, early=True)
    calls = [call.split(" in ")[0] for call in fake.calls() if call.startswith("launch")]
    assert [" in " in call for call in fake.calls() if call.startswith("launch")] == [False, True] + [False] * 4
    assert calls[1] == "launch 7 1 1 64 1 1 9"
    (early,) = [call for call in fake.calls() if " in " in call and call.startswith("launch")]
    assert early.endswith(" 6=1: buffer -3 1099511627776")


def test_a_graph_keeps_early_launches_but_the_first_is_none(fake: Fake) -> None:
    driver, kernel, _ = opened(fake)
    driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0, early=True)
    driver.begin_capture(0)
    for _ in range(2):
        driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0, early=True)
    graph = driver.end_capture(0)
    driver.launch_graph(graph, 0)
    driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0, early=True)
    launches = [call for call in fake.calls() if call.startswith("launch")]
    assert ["6=1" in call for call in launches] == [False, False, True, False]


def test_a_driver_whose_graphs_hold_none_launches_nothing_early(fake: Fake) -> None:
    fake.library.fake_driver(12020)
    driver, kernel, _ = opened(fake)
    for _ in range(2):
        driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0, early=True)
    assert not any("6=1" in call for call in fake.calls())
