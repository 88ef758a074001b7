"""The CUDA device on the simulated driver: bounds of each launch, unwritten memory, dims, and the text of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.cuda.driver import LaunchBuffer
from lowerkit.runtimes.cuda.image import CompiledKernel, Function, ImageError, pack, unpack
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver
from lowerkit.runtimes.launch_sequences import LaunchSequences
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, tensor
from tests.support.targets.cuda_kernels import CudaRegion, compile_cuda

ROWS = tensor(["?", 8], "f32")


@pytest.fixture(scope="module")
def softmax() -> CudaRegion:
    text = anchored("softmax", [ROWS], ROWS, "axis = 1 : i64, log = false")
    return compile_cuda(RegionView.from_text(text, "softmax"))


Kernels = dict[tuple[str, str], CompiledKernel]


def kernels_of(region: CudaRegion) -> Kernels:
    read = unpack(region.code, {})
    (variant,) = read.variants
    return {(variant.level, name): read.compiled(variant, name) for name in variant.kernels}


class Run:
    """One function on a device: an arena that holds operand and result side by side, as a session's does."""

    def __init__(self, function: Function, kernels: Kernels, rows: int) -> None:
        self.device = SimulatedCudaDevice("sm_90")
        data, _ = pack([{"sm_90": function}], kernels)
        self.program = self.device.load(np.frombuffer(data, np.uint8))
        self.rows, self.bytes = rows, rows * 32
        self.arena = self.device.allocate(2 * self.bytes)

    def write(self, values: Any) -> None:
        self.device.copy_in(self.arena, values.reshape(-1).view(np.uint8), 0)

    def launch(self) -> Any:
        self.device.launch(self.program, [self.arena, self.arena + self.bytes], [self.rows, self.rows], 0)
        found = np.zeros((self.rows, 8), np.float32)
        self.device.copy_out(found.reshape(-1).view(np.uint8), self.arena + self.bytes, 0)
        return found


def test_a_function_runs_with_any_dims_and_again(softmax: CudaRegion) -> None:
    for rows in (1, 5, 300):
        run = Run(softmax.planned.function, kernels_of(softmax), rows)
        for seed in range(2):
            x = np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)
            run.write(x)
            e = np.exp(x - x.max(1, keepdims=True))
            np.testing.assert_allclose(run.launch(), e / e.sum(1, keepdims=True), rtol=1e-5)
        assert isinstance(run.device.driver, SimulatedDriver)
        assert run.device.driver.launches == 2 * len(softmax.planned.function.launches)


def test_what_runs_over_its_operand_meets_nothing_though_the_arena_goes_on(softmax: CudaRegion) -> None:
    shorter = msgspec.structs.replace(softmax.planned.function, operands=[("sub", ("mul", ("dim", 0), 32), 4)])
    run = Run(shorter, kernels_of(softmax), 4)
    run.write(np.ones((4, 8), np.float32))
    with pytest.raises(KernelFault, match=r"reads 4 bytes .* right behind the end of operand 0 \(124 bytes"):
        run.launch()
    shorter = msgspec.structs.replace(softmax.planned.function, results=[("sub", ("mul", ("dim", 0), 32), 4)])
    run = Run(shorter, kernels_of(softmax), 4)
    run.write(np.ones((4, 8), np.float32))
    with pytest.raises(KernelFault, match=r"writes 4 bytes .* right behind the end of result 0 \(124 bytes"):
        run.launch()


def test_an_operand_that_nothing_has_written(softmax: CudaRegion) -> None:
    with pytest.raises(KernelFault, match="nothing has written there"):
        Run(softmax.planned.function, kernels_of(softmax), 2).launch()


def test_results_and_temporaries_of_the_run_before_are_forgotten(softmax: CudaRegion) -> None:
    """A launch that is left out is found in the second run too, though the memory holds what the first one wrote."""
    run = Run(softmax.planned.function, kernels_of(softmax), 2)
    run.write(np.ones((2, 8), np.float32))
    run.launch()
    (shaped,) = run.program.shaped.values()
    changed = type(shaped)(shaped.buffers, shaped.temporaries, shaped.temporary_bytes, shaped.calls[1:])
    run.program.shaped = {(2, 2): changed}
    with pytest.raises(KernelFault, match="nothing has written there"):
        run.launch()


def test_operands_are_not_written() -> None:
    driver = SimulatedDriver()
    ptx = (
        ".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n.reg .b64 %a;\n"
        ".reg .b32 %v;\nld.param.b64 %a, [p];\nmov.b32 %v, 1;\nst.global.b32 [%a], %v;\nret;\n}\n"
    )
    kernel = driver.kernel(driver.load(ptx.encode(), b"", "sm_90"), "k")
    address = driver.allocate(256)
    driver.launch(kernel, 1, 32, 0, [LaunchBuffer(address, 4, "result 0")], 0)
    with pytest.raises(KernelFault, match="operand 0 is read-only"):
        driver.launch(kernel, 1, 32, 0, [LaunchBuffer(address, 4, "operand 0", writable=False)], 0)


CHANGES: list[tuple[Callable[[Function], Function], str]] = [
    (lambda each: msgspec.structs.replace(each, dims=3), "takes 3 dims, 2 are given"),
    (
        lambda each: msgspec.structs.replace(
            each, launches=[msgspec.structs.replace(each.launches[0], blocks=1 << 38), *each.launches[1:]]
        ),
        "a grid has 2147483647 at most",
    ),
]


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_what_no_launch_can_have(softmax: CudaRegion, change: Callable[[Function], Function], words: str) -> None:
    run = Run(change(softmax.planned.function), kernels_of(softmax), 2)
    run.write(np.ones((2, 8), np.float32))
    with pytest.raises(ImageError, match=words):
        run.launch()


@pytest.mark.parametrize("fails", [False, True], ids=["grows", "finds no memory"])
def test_temporaries_that_move_make_new_graphs(
    softmax: CudaRegion, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph holds the addresses of temporaries; within a capture there is nothing that could grow."""
    run = Run(softmax.planned.function, kernels_of(softmax), 300)
    run.write(np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32))
    sequences = LaunchSequences(run.device, lambda method, *arguments: method(*arguments), 0)

    def twice(rows: int) -> Any:
        for part in (1, 2):
            sequences.launch(0, run.program, [run.arena, run.arena + part * 4096], [rows, rows])
        sequences.flush()
        found = np.zeros((rows, 8), np.float32)
        run.device.copy_out(found.reshape(-1).view(np.uint8), run.arena + 8192, 0)
        return found

    run.device.free(run.arena)
    run.arena = run.device.allocate(8192 + run.bytes)
    run.write(np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32))
    expected = twice(2)
    graphs = [twice(2), twice(2)]
    if fails:
        with monkeypatch.context() as patch:
            patch.setattr(run.device.driver, "allocate", lambda size: (_ for _ in ()).throw(MemoryError(size)))
            with pytest.raises(MemoryError):
                run.device.launch(run.program, [run.arena, run.arena + 8192], [64, 64], 0)
    else:
        run.device.launch(run.program, [run.arena, run.arena + 8192], [64, 64], 0)
    assert run.device.epoch == 1
    for found in (*graphs, twice(2), twice(2), twice(2)):
        np.testing.assert_array_equal(found, expected)


def test_memory_runs_out_and_is_given_back() -> None:
    device = SimulatedCudaDevice("sm_90")
    with pytest.raises(MemoryError, match="were asked for"):
        device.allocate(1 << 40)
    device.free(device.allocate(1 << 20))
    device.close()
    with pytest.raises(MemoryError):
        device.allocate(1)


def test_the_text_of_a_kernel(golden: Callable[[str, str], None]) -> None:
    types = [tensor([5, 7], "f32"), tensor([7, 3], "f32")]
    attributes = "accumulate = f32, transpose_lhs = false, transpose_rhs = false"
    view = RegionView.from_text(anchored("matmul", types, tensor([5, 3], "f32"), attributes), "matmul")
    (kernel,) = kernels_of(compile_cuda(view, "sm_90")).values()
    golden("matmul_5x7x3_sm_90.ptx", kernel.ptx.decode())
