"""The driver of a card against a libcuda of our own, which keeps a log: calls, their order and arguments, errors."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes.cuda.driver import LaunchBuffer
from lowerkit.runtimes.cuda.levels import capability_of
from lowerkit.runtimes.cuda.libcuda import CudaError, LibCuda, has_card
from tests.support.cuda.fake_driver import Fake


def test_bytes_go_there_and_back_and_everything_is_given_back(fake: Fake) -> None:
    driver = fake.open()
    assert (driver.name, driver.capability, driver.processors) == ("Fake 9000", (9, 0), 114)
    address = driver.allocate(1000)
    assert address % 256 == 0
    data = np.arange(250, dtype=np.float32)
    driver.write(address, data.view(np.uint8), 0)
    found = np.zeros_like(data)
    driver.read(found.view(np.uint8), address, 0)
    assert (found == data).all()
    driver.allocate(64)
    driver.free(address)
    driver.close()
    assert fake.library.fake_live() == 0
    assert fake.calls() == [
        "init", "retain", "current", "alloc 1000", "stream 1", "in 1000", "out 1000", "synchronize", "alloc 64",
        "free", "current", "synchronize", "stream gone", "free", "release",
    ]  # fmt: skip


def test_bytes_go_from_one_place_of_the_device_to_another(fake: Fake) -> None:
    driver = fake.open()
    source, target = driver.allocate(64), driver.allocate(64)
    data, found = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    driver.write(source, data, 0)
    driver.copy(target, source, 64, 0)
    driver.read(found, target, 0)
    assert (found == data).all()
    assert fake.calls()[-4:] == ["in 64", "across 64", "out 64", "synchronize"]
    with pytest.raises(CudaError, match="cuMemcpyDtoDAsync_v2 failed"):
        driver.copy(target, data.ctypes.data, 64, 0)


def test_a_launch_passes_buffers_and_numbers_of_64_bits(fake: Fake) -> None:
    driver = fake.open()
    module = driver.load(b".version 7.8", b"cubin", "sm_90")
    assert not module.compiled_by_driver
    kernel = driver.kernel(module, "softmax_1")
    assert driver.kernel(module, "softmax_1") == kernel
    buffer = LaunchBuffer(driver.allocate(64), 64, "operand 0")
    driver.launch(kernel, 7, 128, 0, [buffer, -3, 1 << 40], 0)
    event = driver.record(0)
    driver.wait(event, 1)
    calls = fake.calls()
    assert calls.count("function softmax_1") == 1
    assert "launch 7 1 1 128 1 1 0: buffer -3 1099511627776" in calls
    assert calls[-4:] == ["record 7", "stream 1", "wait 7", "event gone"]
    driver.close()
    assert fake.calls()[-3:] == ["unload", "free", "release"]


@pytest.mark.parametrize(
    ("level", "capability", "cubin_result", "loaded"),
    [
        ("sm_90", (9, 0), 0, ["cubin"]),
        ("sm_80", (8, 6), 0, ["cubin"]),
        ("sm_80", (9, 0), 0, ["ptx"]),  # machine code is for one major version
        ("sm_90", (9, 0), 209, ["cubin", "ptx"]),
    ],
)
def test_machine_code_where_it_fits_else_ptx(
    fake: Fake, level: str, capability: tuple[int, int], cubin_result: int, loaded: list[str]
) -> None:
    fake.library.fake_capability(*capability)
    fake.library.fake_results(cubin_result, 0, 0)
    driver = fake.open(level)
    module = driver.load(b".version 7.8", b"cubin", level)
    assert module.compiled_by_driver == (loaded[-1] == "ptx")
    assert [call.split()[0] for call in fake.calls() if call.startswith(("cubin", "ptx"))] == loaded


def test_the_compiler_of_the_driver_is_quoted(fake: Fake) -> None:
    fake.library.fake_results(0, 218, 0)
    with pytest.raises(CudaError, match="ptxas: line 3: no such instruction"):
        fake.open().load(b".version 7.8", b"", "sm_90")


def test_errors_are_in_the_words_of_the_driver(fake: Fake) -> None:
    driver = fake.open()
    with pytest.raises(MemoryError, match="CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
        driver.allocate(1 << 40)
    module = driver.load(b".version 7.8", b"", "sm_90")
    with pytest.raises(CudaError, match="cuModuleGetFunction failed: CUDA_ERROR_OTHER"):
        driver.kernel(module, "missing")
    fake.library.fake_results(0, 0, 700)
    with pytest.raises(CudaError, match="an illegal memory access was encountered"):
        driver.launch(driver.kernel(module, "k"), 1, 32, 0, [1, 2, 3], 0)


def test_each_thread_makes_the_context_its_own(fake: Fake) -> None:
    driver = fake.open()
    driver.allocate(8)
    driver.allocate(8)
    thread = threading.Thread(target=driver.allocate, args=(8,))
    thread.start()
    thread.join()
    assert fake.calls().count("current") == 2


@pytest.mark.parametrize(
    ("cards", "capability", "words"),
    [
        (0, (9, 0), "knows no card"),
        (-1, (9, 0), "cuInit failed"),
        (1, (8, 0), "Fake 9000 is sm_80, the artifact was compiled for sm_90"),
    ],
)
def test_no_card_that_runs_the_artifact(fake: Fake, cards: int, capability: tuple[int, int], words: str) -> None:
    fake.library.fake_cards(cards)
    fake.library.fake_capability(*capability)
    with pytest.raises(RuntimeFault, match=words) as caught:
        fake.open("sm_90")
    assert caught.value.code == "LK8020"
    assert caught.value.hint is not None and "cuda-sim" in caught.value.hint
    assert not has_card("sm_90", fake.path)


def test_no_driver() -> None:
    with pytest.raises(RuntimeFault, match=r"LK8020.*libnowhere\.so cannot be loaded"):
        LibCuda("sm_90", "libnowhere.so")


def test_levels_as_capabilities() -> None:
    assert [capability_of(level) for level in ("sm_80", "sm_100", "sm_90a", "")] == [(8, 0), (10, 0), (9, 0), (0, 0)]


def test_a_graph_is_captured_launched_and_given_back(fake: Fake) -> None:
    driver = fake.open()
    kernel = driver.kernel(driver.load(b".version 7.8", b"", "sm_90"), "k")
    driver.begin_capture(0)
    driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0)
    graph = driver.end_capture(0)
    driver.launch_graph(graph, 1)
    driver.launch_graph(graph, 1)
    driver.destroy_graph(graph)
    assert [call.split(":")[0] for call in fake.calls() if not call.startswith("current")][-9:] == [
        "begin 1", "launch 1 1 1 32 1 1 0", "end", "instantiate 97 0", "stream 1", "graph 98", "graph 98",
        "executable gone 98", "graph gone 97",
    ]  # fmt: skip


def test_a_capture_that_fails_leaves_no_graph(fake: Fake) -> None:
    driver = fake.open()
    fake.library.fake_captures(901, 0)
    driver.begin_capture(0)
    with pytest.raises(CudaError, match="cuStreamEndCapture failed") as caught:
        driver.end_capture(0)
    assert caught.value.hint is not None
    assert "only launches" in caught.value.hint
    fake.library.fake_captures(0, 999)
    with pytest.raises(CudaError, match="cuGraphInstantiateWithFlags failed"):
        driver.end_capture(0)
    assert fake.calls()[-1] == "graph gone 97"


def test_time_between_two_points_is_that_of_the_card(fake: Fake) -> None:
    driver = fake.open()
    first, last = driver.mark(0), driver.mark(0)
    assert driver.seconds_between(first, last) == pytest.approx(2.5e-3)
    calls = fake.calls()
    assert [call for call in calls if call.startswith("record")] == ["record 7"] * 2
    assert calls.index("until event") > len(calls) - 4
    assert calls.count("event gone") == 2
    driver.close()


def test_a_driver_that_is_too_old(fake: Fake) -> None:
    fake.library.fake_driver(11040)
    driver = fake.open()
    assert driver.driver_version == (11, 4)
    driver.load(b".version 7.8", b"cubin", "sm_90")  # machine code needs no compiler
    with pytest.raises(RuntimeFault, match="CUDA 11.8 and later take; this driver is of CUDA 11.4") as caught:
        driver.load(b".version 7.8", b"", "sm_90")
    assert caught.value.code == "LK8020"


def test_a_library_without_a_function() -> None:
    """The C library has none of a driver's."""
    with pytest.raises(RuntimeFault, match=r"the driver library libc\.so\.6 has no function cuInit") as caught:
        LibCuda("sm_90", "libc.so.6")
    assert caught.value.hint is not None
    assert "newer driver" in caught.value.hint
    assert not has_card("sm_90", "libc.so.6")


def test_an_address_of_the_host(fake: Fake) -> None:
    driver = fake.open()
    data = np.zeros(64, np.uint8)
    with pytest.raises(CudaError, match="cuMemcpyHtoDAsync_v2 failed") as caught:
        driver.write(data.ctypes.data, data, 0)
    assert caught.value.hint is not None
    assert "one of the host is none" in caught.value.hint


def test_a_lost_device_can_be_closed(fake: Fake) -> None:
    driver = fake.open()
    kernel = driver.kernel(driver.load(b".version 7.8", b"", "sm_90"), "k")
    fake.library.fake_results(0, 0, 700)
    with pytest.raises(CudaError) as caught:
        driver.launch(kernel, 1, 32, 0, [1, 2, 3], 0)
    assert caught.value.hint is not None
    assert "lost to this session" in caught.value.hint
    driver.close()
    fake.open().close()
