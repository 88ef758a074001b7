"""What a kernel must not do to memory ends its launch, with the thread, the line, the address and the allocation."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lowerkit.errors import ResourceError
from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.unit.runtimes.cuda.ptx_programs import HEADER, assemble, kernel

BODY = """
  .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .b16 %h<2>;
  .local .align 16 .b8 own[64];
  .shared .align 16 .b8 common[64];
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %r0;
  ld.param.u64 %d0, [a]; mad.wide.u32 %d1, %r0, 4, %d0;
  .loc 1 42 7
"""
PARAMETERS = ".param .u64 a"
FILES = '.file 1 "/somewhere/model.py"\n'
LINE = kernel(BODY, PARAMETERS).count("\n") - 1  # of what follows the body


def run(
    instructions: str, nbytes: int = 256, *, gpu: SimulatedGpu | None = None, grid: int = 2, block: int = 32
) -> None:
    """Runs instructions with %r0 the number of the thread and %d1 the address of its word of ``data``."""
    ptx = kernel(BODY + instructions + "\n ret;", PARAMETERS) + FILES
    assemble(ptx)
    gpu = gpu or SimulatedGpu()
    address = gpu.allocate(nbytes, "data")
    gpu.launch(gpu.load(ptx).kernels["k"], [grid], [block], [address])


def fault_of(instructions: str, nbytes: int = 256, **options: int) -> str:
    with pytest.raises(KernelFault) as caught:
        run(instructions, nbytes, **options)  # type: ignore[arg-type]
    assert caught.value.code == "LK8017"
    return str(caught.value)


def test_one_word_too_far() -> None:
    text = fault_of("ld.global.u32 %r3, [%d1+4];")
    assert re.search(r"thread \(31, 0, 0\) of block \(1, 0, 0\) reads 4 bytes at 0x7000000\w+: outside of every", text)
    assert "right behind the end of data (256 bytes at 0x7000" in text
    assert f"op: kernel k, PTX line {LINE}: ld.global.u32 %r3, [%d1+4];" in text
    assert "at: model.py:42" in text


def test_an_access_over_the_end() -> None:
    text = fault_of("ld.global.u32 %r3, [%d1];", 255)
    assert "byte 252 of data (255 bytes" in text


def test_words_before_an_allocation_and_far_behind() -> None:
    assert "block (0, 0, 0) writes 4 bytes at" in fault_of("st.global.u32 [%d1+-4], %r0;")
    assert "4 bytes before data" in fault_of("st.global.u32 [%d1+-4], %r0;")
    assert "744 bytes behind the end of data" in fault_of("ld.global.u32 %r3, [%d0+1000];")
    assert "at 0x0: outside of every" in fault_of("mov.u64 %d2, 0; ld.global.u32 %r3, [%d2];")
    assert "at 0xfffffffffffffff0" in fault_of("mov.u64 %d2, -16; ld.u32 %r3, [%d2];")


def test_only_active_threads_count() -> None:
    run("setp.lt.u32 %p0, %r0, 63; @%p0 ld.global.u32 %r3, [%d1+4];")
    run("setp.ge.u32 %p0, %r0, 63; @%p0 bra $out; st.global.u32 [%d1+4], %r0;\n$out:")
    text = fault_of("setp.lt.u32 %p0, %r0, 40; @%p0 bra $out; st.global.u32 [%d1+256], %r0;\n$out:")
    assert "thread (8, 0, 0) of block (1, 0, 0) writes" in text
    text = fault_of("setp.lt.u32 %p0, %r0, 40; @%p0 bra $out; ld.global.u32 %r3, [%d1+256];\n$out:")
    assert "thread (8, 0, 0) of block (1, 0, 0) reads" in text


@pytest.mark.parametrize(("width", "offset"), [("u16", 1), ("u32", 2), ("u64", 4), ("v2.u32", 4), ("v4.u32", 8)])
def test_misaligned(width: str, offset: int) -> None:
    target = {"u16": "%h0", "u64": "%d2", "v2.u32": "{%r3, %r2}", "v4.u32": "{%r3, %r2, %r1, %r0}"}.get(width, "%r3")
    size = {"u16": 2, "u32": 4, "u64": 8, "v2.u32": 8, "v4.u32": 16}[width]
    assert f"not a multiple of {size}" in fault_of(f"ld.global.{width} {target}, [%d0+{offset}];")
    if size > 4:
        run(f"ld.global.{width} {target}, [%d0+{size}];")


def test_freed_memory() -> None:
    gpu = SimulatedGpu()
    module = gpu.load(kernel(BODY + "ld.global.u32 %r3, [%d1];\n ret;", PARAMETERS))
    address, other = gpu.allocate(256, "gone"), gpu.allocate(256)
    gpu.launch(module.kernels["k"], [1], [32], [address])
    gpu.free(address)
    with pytest.raises(KernelFault, match=r"byte 0 of gone \(256 bytes at 0x\w+\), which was freed"):
        gpu.launch(module.kernels["k"], [1], [32], [address])
    with pytest.raises(KernelFault, match="where no allocation begins"):
        gpu.free(address)
    with pytest.raises(KernelFault, match="where no allocation begins"):
        gpu.free(other + 1)
    assert gpu.allocate(256) not in (address, other)


def test_unwritten_memory() -> None:
    for space, address in (("global", "%d1"), ("shared", "common"), ("local", "own")):
        text = f"ld.{space}.u32 %r3, [{address}];"
        run(text)
        with pytest.raises(KernelFault, match=r"thread \(0, 0, 0\) .* nothing has written there"):
            run(text, gpu=SimulatedGpu(refuse_unwritten=True))
        run(f"st.{space}.u32 [{address}], %r0; {text}", gpu=SimulatedGpu(refuse_unwritten=True))
        # Only what the active threads read counts.
        some = f"setp.eq.u32 %p0, %r0, 5; @!%p0 bra $out; st.{space}.u32 [{address}], %r0; {text}\n$out:"
        run(some, gpu=SimulatedGpu(refuse_unwritten=True))
    with pytest.raises(KernelFault, match="changes 4 bytes at .*: nothing has written there"):
        run("atom.global.add.u32 %r3, [%d1], 1;", gpu=SimulatedGpu(refuse_unwritten=True))
    with pytest.raises(KernelFault, match=r"thread \(5, 0, 0\) of block \(0, 0, 0\) reads"):
        run(
            "setp.ne.u32 %p0, %r0, 5; @%p0 st.global.u32 [%d1], %r0; ld.global.u32 %r3, [%d1];",
            gpu=SimulatedGpu(refuse_unwritten=True),
        )


def test_unwritten_memory_is_not_zero() -> None:
    gpu = SimulatedGpu()
    assert np.isnan(gpu.read(gpu.allocate(64), 64).view(np.float32)).all()


def test_shared_and_local_memory_have_an_end() -> None:
    assert "shared address 64: outside of the 64 bytes of shared memory of the block" in fault_of(
        "ld.shared.u32 %r3, [common+64];"
    )
    assert "local address 64: outside of the 64 bytes of local memory of the thread" in fault_of(
        "st.local.u32 [own+64], %r0;"
    )
    assert "local address -4" in fault_of("mov.u64 %d2, own; cvta.local.u64 %d2, %d2; ld.local.u32 %r3, [own+-4];")


def test_generic_addresses_of_all_spaces_at_once() -> None:
    """One instruction, threads in three spaces; then one of them too far."""
    text = """
      mov.u64 %d2, own; cvta.local.u64 %d2, %d2; setp.eq.u32 %p0, %r0, 1; selp.b64 %d3, %d2, %d1, %p0;
      mov.u64 %d2, common; cvta.shared.u64 %d2, %d2; setp.eq.u32 %p0, %r0, 2; selp.b64 %d3, %d2, %d3, %p0;
    """
    run(text + "st.u32 [%d3+60], %r0; ld.u32 %r3, [%d3+60]; setp.ne.u32 %p0, %r3, %r0; @%p0 trap;", 1024)
    assert "thread (1, 0, 0) of block (0, 0, 0) writes 4 bytes at local address 64" in fault_of(
        text + "st.u32 [%d3+64], %r0;", 1024
    )
    assert "thread (1, 0, 0) of block (0, 0, 0) reads 4 bytes at local address 64" in fault_of(
        text + "ld.u32 %r3, [%d3+64];", 1024
    )


def test_one_instruction_in_several_allocations() -> None:
    gpu = SimulatedGpu()
    first, second = gpu.allocate(64, "first"), gpu.allocate(64, "second")
    ptx = kernel(
        """
      .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<4>;
      mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 1; setp.eq.u32 %p, %r1, 0;
      ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; selp.b64 %d2, %d0, %d1, %p; shr.u32 %r2, %r0, 1;
      mad.wide.u32 %d2, %r2, 4, %d2; st.global.u32 [%d2], %r0; ld.global.u32 %r3, [%d2];
      setp.ne.u32 %p, %r3, %r0; @%p trap; red.global.add.u32 [%d2], 100; ret;""",
        ".param .u64 a, .param .u64 b",
    )
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [32], [first, second])
    assert gpu.read(first, 64).view(np.uint32).tolist() == list(range(100, 132, 2))
    assert gpu.read(second, 64).view(np.uint32).tolist() == list(range(101, 132, 2))
    with pytest.raises(KernelFault, match=r"thread \(33, 0, 0\) .* right behind the end of second"):
        gpu.launch(gpu.load(ptx).kernels["k"], [1], [34], [gpu.allocate(68), second])


def test_constants_are_not_written() -> None:
    ptx = (
        f"{HEADER}.const .align 4 .b8 table[8] = {{1, 0, 0, 0, 255, 255, 255, 255}};\n"
        ".global .align 8 .u64 words[2] = {7};\n.global .align 4 .f32 one = 0f3F800000;\n"
        + kernel(
            """
      .reg .b32 %r<4>; .reg .b64 %d<4>;
      ld.const.s32 %r0, [table+4]; ld.global.f32 %r1, [one]; mov.u64 %d0, words; ld.global.u64 %d1, [%d0];
      st.global.u64 [words+8], 9; ld.param.u64 %d2, [a]; st.global.v2.u32 [%d2], {%r0, %r1}; st.global.u64 [%d2+8], %d1;
      ret;""",
            PARAMETERS,
        ).split("64\n", 1)[1]
    )
    assemble(ptx)
    gpu = SimulatedGpu()
    module, out = gpu.load(ptx), gpu.allocate(16)
    gpu.launch(module.kernels["k"], [1], [1], [out])
    assert gpu.read(out, 16).view(np.uint32).tolist() == [0xFFFFFFFF, 0x3F800000, 7, 0]
    assert gpu.read(module.variables["words"], 16).view(np.uint64).tolist() == [7, 9]
    writes = gpu.load(kernel(BODY + "st.global.u32 [%d0], %r0;\n ret;", PARAMETERS)).kernels["k"]
    with pytest.raises(KernelFault, match="table is read-only"):
        gpu.launch(writes, [1], [1], [module.variables["table"]])
    gpu.unload(module)
    with pytest.raises(KernelFault, match="table .*, which was freed"):
        gpu.launch(writes, [1], [1], [module.variables["table"]])


def test_a_trap_says_who() -> None:
    assert "thread (3, 0, 0) of block (1, 0, 0) traps" in fault_of("setp.eq.u32 %p0, %r0, 35; @%p0 trap;")


def test_what_the_host_must_not_do() -> None:
    gpu = SimulatedGpu(capacity=1000)
    address = gpu.allocate(600, "most")
    with pytest.raises(ResourceError, match="has 1000 bytes, 400 are free, 401 were asked for"):
        gpu.allocate(401)
    with pytest.raises(
        KernelFault, match="the host asks for 601 bytes at 0x.*: outside of every allocation, right behind"
    ):
        gpu.read(address, 601)
    with pytest.raises(KernelFault, match="the host asks for 8 bytes at 0x10"):
        gpu.write(16, bytes(8))
    gpu.write(address, np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert gpu.read(address, 24).view(np.float32).tolist() == [0, 3, 1, 4, 2, 5]


def test_a_device_stays_usable_after_a_fault() -> None:
    gpu = SimulatedGpu()
    with pytest.raises(KernelFault):
        run("ld.global.u32 %r3, [%d1+4];", gpu=gpu)
    run("ld.global.u32 %r3, [%d1];", gpu=gpu)
