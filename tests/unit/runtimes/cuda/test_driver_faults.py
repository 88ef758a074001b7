"""Faults of a driver on demand: what a card would raise, once, with a way out; the process can go on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes.cuda.driver_errors import CudaError, check_driver
from lowerkit.runtimes.cuda.driver_faults import DriverFaults
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver

EMPTY = b".version 8.3\n.target sm_90\n.address_size 64\n.visible .entry k()\n{\nret;\n}\n"


def use(driver: SimulatedDriver) -> None:
    """Every kind of call once."""
    loaded = driver.kernel(driver.load(EMPTY, b"", "sm_90"), "k")
    address = driver.allocate(64)
    data = np.arange(64, dtype=np.uint8)
    driver.write(address, data, 0)
    driver.launch(loaded, 1, 32, 0, [], 0)
    driver.wait(driver.record(0), 1)
    driver.begin_capture(1)
    driver.launch(loaded, 1, 32, 0, [], 1)
    graph = driver.end_capture(1)
    driver.launch_graph(graph, 1)
    driver.destroy_graph(graph)
    found = np.zeros(64, np.uint8)
    driver.read(found, address, 0)
    assert (found == data).all()
    driver.synchronize(0)
    driver.free(address)


CALLS = [
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute", "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuMemAlloc_v2", "cuMemFree_v2",
    "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent",
    "cuStreamSynchronize", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
    "cuGraphLaunch", "cuGraphExecDestroy",
]  # fmt: skip


def test_no_fault() -> None:
    use(SimulatedDriver())
    use(SimulatedDriver(faults=DriverFaults()))


@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_the_library_lacks(name: str) -> None:
    with pytest.raises(RuntimeFault, match=rf"libcuda\.so\.1 has no function {name}\n") as caught:
        use(SimulatedDriver(faults=DriverFaults(missing_symbol=name)))
    assert (caught.value.code, caught.value.exit_code) == ("LK8020", 8)
    assert caught.value.hint is not None
    assert "newer driver" in caught.value.hint


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (DriverFaults(no_library=True), r"libcuda\.so\.1 cannot be loaded"),
        (DriverFaults(no_gpu=True), "knows no card"),
        (DriverFaults(old_driver=(11, 4)), "PTX is of version 8.3, .* CUDA 12.3 and later .* driver is of CUDA 11.4"),
    ],
)
def test_no_device(faults: DriverFaults, words: str) -> None:
    with pytest.raises(RuntimeFault, match=words) as caught:
        use(SimulatedDriver(faults=faults))
    assert (caught.value.code, caught.value.exit_code) == ("LK8020", 8)
    assert caught.value.hint is not None
    assert "cuda-sim" in caught.value.hint


def test_versions_of_ptx() -> None:
    check_driver(b"//\n.version 7.8\n", (11, 8))
    check_driver(b".version 8.5", (12, 6))
    check_driver(b"no PTX", (1, 0))
    with pytest.raises(RuntimeFault, match="CUDA 11.8 and later"):
        check_driver(b".version 7.8", (11, 7))
    with pytest.raises(RuntimeFault, match="CUDA 12.7 and later"):
        check_driver(b".version 8.6\n.target sm_100", (12, 6))


def test_memory_runs_out_once() -> None:
    driver = SimulatedDriver(faults=DriverFaults(out_of_memory_at=2))
    driver.allocate(64)
    with pytest.raises(MemoryError, match="CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
        driver.allocate(64)
    use(driver)


def test_a_launch_fails_once() -> None:
    driver = SimulatedDriver(faults=DriverFaults(launch_failure_at=1))
    with pytest.raises(CudaError, match="cuLaunchKernel failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES") as caught:
        use(driver)
    assert caught.value.hint is not None
    use(driver)


@pytest.mark.parametrize("at", range(1, 16))
@pytest.mark.parametrize("number", [214, 700, 719])
def test_a_lost_device_stays_lost_until_it_is_closed(at: int, number: int) -> None:
    driver = SimulatedDriver(faults=DriverFaults(device_lost_at=at, lost_by=number))
    with pytest.raises(CudaError, match="failed: CUDA_ERROR_") as caught:
        use(driver)
    assert caught.value.number == number
    assert caught.value.hint is not None
    assert "lost to this session" in caught.value.hint
    calls: list[Callable[[], object]] = [
        lambda: driver.allocate(8),
        lambda: driver.synchronize(0),
        lambda: driver.record(3),
        lambda: driver.load(EMPTY, b"", "sm_90"),
    ]
    for call in calls:
        with pytest.raises(CudaError):
            call()
    driver.close()
    use(SimulatedDriver())


@pytest.mark.parametrize("size", [64, 1 << 28])  # the first comes from the heap, the second is mapped
def test_a_host_address_is_named_as_such(size: int) -> None:
    driver = SimulatedDriver()
    data = np.zeros(size, np.uint8)
    with pytest.raises(KernelFault, match="outside of every allocation") as caught:
        driver.write(data.ctypes.data, data[:64], 0)
    assert caught.value.hint == "a host address is not a device address"
    use(driver)
