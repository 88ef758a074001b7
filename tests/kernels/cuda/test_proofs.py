"""The proofs of three families, as ``tools/gpu/prove.py --quick`` makes them, and what they are made of."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowerkit.targets.cuda.select import fast_families
from tests.support.cuda.equivalence import Equivalence
from tests.support.cuda.mutants import mutants
from tests.support.cuda.proofs.cases import all_cases
from tests.support.cuda.proofs.divisions import slow_divisions
from tests.support.cuda.proofs.prover import Proof

ROOT = Path(__file__).resolve().parents[3]


def test_the_quick_proof_holds(tmp_path: Path) -> None:
    path = tmp_path / "proofs.json"
    command = [sys.executable, str(ROOT / "tools" / "gpu" / "prove.py"), "--quick", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(path.read_text())
    families = {each["name"]: each for each in found["families"]}
    assert set(families) == {"elementwise", "reduce", "gemm"}
    for each in families.values():
        assert each["name"] in done.stdout
        assert (each["unexecuted"], each["failures"]) == (0, [])
        assert each["killed"] > 3


def test_every_family_has_a_case() -> None:
    """But for products of few rows and slices written in place, which tests/kernels/cuda has runs of."""
    families = {family.name for family in fast_families()} - {"gemv", "insert"}
    assert {case.family for case in all_cases().values()} == families


def test_a_sweep_that_is_too_small_shows() -> None:
    """Whole tiles alone: the loads of tails do not run, and mutants of the mask survive."""
    case = all_cases()["elementwise: f32, tanh and a row"]
    small = replace(case, sweep=lambda: list(case.sweep())[:1])
    (found,) = Proof(small, "sm_80").prove(17)
    (whole,) = Proof(case, "sm_80").prove(17)
    assert len(found.survived) > len(whole.survived)


def test_a_kernel_that_is_wrong_does_not_pass() -> None:
    case = all_cases()["elementwise: f32, tanh and a row"]
    proof = Proof(case, "sm_80")
    for run in proof.runs:
        run.wanted[0][...] += 1
    with pytest.raises(AssertionError, match="too far off"):
        proof.prove(0)


DIVISION = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
\tor.b64 %rd3, %rd1, %rd2;
\tand.b64 %rd4, %rd3, -4294967296;
\tsetp.ne.b64 %p1, %rd4, 0;
\t@%p1 bra $L1;
\tdiv.u32 %r3, %r1, %r2;
\tcvt.u64.u32 %rd5, %r3;
\tbra.uni $L2;
$L1:
\tdiv.s64 %rd5, %rd1, %rd2;
\tbra.uni $L2;
$L2:
\tshr.s64 %rd6, %rd5, 63;
\tprmt.b32 %r4, %r3, 0, 0x9991U;
\tprmt.b32 %r5, %r3, 0, 0x5410U;
\tst.global.b32 [%rd6], %r4;
\tst.global.b32 [%rd6], %r5;
\tret;
}
"""


def test_what_is_said_of_divisions_shifts_and_permutations() -> None:
    found = slow_divisions(DIVISION)
    assert sorted(found) == [6, 7, 8, 9, 14, 15]
    assert not slow_divisions(DIVISION.replace("div.u32", "mul.lo.u32"))
    argue = Equivalence(DIVISION, 32).argument
    said = {str(each).split(": ", 1)[1]: argue(each) for each in mutants(DIVISION)}
    assert said["shr.s64 %rd6, %rd5, 63; -> shr.s64 %rd6, %rd5, 64;"] == "both shifts leave the sign alone"
    assert said["prmt.b32 %r4, %r3, 0, 0x9991U; -> prmt.b32 %r4, %r3, 1, 0x9991U;"] is not None
    assert said["prmt.b32 %r5, %r3, 0, 0x5410U; -> prmt.b32 %r5, %r3, 1, 0x5410U;"] is None
