"""How good the checks are: of mutants of Triton kernels, one instruction changed, nearly all must be found.

What is not found has to be argued for (``equivalence``); it is not listed. The rest may be 5 % at most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from tests.support.cuda.equivalence import Equivalence
from tests.support.cuda.mutants import Score, instructions, mutants, run_mutants
from tests.support.cuda.triton_kernels import Array, TritonKernel, compile_triton, run_triton
from tests.support.cuda.triton_texts import add, matmul, softmax

LEAST = 0.95
FLOATS = "*fp32"
RANDOM = np.random.default_rng(0)
Case = tuple[int, Sequence[Array], Array, Sequence[int]]  # blocks, inputs, the result, numbers


def score(kernel: TritonKernel, cases: Sequence[Case], *, rtol: float = 0.0, every: int = 1) -> Score:
    gpu = SimulatedGpu(check_races=True, refuse_unwritten=True, instruction_limit=20_000)
    ordered = list(cases)

    def check(ptx: str) -> None:
        loaded = gpu.load(ptx).kernels[kernel.name]
        for place, (blocks, inputs, wanted, numbers) in enumerate(ordered):
            first = np.full(wanted.shape, 77, np.float32)
            try:
                (found,) = run_triton(gpu, kernel, blocks, inputs, [first], numbers, loaded=loaded)
                assert np.allclose(found, wanted, rtol=rtol, atol=1e-30 if rtol else 0.0)
            except BaseException:
                ordered.insert(0, ordered.pop(place))  # what found one mutant finds others
                raise

    found = run_mutants(kernel.ptx, check, Equivalence(kernel.ptx, kernel.threads).argument, every)
    print(found.report())
    return found


def test_softmax() -> None:
    """Rows far from 0 on both sides, so that a maximum that is wrong shows."""
    kernel = compile_triton(softmax, {"x": FLOATS, "o": FLOATS, "n": "i32"}, {"B": 256})
    cases: list[Case] = []
    for n in (1, 100, 255, 256):
        x = RANDOM.standard_normal((2, n)).astype(np.float32) * 4 + np.array([[-300], [300]], np.float32)
        e = np.exp(x - x.max(1, keepdims=True).astype(np.float64))
        cases.append((2, [x], e / e.sum(1, keepdims=True), [n]))
    found = score(kernel, cases, rtol=1e-5)
    assert found.share >= LEAST, found.report()
    kinds = {mutant.kind for mutant in (*found.killed, *(each for each, _ in found.equivalent))}
    assert kinds == {"deleted", "predicate negated", "predicate dropped", "comparison", "operation", "number",
                     "operands exchanged", "half of the lanes named"}  # fmt: skip
    assert sum(mutant.line.name == "bar" for mutant in found.killed) == 3


def test_add_with_a_mask() -> None:
    kernel = compile_triton(add, {"x": FLOATS, "y": FLOATS, "o": FLOATS, "n": "i32"}, {"B": 256})
    cases: list[Case] = []
    for n in (1, 128, 129, 255, 256, 257, 600):
        x = np.arange(1, n + 1, dtype=np.float32)
        cases.append((-(-n // 256), [x, x * 1000], x * 1001, [n]))
    found = score(kernel, cases)
    assert found.share >= LEAST, found.report()


@pytest.mark.parametrize(
    ("kind", "depth", "stages", "every"),
    [
        ("fp16", 32, 2, 17),
        ("fp32", 16, 3, 17),
        pytest.param("fp16", 32, 2, 6, marks=pytest.mark.exhaustive),
        pytest.param("fp32", 16, 3, 6, marks=pytest.mark.exhaustive),
    ],
)
def test_matmul(kind: str, depth: int, stages: int, every: int) -> None:
    """Tensor cores, and asynchronous copies in three stages; sizes that cut every row and column of a tile."""
    types = {"a": f"*{kind}", "b": f"*{kind}", "c": FLOATS} | dict.fromkeys(("m", "n", "k", "tiles"), "i32")
    kernel = compile_triton(matmul, types, {"M": 32, "N": 32, "K": depth}, num_stages=stages)
    assert "mma" in kernel.ptx
    assert ("cp.async" in kernel.ptx) == (kind == "fp32")
    dtype = np.float16 if kind == "fp16" else np.float32
    cases: list[Case] = []
    sizes = [(33, 64, 40), (32, 32, 0), (32, 32, 6 * depth)]
    sizes += [(4 * tail + 1, 33 + 4 * tail, 32 * (tail % 2) + 4 * tail + 1) for tail in range(8)]
    for m, n, k in sizes:
        a, b = (RANDOM.integers(-8, 9, shape).astype(dtype) for shape in ((m, k), (k, n)))
        wanted = a.astype(np.float32) @ b.astype(np.float32)
        cases.append((-(-m // 32) * -(-n // 32), [a, b], wanted, [m, n, k, -(-n // 32)]))
    found = score(kernel, cases, every=every)
    assert found.share >= LEAST, found.report()


def test_what_a_mutant_is() -> None:
    ptx = ".visible .entry k()\n{\n\t.reg .b32 %r<9>;\n\tsetp.lt.s32 %p1, %r1, 7;\n"
    ptx += "\t@%p1 sub.s32 %r2, %r1, %r3;\n\tret;\n}\n"
    assert [line.opcode for line in instructions(ptx)] == ["setp.lt.s32", "sub.s32", "ret"]
    assert [str(mutant) for mutant in mutants(ptx)] == [
        "line 4, deleted: setp.lt.s32 %p1, %r1, 7;",
        "line 4, comparison: setp.lt.s32 %p1, %r1, 7; -> setp.le.s32 %p1, %r1, 7;",
        "line 4, operands exchanged: setp.lt.s32 %p1, %r1, 7; -> setp.lt.s32 %p1, 7, %r1;",
        "line 4, number: setp.lt.s32 %p1, %r1, 7; -> setp.lt.s32 %p1, %r1, 8;",
        "line 5, deleted: @%p1 sub.s32 %r2, %r1, %r3;",
        "line 5, predicate negated: @%p1 sub.s32 %r2, %r1, %r3; -> @!%p1 sub.s32 %r2, %r1, %r3;",
        "line 5, predicate dropped: @%p1 sub.s32 %r2, %r1, %r3; -> sub.s32 %r2, %r1, %r3;",
        "line 5, operation: @%p1 sub.s32 %r2, %r1, %r3; -> @%p1 add.s32 %r2, %r1, %r3;",
        "line 5, operands exchanged: @%p1 sub.s32 %r2, %r1, %r3; -> @%p1 sub.s32 %r2, %r3, %r1;",
    ]


BODY = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
\t.reg .b32 %r<9>;
\t.reg .b64 %rd<9>;
\t.shared .align 4 .b8 own[512];
\tld.param.u64 %rd1, [out];
\tmov.u32 %r1, %tid.x;
\tand.b32 %r2, %r1, 63;
\tshl.b32 %r3, %r2, 2;
\tst.shared.b32 [%r3], %r2;
\tbar.sync 0;
\tbar.sync 0;
\tld.shared.b32 %r4, [%r3];
\tadd.s32 %r5, %r4, 1;
\tst.global.b32 [%rd1], %r4;
\tret;
}
"""


def test_arguments_for_equivalence() -> None:
    """An argument is made where it holds, and where nearly the same does not hold, it is not."""
    found = {str(mutant).split(": ", 1)[1]: Equivalence(BODY, 64).argument(mutant) for mutant in mutants(BODY)}
    assert found["and.b32 %r2, %r1, 63; -> and.b32 %r2, %r1, 64;"] is None
    assert found["shl.b32 %r3, %r2, 2; -> shl.b32 %r3, %r2, 3;"] is None
    assert found["bar.sync 0;"] == "another one beside it does the same"
    assert found["add.s32 %r5, %r4, 1;"] == "nothing reads its result"
    assert found["ld.shared.b32 %r4, [%r3];"] is None
    assert found["st.shared.b32 [%r3], %r2;"] is None
    wide = BODY.replace("63", "127")
    changed = {str(mutant).split(": ", 1)[1]: mutant for mutant in mutants(wide)}
    same = changed["and.b32 %r2, %r1, 127; -> or.b32 %r2, %r1, 127;"]
    assert Equivalence(wide, 64).argument(same) is None
    one = BODY.replace("bar.sync 0;\n", "", 1)
    gone = next(mutant for mutant in mutants(one) if mutant.line.name == "bar")
    assert Equivalence(one, 64).argument(gone) is None
    apart = BODY.replace("bar.sync 0;\n\tbar", "bar.sync 0;\n\tst.shared.b32 [%r3], %r1;\n\tbar")
    assert all(
        Equivalence(apart, 64).argument(mutant) is None for mutant in mutants(apart) if mutant.line.name == "bar"
    )
    rounded = BODY.replace("shl.b32 %r3, %r2, 2;", "shl.b32 %r6, %r2, 2;\n\tand.b32 %r3, %r6, 252;")
    argued = [Equivalence(rounded, 64).argument(mutant) for mutant in mutants(rounded) if "252" in mutant.line.operands]
    assert "every thread of a block gets the same from it" in argued
