"""The argument by terms: it is made where it holds, and not where nearly the same program does not hold it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from tests.support.cuda.equivalence import Equivalence
from tests.support.cuda.mutants import Mutant, Score, mutants, run_mutants
from tests.support.cuda.proofs import prover
from tests.support.cuda.proofs.cases import all_cases
from tests.support.cuda.proofs.prover import Proof

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n)
{
\t.reg .pred %p<9>;
\t.reg .b32 %r<40>;
\t.reg .b64 %rd<40>;
\tld.param.u64 %rd1, [in];
\tld.param.u64 %rd2, [out];
\tld.param.u32 %r30, [n];
\tmov.u32 %r31, %tid.x;
\tmad.wide.u32 %rd3, %r31, 8, %rd1;
\tmad.wide.u32 %rd4, %r31, 4, %rd2;
\tld.global.b32 %r1, [%rd3];
\tld.global.b32 %r2, [%rd3+4];
"""


def argued(body: str, text: str, never: Collection[int] = ()) -> str | None:
    """What is said of the mutant of a body whose change is ``text``."""
    lines = [line if line.endswith(":") else f"\t{line};" for line in body.strip().splitlines()]
    ptx = HEAD + "\n".join([*lines, "\tst.global.b32 [%rd4], %r9;", "\tret;", "}", ""])
    (mutant,) = [each for each in mutants(ptx) if str(each).split(": ", 1)[1] == text]
    first = HEAD.count("\n")
    return Equivalence(ptx, 32, {first + each for each in never}).argument(mutant)


MAXIMUM = """setp.gt.s32 %p1, %r1, %r2
selp.b32 %r9, %r1, %r2, %p1"""
MASKED = """setp.lt.u32 %p1, %r31, %r30
mov.b32 %r9, 0
@%p1 ld.global.b32 %r9, [%rd3]
@%p1 st.global.b32 [%rd4], %r9
mov.b32 %r9, %r1"""
WRITTEN_OUT = """setp.nan.f32 %p1, %r1, %r2
add.rn.f32 %r3, %r1, %r2
setp.eq.f32 %p2, %r1, %r2
and.b32 %r4, %r1, %r2
setp.gt.f32 %p3, %r1, %r2
selp.f32 %r5, %r1, %r2, %p3
selp.f32 %r6, %r4, %r5, %p2
selp.f32 %r9, %r3, %r6, %p1"""
EXCHANGE = """and.b32 %r3, %r31, 1
setp.ne.b32 %p1, %r3, 0
shfl.sync.bfly.b32 %r4, %r1, 1, 31, -1
setp.gt.s32 %p2, %r1, %r4
xor.pred %p3, %p2, %p1
selp.b32 %r5, %r4, %r1, %p3
shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1
max.s32 %r9, %r6, %r5"""
TWICE = """shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1
max.s32 %r4, %r3, %r1
mov.b64 %rd5, {%r4, %r2}
mov.b64 {%r5, _}, %rd5
shfl.sync.bfly.b32 %r9, %r5, 2, 31, -1"""
SQUARE = """setp.lt.u32 %p1, %r31, %r30
sub.rn.f32 %r3, %r1, %r2
selp.f32 %r4, %r3, 0f00000000, %p1
mul.rn.f32 %r9, %r4, %r4"""
WITHIN = """setp.lt.u32 %p1, %r31, %r30
mov.b32 %r3, 0
@%p1 ld.global.b32 %r3, [%rd3]
add.s32 %r4, %r3, %r2
selp.b32 %r9, %r4, 7, %p1"""
JUMP = """mov.b32 %r9, %r2
setp.eq.b32 %p1, %r30, 0
@%p1 bra $L1
add.s32 %r9, %r1, 1
$L1:"""
FROM_ABOVE = """and.b32 %r3, %r31, 28
setp.eq.b32 %p1, %r3, 0
setp.eq.b32 %p2, %r30, 0
@%p2 bra $L1
$L1:
shfl.sync.up.b32 %r4, %r1, 4, 0, -1
max.s32 %r5, %r4, %r1
selp.b32 %r9, %r1, %r5, %p1"""
SIGN = """add.s64 %rd5, %rd1, 5
shr.u64 %rd6, %rd5, 63
add.s64 %rd7, %rd5, %rd6
cvt.u32.u64 %r9, %rd7"""
GREATER = "setp.gt.s32 %p1, %r1, %r2; -> setp.ge.s32 %p1, %r1, %r2;"
SUM = "add.rn.f32 %r3, %r1, %r2; -> sub.rn.f32 %r3, %r1, %r2;"
WRITTEN_GREATER = "setp.gt.f32 %p3, %r1, %r2; -> setp.ge.f32 %p3, %r1, %r2;"
TURNED = "setp.gt.s32 %p2, %r1, %r4; -> setp.gt.s32 %p2, %r4, %r1;"
FURTHER = "shfl.sync.bfly.b32 %r9, %r5, 2, 31, -1; -> shfl.sync.bfly.b32 %r9, %r5, 3, 31, -1;"
DIFFERENCE = "sub.rn.f32 %r3, %r1, %r2; -> sub.rn.f32 %r3, %r2, %r1;"


@pytest.mark.parametrize(
    ("body", "text", "near"),
    [
        # of equal integers either is taken; not of others, and not of zeros of two signs
        (MAXIMUM, GREATER, ("selp.b32 %r9, %r1, %r2", "selp.b32 %r9, %r1, %r31")),
        (MAXIMUM, GREATER, ("selp.b32 %r9, %r1, %r2", "selp.b32 %r9, %r2, %r31")),
        (WRITTEN_OUT, WRITTEN_GREATER, ("selp.f32 %r6, %r4, %r5, %p2", "mov.b32 %r6, %r5")),
        # what is overwritten where it is stored; not where something else is stored, or elsewhere
        (MASKED, "mov.b32 %r9, 0; -> mov.b32 %r9, 1;", ("@%p1 st", "st")),
        (MASKED, "mov.b32 %r9, 0; -> mov.b32 %r9, 1;", ("@%p1 st", "@!%p1 st")),
        # a NaN for a NaN; not where its bits are looked at, or where it may be a number
        (WRITTEN_OUT, SUM, ("selp.f32 %r9, %r3, %r6, %p1", "selp.f32 %r7, %r3, %r6, %p1\nand.b32 %r9, %r7, 15")),
        (WRITTEN_OUT, SUM, ("setp.nan.f32 %p1, %r1, %r2", "setp.nan.f32 %p1, %r1, %r31")),
        (WRITTEN_OUT, "add.rn.f32 %r3, %r1, %r2;", ("selp.f32 %r9, %r3, %r6, %p1", "selp.f32 %r9, %r3, %r6, %p3")),
        # an exchange turned round, before one of the same lanes; not before others
        (EXCHANGE, TURNED, ("bfly.b32 %r6, %r5, 1", "bfly.b32 %r6, %r5, 2")),
        (EXCHANGE, "xor.pred %p3, %p2, %p1;", ("max.s32 %r9, %r6, %r5", "mov.b32 %r9, %r5")),
        # what nothing may go beyond: negative where nothing is below 2^62; not where more is added, or less shifted
        (SIGN, "add.s64 %rd7, %rd5, %rd6; -> sub.s64 %rd7, %rd5, %rd6;", ("%rd5, 63", "%rd5, 60")),
        (SIGN, "add.s64 %rd7, %rd5, %rd6; -> sub.s64 %rd7, %rd5, %rd6;", ("%rd1, 5", "%rd1, -5")),
        # a lane that has the same; not a neighbour that has another value
        (TWICE, FURTHER, ("%r1, 1, 31, -1", "%r1, 4, 31, -1")),
        (TWICE, FURTHER, ("mov.b64 {%r5, _}", "mov.b64 {_, %r5}")),
        # the square of a difference; not its product with something else
        (SQUARE, DIFFERENCE, ("mul.rn.f32 %r9, %r4, %r4", "mul.rn.f32 %r9, %r4, %r3")),
        (SQUARE, DIFFERENCE, ("mul.rn.f32", "add.rn.f32")),
        # what is chosen where the load was made; not where it was not
        (WITHIN, "mov.b32 %r3, 0; -> mov.b32 %r3, 1;", ("selp.b32 %r9, %r4, 7", "selp.b32 %r9, 7, %r4")),
        # a predicate of the thread that another block reads: equal for every thread that it matters to
        (FROM_ABOVE, "setp.eq.b32 %p1, %r3, 0; -> setp.eq.b32 %p1, %r3, 1;", ("4, 0, -1", "3, 0, -1")),
    ],
)  # fmt: skip
def test_an_argument_and_what_is_near_to_it(body: str, text: str, near: tuple[str, str]) -> None:
    assert argued(body, text) is not None
    other = body.replace(*near)
    assert other != body
    assert argued(other, text) is None


def test_what_only_a_jump_needs_that_is_never_made() -> None:
    assert argued(JUMP, "mov.b32 %r9, %r2;") is None
    assert argued(JUMP, "mov.b32 %r9, %r2;", never=[2]) == "it computes the same terms"
    kept = JUMP.replace("add.s32 %r9, %r1, 1", "add.s32 %r9, %r9, 1")
    assert argued(kept, "mov.b32 %r9, %r2;", never=[2]) is None


def test_a_guard_is_read() -> None:
    """A predicate that nothing but a guard reads is not without readers."""
    assert argued(MASKED, "setp.lt.u32 %p1, %r31, %r30; -> setp.le.u32 %p1, %r31, %r30;") is None
    assert argued(MASKED, "setp.lt.u32 %p1, %r31, %r30;") is None


def test_a_thread_that_stores_what_another_stored() -> None:
    """The same value at the same place, which nothing reads; not another value, and not before a load."""
    body = "setp.eq.b32 %p1, %r31, 0\nld.global.b32 %r3, [%rd1]\n@%p1 st.global.b32 [%rd2], %r3\nmov.b32 %r9, 7"
    text = "@%p1 st.global.b32 [%rd2], %r3; -> @!%p1 st.global.b32 [%rd2], %r3;"
    assert argued(body, text) is not None
    assert argued(body.replace("[%rd2], %r3", "[%rd2], %r1"), text.replace("[%rd2], %r3", "[%rd2], %r1")) is None
    assert argued(f"{body}\nld.global.b32 %r9, [%rd2]", text) is None


def test_what_is_done_to_the_outside_is_not_left_out() -> None:
    body = "st.shared.b32 [%r31], %r1\nbar.sync 0\nld.shared.b32 %r9, [%r31]"
    assert argued(body, "bar.sync 0;") is None
    assert argued(body, "st.shared.b32 [%r31], %r1;") is None
    assert argued(MASKED, "@%p1 st.global.b32 [%rd4], %r9; -> st.global.b32 [%rd4], %r9;") is None


@pytest.mark.parametrize(("title", "every"), [("reduce: bf16, max of rows", 41), ("cumulative: f32, running sum", 61)])
def test_no_argument_excuses_what_a_sweep_finds(title: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every mutant that is killed, no argument says that it is equivalent."""
    excused: list[str] = []
    killed: list[str] = []

    def run(ptx: str, check: Callable[[str], None], argument: Callable[[Mutant], str | None], every: int) -> Score:
        score = run_mutants(ptx, check, argument, every)
        for mutant in score.killed:
            killed.append(str(mutant))
            if (why := argument(mutant)) is not None:
                excused.append(f"{mutant}: {why}")
        return score

    monkeypatch.setattr(prover, "run_mutants", run)
    Proof(all_cases()[title], "sm_90").prove(every)
    assert len(killed) > 5
    assert not excused
