"""tcgen05.ld, st, wait, alloc and dealloc: which thread has which word, and who may use tensor memory when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.unit.runtimes.cuda.ptx_programs import assemble, kernel
from tests.unit.runtimes.cuda.tensor_memory.blackwell_programs import (
    ALLOCATE,
    BARRIER,
    DEALLOCATE,
    HEAD,
    RELINQUISH,
    TAIL,
    WAIT_LD,
    WAIT_ST,
    registers,
)

Array = np.ndarray[Any, Any]


def run(ptx: str, words: int, *, threads: int = 128) -> Array:
    """Runs a kernel whose one parameter is where each thread writes ``words`` words; returns them."""
    assemble(ptx)
    gpu = SimulatedGpu(refuse_unwritten=True, check_races=True)
    out = gpu.allocate(4 * threads * words)
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [threads], [out])
    return gpu.read(out, 4 * threads * words).view(np.uint32).reshape(threads, words)


def text(body: str, *, head: str = HEAD, end: str = TAIL) -> str:
    return kernel(f"{head}\n{body}\n{end}", ".param .u64 out", target="sm_100a")


def results(count: int) -> str:
    stores = "".join(f"st.global.b32 [%x5+{4 * number}], %v{number};\n" for number in range(count))
    return f"ld.param.u64 %x1, [out]; mad.wide.u32 %x5, %r0, {4 * count}, %x1;\n{stores}"


def numbered(columns: int) -> str:
    """Word (lane, column) becomes 1000 * lane + column."""
    lines = ["mul.lo.u32 %r7, %r0, 1000;"]
    for start in range(0, columns, 8):
        lines += [f"add.u32 %v{number}, %r7, {start + number};" for number in range(8)]
        lines.append(f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%mine+{start}], {registers(8)};")
    return "\n".join([*lines, WAIT_ST])


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32, 64, 128])
def test_loads_of_32_lanes(count: int) -> None:
    load = f"tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {registers(count)}, [%mine+3];"
    found = run(text(f"{numbered(136)} {load} {WAIT_LD} {results(count)}"), count)
    assert np.array_equal(found, 1000 * np.arange(128)[:, None] + np.arange(count) + 3)


@pytest.mark.parametrize(("count", "split", "lane"), [(1, 1, 0), (4, 4, 16), (16, 2, 0), (64, 64, 16)])
def test_loads_of_16_lanes(count: int, split: int, lane: int) -> None:
    load = f"tcgen05.ld.sync.aligned.16x32bx2.x{count}.b32 {registers(count)}, [%mine+{lane << 16}], {split};"
    found = run(text(f"{numbered(136)} {load} {WAIT_LD} {results(count)}"), count)
    for thread in range(128):
        row = 32 * (thread // 32) + lane + thread % 16
        column = (thread % 32 // 16) * split
        assert found[thread].tolist() == [1000 * row + column + number for number in range(count)]


@pytest.mark.parametrize("count", [1, 32])
def test_stores_of_16_lanes(count: int) -> None:
    values = "\n".join(f"mad.lo.u32 %v{number}, %r0, 1000, {number};" for number in range(count))
    store = f"tcgen05.st.sync.aligned.16x32bx2.x{count}.b32 [%mine+1048576], {count}, {registers(count)};"
    load = f"tcgen05.ld.sync.aligned.32x32b.x{2 * count}.b32 {registers(2 * count)}, [%mine];"
    body = f"{numbered(2 * count + 6)} {values} {store} {WAIT_ST} {load} {WAIT_LD} {results(2 * count)}"
    found = run(text(body), 2 * count)
    for thread in range(128):
        if thread % 32 < 16:
            wanted = [1000 * thread + column for column in range(2 * count)]
        else:
            writers = thread - 16, thread
            wanted = [1000 * writer + number for writer in writers for number in range(count)]
        assert found[thread].tolist() == wanted


def test_warps_beyond_four_share_lanes() -> None:
    """Warp 5 reads what warp 1 has written, behind a barrier; without one it is a race."""
    wanted = 1000 * np.arange(128)[:, None] + np.arange(8)
    first = f"setp.lt.u32 %p3, %r0, 128; @!%p3 bra $on; {numbered(8)} $on:"
    load = f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers(8)}, [%mine]; {WAIT_LD} {results(8)}"
    found = run(text(f"{first} {BARRIER} {load}"), 8, threads=256)
    assert np.array_equal(found, np.concatenate([wanted, wanted]))
    with pytest.raises(KernelFault, match="race: .* reads byte .* of tensor memory, which .* wrote before: no barrier"):
        run(text(f"{first} {load}"), 8, threads=256)


def test_an_address_of_the_first_column_is_not_taken_for_granted() -> None:
    head, end = (each.replace(", 512;", ", 64;") for each in (HEAD, TAIL))
    found = run(text("mov.b32 %v0, %base;\n" + results(1), head=head, end=end), 1)
    assert (found == 512 - 64).all()
    with pytest.raises(KernelFault, match="accesses tensor memory at lane 0, column 0: is not allocated"):
        run(text(f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v0}}, [%r1]; {WAIT_LD}", head=head, end=end), 1)


LOAD = f"tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%v0}}, [%mine]; {WAIT_LD}"
STORE = "mov.b32 %v0, 7; tcgen05.st.sync.aligned.32x32b.x1.b32 [%mine], {%v0};"


def test_what_nothing_has_written_is_nan() -> None:
    load = LOAD.replace("x1.b32 {%v0}", "x2.b32 {%v0, %v1}")
    found = run(text(f"{STORE} {WAIT_ST} {load} {results(2)}"), 2)
    assert found.tolist() == [[7, 0xFFFFFFFF]] * 128
    # An allocation finds nothing of the one before.
    body = f"{STORE} {WAIT_ST} {BARRIER} {DEALLOCATE} {BARRIER} {ALLOCATE} {BARRIER} {load} {results(2)}"
    found = run(text(body, head=HEAD.replace(RELINQUISH, "")), 2)
    assert (found == 0xFFFFFFFF).all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{STORE} {LOAD}", r"reads tensor memory that tcgen05.st of PTX line \d+ may still write: no tcgen05.wait"),
        (f"{STORE} {STORE} {WAIT_ST}", r"overwrites tensor memory that tcgen05.st of PTX line \d+ may still write"),
        (
            f"{STORE} {WAIT_ST} {LOAD.replace(WAIT_LD, '')} {STORE} {WAIT_ST}",
            r"overwrites tensor memory that tcgen05.ld of PTX line \d+ may still read: no tcgen05.wait::ld",
        ),
        (f"{STORE} {BARRIER}", r"deallocates tensor memory that tcgen05.st of PTX line \d+ may still write"),
        (
            f"{STORE} {WAIT_ST} {LOAD.replace(WAIT_LD, '')}",
            r"deallocates tensor memory that tcgen05.ld of PTX line \d+ may still read",
        ),
        (LOAD.replace("%mine", "%base"), "thread .32, 0, 0. .* lanes 0 to 31, and warp 1 reaches lanes 32 to 63"),
        (LOAD.replace("[%mine]", "[%mine+524288]"), "accesses lanes 8 to 39, and warp 0 reaches lanes 0 to 31"),
        (LOAD.replace("[%mine]", "[%mine+512]"), "accesses column 512 of tensor memory: it has 512"),
        (f"add.u32 %mine, %mine, %r0; {LOAD}", "and others of its warp name others"),
        (f"@%p0 {LOAD}", "runs this without all lanes of its warp"),
        (ALLOCATE, "allocates tensor memory behind tcgen05.relinquish_alloc_permit"),
        (DEALLOCATE, "deallocates 512 columns of tensor memory at lane 0, column 0, where no such allocation is"),
    ],
)  # fmt: skip
def test_faults(body: str, message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        run(text(body), 1)


@pytest.mark.parametrize(
    ("part", "other", "message"),
    [
        (DEALLOCATE, "", "leaves as the last of its block, whose 512 columns of tensor memory were never deallocated"),
        (DEALLOCATE, DEALLOCATE.replace("512", "256"), "deallocates 256 columns .* where no such allocation is"),
        (DEALLOCATE, DEALLOCATE.replace("%base", "%r0"), "and others of its warp name others"),
        (DEALLOCATE, f"{DEALLOCATE} {LOAD}", "at lane 0, column 0: is not allocated"),
        (ALLOCATE, ALLOCATE.replace("512", "48"), "names 48 columns of tensor memory: a power of two"),
        (ALLOCATE, f"{ALLOCATE} {ALLOCATE}", "waits for ever for 512 columns of tensor memory: 0 of 512 are free"),
        (
            ALLOCATE,
            f"{ALLOCATE.replace('512', '32')} {ALLOCATE}",
            "allocates 512 columns .* behind an allocation of 32",
        ),
        (RELINQUISH, "@%p0 " + RELINQUISH[5:], "runs this without all lanes of its warp"),
    ],
)
def test_faults_of_allocations(part: str, other: str, message: str) -> None:
    assert part in HEAD + TAIL
    ptx = text("", head=HEAD.replace(part, other), end=TAIL.replace(part, other))
    gpu = SimulatedGpu(refuse_unwritten=True, check_races=True)
    with pytest.raises(KernelFault, match=message):
        gpu.launch(gpu.load(ptx).kernels["k"], [1], [128], [0])


def test_a_warp_that_deallocates_before_others_have_met_it() -> None:
    body = f"{STORE} {WAIT_ST} {LOAD}"
    with pytest.raises(
        KernelFault, match="race: .* writes byte .* of tensor memory|at lane 32, column 0: is not alloc"
    ):
        run(text(body, end=TAIL.replace(BARRIER, "", 1)), 1)
