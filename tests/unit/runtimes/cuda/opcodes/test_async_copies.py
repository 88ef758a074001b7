"""cp.async: bytes are there when their thread has waited for their group, and not before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import instruction_text, kernel, run_instructions

Array = np.ndarray[Any, Any]
PLACE = """.shared .align 16 .b8 s[4096]; .reg .b32 %to; .reg .b64 %of; .reg .b32 %base; .reg .b32 %size;
    mov.u32 %to, %tid.x; mad.lo.u32 %to, %to, 32, 0; mov.u32 %base, s; add.u32 %to, %to, %base;
    ld.param.u64 %of, [in0]; mad.wide.u32 %of, %i0, 4, %of;"""
COPY = "cp.async.ca.shared.global [%to], [%of], 4;"
WORDS = np.arange(1, 65, dtype=np.uint32)
LOAD = "ld.shared.b32 %d0, [%to];"


def run(instructions: str, words: Array = WORDS) -> list[int]:
    """One thread for each word; %of is the address of its word, %to a place of 32 bytes of its own."""
    return run_instructions(f"{{ {PLACE} {instructions} }}", [("b32", words)], ["b32"])[0].tolist()


def test_a_group_arrives_when_it_is_waited_for() -> None:
    assert run(f"{COPY} cp.async.commit_group; cp.async.wait_group 0; {LOAD}") == WORDS.tolist()


def test_without_a_wait_nothing_is_known_of_the_bytes() -> None:
    with pytest.raises(KernelFault, match="nothing has written there"):
        run(f"st.shared.b32 [%to], 5; {COPY} cp.async.commit_group; {LOAD}")


def test_later_groups_may_stay_under_way() -> None:
    two = f"{COPY} cp.async.commit_group; cp.async.ca.shared.global [%to+4], [%of], 4; cp.async.commit_group;"
    assert run(f"{two} cp.async.wait_group 1; {LOAD}") == WORDS.tolist()
    with pytest.raises(KernelFault, match="nothing has written there"):
        run(f"{two} cp.async.wait_group 1; ld.shared.b32 %d0, [%to+4];")
    assert run(f"{two} cp.async.wait_group 1; cp.async.wait_group 0; ld.shared.b32 %d0, [%to+4];") == WORDS.tolist()


def test_an_empty_group_counts() -> None:
    assert run(f"{COPY} cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1; {LOAD}") == WORDS.tolist()


def test_what_is_in_no_group_is_waited_for_by_wait_all() -> None:
    assert run(f"{COPY} cp.async.wait_all; {LOAD}") == WORDS.tolist()
    with pytest.raises(KernelFault, match="nothing has written there"):
        run(f"{COPY} cp.async.wait_group 0; {LOAD}")


def test_the_source_is_read_when_the_copy_begins() -> None:
    after = "cp.async.commit_group; st.global.b32 [%of], 77; cp.async.wait_group 0;"
    assert run(f"{COPY} {after} {LOAD}") == WORDS.tolist()


def test_zeros_in_place_of_what_is_not_read() -> None:
    text = "and.b32 %size, %i0, 1; shl.b32 %size, %size, 2; cp.async.ca.shared.global [%to], [%of], 4, %size;"
    found = run(f"{text} cp.async.wait_all; {LOAD}")
    assert found == [word if number % 2 else 0 for number, word in enumerate(WORDS.tolist())]


def test_an_address_that_is_not_read_may_lie_anywhere() -> None:
    text = "cp.async.ca.shared.global [%to], [%of+1048576], 4, %size; cp.async.wait_all;"
    assert run(f"mov.u32 %size, 0; {text} {LOAD}") == [0] * 64
    with pytest.raises(KernelFault, match="reads 4 bytes at"):
        run(f"mov.u32 %size, 4; {text} {LOAD}")


def test_a_part_of_a_copy_is_refused() -> None:
    with pytest.raises(KernelFault, match="all or none"):
        run("mov.u32 %size, 2; cp.async.ca.shared.global [%to], [%of], 4, %size;")


def test_groups_belong_to_threads() -> None:
    """Odd threads commit once more: one group that stays is another one for them."""
    text = f"""{{ .reg .pred %odd; .reg .b32 %bit; and.b32 %bit, %i0, 1; setp.ne.u32 %odd, %bit, 0; {COPY}
    cp.async.commit_group; @%odd cp.async.commit_group; cp.async.wait_group 1; mov.b32 %d0, 0; @%odd {LOAD} }}"""
    found = run(text)
    assert found == [word if number % 2 else 0 for number, word in enumerate(WORDS.tolist())]


@pytest.mark.parametrize("size", [8, 16])
def test_wide_copies(size: int) -> None:
    words = np.arange(64 * size // 4, dtype=np.uint32).reshape(64, -1)
    cache = "cg" if size == 16 else "ca"
    vector = f"v{size // 4}"
    targets = ", ".join(f"%d{number}" for number in range(size // 4))
    text = f"""ld.param.u64 %of, [in0]; mad.wide.u32 %of, %i0, {size}, %of;
    cp.async.{cache}.shared::cta.global.L2::128B [%to], [%of], {size}; cp.async.wait_all;
    ld.shared.{vector}.b32 {{{targets}}}, [%to];"""
    gpu = SimulatedGpu(refuse_unwritten=True)
    ptx = instruction_text(f"{{ {PLACE} {text} }}", ["b32"], ["b32"] * (size // 4))
    source = gpu.allocate(words.nbytes)
    gpu.write(source, words)
    results = [gpu.allocate(256) for _ in range(size // 4)]
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [64], [source, *results, 64])
    for number, result in enumerate(results):
        assert (gpu.read(result, 256).view(np.uint32) == words[:, number]).all()


@pytest.mark.parametrize(
    "line",
    [
        "cp.async.cg.shared.global [%r0], [%d0], 8;", "cp.async.ca.shared.global [%r0], [%d0], 3;",
        "cp.async.ca.global.shared [%d0], [%r0], 4;", "cp.async.ca.shared.global [%r0], [%d0], 4, %p0;",
        "cp.async.wait_group %r0;", "cp.async.frob;",
    ],
)  # fmt: skip
def test_forms_that_are_refused(line: str) -> None:
    registers = ".reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<2>;"
    with pytest.raises(UnknownPtx):
        SimulatedGpu().load(kernel(f"{registers} {line} ret;"))
