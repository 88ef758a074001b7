"""All ranks of a mesh in numpy: groups along axes, messages, and what ranks that do not fit together are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.context import new_context
from lowerkit.dialect.interpreter.mesh import interpret_mesh
from lowerkit.errors import InputError, VerifyError
from lowerkit.mlir import ir

Array = np.ndarray[Any, Any]
MESH = {"pp": 2, "tp": 2}
DATA = np.arange(8, dtype=np.float32).reshape(4, 2)


def start(name: str, kind: str, axis: str, value: str = "w", others: str = "", ranks: int = 2) -> str:
    result = "tensor<0xi8>" if kind == "send" else "tensor<2xf32>"
    attributes = f'kind = "{kind}", axis = "{axis}", ranks = {ranks}, reduction = "sum"{others}'
    return f'%{name}.p = "lk.collective_start"(%{value}) {{{attributes}}} : (tensor<2xf32>) -> {result}'


def done(name: str, kind: str = "") -> str:
    result = "tensor<0xi8>" if kind == "send" else "tensor<2xf32>"
    return f'%{name} = "lk.collective_done"(%{name}.p) : ({result}) -> {result}'


def both(name: str, kind: str, axis: str, value: str = "w", others: str = "", ranks: int = 2) -> list[str]:
    return [start(name, kind, axis, value, others, ranks), done(name, kind)]


def run(*bodies: Sequence[str], mesh: Any = MESH) -> list[Array]:
    """Runs programs, for each rank its own or one for all, on values that differ; returns the results by rank."""
    context = new_context()
    head = '%w = "lk.weight"() {symbol = "w"} : () -> tensor<2xf32>'
    modules: list[ir.Module] = []
    with context, ir.Location.unknown():
        for body in bodies:
            lines = "\n".join([head, *body, "return %r : tensor<2xf32>"])
            modules.append(ir.Module.parse(f"func.func @main() -> tensor<2xf32> {{\n{lines}\n}}"))
    chosen = modules[0] if len(modules) == 1 else modules
    return [result for (result,) in interpret_mesh(chosen, [], lambda _, rank: DATA[rank], mesh)]


def test_a_group_is_along_an_axis() -> None:
    along_tp, along_pp = run(both("r", "all_reduce", "tp")), run(both("r", "all_reduce", "pp"))
    for rank in range(4):
        np.testing.assert_array_equal(along_tp[rank], DATA[rank // 2 * 2] + DATA[rank // 2 * 2 + 1])
        np.testing.assert_array_equal(along_pp[rank], DATA[rank % 2] + DATA[rank % 2 + 2])
    np.testing.assert_array_equal(run(both("r", "all_reduce", "any", ranks=4), mesh=4)[3], DATA.sum(0))


def test_ranks_may_start_in_other_orders_along_other_axes() -> None:
    one, other = start("a", "all_reduce", "tp"), start("b", "all_reduce", "pp")
    ends = [done("a"), done("b"), *both("r", "all_to_all", "tp", "b")]
    results = run([one, other, *ends], [other, one, *ends], [one, other, *ends], [other, one, *ends])
    sums = [DATA[rank % 2] + DATA[rank % 2 + 2] for rank in range(4)]
    for rank, result in enumerate(results):
        line = [sums[rank // 2 * 2], sums[rank // 2 * 2 + 1]]
        np.testing.assert_array_equal(result, [each[rank % 2] for each in line])


def test_a_rank_of_another_one_and_zeros() -> None:
    assert [each.tolist() for each in run(both("r", "broadcast", "pp", others=", root = 1"))] == [
        DATA[2].tolist(), DATA[3].tolist(), DATA[2].tolist(), DATA[3].tolist(),
    ]  # fmt: skip
    results = run(both("r", "reduce", "tp", others=", root = 1"))
    np.testing.assert_array_equal(results, [0 * DATA[0], DATA[0] + DATA[1], 0 * DATA[0], DATA[2] + DATA[3]])


def send(name: str, peer: str, value: str = "w") -> list[str]:
    return both(name, "send", "pp", value, f", peer = {peer}")


def test_messages_match_in_their_order() -> None:
    """Each sends its own and then the sum of two; both receive before the other has received."""
    meet = [start("x", "receive", "pp", others=", peer = PEER"), start("y", "receive", "pp", others=", peer = PEER")]
    body = [*meet, *send("s", "PEER"), *both("t", "all_reduce", "tp"), *send("u", "PEER", "t"), done("y"), done("x")]
    programs = [[line.replace("PEER", str(peer)) for line in body] for peer in (1, 0)]
    sums = DATA.reshape(2, 2, 2).sum(1, keepdims=True).repeat(2, 1).reshape(4, 2)
    for value, given in (("y", sums), ("x", DATA)):
        end = both("r", "all_reduce", "tp", value)
        upper, lower = ([*program, *end] for program in programs)
        results = run(upper, upper, lower, lower)
        for rank, result in enumerate(results):
            other = 2 - rank // 2 * 2
            np.testing.assert_array_equal(result, given[other] + given[other + 1])


def test_ranks_that_wait_for_each_other_are_told() -> None:
    waits = [*both("r", "receive", "pp", others=", peer = PEER"), *send("s", "PEER")]
    upper, lower = ([line.replace("PEER", str(peer)) for line in waits] for peer in (1, 0))
    with pytest.raises(VerifyError, match=r"LK3002.*wait for each other(.|\n)*rank 3 waits for receive along pp"):
        run(upper, upper, lower, lower)
    silent = both("r", "all_reduce", "tp")
    with pytest.raises(VerifyError, match=r"wait for each other(.|\n)*rank 0 waits for receive"):
        run(both("r", "receive", "pp", others=", peer = 1"), silent, silent, silent)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (both("r", "all_reduce", "tp"), both("r", "all_to_all", "tp"), "rank 1: all_to_all along tp"),
        (
            both("r", "broadcast", "tp", others=", root = 0"),
            both("r", "broadcast", "tp", others=", root = 1"),
            "root 1",
        ),
    ],
)
def test_ranks_that_compute_different_things_are_told(one: list[str], other: list[str], said: str) -> None:
    with pytest.raises(VerifyError, match=f"compute different things together(.|\n)*{said}"):
        run(one, other, one, other)


def test_a_mesh_that_does_not_fit() -> None:
    with pytest.raises(VerifyError, match="is for 3 ranks, and the axis has 2"):
        run(both("r", "all_reduce", "tp", ranks=3))
    with pytest.raises(VerifyError, match="the mesh has the axes pp, tp"):
        run(both("r", "all_reduce", "dp"))


def test_what_a_rank_raises_ends_all() -> None:
    body = both("r", "all_reduce", "tp")
    context = new_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(
            'func.func @main() -> tensor<2xf32> {\n%w = "lk.weight"() {symbol = "w"} : () -> tensor<2xf32>\n'
            + "\n".join(body)
            + "\nreturn %r : tensor<2xf32>\n}"
        )

    def weights(_: str, rank: int) -> Array:
        if rank == 2:
            raise InputError("LK1003", "no data")
        return DATA[rank]

    with pytest.raises(InputError, match="no data"):
        interpret_mesh(module, [], weights, MESH)
