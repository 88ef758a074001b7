"""What a kernel leaves out is found: waits, arrivals, copies, and what an mbarrier is made of."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.kernels.cuda.simulated_hopper.described import compile_form, run_form
from tests.kernels.cuda.simulated_hopper.products import compile_matmul, run_matmul
from tests.kernels.cuda.simulated_hopper.running import lines_of, without

_WAIT = r"mbarrier\.try_wait[^\n]*\n\s*@!complete bra\.uni waitLoop;"


def is_found(form: str, ptx: str) -> str:
    """Runs a changed kernel; returns the fault, or what is wrong with the numbers; empty if nothing was found."""
    kernel = compile_form(form)
    try:
        found, expected = run_form(form, kernel, sizes=(64, 128, 256), ptx=ptx)
    except KernelFault as fault:
        return str(fault)
    error = np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max()
    return "" if error < 2**-6 else f"error {error}"


@pytest.mark.parametrize(
    ("form", "pattern", "message"),
    [
        ("described", _WAIT, "multiplies what is at shared address 0x0: nothing has written there"),
        ("described", r"mbarrier\.init", "uses an mbarrier where none is"),
        ("described", r"mbarrier\.arrive", r"waits for ever at the mbarrier at .* waits for 1 arrivals"),
        ("described", r"cp\.async\.bulk\.tensor\.2d\.shared", r"waits for 0 arrivals and \d+ bytes, which never"),
        ("described", r"cp\.async\.bulk\.commit_group", "leaves while this copy may still read shared memory"),
        ("described", r"cp\.async\.bulk\.wait_group", "leaves while this copy may still read shared memory"),
        ("described", r"wgmma\.commit_group", "error"),
        ("described", r"wgmma\.wait_group", "error|race"),
        ("describing", r"tensormap\.cp_fenceproxy", "takes a tensor map from 0x.*: nothing has written there"),
        ("describing", r"tensormap\.replace\.tile\.rank", "takes a tensor map of 1 dimensions"),
        ("describing", r"tensormap\.replace\.tile\.box_dim", r"takes a tensor map from 0x.*: a box of \(0, 64\)"),
        ("describing", r"tensormap\.replace\.tile\.swizzle_mode", "error|nothing has written"),
        ("persistent_tasks", _WAIT, "race: .* writes byte .* of shared memory, which .* read before"),
        ("persistent_tasks", r"mbarrier\.arrive\.shared", "waits for ever at the mbarrier"),
        ("tasks", r"mbarrier\.arrive\.expect_tx", "waits for ever at the mbarrier"),
    ],
)  # fmt: skip
def test_one_instruction_is_missing(form: str, pattern: str, message: str) -> None:
    """Every one of them, alone."""
    ptx = compile_form(form).ptx
    assert is_found(form, ptx) == ""
    places = lines_of(ptx, pattern)
    assert places
    found = [is_found(form, without(ptx, pattern, number)) for number in range(min(len(places), 2))]
    assert all(found)
    assert re.search(message, found[0], re.DOTALL)


def test_a_wait_for_copies_of_threads_is_missing() -> None:
    kernel = compile_matmul("bf16")
    with pytest.raises(KernelFault, match="multiplies what is at shared address 0x.*: nothing has written there"):
        run_matmul(kernel, "bf16", (64, 64, 192), (64, 64, 64), ptx=without(kernel.ptx, r"cp\.async\.wait_group", 0))


def test_the_fault_of_an_endless_wait_has_its_place() -> None:
    ptx = compile_form("tasks").ptx
    text = is_found("tasks", without(ptx, r"mbarrier\.arrive\.expect_tx", 0))
    assert re.search(r"thread \(\d+, 0, 0\) of block \(\d+, 0, 0\) waits for ever at the mbarrier", text)
    assert re.search(r"op: kernel tasks_matmul, PTX line \d+: mbarrier\.try_wait\.parity", text)
    assert re.search(r"at: hopper_programs\.py:\d+", text)
