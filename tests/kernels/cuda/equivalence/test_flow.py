"""Blocks of a kernel: labels of assembly within braces, of which there may be several of one name."""

from __future__ import annotations

from tests.support.cuda.equivalence import Equivalence
from tests.support.cuda.equivalence.flow import blocks_of
from tests.support.cuda.mutants import mutants

WAITING = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{
	.reg .pred %p<3>;
	.reg .b32 %r<9>;
	mov.u32 %r1, %tid.x;
	setp.eq.s32 %p1, %r1, 0;
{
	@%p1 bra.uni skipWait;
	add.s32 %r2, %r1, 1;
	skipWait:
}
	griddepcontrol.launch_dependents;
{
	@%p1 bra.uni skipWait;
	add.s32 %r2, %r1, 2;
	skipWait:
}
	ret;
}
"""


def test_a_branch_goes_to_the_nearest_label_of_its_name() -> None:
    blocks = [block for block in blocks_of(WAITING) if block.lines]
    names = [[line.opcode for line in block.lines] for block in blocks]
    assert names == [
        ["mov.u32", "setp.eq.s32", "bra.uni"], ["add.s32"], ["griddepcontrol.launch_dependents", "bra.uni"],
        ["add.s32"], ["ret"],
    ]  # fmt: skip
    assert [block.next for block in blocks] == [[2, 1], [2], [4, 3], [4], []]


def test_what_lets_others_begin_changes_nothing_here() -> None:
    equivalence = Equivalence(WAITING, 32)
    found = {mutant.line.opcode: equivalence.argument(mutant) for mutant in mutants(WAITING) if mutant.changed is None}
    assert found["griddepcontrol.launch_dependents"] == "it only lets others begin"
    assert found["setp.eq.s32"] is None
