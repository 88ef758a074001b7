"""mbarriers: arrivals, phases, polls, and threads that wait for what never comes."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import Array, assemble, kernel

HEAD = """
  .reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<8>;
  .shared .align 16 .b8 data[1024]; .shared .align 8 .b8 bar[64];
  mov.u32 %r0, %tid.x; ld.param.u64 %d0, [out]; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1;
  mov.u32 %r1, bar; setp.eq.u32 %p0, %r0, 0; mov.u32 %r2, 0; mov.u32 %r4, 0;
"""
TAIL = "\n  st.global.u32 [%d0], %r4; ret;"


def text(body: str) -> str:
    return kernel(HEAD + body + TAIL, ".param .u64 out")


def run(body: str, threads: int = 64, blocks: int = 1) -> Array:
    ptx = text(body)
    assemble(ptx)
    gpu = SimulatedGpu(refuse_unwritten=True, check_races=blocks == 1)
    address = gpu.allocate(4 * threads)
    gpu.launch(gpu.load(ptx).kernels["k"], [blocks], [threads], [address])
    return gpu.read(address, 4 * threads).view(np.uint32)


def fault(body: str, threads: int = 64) -> str:
    with pytest.raises(KernelFault) as caught:
        run(body, threads)
    return str(caught.value)


INIT = "@%p0 mbarrier.init.shared::cta.b64 [%r1], {}; bar.sync 0;\n"


def test_all_threads_meet_in_every_phase() -> None:
    """Each thread sums what a thread of the other warp wrote in each of five rounds."""
    body = (
        INIT.format(64)
        + """
      mov.u32 %r5, 0; shl.b32 %r6, %r0, 2; mov.u32 %r7, data; add.u32 %r8, %r7, %r6; xor.b32 %r9, %r6, 128;
      add.u32 %r9, %r9, %r7;
    $round: mad.lo.u32 %r10, %r5, 100, %r0; and.b32 %r11, %r5, 1; shl.b32 %r12, %r11, 8;
      add.u32 %r13, %r8, %r12; st.shared.u32 [%r13], %r10;
      mbarrier.arrive.shared::cta.b64 _, [%r1];
    $wait: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r11; @!%p1 bra $wait;
      add.u32 %r13, %r9, %r12; ld.shared.u32 %r14, [%r13]; add.u32 %r4, %r4, %r14;
      add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 5; @%p2 bra $round;
    """
    )
    assert (run(body) == 1000 + 5 * (np.arange(64) ^ 32)).all()


def test_a_wait_of_all_lanes_orders_them() -> None:
    """Each thread reads what its neighbour wrote; where one lane alone has waited, that is a race."""
    body = """
      shl.b32 %r6, %r0, 2; mov.u32 %r7, data; add.u32 %r8, %r7, %r6; st.shared.u32 [%r8], %r0;
      mbarrier.arrive.shared.b64 _, [%r1];
    $w: {} mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra $w;
      xor.b32 %r9, %r6, 4; add.u32 %r9, %r9, %r7; ld.shared.u32 %r4, [%r9];
    """
    assert (run(INIT.format(32) + body.format(""), 32) == (np.arange(32) ^ 1)).all()
    assert "race: " in fault(INIT.format(32) + body.format("mov.pred %p1, -1; @%p0"), 32)


def test_arrivals_count_as_often_as_they_say() -> None:
    body = """
      @%p0 mbarrier.arrive.shared.b64 %d3, [%r1], 6;
      mov.pred %p1, 0; @%p0 mbarrier.test_wait.shared.b64 %p1, [%r1], %d3; @%p1 trap;
      bar.sync 0; mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 0; @%p1 trap;
      mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 1; @!%p1 trap;
      bar.sync 0; @%p0 mbarrier.arrive.shared.b64 _, [%r1];
      bar.sync 0; mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 0; selp.u32 %r4, 1, 2, %p1;
      mov.pred %p1, -1; @%p0 mbarrier.test_wait.shared.b64 %p1, [%r1], %d3; @!%p1 trap;
    """
    assert (run(INIT.format(7) + body) == 1).all()


def test_blocks_have_mbarriers_of_their_own() -> None:
    body = """
      mbarrier.arrive.shared.b64 _, [%r1];
    $w: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra $w; mov.u32 %r4, 5;
    """
    assert (run(INIT.format(32) + body, 32, 7) == 5).all()


def test_who_waits_lets_others_run() -> None:
    """A warp polls, another one spins on memory, a third one stands at a barrier with a fourth: all need each other."""
    body = (
        INIT.format(32)
        + """
      mov.u32 %r6, data; @%p0 st.shared.u32 [%r6], 0; bar.sync 0;
      shr.u32 %r5, %r0, 5; setp.eq.u32 %p1, %r5, 0; @%p1 bra $poll; setp.eq.u32 %p1, %r5, 1; @%p1 bra $spin;
      bar.sync 1, 64; setp.eq.u32 %p2, %r0, 64; @%p2 st.volatile.shared.u32 [%r6], 1; bra $out;
    $poll: mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0; @!%p3 bra $poll; bra $out;
    $spin: ld.volatile.shared.u32 %r7, [%r6]; setp.eq.u32 %p3, %r7, 0; @%p3 bra $spin;
      mbarrier.arrive.shared.b64 _, [%r1];
    $out: mov.u32 %r4, 9;
    """
    )
    assert (run(body, 128) == 9).all()


def test_an_endless_wait() -> None:
    loop = "\n$w: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra $w;"
    found = fault(INIT.format(3) + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 128;" + loop)
    assert "thread (0, 0, 0) of block (0, 0, 0) waits for ever at the mbarrier at shared address 1024: " in found
    assert "its phase waits for 2 arrivals and 128 bytes, which never come" in found
    assert "mbarrier.try_wait.parity" in found
    through = "\n$w: mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @%p1 bra $go; bra $w;\n$go:"
    assert "waits for 3 arrivals and 0 bytes" in fault(INIT.format(3) + through)
    some = "setp.lt.u32 %p2, %r0, 32; @%p2 bra $b; bra $w;\n$b: bar.sync 0; mbarrier.arrive.shared.b64 _, [%r1];\n"
    some = INIT.format(1) + some + loop
    assert "waits for ever" in fault(some)


def test_what_is_no_mbarrier() -> None:
    arrive = "mbarrier.arrive.shared.b64 _, [%r1];"
    assert "thread (0, 0, 0) of block (0, 0, 0) uses an mbarrier where none is" in fault(arrive)
    assert "where none is" in fault(INIT.format(64) + "@%p0 mbarrier.inval.shared.b64 [%r1]; bar.sync 0;" + arrive)
    assert "where none is" in fault(INIT.format(64) + "@%p0 st.shared.u64 [%r1], 0; bar.sync 0;" + arrive)
    assert "where none is" in fault(INIT.format(64) + "mbarrier.arrive.shared.b64 _, [%r1+8];")
    assert "not a multiple of 8" in fault(INIT.format(64) + "mbarrier.arrive.shared.b64 _, [%r1+4];")
    assert "makes an mbarrier of 0 arrivals" in fault("mbarrier.init.shared.b64 [%r1], 0;", 1)
    more = INIT.format(1) + "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16; bar.sync 0;" + arrive
    assert "arrives once more at a phase that waits for bytes alone" in fault(more, 32)


def test_the_making_of_an_mbarrier_is_ordered() -> None:
    assert "race: " in fault("@%p0 mbarrier.init.shared.b64 [%r1], 64; mbarrier.arrive.shared.b64 _, [%r1];")


@pytest.mark.parametrize(
    "instruction",
    [
        "mbarrier.arrive_drop.shared.b64 _, [%r1]",
        "mbarrier.arrive.noComplete.shared.b64 _, [%r1], 1",
        "mbarrier.init.b64 [%r1]",
        "mbarrier.init.shared::cluster.b64 [%r1], 1",
        "mapa.shared::cluster.u32 %r4, %r1, 0",
        "fence.proxy.alias.gpu",
        "fence.proxy",
        "fence.acq_rel",
        "fence.mbarrier_init.release.gpu",
        "fence.proxy.tensormap::generic.acquire.gpu [%d0], 64",
        "barrier.cluster.arrive",
    ],
)
def test_forms_that_are_not_known(instruction: str) -> None:
    with pytest.raises(UnknownPtx, match="is not known"):
        SimulatedGpu().load(text(f"{instruction};"))


def test_fences_change_no_value() -> None:
    names = [
        "fence.proxy.async", "fence.proxy.async.shared::cta", "fence.proxy.async.global", "fence.acq_rel.gpu",
        "fence.mbarrier_init.release.cluster", "fence.sc.cta", "membar.gl", "fence.proxy.alias",
        "fence.proxy.tensormap::generic.release.gpu", "fence.proxy.tensormap::generic.acquire.gpu [%d0], 128",
    ]  # fmt: skip
    assert (run("; ".join(names) + "; mov.u32 %r4, 3;") == 3).all()


def test_one_lane_is_elected() -> None:
    assert run("elect.sync %r4|%p1, -1;", 64).tolist() == [0] * 64
    chosen = "elect.sync _|%p1, -1; selp.u32 %r4, 1, 0, %p1;"
    assert run(chosen, 64).tolist() == ([1] + [0] * 31) * 2
    some = "setp.lt.u32 %p2, %r0, 5; @%p2 bra $out; elect.sync %r4|%p1, 0xFFFFFFE0; @%p1 add.u32 %r4, %r4, 100;\n$out:"
    assert run(some, 32).tolist() == [0] * 5 + [105] + [5] * 26
    assert "names lanes in its member mask" in fault(some.replace("FFE0", "FFFF"), 32)


def test_registers_move_between_warps() -> None:
    body = "setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 232; mov.u32 %r4, 1;"
    assert (run(body, 128) == 1).all()
    for count in (20, 41, 264):
        with pytest.raises(UnknownPtx, match=f"a number of {count} registers"):
            SimulatedGpu().load(text(f"setmaxnreg.dec.sync.aligned.u32 {count};"))
