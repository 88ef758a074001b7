"""The lint finds nothing in what Triton emits, and every fence that is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest

from lowerkit.runtimes.cuda.simulated.ordering_lint import check
from tests.kernels.cuda.simulated_hopper.described import FORMS, compile_form
from tests.kernels.cuda.simulated_hopper.described_more import (
    compile_described_attention,
    compile_quantized,
    compile_transposed,
)
from tests.kernels.cuda.simulated_hopper.hopper_programs import combined, copied, rows_of_many
from tests.kernels.cuda.simulated_hopper.products import TYPES, compile_attention, compile_matmul
from tests.kernels.cuda.simulated_hopper.running import HopperKernel, compile_hopper, described, lines_of, without

_FENCES = {
    "shared_writes": r"fence\.proxy\.async",
    "product_registers": r"wgmma\.fence|wgmma\.commit_group|wgmma\.wait_group",
    "map_changes": r"fence\.proxy\.tensormap",
}


_SMALL = {"BLOCK_M": 32, "BLOCK_N": 32}
_BOXES = {"x": described("fp32", 32, 32), "y": described("fp32", 32, 32), "m": "i32", "n": "i32"}
_MANY = {"x": "*fp32", "y": "*fp32", "sizes": "*i32", "count": "i32", "width": "i32"}


def _many() -> HopperKernel:
    return compile_hopper(rows_of_many, _MANY, {"BLOCK_M": 16, "BLOCK_N": 32}, ["x", "y", "width"], num_warps=4)


# Kernels with all that must be ordered.
KERNELS: Mapping[str, Callable[[], HopperKernel]] = {
    **{form: partial(compile_form, form) for form in FORMS},
    **{f"matmul {dtype}": partial(compile_matmul, dtype, (64, 64, TYPES[dtype][3])) for dtype in TYPES},
    "matmul of 8 warps": partial(compile_matmul, "bf16", (128, 128, 64), warps=8),
    "attention": compile_attention,
    "described attention": partial(compile_described_attention, 64, 4, False),
    "attention with tasks": partial(compile_described_attention, 64, 4, True),
    "quantized": compile_quantized,
    "transposed": partial(compile_transposed, "fp8e5"),
    "copied": partial(compile_hopper, copied, _BOXES, _SMALL, num_warps=4),
    "combined": partial(compile_hopper, combined, _BOXES, {**_SMALL, "HOW": "add"}, num_warps=4),
    "many": _many,
}


# Another one does the same on every path, or only an access that needs none lies in front.
_NOT_NEEDED = {
    # Nothing was written since the fence before the first product, or of its first half.
    "attention": {"shared_writes": 1},
    "quantized": {"shared_writes": 1},
    # The box came by the async proxy, and goes by it.
    "combined": {"shared_writes": 1},
    # wait_group 1 in the loop keeps boxes from being overwritten: numbers show it; wait_group 0 behind the last tile.
    "described": {"product_registers": 1},
    "describing": {"product_registers": 1},
    "persistent": {"product_registers": 2},
    "matmul fp32": {"product_registers": 1},
}


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_found_but_every_fence_that_is_missing(name: str) -> None:
    kernel = KERNELS[name]()
    assert [str(finding) for finding in check(kernel.ptx)] == []
    left: dict[str, int] = {}
    for rule, pattern in _FENCES.items():
        for number in range(len(lines_of(kernel.ptx, pattern))):
            findings = check(without(kernel.ptx, pattern, number))
            assert {finding.rule for finding in findings} <= {rule}
            left[rule] = left.get(rule, 0) + (not findings)
    assert {rule: count for rule, count in left.items() if count} == _NOT_NEEDED.get(name, {})
    assert left


def test_a_barrier_behind_the_making_of_an_mbarrier_is_missing() -> None:
    findings = check(without(compile_form("described").ptx, r"bar\.sync", 0))
    assert findings and {finding.rule for finding in findings} == {"barrier_inits"}


def test_a_finding_names_both_places() -> None:
    ptx = compile_form("described").ptx
    (finding,) = check(without(ptx, _FENCES["shared_writes"], 0))[:1]
    lines = ptx.split("\n")
    assert "cp.async.bulk.tensor.2d.global.shared::cta" in lines[finding.line - 1]
    assert "stmatrix" in lines[finding.since - 1]
    assert finding.source.startswith("hopper_programs.py:")
    assert str(finding).startswith(f"kernel described_matmul, PTX line {finding.line} (hopper_programs.py:")
    assert str(finding).endswith(f"behind a write to shared memory by threads (line {finding.since})")
