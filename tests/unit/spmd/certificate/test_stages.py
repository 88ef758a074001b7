"""Stages of a pipeline compute what the program does, in an order in which none waits for ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pytest

from lowerkit.errors import VerifyError
from lowerkit.spmd.certificate.graph import Form, Graph, Op
from lowerkit.spmd.certificate.stages import StagesProof, prove_stages

T, TOKEN = "f32[4]", "i8[0]"
F = [Form("lk.softmax", {"axis": 0, "log": log}) for log in (False, True)]


def start(kind: str, **numbers: int) -> Form:
    attributes = {"kind": kind, "axis": "pp", "ranks": 2, "reduction": "sum", "root": -1, "peer": -1}
    return Form("lk.collective_start", {**attributes, **numbers})


DONE, EMPTY = Form("lk.collective_done"), Form("tensor.empty")


Ops: TypeAlias = Sequence[tuple[Form, list[int]] | tuple[Form, list[int], str]]


def program(*ops: tuple[Form, list[int]] | tuple[Form, list[int], str], returned: list[int]) -> Graph:
    """A program of one argument, value 0; each op has one result, the next value."""
    forms = list(dict.fromkeys(str(form) for form, *_ in ops))
    table = {str(form): form for form, *_ in ops}
    rows = [Op(forms.index(str(op[0])), op[1], [1 if len(op) > 2 else 0]) for op in ops]
    return Graph([T, TOKEN], [table[form] for form in forms], ["net.py:1"], [0], rows, returned)


WHOLE = program((F[0], [0]), (F[1], [1]), returned=[2])
"""F0 on the first stage, F1 on the second."""
FIRST = [(F[0], [0]), (start("send", peer=1), [1], TOKEN), (DONE, [2], TOKEN), (EMPTY, [])]
SECOND = [(EMPTY, []), (start("receive", peer=0), [1]), (DONE, [2]), (F[1], [3])]


def stages(first: Ops, second: Ops) -> StagesProof:
    """Both end with a broadcast of the last value of the second stage."""
    both = [first, second]
    made = [
        program(*ops, (start("broadcast", root=1), [len(ops)]), (DONE, [len(ops) + 1]), returned=[len(ops) + 2])
        for ops in both
    ]
    return prove_stages(WHOLE, made, "pp", [[4]])


def test_a_value_crosses_and_the_result_comes_back() -> None:
    proof = stages(FIRST, SECOND)
    assert proof.order == ["0 -> 1", "1 -> all"]
    assert [[meeting.kind for meeting in own] for own in proof.meetings] == [
        ["send", "broadcast"],
        ["receive", "broadcast"],
    ]
    assert proof.meetings[0][0].given == 16
    assert proof.meetings[0][0].made == 0
    assert proof.values[0][-1] == proof.values[1][-1]


@pytest.mark.parametrize(
    ("first", "second", "code", "reason"),
    [
        # What is sent is another value.
        ([(F[0], [0]), (start("send", peer=1), [0], TOKEN), *FIRST[2:]], SECOND, "LK3006", "other results"),
        # The second stage computes something else.
        (FIRST, [*SECOND[:3], (F[0], [3])], "LK3006", "other results"),
        # Nobody sends.
        ([(F[0], [0]), (EMPTY, [])], SECOND, "LK3007", "wait for each other"),
        # Nobody receives.
        (FIRST, [(F[0], [0]), (F[1], [1])], "LK3007", "wait for each other"),
        # Both receive first.
        ([(EMPTY, []), (start("receive", peer=1), [1]), (DONE, [2])], SECOND, "LK3007", "wait for each other"),
        # Both send first: each waits for the other to receive, where nothing is buffered.
        (
            [*FIRST[:3], (start("receive", peer=1), [1]), (DONE, [4])],
            [
                (F[0], [0]),
                (start("send", peer=0), [1], TOKEN),
                *FIRST[2:3],
                (start("receive", peer=0), [1]),
                (DONE, [4]),
            ],
            "LK3007",
            "wait for each other",
        ),
        # The wrong peer.
        ([FIRST[0], (start("send", peer=0), [1], TOKEN), *FIRST[2:]], SECOND, "LK3007", "wait for each other"),
        (FIRST, [SECOND[0], (start("receive", peer=1), [1]), *SECOND[2:]], "LK3007", "wait for each other"),
        # What says that a message is on its way is read as a value.
        ([*FIRST[:3], (F[0], [3])], SECOND, "LK3006", "on its way"),
        # Stages do not sum.
        ([(start("all_reduce"), [0]), (DONE, [1])], SECOND, "LK3007", "wait for each other"),
    ],
)
def test_other_stages_are_refused(first: Ops, second: Ops, code: str, reason: str) -> None:
    with pytest.raises(VerifyError, match=reason) as error:
        stages(first, second)
    assert error.value.code == code
    if code == "LK3007":
        assert len(error.value.details) == 2
        assert "net.py:1" in str(error.value)


def test_crossings_in_another_order_are_told_apart() -> None:
    """Two values cross; a stage that receives them the other way round gets each for the other."""
    whole = program((F[0], [0]), (F[1], [0]), (F[0], [1]), (F[1], [2]), returned=[3, 4])
    send, receive = start("send", peer=1), start("receive", peer=0)
    share = start("broadcast", root=1)
    first = program(
        (F[0], [0]), (F[1], [0]), (send, [1], TOKEN), (send, [2], TOKEN), (EMPTY, []),
        (share, [5]), (DONE, [6]), (share, [5]), (DONE, [8]), returned=[7, 9],
    )  # fmt: skip
    for order in (0, 1):
        second = program(
            (EMPTY, []), (receive, [1]), (DONE, [2]), (receive, [1]), (DONE, [4]),
            (F[0], [5 if order else 3]), (F[1], [3 if order else 5]),
            (share, [6]), (DONE, [8]), (share, [7]), (DONE, [10]),
            returned=[9, 11],
        )  # fmt: skip
        if order:
            with pytest.raises(VerifyError, match="other results"):
                prove_stages(whole, [first, second], "pp", [[4]])
        else:
            proof = prove_stages(whole, [first, second], "pp", [[4]])
            assert proof.order == ["0 -> 1", "0 -> 1", "1 -> all", "1 -> all"]


def test_a_state_belongs_to_one_stage() -> None:
    read, write = (Form(f"lk.state_{each}", {"symbol": "cache"}) for each in ("read", "write"))
    whole = Graph([T], [read, F[0], write], ["net.py:1"], [0], [Op(0, [], [0]), Op(1, [1], [0]), Op(2, [2], [])], [2])
    one = Graph([T], [read, F[0]], ["net.py:1"], [0], [Op(0, [], [0]), Op(1, [1], [0])], [2])
    assert prove_stages(whole, [whole, whole], "pp", [[4]]).order == []
    with pytest.raises(VerifyError, match="uses the state 'cache' with another stage"):
        prove_stages(whole, [one, whole], "pp", [[4]])
