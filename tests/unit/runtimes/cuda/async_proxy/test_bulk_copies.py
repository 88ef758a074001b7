"""Bulk copies of rows and boxes, there and back, and what shows when nobody waits for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from lowerkit.runtimes.cuda.simulated import LaunchBuffer, LaunchTensorMap, SimulatedGpu, encode_tiled
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import Array, assemble, kernel

TO_SHARED = "shared::cta.global.mbarrier::complete_tx::bytes"
LOAD = f"cp.async.bulk.{TO_SHARED}"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
WAIT = "$w: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0; @!%p1 bra $w;"
HEAD = """
  .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .b64 %m<2>;
  .shared .align 1024 .b8 data[8192]; .shared .align 8 .b8 bar[8];
  mov.u32 %r0, %tid.x; setp.eq.u32 %p0, %r0, 0; mov.u32 %r1, bar; mov.u32 %r2, data;
  @%p0 mbarrier.init.shared::cta.b64 [%r1], 1; bar.sync 0; @!%p0 bra $out;
"""


def rows(body: str, size: int, *, gpu: SimulatedGpu | None = None, short: int = 0) -> Array:
    """Runs a body on the addresses of x (%d0, of ``size`` bytes less ``short``) and of y (%d1)."""
    ptx = kernel(
        HEAD + "ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y];" + body + "\n$out: ret;", ".param .u64 x, .param .u64 y"
    )
    assemble(ptx)
    gpu = gpu or SimulatedGpu(refuse_unwritten=True, check_races=True)
    x, y = gpu.allocate(size - short, "x"), gpu.allocate(size, "y")
    gpu.write(x, (np.arange(size - short) % 251).astype(np.uint8))
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [32], [x, y])
    return gpu.read(y, size)


THERE = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512; {LOAD} [%r2], [%d0], 512, [%r1];"
BACK = f"{STORE} [%d1], [%r2], 512;"
DONE = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"


def test_rows_there_and_back() -> None:
    assert (rows(f"{THERE}\n{WAIT} {BACK} {DONE}", 512) == np.arange(512) % 251).all()
    older = THERE.replace("shared::cta.global", "shared::cluster.global")
    assert (rows(f"{older}\n{WAIT} {BACK} {DONE}", 512) == np.arange(512) % 251).all()


def test_nothing_is_there_before_the_wait() -> None:
    with pytest.raises(KernelFault, match=r"copies from shared memory: 0x0: nothing has written there"):
        rows(f"{THERE} {BACK} {DONE}", 512)
    with pytest.raises(KernelFault, match=r"reads 4 bytes at shared address 0: nothing has written there"):
        rows(f"{THERE} ld.shared.u32 %r3, [%r2];", 512)


def test_what_is_overwritten_too_early_is_copied_as_it_is_then() -> None:
    """A copy reads when it is waited for."""
    store = f"{THERE}\n{WAIT} {BACK} cp.async.bulk.commit_group; mov.u32 %r3, -1; "
    early = store + "{} st.shared.u32 [%r2], %r3; cp.async.bulk.wait_group 0;"
    gpu = SimulatedGpu(refuse_unwritten=True)
    assert rows(early.format(""), 512, gpu=gpu)[:4].tolist() == [255] * 4
    gpu = SimulatedGpu(refuse_unwritten=True)
    assert rows(early.format("cp.async.bulk.wait_group.read 0;"), 512, gpu=gpu)[:4].tolist() == [0, 1, 2, 3]


def test_groups_are_waited_for_one_after_another() -> None:
    second = f"{STORE} [%d1+512], [%r2], 512; cp.async.bulk.commit_group; "
    two = f"{THERE}\n{WAIT} {BACK} cp.async.bulk.commit_group; {second}"
    leaves = r"thread \(0, 0, 0\) of block \(0, 0, 0\) leaves while this copy may still read shared memory"
    with pytest.raises(KernelFault, match=leaves):
        rows(two + "cp.async.bulk.wait_group 1;", 1024)
    with pytest.raises(KernelFault, match=leaves):
        rows(f"{THERE}\n{WAIT} {BACK} cp.async.bulk.wait_group 0;", 1024)
    found = rows(two + "cp.async.bulk.wait_group.read 0;", 1024)
    assert (found == np.tile(np.arange(512) % 251, 2)).all()


def test_rows_have_an_end() -> None:
    with pytest.raises(KernelFault, match=r"copies from 0x[0-9a-f]+: .* behind the end of x"):
        rows(f"{THERE}\n{WAIT} {BACK} {DONE}", 512, short=32)
    with pytest.raises(KernelFault, match=r"uses shared address 0x2000: outside of"):
        rows(THERE.replace("[%r2]", "[%r2+8064]") + f"\n{WAIT}", 512)
    some = THERE.replace(", 512, [", ", %r3, [")
    for body in (f"mov.u32 %r3, 500; {some}", THERE.replace("[%d0]", "[%d0+8]")):
        with pytest.raises(KernelFault, match="not multiples of 16"):
            rows(body, 512)
    with pytest.raises(KernelFault, match="uses an mbarrier where none is"):
        rows(THERE.replace("mbarrier.arrive", "mbarrier.inval.shared::cta.b64 [%r1]; mbarrier.arrive"), 512)


def boxes(
    x: Array, box: Sequence[int], corner: Sequence[int], *, element: int, swizzle: int = 0, reduction: str = "",
    before: Array | None = None, buffers: bool = False, target: Sequence[int] | None = None,
) -> Array:  # fmt: skip
    """Copies the box at ``corner`` of x to the same place (or ``target``) of y, or combines it with what is there."""
    rank = x.ndim
    coordinates = ", ".join(f"%r{4 + number}" for number in range(rank))
    targets = ", ".join(f"%r{10 + number}" for number in range(rank))
    moves = " ".join(f"mov.b32 %r{4 + number}, {value};" for number, value in enumerate(corner))
    moves += " ".join(f"mov.b32 %r{10 + number}, {value};" for number, value in enumerate(target or corner))
    nbytes = int(np.prod(box)) * x.itemsize
    back = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduction}.bulk_group" if reduction else (
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
    )  # fmt: skip
    body = f"""
      mov.u64 %m0, x; cvta.param.u64 %m0, %m0; mov.u64 %m1, y; cvta.param.u64 %m1, %m1; {moves}
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {nbytes};
      cp.async.bulk.tensor.{rank}d.{TO_SHARED} [%r2], [%m0, {{{coordinates}}}], [%r1];
      {WAIT} {back} [%m1, {{{targets}}}], [%r2]; {DONE}"""
    ptx = kernel(HEAD + body + "\n$out: ret;", ".param .align 64 .b8 x[128], .param .align 64 .b8 y[128]")
    assemble(ptx)
    gpu = SimulatedGpu(refuse_unwritten=True, check_races=True)
    passed: list[Any] = []
    addresses: list[int] = []
    for data in (x, np.zeros_like(x) if before is None else before):
        address = gpu.allocate(data.nbytes, "tensor")
        gpu.write(address, np.ascontiguousarray(data).view(np.uint8))
        addresses.append(address)
        sizes, strides = x.shape[::-1], tuple(x.strides[::-1][1:])
        if buffers:
            buffer = LaunchBuffer(address, data.nbytes, "tensor", writable=len(passed) == 1)
            passed.append(LaunchTensorMap(buffer, sizes, strides, tuple(box), element, swizzle))
        else:
            passed.append(encode_tiled(address, sizes, strides, box, element=element, swizzle=swizzle))
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [32], passed)
    return gpu.read(addresses[1], x.nbytes).view(x.dtype).reshape(x.shape)


def inside(shape: Sequence[int], box: Sequence[int], corner: Sequence[int]) -> tuple[slice, ...]:
    """Returns where a box lies in a tensor; both innermost first, the result outermost first."""
    ends = [(max(at, 0), max(min(at + size, extent), 0)) for at, size, extent in zip(corner, box, shape, strict=True)]
    return tuple(slice(start, end) for start, end in ends[::-1])


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("buffers", [False, True])
def test_boxes_of_every_rank(rank: int, buffers: bool) -> None:
    shape, box, corner = (24, 7, 6, 5, 4)[:rank], (16, 3, 2, 2, 3)[:rank], (16, -1, 5, 0, 2)[:rank]
    x = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape[::-1])
    found = boxes(x, box, corner, element=7, buffers=buffers)
    expected = np.zeros_like(x)
    expected[inside(shape, box, corner)] = x[inside(shape, box, corner)]
    assert (found == expected).all()


@pytest.mark.parametrize(("element", "dtype"), [(0, np.uint8), (1, np.uint16), (4, np.uint64), (9, bfloat16)])
@pytest.mark.parametrize("corner", [(0, 0), (3, 1), (-5, -2)])
def test_boxes_of_every_size_of_element(element: int, dtype: Any, corner: tuple[int, int]) -> None:
    x = (np.arange(48 * 9) % 200 + 1).reshape(9, 48).astype(dtype)
    box = (32, 4)
    expected = np.zeros_like(x)
    expected[inside((48, 9), box, corner)] = x[inside((48, 9), box, corner)]
    assert (boxes(x, box, corner, element=element) == expected).all()


@pytest.mark.parametrize(("swizzle", "width"), [(1, 8), (2, 16), (3, 32)])
def test_a_swizzle_there_is_one_back(swizzle: int, width: int) -> None:
    x = np.arange(32 * 16, dtype=np.float32).reshape(16, 32)
    found = boxes(x, (width, 16), (0, 0), element=7, swizzle=swizzle)
    assert (found[:, :width] == x[:, :width]).all() and (found[:, width:] == 0).all()


def test_a_box_from_outside_is_zeros() -> None:
    x = np.full((4, 32), 7, np.float32)
    found = boxes(x, (32, 4), (64, 0), element=7, before=x, target=(0, 0))
    assert (found == 0).all()


@pytest.mark.parametrize(
    ("name", "dtype", "element"),
    [("add", np.float32, 7), ("add", np.float16, 6), ("add", bfloat16, 9), ("add", np.int32, 3), ("min", np.int32, 3),
     ("max", np.int64, 5), ("and", np.uint32, 2), ("or", np.uint64, 4), ("xor", np.int32, 3), ("inc", np.uint32, 2)],
)  # fmt: skip
def test_combinations(name: str, dtype: Any, element: int) -> None:
    generator = np.random.default_rng(0)
    x, y = (generator.integers(0, 9, (4, 16)).astype(dtype) for _ in range(2))
    function: Any = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                     "xor": np.bitwise_xor, "inc": lambda a, b: np.where(b >= a, 0, b + 1)}[name]  # fmt: skip
    expected = y.copy()
    expected[:, 8:] = function(x, y)[:, 8:]
    assert (boxes(x, (8, 4), (8, 0), element=element, reduction=name, before=y) == expected).all()


def test_combinations_that_are_not_known() -> None:
    x = np.zeros((4, 16), np.float32)
    with pytest.raises(KernelFault, match="xor of f32, which is not known"):
        boxes(x, (8, 4), (0, 0), element=7, reduction="xor", before=x)


@pytest.mark.parametrize(
    "instruction",
    [
        f"cp.async.bulk.tensor.2d.{TO_SHARED}.multicast::cluster [%r2], [%m0, {{%r4, %r5}}], [%r1], %rs",
        f"cp.async.bulk.tensor.3d.im2col.{TO_SHARED} [%r2], [%m0, {{%r4, %r5, %r6}}], [%r1], {{%rs}}",
        f"cp.async.bulk.tensor.2d.{TO_SHARED} [%r2], [%m0, {{%r4}}], [%r1]",
        f"cp.async.bulk.tensor.2d.tile::gather4.{TO_SHARED} [%r2], [%m0, {{%r4, %r5}}], [%r1]",
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r2], [%r2], 16, [%r1]",
        "cp.async.bulk.prefetch.L2.global [%d0], 16",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [%r2], 16",
    ],
)
def test_forms_that_are_not_known(instruction: str) -> None:
    with pytest.raises(UnknownPtx, match=r"PTX line \d+: .* is not known|is missing"):
        SimulatedGpu().load(kernel(HEAD + f".reg .b16 %rs; {instruction};\n$out: ret;"))


def test_a_box_of_another_rank_and_a_crooked_place() -> None:
    raw = encode_tiled(0x7000_0000_0000, (64,), (), (64,), element=7)
    load = f"cp.async.bulk.tensor.2d.{TO_SHARED} [%r2+{{}}], [%m0, {{{{%r0, %r0}}}}], [%r1];"
    head = HEAD + "mov.u64 %m0, x; cvta.param.u64 %m0, %m0;"
    gpu = SimulatedGpu()
    wrong = gpu.load(kernel(head + load.format(0) + "\n$out: ret;", ".param .align 64 .b8 x[128]"))
    with pytest.raises(KernelFault, match="takes a tensor map of 1 dimensions"):
        gpu.launch(wrong.kernels["k"], [1], [32], [raw])
    crooked = gpu.load(kernel(head + load.format(64) + "\n$out: ret;", ".param .align 64 .b8 x[128]"))
    with pytest.raises(KernelFault, match="uses shared address 64: not a multiple of 128"):
        gpu.launch(
            crooked.kernels["k"], [1], [32], [encode_tiled(0x7000_0000_0000, (64, 8), (256,), (64, 8), element=7)]
        )
