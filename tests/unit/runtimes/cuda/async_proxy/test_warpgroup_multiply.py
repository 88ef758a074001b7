"""wgmma of every type and every layout of its operands in shared memory, against numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.matrix_images import DTYPES, image, small_integers
from tests.unit.runtimes.cuda.ptx_programs import assemble, kernel

Array = np.ndarray[Any, Any]
RESULTS: Mapping[str, Any] = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
MODES = {16: 0, 128: 1, 64: 2, 32: 3}
ROWS, DEPTH_BYTES, B_START, SHARED = 64, 32, 32768, 98304


def descriptor(start: int, leading: int, stride: int, span: int) -> int:
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | MODES[span] << 62


def program(instruction: str, registers: int, *, in_registers: bool = False, wait: str = "", more: str = "") -> str:
    """A kernel that fills shared memory from ``image``, multiplies, and stores the registers of D."""
    d = ", ".join(f"%d{number}" for number in range(registers))
    a = "{%f0, %f1, %f2, %f3}" if in_registers else "%a"
    wait = wait or "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    lines = [
        ".reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %x<8>; .reg .b64 %a; .reg .b64 %b; .reg .b32 %f<4>;",
        f".reg .b32 %d<{registers}>; .shared .align 1024 .b8 tiles[{SHARED}];",
        "mov.u32 %r0, %tid.x; ld.param.u64 %x0, [image]; ld.param.u64 %x1, [out]; ld.param.u64 %x2, [fragment];",
        "ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; mul.wide.u32 %x3, %r0, 4; add.u64 %x4, %x0, %x3;",
        "mov.u32 %r1, tiles; shl.b32 %r2, %r0, 2; add.u32 %r1, %r1, %r2; mov.u32 %r3, 0;",
        "$fill: ld.global.u32 %r4, [%x4]; st.shared.u32 [%r1], %r4; add.u64 %x4, %x4, 512; add.u32 %r1, %r1, 512;",
        f"add.u32 %r3, %r3, 512; setp.lt.u32 %p0, %r3, {SHARED}; @%p0 bra $fill;",
        f"mad.wide.u32 %x5, %r0, {4 * registers}, %x1; mad.wide.u32 %x6, %r0, 16, %x2;",
        "ld.global.v4.u32 {%f0, %f1, %f2, %f3}, [%x6]; ld.param.u32 %r5, [adds]; setp.ne.u32 %p1, %r5, 0;",
        *(f"ld.global.u32 %d{number}, [%x5+{4 * number}];" for number in range(registers)),
        "fence.proxy.async.shared::cta; bar.sync 0; wgmma.fence.sync.aligned;",
        f"{instruction} {{{d}}}, {a}, %b, %p1{more};",
        wait,
        *(f"st.global.u32 [%x5+{4 * number}], %d{number};" for number in range(registers)),
        "ret;",
    ]
    names = ("image", "out", "fragment", "a", "b")
    return kernel("\n".join(lines), ", ".join([*(f".param .u64 {name}" for name in names), ".param .u32 adds"]))


def fragments(matrix: Array, per_register: int) -> Array:
    """Returns A, [64, k], as threads have it, uint32 [128, 4]: element by element."""
    found = np.zeros((128, 4, per_register), matrix.dtype)
    for thread in range(128):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        for register in range(4):
            for number in range(per_register):
                row = 16 * warp + g + 8 * (register % 2)
                column = per_register * t + number + 4 * per_register * (register // 2)
                found[thread, register, number] = matrix[row, column]
    return found.view(np.uint32).reshape(128, 4)


def accumulators(matrix: Array) -> Array:
    """Returns D, [64, n], as threads have it, uint32 [128, registers]: element by element."""
    columns = matrix.shape[1]
    found = np.zeros((128, columns // 2), matrix.dtype)
    for thread in range(128):
        warp, g, t = thread // 32, thread % 32 // 4, thread % 4
        for number in range(columns // 2):
            row = 16 * warp + g + 8 * (number // 2 % 2)
            found[thread, number] = matrix[row, 8 * (number // 4) + 2 * t + number % 2]
    return found.view(np.uint32)


def check(
    columns: int,
    kinds: tuple[str, str],
    result: str,
    *,
    spans: tuple[int, int] = (128, 128),
    transposed: tuple[bool, bool] = (False, False),
    in_registers: bool = False,
    scales: tuple[int, int] = (1, 1),
    adds: bool = True,
) -> None:
    size = np.dtype(DTYPES[kinds[0]]).itemsize
    depth = DEPTH_BYTES // size
    a, b = small_integers((ROWS, depth), kinds[0], 1), small_integers((columns, depth), kinds[1], 2)
    # What a transposed matrix has to whole rows of atoms lies around it.
    a_image, a_leading, a_stride = image(a, spans[0], transposed[0])
    b_image, b_leading, b_stride = image(b, spans[1], transposed[1])
    shared = np.zeros(SHARED, np.uint8)
    shared[: a_image.size], shared[B_START : B_START + b_image.size] = a_image, b_image
    old = small_integers((ROWS, columns), "s8", 3).astype(RESULTS[result])
    more = [] if kinds[0] in ("s8", "u8") else [*scales]
    more += ([] if in_registers else [int(transposed[0])]) + [int(transposed[1])] if size == 2 else []
    registers = accumulators(old)
    instruction = f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{result}.{kinds[0]}.{kinds[1]}"
    ptx = program(
        instruction, registers.shape[1], in_registers=in_registers, more="".join(f", {each}" for each in more)
    )
    assemble(ptx)
    gpu = SimulatedGpu(refuse_unwritten=True, check_races=True)
    addresses = [gpu.allocate(each.nbytes) for each in (shared, registers, np.zeros((128, 4), np.uint32))]
    for address, data in zip(addresses, (shared, registers, fragments(a, 4 // size)), strict=True):
        gpu.write(address, np.ascontiguousarray(data).view(np.uint8))
    start = descriptor(0, a_leading, a_stride, spans[0]), descriptor(B_START, b_leading, b_stride, spans[1])
    signed = [value - (1 << 64) if value >> 63 else value for value in start]
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [128], [*addresses, *signed, int(adds)])
    found = gpu.read(addresses[1], registers.nbytes).view(np.uint32).reshape(registers.shape)
    product = scales[0] * scales[1] * (a.astype(np.float64) @ b.astype(np.float64).T)
    expected = (product + old if adds else product).astype(RESULTS[result])
    assert (found == accumulators(expected)).all()


@pytest.mark.parametrize(
    ("kinds", "result"),
    [
        (("bf16", "bf16"), "f32"),
        (("f16", "f16"), "f32"),
        (("f16", "f16"), "f16"),
        (("tf32", "tf32"), "f32"),
        (("e4m3", "e5m2"), "f32"),
        (("e5m2", "e5m2"), "f16"),
        (("s8", "u8"), "s32"),
        (("u8", "s8"), "s32"),
    ],
)
@pytest.mark.parametrize("in_registers", [False, True])
def test_types(kinds: tuple[str, str], result: str, in_registers: bool) -> None:
    check(32, kinds, result, in_registers=in_registers)


@pytest.mark.parametrize("columns", [8, 24, 128, 256])
def test_columns(columns: int) -> None:
    check(columns, ("bf16", "bf16"), "f32", spans=(64, 32))


@pytest.mark.parametrize("span", [16, 32, 64, 128])
@pytest.mark.parametrize("transposed", [False, True])
def test_swizzles(span: int, transposed: bool) -> None:
    check(64, ("f16", "f16"), "f32", spans=(span, span), transposed=(transposed, transposed))


def test_factors_are_negated_and_the_accumulator_left_out() -> None:
    check(16, ("bf16", "bf16"), "f32", scales=(-1, 1))
    check(16, ("bf16", "bf16"), "f32", scales=(1, -1), in_registers=True, transposed=(False, True), spans=(128, 32))
    check(16, ("tf32", "tf32"), "f32", adds=False)


def run(ptx: str, descriptors: tuple[int, int] = (0, 0), threads: int = 128) -> Array:
    gpu = SimulatedGpu(refuse_unwritten=True)
    sizes = [SHARED, 128 * 8 * 4, 128 * 16]
    addresses = [gpu.allocate(size) for size in sizes]
    for address, size in zip(addresses, sizes, strict=True):
        gpu.write(address, bytes(size))
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [threads], [*addresses, *descriptors, 1])
    return gpu.read(addresses[1], sizes[1])


WHOLE = "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16"


def test_faults() -> None:
    outside = descriptor(SHARED - 16, 128, 256, 128)
    with pytest.raises(KernelFault, match=r"multiplies what is at shared address 0x18000: outside of the 98304 bytes"):
        run(program(WHOLE, 8, more=", 1, 1, 0, 0"), (outside, 0))
    with pytest.raises(KernelFault, match="a matrix descriptor with a base offset"):
        run(program(WHOLE, 8, more=", 1, 1, 0, 0"), (1 << 49, 0))
    with pytest.raises(KernelFault, match="blocks of 64 threads are no whole warpgroups"):
        run(program(WHOLE, 8, more=", 1, 1, 0, 0"), threads=64)
    alone = program(WHOLE, 8, more=", 1, 1, 0, 0").replace(
        "bar.sync 0;", "bar.sync 0; setp.lt.u32 %p2, %r0, 32; @%p2 bra $out;"
    )
    with pytest.raises(KernelFault, match=r"thread \(32, 0, 0\) of block .* comes without others of its four warps"):
        run(alone.replace("ret;", "$out: ret;"))


@pytest.mark.parametrize(
    ("instruction", "more", "reason"),
    [
        (WHOLE.replace("n16", "n12"), ", 1, 1, 0, 0", "the shape"),
        (WHOLE.replace("k16", "k32"), ", 1, 1, 0, 0", "the shape"),
        (WHOLE.replace(".f32", ".f16"), ", 1, 1, 0, 0", "the types"),
        (WHOLE.replace("bf16.bf16", "bf16.f16"), ", 1, 1, 0, 0", "the types"),
        (WHOLE + ".satfinite", ", 1, 1, 0, 0", "the shape"),
        (WHOLE + ".sp", ", 1, 1, 0, 0", "modifier .sp"),
        (WHOLE, ", 2, 1, 0, 0", "a factor or a layout"),
        (WHOLE, "", "the number of operands"),
    ],
)
def test_forms_that_are_not_known(instruction: str, more: str, reason: str) -> None:
    with pytest.raises(UnknownPtx, match=reason):
        SimulatedGpu().load(program(instruction, 8, more=more))


def test_groups_are_waited_for_one_after_another() -> None:
    """wait_group 1 leaves the latest one open: its product is not there yet."""
    two = "wgmma.commit_group.sync.aligned; "
    second = f"{WHOLE} {{%d0, %d1, %d2, %d3, %d4, %d5, %d6, %d7}}, %a, %b, %p1, 1, 1, 0, 0; "
    for wait, factor in (("0", 3), ("1", 2), ("2", 1)):
        text = two + second + two + f"wgmma.wait_group.sync.aligned {wait};"
        ptx = program(WHOLE, 8, wait=text, more=", 1, 1, 0, 0")
        gpu = SimulatedGpu(refuse_unwritten=True)
        shared = np.ones(SHARED // 2, bfloat16)
        registers = np.full((128, 8), 16, np.float32)
        addresses = [gpu.allocate(each.nbytes) for each in (shared, registers, np.zeros((128, 4), np.uint32))]
        for address, data in zip(addresses, (shared, registers, np.zeros((128, 4), np.uint32)), strict=True):
            gpu.write(address, data.view(np.uint8))
        gpu.launch(gpu.load(ptx).kernels["k"], [1], [128], [*addresses, 0, 0, 1])
        assert (gpu.read(addresses[1], registers.nbytes).view(np.float32) == 16 * factor).all()
