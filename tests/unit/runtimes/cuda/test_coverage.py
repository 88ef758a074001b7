"""Which instructions no launch has run: in blocks that nobody entered, and behind predicates that held for nobody."""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from tests.support.cuda.triton_kernels import compile_triton, run_triton
from tests.support.cuda.triton_texts import matmul
from tests.unit.runtimes.cuda.ptx_programs import kernel

PTX = """.reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %d<2>;
.loc 1 10 1
mov.u32 %r0, %tid.x; ld.param.u32 %r1, [n]; setp.ge.u32 %p0, %r0, %r1;
.loc 1 11 1
@%p0 add.u32 %r2, %r0, 1;
setp.gt.u32 %p1, %r1, 100;
.loc 1 12 1
@%p1 bra $large;
bra.uni $end;
$large:
.loc 1 13 1
sub.u32 %r2, %r2, 1;
@!%p1 exit;
$end: ret;"""
FILES = '.file 1 "/somewhere/model.py"\n'


def test_what_did_not_run_is_listed() -> None:
    gpu = SimulatedGpu(record_coverage=True)
    loaded = gpu.load(kernel(PTX, ".param .u32 n") + FILES).kernels["k"]

    def left(n: int) -> list[str]:
        gpu.launch(loaded, [1], [32], [n])
        return [str(each).split(": ", 1)[1] for each in loaded.unexecuted()]

    assert len(loaded.unexecuted()) == 10
    guarded, branch = "@%p0 add.u32 %r2, %r0, 1; (model.py:11)", "@%p1 bra $large; (model.py:12)"
    large = ["sub.u32 %r2, %r2, 1; (model.py:13)", "@!%p1 exit; (model.py:13)"]
    assert left(40) == [guarded, branch, *large]
    assert left(31) == [branch, *large]
    assert left(101) == ["bra.uni $end; (model.py:12)"] * 0 + [large[1]]
    assert loaded.unexecuted()[0].line == kernel(PTX).split("@!%p1 exit")[0].count("\n") + 1


def test_nothing_is_recorded_unless_it_is_asked_for() -> None:
    gpu = SimulatedGpu()
    loaded = gpu.load(kernel(PTX, ".param .u32 n")).kernels["k"]
    gpu.launch(loaded, [1], [32], [200])
    assert len(loaded.unexecuted()) == 10


def test_a_gemm_needs_an_empty_sum_to_be_covered() -> None:
    """K = 0 takes a way of its own, which other sizes leave out."""
    types = {"a": "*fp32", "b": "*fp32", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32", "tiles": "i32"}
    made = compile_triton(matmul, types, {"M": 32, "N": 32, "K": 32})
    gpu = SimulatedGpu(record_coverage=True)
    loaded = gpu.load(made.ptx).kernels[made.name]
    missing: list[int] = []
    for k in (40, 0):
        a, b = np.ones((40, k), np.float32), np.ones((k, 50), np.float32)
        (found,) = run_triton(gpu, made, 4, [a, b], [np.zeros((40, 50), np.float32)], [40, 50, k, 2], loaded=loaded)
        assert (found == k).all()
        missing.append(len(loaded.unexecuted()))
    assert missing[0] > 0
    assert missing[1] == 0
