"""The lint finds nothing in what Triton emits, and every fence that is missing."""

from __future__ import annotations

import pytest

from lowerkit.runtimes.cuda.simulated.ordering_lint import check
from tests.kernels.cuda.simulated_hopper.described import FORMS, compile_form
from tests.kernels.cuda.simulated_hopper.hopper_programs import combined, copied, rows_of_many
from tests.kernels.cuda.simulated_hopper.products import TYPES, compile_attention, compile_matmul
from tests.kernels.cuda.simulated_hopper.running import HopperKernel, compile_hopper, described, lines_of, without

_FENCES = {
    "shared_writes": r"fence\.proxy\.async",
    "product_registers": r"wgmma\.fence|wgmma\.commit_group|wgmma\.wait_group",
    "map_changes": r"fence\.proxy\.tensormap",
}


def kernels() -> dict[str, HopperKernel]:
    """Returns kernels with all that must be ordered, by name."""
    found = {form: compile_form(form) for form in FORMS}
    found |= {f"matmul {dtype}": compile_matmul(dtype, (64, 64, TYPES[dtype][3])) for dtype in TYPES}
    found["matmul of 8 warps"] = compile_matmul("bf16", (128, 128, 64), warps=8)
    found["attention"] = compile_attention()
    boxes = {"x": described("fp32", 32, 32), "y": described("fp32", 32, 32), "m": "i32", "n": "i32"}
    small = {"BLOCK_M": 32, "BLOCK_N": 32}
    found["copied"] = compile_hopper(copied, boxes, small, num_warps=4)
    found["combined"] = compile_hopper(combined, boxes, {**small, "HOW": "add"}, num_warps=4)
    many = {"x": "*fp32", "y": "*fp32", "sizes": "*i32", "count": "i32", "width": "i32"}
    found["many"] = compile_hopper(rows_of_many, many, {"BLOCK_M": 16, "BLOCK_N": 32}, ["x", "y", "width"], num_warps=4)
    return found


def test_what_triton_emits_is_in_order() -> None:
    assert [(name, str(each)) for name, kernel in kernels().items() for each in check(kernel.ptx)] == []


# Another one does the same on every path, or only an access that needs none lies in front.
_NOT_NEEDED = {
    "combined": {"shared_writes": 1},  # the box came by the async proxy, and goes by it
    "attention": {"shared_writes": 1},  # the second product: nothing was written since the first one's fence
    "described": {
        "product_registers": 1
    },  # wait_group 1 in the loop keeps boxes from being overwritten: values show it
    "describing": {"product_registers": 1},
    "persistent": {"product_registers": 2},  # and the one behind the last tile
    "matmul fp32": {"product_registers": 1},
}


@pytest.mark.parametrize("rule", _FENCES)
def test_every_fence_that_is_missing_is_found(rule: str) -> None:
    seen = 0
    for name, kernel in kernels().items():
        places = lines_of(kernel.ptx, _FENCES[rule])
        left = 0
        for number in range(len(places)):
            findings = check(without(kernel.ptx, _FENCES[rule], number))
            assert {finding.rule for finding in findings} <= {rule}
            left += not findings
            seen += bool(findings)
        assert left == _NOT_NEEDED.get(name, {}).get(rule, 0), name
    assert seen >= 3


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
