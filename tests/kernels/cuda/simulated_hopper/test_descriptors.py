"""Kernels in Triton that take tensors by descriptor, as launches of an image: tensor maps, dims, graphs, faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from lowerkit.errors import CodegenError
from lowerkit.runtimes.cuda.device import SimulatedCudaDevice
from lowerkit.runtimes.cuda.driver import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.image import Function, ImageError, Launch, unpack
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver
from lowerkit.runtimes.cuda.tensor_maps import TensorMap, shape_map
from lowerkit.runtimes.expressions import Expr
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion, kernel_name
from lowerkit.targets.cuda.ptx.link import link_regions
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.writer import KernelWriter
from lowerkit.targets.cuda.witness.interpreted import interpreter_witness
from lowerkit.targets.cuda.witness.placed import PlacedBuffer, PlacedLaunch, PlacedRegion
from lowerkit.targets.cuda.witness.ptx_alone import ptx_witness
from lowerkit.targets.plan import DeviceCode, LinkSettings

Array = np.ndarray[Any, Any]
COLUMNS = 72
ROWS: Expr = ("dim", 0)
ROW_BYTES = 2 * COLUMNS
BYTES: Expr = ("mul", ROWS, ROW_BYTES)
BLOCKS: Expr = ("mul", ("ceildiv", ROWS, 64), 2)


def added_kernel() -> TritonKernel:
    """Adds a number (f32) to a matrix of bf16, in blocks of 64 x 64 that reach over both its ends."""
    writer = KernelWriter()
    writer.line("row = tl.program_id(0) // 2 * 64")
    writer.line("column = tl.program_id(0) % 2 * 64")
    writer.line("x = d0.load([row, column]).to(tl.float32) + tl.load(p0)")
    writer.line("d1.store([row, column], x.to(tl.bfloat16))")
    return TritonKernel("added", writer.source(1, 2, 2), ("fp32",), 2, descriptors=("tensordesc<bf16[64, 64]>",) * 2)


def matrix(buffer: int, **changes: Any) -> TensorMap:
    return msgspec.structs.replace(TensorMap(buffer, [COLUMNS, ROWS], [ROW_BYTES]), **changes)


@dataclass
class Planned:
    """One launch, or two through a temporary; operand 0 is the matrix, operand 1 the number, 2 the result."""

    kernel: TritonKernel = field(default_factory=added_kernel)
    first: dict[str, Any] = field(default_factory=dict[str, Any])
    second: dict[str, Any] = field(default_factory=dict[str, Any])
    twice: bool = False

    @property
    def region(self) -> PlannedRegion:
        name = kernel_name(self.kernel)
        source, target = matrix(**{"buffer": 0, **self.first}), matrix(**{"buffer": 2, **self.second})
        steps = [[source, matrix(3)], [matrix(3), target]] if self.twice else [[source, target]]
        launches = [Launch(name, [1], BLOCKS, 128, maps=maps) for maps in steps]
        temporaries = [BYTES] if self.twice else []
        function = Function([BYTES, 4], [BYTES], temporaries, 2, launches)
        return PlannedRegion(function, {name: FastKernel(self.kernel)}, "added")


def linked(region: PlannedRegion, level: str = "sm_90") -> bytes:
    code = DeviceCode("test", msgspec.json.encode({level: region}))
    return bytes(link_regions([code], LinkSettings(workers=1)).data)


class Run:
    """A region on a device: the matrix, the number, the result in one arena."""

    def __init__(self, planned: Planned, rows: int, device: SimulatedCudaDevice | None = None) -> None:
        self.device = device or SimulatedCudaDevice("sm_90")
        self.program = self.device.load(np.frombuffer(linked(planned.region), np.uint8))
        self.rows = rows
        size = -(-rows * ROW_BYTES // 256) * 256 + 256
        self.arena = self.device.allocate(2 * size + 256)
        self.places = [self.arena, self.arena + size, self.arena + size + 256]
        self.fill(0)

    def fill(self, seed: int) -> None:
        self.x = np.random.default_rng(seed).standard_normal((self.rows, COLUMNS)).astype(ml_dtypes.bfloat16)
        self.device.copy_in(self.places[0], self.x.reshape(-1).view(np.uint8), 0)
        self.device.copy_in(self.places[1], np.full(1, 1 + seed, np.float32).view(np.uint8), 0)
        self.wanted = (self.x.astype(np.float32) + 1 + seed).astype(ml_dtypes.bfloat16)

    def launch(self, queue: int = 0) -> None:
        self.device.launch(self.program, self.places, [self.rows, self.rows], queue)

    @property
    def result(self) -> Array:
        found = np.zeros(self.rows * ROW_BYTES, np.uint8)
        self.device.copy_out(found, self.places[2], 0)
        return found.view(ml_dtypes.bfloat16).reshape(self.rows, COLUMNS)


@pytest.mark.parametrize("rows", [1, 64, 130])
def test_a_tensor_by_its_map_with_any_rows(rows: int) -> None:
    run = Run(Planned(), rows)
    for seed in (0, 1):
        run.fill(seed)
        run.launch()
        np.testing.assert_array_equal(run.result, run.wanted)
    (shaped,) = run.program.shaped.values()
    assert [len(each.kept) for each in shaped.calls[0].maps] == [1, 1], "encoded once"


def test_what_the_image_says_of_a_map_is_what_the_compiler_says() -> None:
    (variant,) = unpack(linked(Planned().region), {}).variants
    (launch,) = variant.function.launches
    assert [(each.element, each.box, each.span) for each in launch.maps] == [("bf16", [64, 64], 128)] * 2
    assert [each.sizes for each in launch.maps] == [[COLUMNS, ROWS]] * 2
    assert (launch.nulls, launch.buffers) == (2, {0, 1, 2})


@pytest.mark.parametrize(("level", "early"), [("sm_80", False), ("sm_90", True), ("sm_100", True)])
def test_kernels_for_hopper_wait_at_their_top_and_are_launched_early(level: str, early: bool) -> None:
    source = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef lk_kernel(p0):\n    tl.store(p0, 1.0)\n"
    region = PlannedRegion(
        Function([], [4], [], 0, [Launch("k", [0], 1, 128)]),
        {"k": FastKernel(TritonKernel("one", source, ("fp32",), 0))},
    )
    read = unpack(linked(region, level), {})
    (variant,) = read.variants
    assert [each.early for each in variant.function.launches] == [early]
    lines = [line.strip() for line in read.compiled(variant, "k").ptx.decode().splitlines()]
    waits = [number for number, line in enumerate(lines) if line.startswith("griddepcontrol")]
    assert [lines[number] for number in waits] == early * ["griddepcontrol.wait;", "griddepcontrol.launch_dependents;"]
    body = lines[lines.index("{") + 1 :]
    first = next(line for line in body if line and not line.startswith((".", "//", "$")))
    assert (first == "griddepcontrol.wait;") == early


def test_no_rows_make_no_launch() -> None:
    run = Run(Planned(), 0)
    run.launch()
    assert isinstance(run.device.driver, SimulatedDriver)
    assert run.device.driver.launches == 0


def test_a_map_from_the_middle_of_its_buffer() -> None:
    below: Expr = ("sub", ROWS, 3)
    run = Run(Planned(first={"offset": 3 * ROW_BYTES, "sizes": [COLUMNS, below]}), 70)
    run.launch()
    np.testing.assert_array_equal(run.result[:67], run.wanted[3:])
    assert (run.result[67:].astype(np.float32) == 1).all(), "beyond the tensor are zeros"


def test_a_graph_reads_what_is_there_when_it_is_launched_and_knows_its_addresses() -> None:
    run = Run(Planned(twice=True), 66)
    run.launch()
    run.device.begin_capture(0)
    run.launch()
    graph = run.device.end_capture(0)
    for seed in (1, 2):
        run.fill(seed)
        run.device.launch_graph(graph, 0)
        wanted = (run.wanted.astype(np.float32) + 1 + seed).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(run.result, wanted)
    run.device.free(run.arena)
    with pytest.raises(KernelFault, match="stale address: operand 1|stale address: operand 0"):
        run.device.launch_graph(graph, 0)


def test_a_temporary_of_the_run_before_is_forgotten() -> None:
    run = Run(Planned(twice=True), 66)
    run.launch()
    (key,), (shaped,) = run.program.shaped, run.program.shaped.values()
    run.program.shaped[key] = type(shaped)(shaped.buffers, shaped.temporaries, shaped.temporary_bytes, shaped.calls[1:])
    with pytest.raises(KernelFault, match="nothing has written there"):
        run.launch()


def test_two_queues_that_store_by_maps_need_an_event() -> None:
    run = Run(Planned(), 66)
    run.device.synchronize(0)
    run.launch(1)
    with pytest.raises(KernelFault, match="result 0"):
        run.launch(2)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ({"strides": [ROW_BYTES - 4]}, r"the tensor map of operand 0.* strides \(140,\) are not multiples of 16"),
        ({"strides": [ROW_BYTES - 16], "offset": 8}, r"the tensor map of operand 0.* not a multiple of 16"),
        ({"strides": [1 << 40], "sizes": [COLUMNS, 1]}, "below 2.40"),
    ],
)
def test_what_the_driver_does_not_encode(first: dict[str, Any], words: str) -> None:
    with pytest.raises(KernelFault, match=words) as caught:
        Run(Planned(first=first), 5).launch()
    assert caught.value.code == "LK8017"


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ({"sizes": [COLUMNS, ("add", ROWS, 1)]}, "that reaches to byte 864 of buffer 0, of 720"),
        ({"offset": 16}, "reaches to byte 736 of buffer 0"),
        ({"offset": -16}, "from byte -16"),
        ({"sizes": [COLUMNS, ("sub", ROWS, 9)]}, r"of sizes \(72, -4\)"),
        ({"sizes": [1 << 31, 1]}, r"of sizes \(2147483648, 1\)"),
        ({"strides": [("mul", ROWS, 3)]}, "no whole numbers of 2 bytes"),
    ],
)
def test_maps_that_cannot_be(first: dict[str, Any], words: str) -> None:
    with pytest.raises(ImageError, match=words):
        Run(Planned(first=first), 5).launch()


def test_an_operand_is_not_written_through_its_map() -> None:
    with pytest.raises(KernelFault, match="operand 0 is read-only"):
        Run(Planned(second={"buffer": 0}), 5).launch()


def test_a_tensor_without_elements_has_no_map() -> None:
    with pytest.raises(KernelFault, match="a map of no tensor: one of its sizes is 0"):
        Run(Planned(first={"sizes": [COLUMNS, 0]}), 5).launch()


def test_a_box_that_is_too_large() -> None:
    driver = SimulatedDriver()
    ptx = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .align 64 .b8 m[128])\n{\nret;\n}\n"
    kernel = driver.kernel(driver.load(ptx.encode(), b"", "sm_90"), "k")
    buffer = LaunchBuffer(driver.allocate(1 << 16), 1 << 16, "operand 0")
    right = LaunchTensorMap(buffer, (64, 512), (128,), (64, 256), 9, 3)
    driver.launch(kernel, 1, 32, 0, [right], 0)
    for box, words in (((64, 512), "box of"), ((128, 64), "256 bytes in its innermost dimension with a swizzle")):
        wrong = LaunchTensorMap(buffer, (64, 512), (128,), box, 9, 3)
        with pytest.raises(KernelFault, match=words):
            driver.launch(kernel, 1, 32, 0, [wrong], 0)


def test_descriptors_need_hopper() -> None:
    with pytest.raises(CodegenError, match=r"LK5001.*descriptors of tensors need sm_90 or later, not sm_80"):
        linked(Planned().region, "sm_80")


def test_the_name_of_a_kernel_hangs_on_its_descriptors() -> None:
    kernel = added_kernel()
    other = msgspec.structs.replace(kernel, descriptors=("tensordesc<bf16[64, 64]>", "tensordesc<bf16[64, 32]>"))
    assert kernel_name(kernel) != kernel_name(other)


@pytest.mark.parametrize("wrong", [False, True])
def test_both_witnesses_read_through_maps(wrong: bool) -> None:
    region = Planned(twice=True, second={"buffer": 0} if wrong else {}).region
    rows = 66
    x = np.random.default_rng(3).standard_normal((rows, COLUMNS)).astype(ml_dtypes.bfloat16)
    size = x.nbytes
    buffers = [
        PlacedBuffer("operand 0", size, x.tobytes(), False),
        PlacedBuffer("operand 1", 4, np.ones(1, np.float32).tobytes(), False),
        PlacedBuffer("result 0", size, None, True),
        PlacedBuffer("temporary 0", size, None, True),
    ]
    launches = [PlacedLaunch(each, 4) for each in region.function.launches]
    placed = PlacedRegion(region, buffers, [(x.dtype, x.shape)], [rows, rows], launches)
    once = (x.astype(np.float32) + 1).astype(ml_dtypes.bfloat16)
    wanted = (once.astype(np.float32) + 1).astype(ml_dtypes.bfloat16)
    for witness in (interpreter_witness(placed), ptx_witness(placed, "sm_90")):
        assert not witness.missing, witness
        if wrong:
            assert witness.offence is not None and "operand 0" in witness.offence.message
        else:
            assert witness.results is not None, witness
            np.testing.assert_array_equal(witness.results[0], wanted)


def test_a_map_that_is_kept_is_of_the_buffer_that_it_is_asked_for() -> None:
    """Another value may lie at the address by now, of which other bytes must not be read."""
    shaped = shape_map(TensorMap(0, [64, 4], [128], 0, "bf16", [64, 1], 128), (), [512])
    asked: list[LaunchTensorMap] = []

    def prepare(described: LaunchTensorMap) -> LaunchTensorMap:
        asked.append(described)
        return described

    first, second = (LaunchBuffer(4096, 512, name) for name in ("value 1", "value 2"))
    assert shaped.at(first, prepare).buffer == first
    assert shaped.at(second, prepare).buffer == second
    assert shaped.at(first, prepare).buffer == first
    assert len(asked) == 1
