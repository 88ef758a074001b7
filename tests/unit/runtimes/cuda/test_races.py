"""Accesses that nothing orders end a launch, with both of them; what is ordered, by whatever means, does not."""

from __future__ import annotations

import re

import pytest

from lowerkit.runtimes.cuda.simulated import LaunchBuffer, SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.unit.runtimes.cuda.ptx_programs import assemble, kernel

# %d1: the thread's own word; %r5: its word in shared memory, %r6 that of the other warp, %r7 that of the next lane;
# %p0: whether it is the first of its block, %p1: whether its warp is.
HEAD = """  .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<4>;
  .shared .align 16 .b8 buffer[4096];
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
  ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r3, 4; add.s64 %d1, %d0, %d1;
  mov.u32 %r4, buffer; shl.b32 %r5, %r0, 2; add.u32 %r5, %r4, %r5;
  xor.b32 %r6, %r0, 32; shl.b32 %r6, %r6, 2; add.u32 %r6, %r4, %r6;
  xor.b32 %r7, %r0, 1; shl.b32 %r7, %r7, 2; add.u32 %r7, %r4, %r7;
  setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p1, %r0, 32; mov.u32 %r8, 99;
"""
FILES = '.file 1 "/somewhere/model.py"\n'


def run(body: str, *, grid: int = 2, block: int = 64, words: int = 4096, check_races: bool = True) -> None:
    ptx = kernel(HEAD + body + "\n ret;", ".param .u64 out") + FILES
    assemble(ptx)
    gpu = SimulatedGpu(check_races=check_races)
    address = gpu.allocate(4 * words, "data")
    gpu.write(address, bytes(4 * words))
    gpu.launch(gpu.load(ptx).kernels["k"], [grid], [block], [address])


def race_of(body: str, grid: int = 2, block: int = 64, words: int = 4096) -> str:
    run(body, grid=grid, block=block, words=words, check_races=False)  # nothing else is wrong with it
    with pytest.raises(KernelFault) as caught:
        run(body, grid=grid, block=block, words=words)
    assert caught.value.code == "LK8017"
    assert caught.value.hint is not None
    assert caught.value.message.startswith("race: ")
    return str(caught.value)


WARPS = [
    ("st.shared.u32 [%r5], %r0;", "bar.sync 0;", "ld.shared.u32 %r9, [%r6];", "reads", "wrote"),
    ("st.shared.u32 [%r5], %r0; bar.sync 0; ld.shared.u32 %r9, [%r6];", "bar.sync 0;", "st.shared.u32 [%r5], %r0;",
     "writes", "read"),
    ("@%p1 st.shared.u32 [%r5], %r0;", "bar.sync 0;", "@!%p1 st.shared.u32 [%r6], %r0;", "writes", "wrote"),
    ("@%p0 st.shared.u32 [buffer], 7;", "bar.sync 0;", "ld.shared.u32 %r9, [buffer];", "reads", "wrote"),
    ("ld.shared.u32 %r9, [buffer];", "barrier.sync 0;", "@%p0 st.shared.u32 [buffer], 7;", "writes", "read"),
    ("st.global.u32 [%d1], %r0;", "bar.sync 0;",
     "xor.b32 %r9, %r3, 32; mad.wide.u32 %d2, %r9, 4, %d0; ld.global.u32 %r10, [%d2];", "reads", "wrote"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "order", "after", "does", "did"), WARPS)
def test_warps_of_a_block_need_a_barrier(before: str, order: str, after: str, does: str, did: str) -> None:
    run(before + order + after)
    text = race_of(before + "bar.warp.sync -1;" + after)
    found = re.search(rf"race: (.*) {does} byte \d+ of (shared memory|data), which (.*) {did} before", text)
    assert found is not None, text
    assert found[1] != found[3]
    assert "no barrier orders the two warps" in text


LANES = [
    ("st.shared.u32 [%r5], %r0;", "ld.shared.u32 %r9, [%r7];"),
    ("ld.shared.u32 %r9, [%r7];", "st.shared.u32 [%r5], %r0;"),
    ("ld.shared.u32 %r9, [buffer+128];", "@%p0 st.shared.u32 [buffer+128], 7;"),
]


@pytest.mark.parametrize(("before", "after"), LANES)
def test_lanes_of_a_warp_need_what_the_warp_runs_together(before: str, after: str) -> None:
    assert "no instruction that the warp runs together" in race_of(before + after, block=32)
    for order in ("bar.warp.sync -1;", "bar.sync 0;", "shfl.sync.bfly.b32 %r9, %r0, 1, 31, -1;"):
        run(before + order + after, block=32)


def test_a_thread_is_in_order_with_itself() -> None:
    run("st.shared.u32 [%r5], %r0; ld.shared.u32 %r9, [%r5]; st.shared.u32 [%r5], %r9;")
    run("ld.global.u32 %r9, [%d1]; add.u32 %r9, %r9, 1; st.global.u32 [%d1], %r9;", grid=200, words=12800)


def test_one_instruction() -> None:
    assert "both in one run of the instruction" in race_of("st.shared.u32 [buffer], %r0;", block=32)
    assert "block (1, 0, 0) writes byte 0 of data" in race_of("st.global.u32 [%d0], %r1;", block=1)
    run("st.shared.u32 [buffer], 5; st.global.u32 [%d0], 5;")
    run("st.shared.u32 [buffer], 5; st.shared.u32 [buffer], 5;")  # all write what is there


def test_blocks_of_different_batches() -> None:
    """The second batch begins when the first is over: nothing but their order is wrong."""
    body = "setp.eq.u32 %p2, %r1, 0; setp.eq.u32 %p3, %r1, 299; and.pred %p2, %p2, %p0; and.pred %p3, %p3, %p0;"
    text = race_of(body + "@%p2 st.global.u32 [%d0], 7; @%p3 ld.global.u32 %r9, [%d0];", grid=300, block=128)
    assert "thread (0, 0, 0) of block (299, 0, 0) reads byte 0 of data, which thread (0, 0, 0) of block (0," in text
    text = race_of(body + "@%p2 ld.global.u32 %r9, [%d0]; @%p3 st.global.u32 [%d0], 7;", grid=300, block=128)
    assert "block (299, 0, 0) writes byte 0 of data, which thread (0, 0, 0) of block (0, 0, 0) read" in text


def test_both_lines_are_named() -> None:
    text = race_of("\n.loc 1 41 7\nst.shared.u32 [%r5], %r0;\n.loc 1 42 7\nld.shared.u32 %r9, [%r6];\n")
    assert re.search(r"op: kernel k, PTX line \d+: ld.shared.u32 %r9, \[%r6\];\n  at: model.py:42", text)
    assert re.search(r"- before: kernel k, PTX line \d+: st.shared.u32 \[%r5\], %r0; \(model.py:41\)", text)


def test_named_barriers_order_those_who_come() -> None:
    """Warps 0 and 1 meet at one barrier, 2 and 3 at another: 0 and 2 do not."""
    meet = "shr.u32 %r9, %r0, 6; setp.eq.u32 %p2, %r9, 0; @%p2 bra $low; bar.sync 2, 64; bra $on;\n"
    meet += "$low: bar.sync 1, 64;\n$on:"
    write = "st.shared.u32 [%r5], %r0;"
    run(write + meet + "ld.shared.u32 %r9, [%r6];", block=128)
    far = "xor.b32 %r9, %r0, 64; shl.b32 %r9, %r9, 2; add.u32 %r9, %r9, %r4; ld.shared.u32 %r9, [%r9];"
    assert "no barrier orders the two warps" in race_of(write + meet + far, block=128)
    run(write + meet + "bar.sync 0;" + far, block=128)


def test_order_passes_through_a_third_warp() -> None:
    """0 meets 1, then 1 meets 2: what 0 wrote lies before what 2 reads."""
    text = """
      @%p1 st.shared.u32 [%r5], %r0; shr.u32 %r9, %r0, 5; setp.eq.u32 %p2, %r9, 2; @%p2 bra $second;
      bar.sync 1, 64; @%p1 bra $out;
    $second: bar.sync 2, 64; @!%p2 bra $out; ld.shared.u32 %r9, [buffer];
    $out:"""
    run(text, block=96)
    assert "no barrier" in race_of(text.replace("@%p1 st", "setp.eq.u32 %p4, %r9, 1; @%p1 st").replace(
        "bar.sync 1, 64; @%p1 bra $out;", "@%p1 bra $out;"), block=96)  # fmt: skip


COUNTED = """st.global.u32 [%d1+4], %r3; bar.sync 0;
  @%p0 atom.global.acq_rel.gpu.add.u32 %r8, [%d0], 1;
  setp.eq.u32 %p1, %r8, LAST; and.pred %p1, %p1, %p0; @%p1 ld.global.u32 %r9, [%d0+OTHER];"""


def counted(last: int, block_read: int, text: str = COUNTED) -> str:
    """The block that counts ``last`` reads a word that the second warp of ``block_read`` wrote."""
    return text.replace("LAST", str(last)).replace("OTHER", str(4 + 4 * (64 * block_read + 40)))


def test_blocks_that_count_each_other() -> None:
    run(counted(2, 0), grid=3)
    run(counted(2, 1), grid=3)
    run(counted(1, 0), grid=3)
    assert "no release and acquire order the two blocks" in race_of(counted(0, 2), grid=3)
    assert "no release and acquire" in race_of(counted(1, 2), grid=3)
    assert "no release and acquire" in race_of(counted(2, 0, COUNTED.replace("bar.sync 0;", "")), grid=3)
    relaxed = COUNTED.replace("acq_rel", "relaxed")
    assert "no release and acquire" in race_of(counted(2, 0, relaxed), grid=3)
    fence = "fence.acq_rel.gpu;"
    released = relaxed.replace("bar.sync 0;", "bar.sync 0;" + fence)
    assert "no release and acquire" in race_of(counted(2, 0, released), grid=3)
    run(counted(2, 0, released.replace("setp.eq", fence + "setp.eq")), grid=3)
    run(
        counted(2, 0, relaxed.replace("bar.sync 0;", "membar.gl; bar.sync 0;").replace("setp", "membar.gl; setp")),
        grid=3,
    )


def test_counting_over_batches() -> None:
    run(counted(399, 0), grid=400, words=40000)
    assert "no release and acquire" in race_of(
        counted(399, 0, COUNTED.replace("acq_rel", "relaxed")), grid=400, words=40000
    )


FLAG = """setp.eq.u32 %p2, %r1, 0; @!%p0 bra $out; @!%p2 bra $wait;
  st.global.u32 [%d0+256], 7; st.release.gpu.global.u32 [%d0], 1; bra $out;
$wait: ld.acquire.gpu.global.u32 %r9, [%d0]; setp.eq.u32 %p3, %r9, 0; @%p3 bra $wait;
  ld.global.u32 %r10, [%d0+256]; setp.ne.u32 %p4, %r10, 7; @%p4 trap;
$out:"""


def test_a_flag_that_others_wait_for() -> None:
    run(FLAG, grid=5)
    assert "reads byte 256 of data" in race_of(FLAG.replace("ld.acquire.gpu", "ld.relaxed.gpu"), grid=5)
    assert "reads byte 256 of data" in race_of(FLAG.replace("st.release.gpu", "st.relaxed.gpu"), grid=5)
    assert "reads byte 0 of data" in race_of(
        FLAG.replace("st.release.gpu.global.u32 [%d0]", "st.global.u32 [%d0]"), grid=5
    )
    assert "no release" in race_of(FLAG.replace("st.global.u32 [%d0+256], 7; st.release.gpu.global.u32 [%d0], 1;",
        "st.release.gpu.global.u32 [%d0], 1; st.global.u32 [%d0+256], 7;"), grid=5)  # fmt: skip
    fenced = FLAG.replace("st.release.gpu", "fence.acq_rel.gpu; st.volatile").replace("ld.acquire.gpu", "ld.volatile")
    run(fenced.replace("ld.global.u32 %r10", "fence.acq_rel.gpu; ld.global.u32 %r10"), grid=5)
    assert "no release" in race_of(fenced, grid=5)


def test_atomics_meet_without_an_order_within_their_scope() -> None:
    run("red.global.add.u32 [%d0], 1; atom.shared.add.u32 %r9, [buffer], 1;", grid=9)
    assert "the scope .cta of an atomic" in race_of("@%p0 atom.global.relaxed.cta.add.u32 %r9, [%d0], 1;")
    body = "setp.eq.u32 %p2, %r1, 0; and.pred %p2, %p2, %p0; @%p2 atom.global.relaxed.cta.add.u32 %r9, [%d0], 1;"
    assert "the scope .cta" in race_of(body + "@%p0 atom.global.relaxed.gpu.add.u32 %r9, [%d0], 1;")
    assert "changed before" in race_of("red.global.add.u32 [%d0], 1; ld.global.u32 %r9, [%d0];")
    assert "reads byte 0" in race_of("atom.shared.add.u32 %r9, [buffer], 1; ld.shared.u32 %r9, [buffer];", grid=1)
    run("atom.shared.add.u32 %r9, [buffer], 1; bar.sync 0; ld.shared.u32 %r9, [buffer];")


def test_a_byte_beside_is_another_place() -> None:
    """Two threads write neighbouring bytes: no race. One of them writes two: a race."""
    head = ".reg .b16 %h<2>; mov.u16 %h0, 7; cvt.u64.u32 %d2, %r0; add.u64 %d2, %d0, %d2; add.u64 %d3, %d2, %d2;"
    run(head + "st.global.u8 [%d2], %h0; cvt.u16.u32 %h1, %r0;", grid=1)
    pair = "@%p0 st.global.u16 [%d0], %h1; @!%p0 st.global.u8 [%d2], %h0;"
    assert "byte 1 of data" in race_of(head + "cvt.u16.u32 %h1, %r3; add.u16 %h1, %h1, 300;" + pair, grid=1)


def test_buffers_that_overlap_are_one_place() -> None:
    ptx = kernel(
        """.reg .b32 %r<4>; .reg .b64 %d<4>; ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; mov.u32 %r0, %ctaid.x;
        mul.wide.u32 %d2, %r0, 4; add.u64 %d2, %d1, %d2; ld.global.u32 %r1, [%d0]; st.global.u32 [%d2], %r0; ret;""",
        ".param .u64 a, .param .u64 b",
    )
    gpu = SimulatedGpu(check_races=True)
    address, loaded = gpu.allocate(1024), gpu.load(ptx).kernels["k"]
    gpu.write(address, bytes(1024))
    for start, meets in ((256, False), (0, True)):
        arguments = [
            LaunchBuffer(address, 16, "operand 0", writable=False),
            LaunchBuffer(address + start, 64, "result 0"),
        ]
        if not meets:
            gpu.launch(loaded, [8], [1], arguments)
            continue
        with pytest.raises(KernelFault, match="byte 0 of operand 0 and result 0, which thread"):
            gpu.launch(loaded, [8], [1], arguments)


def test_a_launch_orders_what_was_before() -> None:
    gpu = SimulatedGpu(check_races=True)
    body = "@%p0 st.global.u32 [%d0], 7;", "ld.global.u32 %r9, [%d0];"
    address = gpu.allocate(64)
    for each in body:
        loaded = gpu.load(kernel(HEAD + each + "\n ret;", ".param .u64 out")).kernels["k"]
        gpu.launch(loaded, [2], [64], [address])


def test_generic_addresses_and_guards() -> None:
    shared = "mov.u64 %d2, buffer; cvta.shared.u64 %d2, %d2; mad.wide.u32 %d3, %r0, 4, %d2; xor.b32 %r9, %r0, 32;"
    shared += "mad.wide.u32 %d2, %r9, 4, %d2; selp.b64 %d2, %d2, %d1, %p1; selp.b64 %d3, %d1, %d3, %p1;"
    run(shared + "st.u32 [%d3], %r0; bar.sync 0; ld.u32 %r9, [%d2];")
    assert "reads byte 128 of shared memory" in race_of(shared + "st.u32 [%d3], %r0; ld.u32 %r9, [%d2];")


REPLICAS = """ld.global.u32 %r9, [%d0+16000]; add.u32 %r10, %r9, %r8; add.u32 %r11, %r10, 1;
  @%p0 st.global.u32 [%d0+16000], %r11;"""


def test_what_others_read_and_do_not_use() -> None:
    """Every thread reads and adds, one stores: what the others got counts for nothing."""
    run(REPLICAS, grid=1)
    run(REPLICAS + REPLICAS, grid=1)
    assert "reads byte 16000" in race_of(
        REPLICAS + "ld.global.u32 %r12, [%d0+16000]; st.global.u32 [%d1], %r12;", grid=1
    )
    assert "reads" not in race_of(REPLICAS + "st.global.u32 [%d1], %r10;", grid=1)  # now it counts
    assert "writes byte 16000" in race_of(REPLICAS + "setp.eq.u32 %p2, %r9, 3; @%p2 bra $on;\n$on:", grid=1)
    assert "writes byte 16000" in race_of(REPLICAS.replace("@%p0", "setp.lt.u32 %p3, %r0, 2; @%p0"), grid=2)
    several = REPLICAS.replace("@%p0", "and.b32 %r12, %r0, 31; setp.eq.u32 %p3, %r12, 0; @%p3")
    assert "race" in race_of(several, grid=1)  # each warp has one that stores


MBARRIER = """.shared .align 8 .b8 wait[8]; shr.u32 %r9, %r0, 5; setp.eq.u32 %p2, %r9, 1; setp.eq.u32 %p3, %r9, 2;
  @%p0 mbarrier.init.shared::cta.b64 [wait], 32; bar.sync 0;
  @!%p1 bra $others; st.shared.u32 [%r5], %r0; mbarrier.arrive.shared::cta.b64 _, [wait]; bra $out;
$others: @!%p2 bra $third;
$again: mbarrier.try_wait.parity.shared::cta.b64 %p4, [wait], 0; @!%p4 bra $again; ld.shared.u32 %r10, [buffer+8];
  bra $out;
$third: THIRD
$out:"""


def test_an_mbarrier_orders_those_who_arrive_and_wait() -> None:
    run(MBARRIER.replace("THIRD", ""), block=96)
    run(MBARRIER.replace("THIRD", "ld.shared.u32 %r10, [buffer+1024];"), block=96)
    text = race_of(MBARRIER.replace("THIRD", "ld.shared.u32 %r10, [buffer+8];"), block=96)
    assert "of block (0, 0, 0) reads byte 8 of shared memory, which thread (2, 0, 0) of block (0, 0, 0) wrote" in text
    late = MBARRIER.replace("st.shared.u32 [%r5], %r0; mbarrier.arrive.shared::cta.b64 _, [wait];",
        "mbarrier.arrive.shared::cta.b64 _, [wait]; st.shared.u32 [%r5], %r0;")  # fmt: skip
    assert "no barrier" in race_of(late.replace("THIRD", ""), block=96)


COPY = """mov.u64 %d2, %d1; @%p1 cp.async.ca.shared.global [%r5], [%d2], 4; cp.async.commit_group;
  WAIT bar.sync 0; AGAIN ld.shared.u32 %r9, [BYTE]; st.global.u32 [%d1], %r9;"""


def test_an_asynchronous_copy_writes_from_its_beginning_to_its_wait() -> None:
    """Who copied waits, then the others come to a barrier; in the other order the barrier is of no use."""
    text = COPY.replace("BYTE", "buffer")
    run(text.replace("WAIT", "cp.async.wait_group 0;").replace("AGAIN", ""))
    late = text.replace("WAIT", "").replace("AGAIN", "cp.async.wait_group 0;")
    assert "reads byte 0 of shared memory, which thread (0, 0, 0)" in race_of(late)
    run(late.replace("ld.shared", "bar.sync 0; ld.shared"))
    before = "ld.shared.u32 %r10, [%r6]; cp.async.ca.shared.global [%r5], [%d1], 4; cp.async.wait_all;"
    assert "writes byte" in race_of(before)
    run(before.replace("; cp.async.ca", "; bar.sync 0; cp.async.ca", 1))


def test_a_matrix_load_reads_the_rows_whose_addresses_it_has() -> None:
    rows = "shl.b32 %r9, %r0, 4; and.b32 %r9, %r9, 511; add.u32 %r9, %r4, %r9;"
    load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r9]; st.global.u32 [%d1], %r10;"
    assert "reads byte" in race_of(rows + "st.shared.u32 [%r5], %r0;" + load)
    run(rows + "st.shared.u32 [%r5], %r0; bar.sync 0;" + load)
    run(rows + "st.shared.u32 [%r5], %r0;" + load, block=32)


NEXT_PHASE = """.shared .align 8 .b8 wait[8]; @%p0 mbarrier.init.shared::cta.b64 [wait], 1; bar.sync 0;
  @!%p0 bra $others; st.shared.u32 [buffer+8], 7; mbarrier.arrive.shared::cta.b64 _, [wait];
  st.shared.u32 [buffer+12], 7; AGAIN bra $out;
$others: @%p1 bra $out;
$poll: mbarrier.try_wait.parity.shared::cta.b64 %p4, [wait], 0; @!%p4 bra $poll; ld.shared.u32 %r10, [buffer+BYTE];
$out:"""


def test_a_wait_for_one_phase_says_nothing_of_the_next() -> None:
    """Who begins the next phase early is not known to whom waits for this one."""
    early = "mbarrier.arrive.shared::cta.b64 _, [wait]; mbarrier.arrive.shared::cta.b64 _, [wait];"
    run(NEXT_PHASE.replace("AGAIN", "").replace("BYTE", "8"), grid=1)
    assert "reads byte 12" in race_of(NEXT_PHASE.replace("AGAIN", "").replace("BYTE", "12"), grid=1)
    begun = NEXT_PHASE.replace("wait], 1;", "wait], 2;").replace("mbarrier.arrive.shared::cta.b64 _, [wait];", early)
    begun = begun.replace("AGAIN", "mbarrier.arrive.shared::cta.b64 _, [wait];")
    run(begun.replace("BYTE", "8"), grid=1)
    assert "reads byte 12" in race_of(begun.replace("BYTE", "12"), grid=1)
