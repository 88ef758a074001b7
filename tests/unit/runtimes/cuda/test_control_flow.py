"""Divergence, loops, tables of labels, barriers, shuffles and votes."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.unit.runtimes.cuda.ptx_programs import kernel, run_on_words, run_with_statistics

HEAD = """  .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<4>;
  .shared .align 16 .b8 buffer[4096];
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r3, %r1, %r2, %r0;
  ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r3, 4; add.s64 %d0, %d0, %d1;
"""
TAIL = "  st.global.u32 [%d0], %r4;\n  ret;"


def program(body: str, tail: str = TAIL) -> str:
    return kernel(HEAD + body + tail, ".param .u64 out")


def test_both_sides_of_a_branch() -> None:
    ptx = program("""
      and.b32 %r5, %r0, 3; setp.eq.u32 %p0, %r5, 2; mov.u32 %r4, 7;
      @%p0 bra $even; add.u32 %r4, %r4, %r0; bra.uni $join;
    $even: mul.lo.u32 %r4, %r4, %r0;
    $join: add.u32 %r4, %r4, 1;
    """)
    threads = np.arange(96)
    assert (run_on_words(ptx, 96, block=96) == np.where(threads % 4 == 2, 7 * threads, 7 + threads) + 1).all()


def test_loops_of_different_lengths_and_early_exits() -> None:
    """The length of Collatz chains; every third thread leaves before."""
    ptx = program("""
      rem.u32 %r6, %r3, 3; setp.eq.u32 %p1, %r6, 2; @%p1 exit;
      add.u32 %r5, %r3, 1; mov.u32 %r4, 0;
    $loop: setp.eq.u32 %p2, %r5, 1; @%p2 bra $done;
      add.u32 %r4, %r4, 1; and.b32 %r6, %r5, 1; setp.eq.u32 %p3, %r6, 0;
      @%p3 shr.u32 %r5, %r5, 1;
      @!%p3 mad.lo.u32 %r5, %r5, 3, 1;
      bra $loop;
    $done:
    """)

    def length(n: int) -> int:
        return 0 if n == 1 else 1 + length(3 * n + 1 if n % 2 else n // 2)

    expected = [0 if n % 3 == 2 else length(n + 1) for n in range(150)]
    assert run_on_words(ptx, 150, grid=3, block=50).tolist() == expected


def test_values_survive_while_others_run() -> None:
    """A register that one side of a branch overwrites keeps its old value on the other."""
    ptx = program("""
      mov.u32 %r4, %r0; setp.lt.u32 %p0, %r0, 10; @%p0 bra $low;
      mov.u32 %r7, 5; bra $join;
    $low: mov.u32 %r4, 1000; mov.u32 %r7, 6;
    $join: add.u32 %r4, %r4, %r7;
    """)
    threads = np.arange(64)
    assert (run_on_words(ptx, 64, block=64) == np.where(threads < 10, 1006, threads + 5)).all()


def test_threads_of_a_block_in_three_directions() -> None:
    ptx = kernel(
        """
      .reg .b32 %r<16>; .reg .b64 %d<4>;
      mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y;
      mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.y; mov.u32 %r7, %ctaid.z;
      mov.u32 %r8, %nctaid.x; mov.u32 %r9, %nctaid.y; mov.u32 %r10, %ntid.z;
      mad.lo.u32 %r11, %r2, %r4, %r1; mad.lo.u32 %r11, %r11, %r3, %r0;
      mad.lo.u32 %r12, %r7, %r9, %r6; mad.lo.u32 %r12, %r12, %r8, %r5;
      mul.lo.u32 %r13, %r3, %r4; mul.lo.u32 %r13, %r13, %r10; mad.lo.u32 %r13, %r13, %r12, %r11;
      mov.u32 %r14, %laneid; mov.u32 %r15, %warpid; mad.lo.u32 %r14, %r15, 100, %r14;
      ld.param.u64 %d0, [out]; mad.wide.u32 %d0, %r13, 4, %d0; st.global.u32 [%d0], %r14; ret;""",
        ".param .u64 out",
    )
    from lowerkit.runtimes.cuda.simulated import SimulatedGpu

    gpu = SimulatedGpu()
    count = 5 * 3 * 2 * 2 * 3 * 4
    address = gpu.allocate(4 * count)
    gpu.launch(gpu.load(ptx).kernels["k"], (2, 3, 4), (5, 3, 2), [address])
    found = gpu.read(address, 4 * count).view(np.uint32).reshape(-1, 30)
    assert (found == np.arange(30)).all()  # one warp: lanes 0 to 29


@pytest.mark.parametrize("index", ["%r6", "3"])
def test_a_table_of_labels(index: str) -> None:
    ptx = program(f"""
      and.b32 %r6, %r0, 3;
      mov.u32 %r7, {index};
    $table: .branchtargets $a, $b, $a, $c;
      brx.idx %r7, $table;
    $a: mov.u32 %r4, 10; bra $join;
    $b: mov.u32 %r4, 20; bra $join;
    $c: mov.u32 %r4, 30;
    $join:
    """)
    expected = np.array([10, 20, 10, 30])[np.arange(32) % 4 if index == "%r6" else np.full(32, 3)]
    assert (run_on_words(ptx, 32) == expected).all()


def test_a_table_has_an_end() -> None:
    ptx = program("$table: .branchtargets $a;\n brx.idx %r0, $table;\n$a: mov.u32 %r4, 0;\n")
    with pytest.raises(KernelFault, match="beyond its 1 labels"):
        run_on_words(ptx, 32)


def test_shared_memory_turns_a_block_around() -> None:
    ptx = program("""
      mov.u32 %r5, buffer; shl.b32 %r6, %r0, 2; add.u32 %r7, %r5, %r6; st.shared.u32 [%r7], %r3;
      bar.sync 0;
      mov.u32 %r8, 380; sub.u32 %r8, %r8, %r6; add.u32 %r8, %r8, %r5; ld.shared.u32 %r4, [%r8];
    """)
    found = run_on_words(ptx, 5 * 96, grid=5, block=96).reshape(5, 96)
    assert (found == np.arange(5 * 96).reshape(5, 96)[:, ::-1]).all()


def test_a_barrier_that_warps_reach_in_different_places() -> None:
    ptx = program("""
      setp.lt.u32 %p0, %r0, 32; mov.u32 %r5, buffer; @%p0 bra $first;
      bar.sync 0; ld.shared.u32 %r4, [buffer+4]; bra $join;
    $first: mov.u32 %r6, 55; st.shared.u32 [%r5+4], %r6; bar.sync 0; mov.u32 %r4, 1;
    $join:
    """)
    assert run_on_words(ptx, 96, block=96).tolist() == [1] * 32 + [55] * 64


def test_a_barrier_of_some_warps() -> None:
    ptx = program("""
      mov.u32 %r4, 9; setp.ge.u32 %p0, %r0, 64; @%p0 bra $out;
      shl.b32 %r6, %r0, 2; mov.u32 %r5, buffer; add.u32 %r5, %r5, %r6; st.shared.u32 [%r5], %r0;
      bar.sync 1, 64;
      xor.b32 %r6, %r6, 128; mov.u32 %r5, buffer; add.u32 %r5, %r5, %r6; ld.shared.u32 %r4, [%r5];
    $out:
    """)
    assert run_on_words(ptx, 96, block=96).tolist() == [thread ^ 32 for thread in range(64)] + [9] * 32


def test_waiting_for_a_barrier_that_others_never_reach() -> None:
    ptx = program("setp.lt.u32 %p0, %r0, 32; @%p0 bra $a; bar.sync 1; bra $a;\n$a: bar.sync 0;\n mov.u32 %r4, 0;\n")
    with pytest.raises(
        KernelFault, match=r"thread \((0|32), 0, 0\) of block \(0, 0, 0\) waits for ever at barrier [01]"
    ):
        run_on_words(ptx, 64, block=64)


def test_a_loop_without_end_is_ended() -> None:
    from lowerkit.runtimes.cuda.simulated import SimulatedGpu

    gpu = SimulatedGpu(instruction_limit=10_000)
    module = gpu.load(kernel("$a: bra $a;"))
    with pytest.raises(KernelFault, match="ended after 10000 instructions"):
        gpu.launch(module.kernels["k"], [1], [1], [])


def test_a_thread_spins_until_another_one_writes() -> None:
    """The flag is set by a thread further down: who spins must not starve it."""
    ptx = program("""
      setp.eq.u32 %p0, %r0, 33; @%p0 bra $set;
    $spin: ld.volatile.global.u32 %r4, [%d0]; ld.param.u64 %d2, [out]; ld.volatile.global.u32 %r4, [%d2+132];
      setp.eq.u32 %p1, %r4, 0; @%p1 bra $spin; bra $join;
    $set: mov.u32 %r4, 77; st.volatile.global.u32 [%d0], %r4;
    $join:
    """)
    assert run_on_words(ptx, 64, block=64).tolist() == [77] * 64


SHUFFLES = {
    "bfly": ("5, 31", lambda lane: lane ^ 5),
    "down": ("3, 31", lambda lane: lane + 3 if lane + 3 < 32 else lane),
    "up": ("3, 0", lambda lane: lane - 3 if lane >= 3 else lane),
    "idx": ("9, 31", lambda lane: 9),
}


@pytest.mark.parametrize("mode", SHUFFLES)
def test_shuffles(mode: str) -> None:
    text, source = SHUFFLES[mode]
    ptx = program(
        f"mul.lo.u32 %r5, %r3, 3; shfl.sync.{mode}.b32 %r4|%p0, %r5, {text}, -1; @!%p0 add.u32 %r4, %r4, 1000;"
    )
    lanes = np.arange(32)
    from_lane = np.array([source(lane) for lane in lanes])
    outside = (from_lane == lanes) & (mode in ("up", "down"))
    expected = np.concatenate([3 * (32 * warp + from_lane) + 1000 * outside for warp in range(4)])
    assert (run_on_words(ptx, 128, grid=2, block=64) == expected).all()


def test_a_shuffle_within_segments() -> None:
    ptx = program("shfl.sync.down.b32 %r4, %r0, 2, 0x1807, -1;")  # segments of 8 lanes
    expected = [lane + 2 if lane % 8 < 6 else lane for lane in range(32)]
    assert run_on_words(ptx, 32).tolist() == expected


def test_a_shuffle_gathers_its_warp() -> None:
    """Threads come by two ways; the first ones wait."""
    ptx = program("""
      setp.lt.u32 %p0, %r0, 7; mov.u32 %r5, %r0; @%p0 bra $few; add.u32 %r5, %r5, 100; bra $join;
    $few: add.u32 %r5, %r5, 200;
    $join: shfl.sync.bfly.b32 %r4, %r5, 31, 31, -1;
    """)
    value = np.where(np.arange(32) < 7, 200, 100) + np.arange(32)
    assert (run_on_words(ptx, 32) == value[::-1]).all()


def test_a_shuffle_with_half_a_warp() -> None:
    ptx = program("""
      mov.u32 %r4, 1; setp.ge.u32 %p0, %r0, 16; @%p0 bra $out; shfl.sync.bfly.b32 %r4, %r0, 15, 31, 0xFFFF;
    $out:
    """)
    assert run_on_words(ptx, 32).tolist() == [15 - lane for lane in range(16)] + [1] * 16


def test_a_shuffle_with_lanes_that_have_gone() -> None:
    ptx = program("setp.eq.u32 %p0, %r0, 9; @%p0 exit; shfl.sync.bfly.b32 %r4, %r0, 1, 31, -1;")
    with pytest.raises(KernelFault, match="names lanes in its member mask that do not run this instruction"):
        run_on_words(ptx, 32)
    ptx = program("shfl.sync.bfly.b32 %r4, %r0, 16, 31, 0xFFFF;")
    with pytest.raises(KernelFault, match=r"thread \(16, 0, 0\) .* leaves itself out"):
        run_on_words(ptx, 32)


def test_votes() -> None:
    ptx = program("""
      and.b32 %r5, %r0, 5; setp.eq.u32 %p0, %r5, 4; vote.sync.ballot.b32 %r4, %p0, -1;
      vote.sync.any.pred %p1, %p0, -1; vote.sync.all.pred %p2, %p0, -1; vote.sync.uni.pred %p3, !%p0, -1;
      @%p1 add.u32 %r4, %r4, 1; @%p2 add.u32 %r4, %r4, 2; @%p3 add.u32 %r4, %r4, 4;
    """)
    ballot = sum(1 << lane for lane in range(32) if lane & 5 == 4)
    assert run_on_words(ptx, 32).tolist() == [ballot + 1] * 32


ATOMICS = """
  atom.global.add.u32 %r4, [%d2], 2;
  red.global.max.s32 [%d2+4], %r3;
  atom.global.cas.b32 %r5, [%d2+8], 0, %r3;
  red.global.or.b32 [%d2+12], %r3;
  atom.shared.inc.u32 %r6, [buffer], 4;
  red.relaxed.gpu.global.add.f32 [%d2+16], 0f3F800000;
  atom.global.exch.b32 %r7, [%d2+20], %r3;
"""


def test_atomics_of_threads_that_meet() -> None:
    ptx = program(
        "setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [buffer], 0;\n ld.param.u64 %d2, [out]; bar.sync 0;" + ATOMICS,
        "ret;",
    )
    words = run_on_words(ptx, 64, grid=2, block=32)
    assert words[:4].tolist() == [128, 63, 1, 63] and words[5] == 63
    assert words.view(np.float32)[4] == 64


def test_atomics_of_threads_that_do_not_meet() -> None:
    ptx = program("atom.global.add.u32 %r5, [%d0], %r3; atom.global.min.u32 %r6, [%d0], 40; add.u32 %r4, %r5, %r6;")
    assert run_on_words(ptx, 64, grid=2, block=32).tolist() == list(range(64))


def test_old_values_come_in_the_order_of_the_threads() -> None:
    ptx = program("ld.param.u64 %d2, [out]; atom.add.u32 %r4, [%d2+400], 1;")
    words = run_on_words(ptx, 101, grid=1, block=100)
    assert words.tolist() == [*range(100), 100]


def test_statistics_count_groups_and_threads() -> None:
    ptx = kernel(".reg .b32 %r<2>;\n mov.u32 %r0, 1; mov.u32 %r1, 2; ret;", ".param .u64 out")
    _, statistics = run_with_statistics(ptx, 1, grid=3, block=40)
    assert (statistics.issued, statistics.thread_instructions) == (3, 3 * 120)
