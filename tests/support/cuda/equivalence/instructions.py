"""Arguments that need no more than the instruction that was changed."""

from __future__ import annotations

import re

from tests.support.cuda.mutants import Mutant, split_operands


def same_shift(mutant: Mutant) -> str | None:
    """Says that a shift is one of a signed number by its last bit, or further."""
    changed = mutant.changed
    bits = {"shr.s32": 32, "shr.s64": 64}.get(mutant.line.opcode)
    if changed is None or changed.opcode != mutant.line.opcode or bits is None:
        return None
    before, after = split_operands(mutant.line.operands), split_operands(changed.operands)
    counts = [each[2] for each in (before, after)]
    if before[:2] != after[:2] or not all(each.isdecimal() and int(each) >= bits - 1 for each in counts):
        return None
    return "both shifts leave the sign alone"


def symmetric(mutant: Mutant) -> str | None:
    """Says that a question does not depend on the order of its operands, or that a zero is added or taken away."""
    changed, line = mutant.changed, mutant.line
    if changed is None:
        return None
    if mutant.kind == "operands exchanged" and {"nan", "num"} & set(line.opcode.split(".")):
        return "the question is the same for both orders"
    zero = split_operands(line.operands)[2:] == ["0f00000000"]
    if mutant.kind == "operation" and {line.name, changed.name} == {"add", "sub"} and zero:
        return "a zero is added or taken away: the sign of a zero at most is another"
    return None


def unselected(mutant: Mutant) -> str | None:
    """Says that a permutation of bytes takes none from the source that is another."""
    changed = mutant.changed
    if changed is None or mutant.line.opcode != "prmt.b32" or changed.opcode != "prmt.b32":
        return None
    before, after = split_operands(mutant.line.operands), split_operands(changed.operands)
    selector = re.fullmatch(r"0x([0-9a-fA-F]{1,4})U?", before[3])
    if selector is None or [*before[:2], before[3]] != [*after[:2], after[3]]:
        return None
    taken = {int(digit, 16) & 7 for digit in selector[1].zfill(4)}
    return "all bytes are of its first source" if max(taken) < 4 else None
