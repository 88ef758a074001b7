"""Checks of indices on parts: together they are the check of all of them, or the program is refused."""

from __future__ import annotations

import pytest

from lowerkit.errors import VerifyError
from lowerkit.spmd.certificate.effects import CHECK, Effects, Stretch
from lowerkit.spmd.certificate.facts import Fact, Rows
from lowerkit.spmd.certificate.graph import Form
from lowerkit.spmd.certificate.prover import prove
from tests.unit.spmd.certificate.test_prover import Line, graph, op

IDS = "i64[4,8]"
LOOK_UP, SCATTER = (op(CHECK, wraps=False, exempt=[], operator=name) for name in ("embedding", "scatter"))
WRITE = op("lk.state_write", symbol="cache")
EXTENT = [(op("arith.constant", value=number), [], ["index"], -1) for number in (100, 50)]
BEFORE: list[Line] = [*EXTENT, (LOOK_UP, [0, 1], [], -1), (SCATTER, [0, 2], [], -1)]
FACTS: list[Fact] = [Rows("first", 2, 0, 1), Rows("second", 2, 0, 1, 2), Rows("middle", 2, 0, 1, 1)]
"""Rows 0 and 1 of the four, 2 and 3, 1 and 2."""


def parts(*names: str) -> list[Line]:
    """Two extents, the rows of each part, and the part: values 1, 2, and from 3 on weight and part in turn."""
    made: list[Line] = [*EXTENT]
    for number, name in enumerate(names):
        made.append((op("lk.weight", symbol=name), [], ["i64[2]"], -1))
        made.append((op("lk.gather", axis=0), [0, 3 + 2 * number], ["i64[2,8]"], -1))
    return made


def checks(*pairs: tuple[int, int]) -> list[Line]:
    """Checks of parts, as (which check, which part)."""
    forms = (LOOK_UP, SCATTER)
    return [(forms[which], [4 + 2 * part, 1 + which], [], 2 + which) for which, part in pairs]


def prove_checks(after: list[Line], before: list[Line] | None = None, axis: str = "", ranks: int = 1) -> list[str]:
    known = graph(IDS, BEFORE if before is None else before, [0])
    return prove(known, graph(IDS, after, [0]), axis, ranks, FACTS).lemmas


def test_checks_of_all_parts_are_the_check_of_the_whole() -> None:
    """Each micro-batch makes both checks; the checks of one part come between those of another one."""
    every = checks((0, 0), (1, 0), (0, 1), (1, 1))
    assert prove_checks([*parts("first", "second"), *every])[-4:] == ["part"] * 4
    assert prove_checks([*parts("second", "first"), *every])[-4:] == ["part"] * 4
    # One of them on the whole.
    mixed: list[Line] = [*checks((1, 0)), (LOOK_UP, [0, 1], [], 2), *checks((1, 1))]
    assert prove_checks([*parts("first", "second"), *mixed])[-3:] == ["part", "alike", "part"]


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (("first", "second"), [(0, 0), (1, 0), (0, 1)]),  # one is left out
        (("first", "second"), [(0, 0), (1, 0), (0, 0), (1, 1)]),  # one comes twice, another one never
        (("first", "middle"), [(0, 0), (1, 0), (0, 1), (1, 1)]),  # row 3 is in no part, row 1 in two
        (("first", "second", "middle"), [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2)]),  # rows 1 and 2 once more
        (("first", "second"), []),
    ],
)
def test_what_leaves_an_index_out_is_refused(names: tuple[str, ...], pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(VerifyError, match=r"leaves out (a part of )?lk\.check_indices, an effect"):
        prove_checks([*parts(*names), *checks(*pairs)])


def test_other_checks_are_refused() -> None:
    two = parts("first", "second")
    other_extent: list[Line] = [(LOOK_UP, [4, 2], [], 2)]
    with pytest.raises(VerifyError, match="operand 1 is of 50 : index"):
        prove_checks([*two, *other_extent])
    other_values: list[Line] = [*two, (op("arith.addi"), [4, 4], ["i64[2,8]"], -1), (LOOK_UP, [7, 1], [], 2)]
    with pytest.raises(VerifyError, match="LK3006"):
        prove_checks(other_values)
    wraps = op(CHECK, wraps=True, exempt=[], operator="embedding")
    with pytest.raises(VerifyError, match="it is lk.check_indices"):
        prove_checks([*two, (wraps, [4, 1], [], 2)])
    third = [*two, *checks((0, 0), (0, 1), (1, 0), (1, 1)), *checks((0, 0))]
    with pytest.raises(VerifyError, match="leaves out|another order"):
        prove_checks(third)


def test_all_ranks_check_one_part() -> None:
    """Along an axis the parts must be those of the ranks; a part that is the same for all of them is one part."""
    own: list[Fact] = [Rows("own", 2, 2, 1)]
    made: list[Line] = [*EXTENT, (op("lk.weight", symbol="own"), [], ["i64[2]"], -1)]
    made += [(op("lk.gather", axis=0), [0, 3], ["i64[2,8]"], -1), *checks((0, 0), (1, 0))]
    known = graph(IDS, BEFORE, [0])
    assert prove(known, graph(IDS, made, [0]), "tp", 2, own).lemmas[-2:] == ["part", "part"]
    with pytest.raises(VerifyError, match="leaves out a part of"):
        prove(known, graph(IDS, made, [0]), "tp", 2, [Rows("own", 2, 0, 1)])


def test_a_write_is_behind_the_checks_that_it_was_behind() -> None:
    """Where a check fails, what is written before it is written."""
    before: list[Line] = [*BEFORE[:3], (WRITE, [0], [], -1), BEFORE[3]]
    two = parts("first", "second")
    write: list[Line] = [(WRITE, [0], [], 3)]

    def numbered(pairs: list[tuple[int, int]]) -> list[Line]:
        return [(form, read, made, 4 if at == 3 else at) for form, read, made, at in checks(*pairs)]

    good = [*two, *numbered([(0, 1), (0, 0)]), *write, *numbered([(1, 0), (1, 1)])]
    assert prove_checks(good, before)[-5:] == ["part", "part", "alike", "part", "part"]
    for wrong in (
        [*two, *numbered([(0, 0)]), *write, *numbered([(0, 1), (1, 0), (1, 1)])],
        [*two, *numbered([(0, 0), (1, 0)]), *write, *numbered([(0, 1), (1, 1)])],
        [*two, *numbered([(0, 0), (0, 1), (1, 0), (1, 1)]), *write],
        [*two, *write, *numbered([(0, 0), (0, 1), (1, 0), (1, 1)])],
    ):
        with pytest.raises(VerifyError, match="effects come in another order than before"):
            prove_checks(wrong, before)


def test_stretches_join_from_end_to_end() -> None:
    check = (Form(CHECK), (0, 1))
    effects = Effects([check, check, (WRITE, (0,))])
    assert effects.next((WRITE, (0,))) == f"effects come in another order than before: {CHECK}"
    for first, end in ((0, 3), (5, 8), (3, 8), (0, 5)):
        assert effects.missing() == (f"a part of {CHECK}" if first or end == 5 else CHECK)
        assert effects.check(check, Stretch("l0", first, end, 8)) == ""
    assert effects.following() == (WRITE, (0,))
    assert effects.version == 2
    assert effects.next((WRITE, (0,))) == ""
    assert effects.missing() == ""
    assert effects.next((WRITE, (0,))) == "effects come in another order than before: none is left"


def test_stretches_along_two_dimensions_do_not_join() -> None:
    check = (Form(CHECK), (0, 1))
    effects = Effects([check])
    assert effects.check(check, Stretch("l0", 0, 4, 8)) == effects.check(check, Stretch("l1", 4, 8, 8)) == ""
    assert effects.missing() == f"a part of {CHECK}"
