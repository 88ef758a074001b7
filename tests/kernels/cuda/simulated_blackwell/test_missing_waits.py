"""What a kernel for Blackwell leaves out, or does to tensor memory that it must not, is found."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.kernels.cuda.simulated_blackwell.test_blackwell_matmul import attended
from tests.kernels.cuda.simulated_hopper.products import compile_attention, compile_matmul, run_matmul
from tests.kernels.cuda.simulated_hopper.running import HopperKernel, lines_of, without

_WAIT = r"mbarrier\.try_wait[^\n]*\n\s*@!complete bra\.uni waitLoop;"
BLOCK = (64, 64, 64)


def problem(ptx: str) -> str:
    """Runs a changed product; returns the fault, or what is wrong with the numbers; empty if nothing was found."""
    kernel = compile_matmul("bf16", BLOCK, sm=100)
    try:
        found, expected = run_matmul(kernel, "bf16", (64, 128, 256), BLOCK, ptx=ptx)
    except KernelFault as fault:
        return str(fault)
    error = np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max()
    return "" if error < 2**-6 else f"error {error}"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"tcgen05\.alloc", "nothing has written there|is not allocated|no such allocation"),
        (r"tcgen05\.dealloc", "leaves as the last of its block, whose 64 columns of tensor memory were never dealloc"),
        (r"tcgen05\.commit", "waits for ever at the mbarrier|shared memory that it reads was overwritten"),
        (_WAIT, "may still write: nobody has waited|shared memory that it reads was overwritten|race"),
        (r"tcgen05\.st", "adds to tensor memory at lane 0, column .*: nothing has written there|^$"),
        (r"tcgen05\.wait::st", "tcgen05.st of PTX line .* may still write: no tcgen05.wait::st lies between"),
        (r"tcgen05\.wait::ld", "tcgen05.ld of PTX line .* may still read: no tcgen05.wait::ld lies between"),
        (r"cp\.async\.wait_group", "multiplies what is at shared address 0x.*: nothing has written there"),
        (r"mbarrier\.init", "uses an mbarrier where none is"),
    ],
)
def test_one_instruction_is_missing(pattern: str, message: str) -> None:
    ptx = compile_matmul("bf16", BLOCK, sm=100).ptx
    assert problem(ptx) == ""
    assert lines_of(ptx, pattern)
    assert re.search(message, problem(without(ptx, pattern, 0)), re.DOTALL)


def test_a_wait_before_the_result_is_missing() -> None:
    """The last wait: nothing but tensor memory itself shows it."""
    ptx = compile_matmul("bf16", BLOCK, sm=100).ptx
    last = len(lines_of(ptx, _WAIT)) - 1
    text = problem(without(ptx, _WAIT, last))
    assert re.search(r"reads tensor memory that tcgen05.mma of PTX line \d+ may still write: nobody has waited", text)
    assert re.search(r"op: kernel matmul, PTX line \d+: tcgen05\.ld\.sync\.aligned", text)
    assert re.search(r"at: matrix_programs\.py:\d+", text)


@pytest.mark.parametrize(
    ("pattern", "by", "message"),
    [
        (
            r"(tcgen05\.mma\S+ \[ %r\d+ \+ )0( \])",
            r"\g<1>8\2",
            "column .*: (is not allocated|nothing has written)|error",
        ),
        (r"(tcgen05\.mma\S+ \[ %r\d+ \+ )0( \])", r"\g<1>524288\2", "it begins at lane 0 or 16"),
        (r"(tcgen05\.ld\S+ \{[^}]*\}, \[%r\d+ \+ )0(\])", r"\g<1>1\2", "is not allocated|it has 512"),
        (r"(tcgen05\.ld\S+ \{[^}]*\}, \[%r\d+ \+ )0(\])", r"\g<1>2097152\2", "and warp 0 reaches lanes 0 to 31"),
        (r"(tcgen05\.ld\S+ \{[^}]*\}, \[%r\d+ \+ 0\], )32", r"\g<1>31", "error"),
        (r"(tcgen05\.dealloc\S+ %r\d+, )64", r"\g<1>32", "where no such allocation is"),
        (r"(tcgen05\.alloc\S+ \[%r\d+\], )64", r"\g<1>32", "is not allocated|it has 512"),
    ],
)
def test_another_place_of_tensor_memory(pattern: str, by: str, message: str) -> None:
    ptx = compile_matmul("bf16", BLOCK, sm=100).ptx
    changed, count = re.subn(pattern, by, ptx)
    assert count
    assert re.search(message, problem(changed), re.DOTALL)


def is_found(kernel: HopperKernel, ptx: str) -> bool:
    """Returns whether a changed attention fails."""
    changed = HopperKernel(ptx, kernel.name, kernel.threads, kernel.shared, kernel.scratch, kernel.maps)
    try:
        found, expected = attended(changed, 200)
    except KernelFault:
        return True
    return not np.abs(found - expected).max() < 2**-6


@pytest.mark.parametrize(
    ("pattern", "step", "not_needed"),
    [
        (r"tcgen05\.wait::st", 1, 2),  # another one follows before the warps meet
        (r"tcgen05\.wait::ld", 1, 2),  # another one follows before the scores are overwritten
        (r"tcgen05\.commit", 1, 0),
        (_WAIT, 1, 0),
        (r"tcgen05\.mma", 4, 0),
    ],
)
def test_every_one_of_attention_is_found(pattern: str, step: int, not_needed: int) -> None:
    """One after another is left out."""
    kernel = compile_attention(sm=100)
    assert not is_found(kernel, kernel.ptx)
    places = lines_of(kernel.ptx, pattern)
    found = [is_found(kernel, without(kernel.ptx, pattern, number)) for number in range(0, len(places), step)]
    assert found.count(False) == not_needed, found
