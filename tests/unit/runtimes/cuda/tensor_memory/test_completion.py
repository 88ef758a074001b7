"""What must lie between tcgen05.mma and those who use its operands and its result, and what is said without it."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.unit.runtimes.cuda.tensor_memory.blackwell_programs import (
    BARRIER,
    COMMIT,
    POLL,
    WAIT_ST,
    Product,
)

PRODUCT = Product()
TWICE = f"{PRODUCT.instruction} {PRODUCT.instruction}"
OTHER = Product(columns=32).instruction
IN_LANES = Product(in_tensor_memory=True)
POINT = "st.shared.u32 [tiles], 77;"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"poll": ""}, r"reads tensor memory that tcgen05.mma of PTX line \d+ may still write: nobody has waited"),
        ({"commit": "", "poll": BARRIER}, r"reads tensor memory that tcgen05.mma of PTX line \d+ may still write"),
        ({"commit": ""}, "waits for ever at the mbarrier at shared address .* waits for 1 arrivals and 0 bytes"),
        ({"wait_st": ""}, r"overwrites tensor memory that tcgen05.st of PTX line \d+ may still write"),
        ({"between": ""}, r"race: thread \(0, 0, 0\) .* of tensor memory|race: .* of shared memory"),
        ({"store": ""}, "adds to tensor memory at lane 0, column 0: nothing has written there"),
        ({"wait_ld": ""}, r"deallocates tensor memory that tcgen05.ld of PTX line \d+ may still read"),
        ({"mma": f"{PRODUCT.instruction} {OTHER}"}, r"overwrites tensor memory that tcgen05.mma of PTX line \d+ may"),
        ({"commit": f"{COMMIT} {POINT}"}, "shared memory that it reads was overwritten before it was complete"),
        ({"commit": f"{COMMIT} {POINT}", "poll": BARRIER + POLL}, "shared memory that it reads was overwritten"),
        ({"poll": f"setp.eq.u32 %p3, %r0, 64; @%p3 {POINT} {POLL}"}, "race: .* writes byte 0 of shared memory, which"),
        ({"load": ""}, ""),
        ({"fence": ""}, ""),
        ({"mma": TWICE}, ""),
        ({"poll": f"{POLL} {BARRIER} @%p0 {POINT}"}, ""),
    ],
)
def test_what_is_missing(changes: dict[str, str], message: str) -> None:
    ptx = PRODUCT.text(**changes)
    if not message:
        PRODUCT.run(ptx)
        return
    with pytest.raises(KernelFault, match=message):
        PRODUCT.run(ptx)


def test_products_follow_one_another_in_one_accumulator() -> None:
    found, wanted = PRODUCT.run(PRODUCT.text(mma=TWICE))
    alone, _ = Product(adds=False).run()
    assert np.array_equal(found, wanted + alone) and alone.any()


def test_a_factor_in_tensor_memory_is_waited_for() -> None:
    again = "tcgen05.st.sync.aligned.32x32b.x8.b32 [%mine+256], {%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7};"
    with pytest.raises(KernelFault, match=r"reads tensor memory that tcgen05.st of PTX line \d+ may still write"):
        IN_LANES.run(IN_LANES.text(wait_st=f"{WAIT_ST} {again}"))
    with pytest.raises(KernelFault, match=r"overwrites tensor memory that tcgen05.mma of PTX line \d+ may still read"):
        IN_LANES.run(IN_LANES.text(poll=f"{BARRIER} {again} {WAIT_ST} {POLL}"))
    IN_LANES.run(IN_LANES.text(poll=f"{POLL} {again} {WAIT_ST}"))


def test_each_phase_stands_for_the_products_before_its_commit() -> None:
    second = f"{COMMIT} {PRODUCT.instruction} {COMMIT}"
    with pytest.raises(KernelFault, match=r"reads tensor memory that tcgen05.mma of PTX line \d+ may still write"):
        PRODUCT.run(PRODUCT.text(commit=second))
    both = POLL + POLL.replace("$poll", "$more").replace("], 0;", "], 1;")
    found, _ = PRODUCT.run(PRODUCT.text(commit=second, poll=both))
    assert np.array_equal(found, PRODUCT.run(PRODUCT.text(mma=TWICE))[0])
