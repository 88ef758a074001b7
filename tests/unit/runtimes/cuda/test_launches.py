"""Arguments and sizes of a launch; modules with several kernels."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import HEADER, assemble, kernel

PARAMETERS = (
    ".param .u64 .ptr .global .align 16 out, .param .s32 i, .param .f32 f, .param .f64 d, .param .u8 small, "
    ".param .align 8 .b8 block[16], .param .f16 h"
)
COPIES = """
  .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .b16 %h<4>;
  ld.param.u64 %d0, [out];
  ld.param.s32 %r0, [i]; st.global.b32 [%d0], %r0;
  ld.param.f32 %r1, [f]; st.global.b32 [%d0+4], %r1;
  ld.param.f64 %d1, [d]; st.global.b64 [%d0+8], %d1;
  ld.param.s8 %r2, [small]; st.global.b32 [%d0+16], %r2;
  ld.param.b16 %h0, [h]; st.global.b16 [%d0+20], %h0;
  ld.param.v2.b32 {%r0, %r1}, [block+8]; st.global.v2.b32 [%d0+24], {%r0, %r1};
  ret;"""
ARGUMENTS = (-5, 1.5, -2.25, 0xFE, bytes(range(16)), 1e9)


def test_arguments_of_every_kind() -> None:
    ptx = kernel(COPIES.replace("%h0", "%h1"), PARAMETERS.replace(".f16 h", ".b16 h"))
    assemble(ptx)
    gpu = SimulatedGpu()
    out = gpu.allocate(32)
    gpu.launch(gpu.load(kernel(COPIES, PARAMETERS)).kernels["k"], [1], [1], [out, *ARGUMENTS])
    found = gpu.read(out, 32)
    assert found[:4].view(np.int32)[0] == -5 and found[4:8].view(np.float32)[0] == 1.5
    assert found[8:16].view(np.float64)[0] == -2.25 and found[16:20].view(np.int32)[0] == -2
    assert found[20:22].view(np.float16)[0] == np.inf and found[24:].tolist() == list(range(8, 16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: 1 << 32}, r"argument 4294967296 for i \(.s32\): an integer of 32 bits is needed"),
        ({1: 1.0}, "an integer of 32 bits"),
        ({4: -129}, "an integer of 8 bits"),
        ({5: b"short"}, r"for block \(.b8\): 16 bytes are needed"),
        ({5: 7}, "16 bytes are needed"),
        ({7: 0}, "has 7 parameters, 8 arguments are given"),
    ],
)
def test_arguments_that_do_not_fit(change: dict[int, int | float | bytes], message: str) -> None:
    gpu = SimulatedGpu()
    arguments = dict(enumerate((gpu.allocate(32), *ARGUMENTS))) | change
    with pytest.raises(KernelFault, match=message):
        gpu.launch(gpu.load(kernel(COPIES, PARAMETERS)).kernels["k"], [1], [1], list(arguments.values()))


@pytest.mark.parametrize(
    ("grid", "block", "shared", "message"),
    [
        ([0], [32], 0, "a grid of"),
        ([1, 70000], [32], 0, "a grid of"),
        ([1], [1025], 0, "a block of"),
        ([1], [32, 2, 65], 0, "a block of"),
        ([1], [64, 32], 0, "2048 threads in a block, 1024 are allowed"),
        ([1], [32], 232449, "232448 are allowed"),
    ],
)
def test_sizes_that_no_card_has(grid: list[int], block: list[int], shared: int, message: str) -> None:
    gpu = SimulatedGpu()
    with pytest.raises(KernelFault, match=message):
        gpu.launch(gpu.load(kernel("ret;")).kernels["k"], grid, block, [], shared)


def test_sizes_that_a_kernel_asks_for() -> None:
    gpu = SimulatedGpu()
    module = gpu.load(
        f"{HEADER}.visible .entry a() .reqntid 8, 4\n{{ ret; }}\n"
        ".visible .entry b() .maxntid 64, 1, 1 .minnctapersm 2\n{ ret; }\n"
    )
    assert set(module.kernels) == {"a", "b"}
    gpu.launch(module.kernels["a"], [1], [8, 4], [])
    gpu.launch(module.kernels["b"], [1], [64], [])
    with pytest.raises(KernelFault, match=r"blocks of \(32, 1, 1\), it needs \(8, 4, 1\)"):
        gpu.launch(module.kernels["a"], [1], [32], [])
    with pytest.raises(KernelFault, match="65 threads in a block, 64 are allowed"):
        gpu.launch(module.kernels["b"], [1], [65], [])


def test_dynamic_shared_memory_lies_behind_the_static_one() -> None:
    ptx = (
        f"{HEADER}.extern .shared .align 16 .b8 rest[];\n.visible .entry k(.param .u64 out)\n{{\n"
        "  .reg .b32 %r<4>; .reg .b64 %d; .shared .align 4 .b8 own[20];\n"
        "  mov.u32 %r0, rest; mov.u32 %r1, own; sub.u32 %r0, %r0, %r1;\n"
        "  ld.param.u64 %d, [out]; st.global.u32 [%d], %r0;\n"
        "  st.shared.u32 [rest+12], %r0; ret;\n}\n"
    )
    assemble(ptx)
    gpu = SimulatedGpu()
    out, module = gpu.allocate(4), gpu.load(ptx)
    gpu.launch(module.kernels["k"], [1], [1], [out], 16)
    assert gpu.read(out, 4).view(np.uint32)[0] == 32
    with pytest.raises(KernelFault, match="shared address 44: outside of the 47 bytes"):
        gpu.launch(module.kernels["k"], [1], [1], [out], 15)


def test_a_module_that_is_refused_leaves_no_memory_behind() -> None:
    gpu = SimulatedGpu(capacity=1 << 20)
    for _ in range(4):
        with pytest.raises(UnknownPtx):
            gpu.load(f"{HEADER}.global .align 4 .b8 big[1000000];\n" + kernel("tcgen05.relinquish;").split("64\n")[1])
    gpu.allocate(1 << 20)


def test_many_batches() -> None:
    """More threads than run together: every block is there once."""
    ptx = kernel(
        """
      .reg .b32 %r<4>; .reg .b64 %d<2>; mov.u32 %r0, %ctaid.x; mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x;
      mad.lo.u32 %r0, %r0, %r2, %r1; ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r0, 4, %d0; st.global.u32 [%d0], %r0;
      ret;""",
        ".param .u64 out",
    )
    gpu = SimulatedGpu()
    count = 300 * 100
    out = gpu.allocate(4 * count)
    statistics = gpu.launch(gpu.load(ptx).kernels["k"], [300], [100], [out])
    assert (gpu.read(out, 4 * count).view(np.uint32) == np.arange(count)).all()
    assert statistics.thread_instructions == 8 * count
