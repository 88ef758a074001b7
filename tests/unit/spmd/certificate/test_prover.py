"""What each lemma shows, and what it refuses, on programs of a few ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pytest

from lowerkit.errors import VerifyError
from lowerkit.spmd.certificate.facts import Cut, Fact, Rows, Slices
from lowerkit.spmd.certificate.graph import Form, Graph, Op
from lowerkit.spmd.certificate.prover import Proof, prove

Line: TypeAlias = tuple[Form, list[int], list[str], int]
"""Form, operands, types of the results, number before."""


def graph(argument: str, lines: Sequence[Line], returned: list[int]) -> Graph:
    kinds = list(dict.fromkeys([argument, *(kind for line in lines for kind in line[2])]))
    forms: list[Form] = []
    for form, *_ in lines:
        forms += [] if form in forms else [form]
    ops = [Op(forms.index(form), read, [kinds.index(kind) for kind in made], 0, at) for form, read, made, at in lines]
    return Graph(kinds, forms, ["net.py:1"], [kinds.index(argument)], ops, returned)


def numbered(lines: Sequence[tuple[Form, list[int], list[str]]]) -> list[Line]:
    return [(form, read, made, -1) for form, read, made in lines]


def op(name: str, **attributes: object) -> Form:
    return Form(name, dict(attributes))


def meeting(kind: str, reduction: str = "sum") -> Form:
    return op("lk.collective_start", kind=kind, axis="tp", ranks=2, reduction=reduction, root=1, peer=-1)


def reduced(kind: str) -> Form:
    return op("lk.reduce", kind=kind, axes=[1], keep_dims=False)


DONE = op("lk.collective_done")
SOFTMAX = op("lk.softmax", axis=0, log=False)
ROWS: list[Fact] = [Rows("own", 4, 4, 1)]
OWN: list[Line] = [
    (op("lk.weight", symbol="own"), [], ["i64[4]"], -1),
    (op("lk.gather", axis=1), [0, 1], ["f32[4,4]"], -1),
]
"""The rank takes four of the eight columns of the argument; value 2 is its part."""
X, PART = "f32[4,8]", "f32[4,4]"


def proved(before: list[Line], after: list[Line], returned: tuple[list[int], list[int]]) -> Proof:
    return prove(graph(X, before, returned[0]), graph(X, after, returned[1]), "tp", 2, ROWS)


def test_a_part_is_taken_computed_and_gathered() -> None:
    after: list[Line] = [
        *OWN,
        (SOFTMAX, [2], [PART], 0),
        (meeting("all_gather"), [3], ["f32[2,4,4]"], -1),
        (DONE, [4], ["f32[2,4,4]"], -1),
        (op("tensor.empty"), [], ["f32[4,2,4]"], -1),
        (op("linalg.transpose", permutation=[1, 0, 2]), [5, 6], ["f32[4,2,4]"], -1),
        (op("tensor.collapse_shape", reassociation=[[0], [1, 2]]), [7], [X], -1),
    ]
    proof = proved([(SOFTMAX, [0], [X], -1)], after, ([1], [8]))
    assert proof.lemmas == ["row", "take", "part", "collective", "collective", "alike", "move", "move"]
    assert proof.relations[3] == "%1 split 1"
    assert proof.relations[8] == "%1 whole"
    assert [(each.given, each.made) for each in proof.meetings] == [(64, 128)]
    swapped: list[Line] = [
        *after[:5],
        (op("tensor.empty"), [], ["f32[4,4,2]"], -1),
        (op("linalg.transpose", permutation=[1, 2, 0]), [5, 6], ["f32[4,4,2]"], -1),
        after[7],
    ]
    with pytest.raises(VerifyError, match="result 0 of the ranks along 'tp' is not that of one device"):
        proved([(SOFTMAX, [0], [X], -1)], swapped, ([1], [8]))


def test_rows_that_belong_together_are_not_cut() -> None:
    softmax = op("lk.softmax", axis=1, log=False)
    reason = r"loop l1 \(opaque\) is carried to l1 \+ 4\*r: it must run over all that it ran over before"
    with pytest.raises(VerifyError, match=reason) as error:
        proved([(softmax, [0], [X], -1)], [*OWN, (softmax, [2], [PART], 0)], ([1], [3]))
    assert "lk.softmax at net.py:1" in error.value.message
    assert any("is %0 split 1 of argument 0" in detail for detail in error.value.details)


@pytest.mark.parametrize(
    ("kind", "reduction", "right"),
    [
        ("sum", "sum", True),
        ("max", "max", True),
        ("prod", "product", True),
        ("sum", "max", False),
        ("mean", "sum", False),
    ],
)
def test_a_reduction_that_is_cut_gives_terms_of_its_kind(kind: str, reduction: str, right: bool) -> None:
    after: list[Line] = [
        *OWN,
        (reduced(kind), [2], ["f32[4]"], 0),
        (meeting("all_reduce", reduction), [3], ["f32[4]"], -1),
        (DONE, [4], ["f32[4]"], -1),
    ]
    before: list[Line] = [(reduced(kind), [0], ["f32[4]"], -1)]
    if right:
        assert f"terms of a {reduction}" in proved(before, after, ([1], [5])).relations[3]
    else:
        with pytest.raises(VerifyError, match="LK3006"):
            proved(before, after, ([1], [5]))


def test_an_all_to_all_changes_the_dimension_that_is_split() -> None:
    """Columns become rows: what goes to rank r is its rows of the own columns."""
    expand = op("tensor.expand_shape", reassociation=[[0, 1], [2]], static_output_shape=[2, 2, 4])
    after: list[Line] = [
        *OWN,
        (expand, [2], ["f32[2,2,4]"], -1),
        (meeting("all_to_all"), [3], ["f32[2,2,4]"], -1),
        (DONE, [4], ["f32[2,2,4]"], -1),
        (op("tensor.empty"), [], ["f32[2,2,4]"], -1),
        (op("linalg.transpose", permutation=[1, 0, 2]), [5, 6], ["f32[2,2,4]"], -1),
        (op("tensor.collapse_shape", reassociation=[[0], [1, 2]]), [7], ["f32[2,8]"], -1),
        (op("lk.softmax", axis=1, log=False), [8], ["f32[2,8]"], 0),
        (meeting("all_gather"), [9], ["f32[2,2,8]"], -1),
        (DONE, [10], ["f32[2,2,8]"], -1),
        (op("tensor.collapse_shape", reassociation=[[0, 1], [2]]), [11], [X], -1),
    ]  # fmt: skip
    proof = proved([(op("lk.softmax", axis=1, log=False), [0], [X], -1)], after, ([1], [12]))
    assert proof.relations[8] == "%0 split 0"
    assert proof.relations[12] == "%1 whole"


def test_a_broadcast_of_a_part_is_one_rank_s_part() -> None:
    after: list[Line] = [*OWN, (meeting("broadcast"), [2], [PART], -1), (DONE, [3], [PART], -1)]
    cut = op("tensor.extract_slice", static_offsets=[0, 4], static_sizes=[4, 4], static_strides=[1, 1])
    proof = prove(graph(X, [(cut, [0], [PART], -1)], [0]), graph(X, after, [0]), "tp", 2, ROWS)
    assert proof.relations[4] == "%0 [i0, i1 + 4]"


def test_terms_run_through_what_is_linear_alone() -> None:
    added = Form(
        "linalg.generic", {}, [[[0, 0, 1]]] * 3, "p",
        [["arith.addf", {}, [0, 1], ["f32"], []], ["linalg.yield", {}, [3], [], []]],
    )  # fmt: skip
    sums: list[Line] = [(reduced("sum"), [2], ["f32[4]"], 0), (op("tensor.empty"), [], ["f32[4]"], -1)]
    before: list[Line] = [
        (reduced("sum"), [0], ["f32[4]"], -1),
        (op("tensor.empty"), [], ["f32[4]"], -1),
        (added, [1, 1, 2], ["f32[4]"], -1),
    ]
    end: list[Line] = [(meeting("all_reduce"), [5], ["f32[4]"], -1), (DONE, [6], ["f32[4]"], -1)]
    proof = proved(before, [*OWN, *sums, (added, [3, 3, 4], ["f32[4]"], 2), *end], ([3], [7]))
    assert proof.relations[5].endswith("whole, terms of a sum")
    multiplied = Form(
        added.name, {}, added.maps, "p", [["arith.mulf", {}, [0, 1], ["f32"], []], *(added.body or [])[1:]]
    )
    squares = [*before[:2], (multiplied, [1, 1, 2], ["f32[4]"], -1)]
    with pytest.raises(VerifyError, match="operand 0 is terms of a sum, and the op does not run on terms"):
        proved(squares, [*OWN, *sums, (multiplied, [3, 3, 4], ["f32[4]"], 2), *end], ([3], [7]))


READ, WRITE = (op(f"lk.state_{each}", symbol="cache") for each in ("read", "write"))
CACHED: list[Line] = [
    (READ, [], [X], -1),
    (SOFTMAX, [1], [X], -1),
    (WRITE, [2], [], -1),
    (READ, [], [X], -1),
    (op("lk.reduce", kind="sum", axes=[1], keep_dims=False), [3], ["f32[4]"], -1),
]


def test_a_state_stays_split() -> None:
    after: list[Line] = [
        (READ, [], [PART], 0),
        (SOFTMAX, [1], [PART], 1),
        (WRITE, [2], [], 2),
        (READ, [], [PART], 3),
        (op("lk.reduce", kind="sum", axes=[1], keep_dims=False), [3], ["f32[4]"], 4),
        (meeting("all_reduce"), [4], ["f32[4]"], -1),
        (DONE, [5], ["f32[4]"], -1),
    ]
    proof = proved(CACHED, after, ([4], [6]))
    assert proof.lemmas[:4] == ["state", "part", "state", "state"]
    # What is written is what was read, and not what was computed of it.
    with pytest.raises(VerifyError, match="what is written is not the slice along dimension 1"):
        proved(CACHED, [*after[:2], (WRITE, [1], [], 2), *after[3:]], ([4], [6]))
    # A read comes before the write.
    with pytest.raises(VerifyError, match="effects come in another order|another order than before"):
        proved(CACHED, [after[0], after[1], (READ, [], [PART], 3), (WRITE, [2], [], 2), *after[4:]], ([4], [6]))
    # The write is left out.
    with pytest.raises(VerifyError, match="another order|leaves out lk.state_write"):
        proved(CACHED, [*after[:2], *after[3:]], ([4], [6]))
    # Of a state of another shape there is no slice.
    with pytest.raises(VerifyError, match=r"'cache' is f32\[2,4\], which is no slice of f32\[4,8\]"):
        proved(CACHED, [(READ, [], ["f32[2,4]"], 0)], ([4], [1]))


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        (Rows("own", 4, 4, 1, 1), "may be outside of 8 rows"),
        (Rows("own", 4, 4, 2), "may be outside of 8 rows"),
        (Rows("own", 4, 3, 1), "result 0"),
        (Rows("own", 5, 4, 1), "no row of the table"),
        (Slices("own", "other", "i64[8]", 0), "no counterpart"),
    ],
)
def test_other_columns_are_not_the_part(fact: Fact, reason: str) -> None:
    after: list[Line] = [
        *OWN,
        (meeting("all_gather"), [2], ["f32[2,4,4]"], -1),
        (DONE, [3], ["f32[2,4,4]"], -1),
        (op("tensor.empty"), [], ["f32[4,2,4]"], -1),
        (op("linalg.transpose", permutation=[1, 0, 2]), [4, 5], ["f32[4,2,4]"], -1),
        (op("tensor.collapse_shape", reassociation=[[0], [1, 2]]), [6], [X], -1),
    ]
    assert prove(graph(X, [], [0]), graph(X, after, [7]), "tp", 2, ROWS).relations[7] == "%0 whole"
    with pytest.raises(VerifyError, match=reason):
        prove(graph(X, [], [0]), graph(X, after, [7]), "tp", 2, [fact])


def test_neighbouring_parts_that_are_joined_are_the_whole() -> None:
    """What micro-batches do: each takes its rows, and all are stacked and joined."""
    facts: list[Fact] = [Rows("first", 2, 0, 1), Rows("second", 2, 0, 1, 2)]

    def joined(order: list[int]) -> list[Line]:
        expand = op("tensor.expand_shape", reassociation=[[0, 1], [2]], static_output_shape=[1, 2, 8])
        return [
            *[(op("lk.weight", symbol=name), [], ["i64[2]"], -1) for name in ("first", "second")],
            *[(op("lk.gather", axis=0), [0, number], ["f32[2,8]"], -1) for number in (1, 2)],
            *[(expand, [number], ["f32[1,2,8]"], -1) for number in (3, 4)],
            (op("tensor.concat", dim=0), order, ["f32[2,2,8]"], -1),
            (op("tensor.collapse_shape", reassociation=[[0, 1], [2]]), [7], [X], -1),
        ]

    assert prove(graph(X, [], [0]), graph(X, joined([5, 6]), [8]), "", 1, facts).relations[8] == "%0 whole"
    for order in ([6, 5], [5, 5]):
        with pytest.raises(VerifyError, match="result 0"):
            prove(graph(X, [], [0]), graph(X, joined(order), [8]), "", 1, facts)


def blocks(*facts: Cut) -> Proof:
    """A softmax of the rows of a weight, and of two blocks of it that are joined."""
    weight = op("lk.weight", symbol="w")
    softmax = op("lk.softmax", axis=1, log=False)
    expand = op("tensor.expand_shape", reassociation=[[0, 1], [2]], static_output_shape=[1, 2, 8])
    after: list[Line] = [
        *[(op("lk.weight", symbol=name), [], ["f32[2,8]"], -1) for name in ("first", "second")],
        *[(softmax, [number], ["f32[2,8]"], 1) for number in (1, 2)],
        *[(expand, [number], ["f32[1,2,8]"], -1) for number in (3, 4)],
        (op("tensor.concat", dim=0), [5, 6], ["f32[2,2,8]"], -1),
        (op("tensor.collapse_shape", reassociation=[[0, 1], [2]]), [7], [X], -1),
    ]
    before = graph(X, numbered([(weight, [], [X]), (softmax, [1], [X])]), [2])
    return prove(before, graph(X, after, [8]), "", 1, facts)


def cut(symbol: str, *starts: int, kind: str = X, source: str = "w") -> Cut:
    return Cut(symbol, source, kind, list(starts))


def test_blocks_of_a_weight_are_parts_of_it() -> None:
    proof = blocks(cut("first", 0, 0), cut("second", 2, 0))
    assert proof.lemmas[:4] == ["cut", "cut", "part", "part"]
    assert proof.relations[2] == "%1 [i0 + 2, i1]"
    assert proof.relations[8] == "%2 whole"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([cut("first", 2, 0), cut("second", 0, 0)], "result 0"),
        ([cut("first", 0, 0), cut("second", 0, 0)], "result 0"),
        ([cut("first", 0, 0), cut("second", 1, 0)], "result 0"),
        ([cut("first", 0, 0)], "it computes lk.softmax of %3, before of %1"),
        ([cut("first", 0, 0), cut("second", 2, 0, source="v")], "operand 0 is of weight v"),
        ([cut("first", 0, 0), cut("second", 3, 0)], "leaves"),
        ([cut("first", 0, 0), cut("second", -1, 0)], "leaves"),
        ([cut("first", 0, 0), cut("second", 2)], "is no block of"),
        ([cut("first", 0, 0), cut("second", 2, 0, kind="f16[4,8]")], "is no block of"),
        ([cut("first", 0, 0), cut("second", 2, 0, kind="f32[5,8]")], "operand 0 is of weight w"),
    ],
)
def test_other_blocks_are_refused(facts: list[Cut], reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        blocks(*facts)


def test_other_inputs_are_refused() -> None:
    with pytest.raises(VerifyError, match="takes other inputs"):
        prove(graph(X, [], [0]), graph(PART, [], [0]), "tp", 2, [])
