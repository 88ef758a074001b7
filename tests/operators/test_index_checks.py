"""Indices out of range: a run refuses them wherever eager does, takes what eager takes, and leaves the states alone.

Each case is one op of many in one program, with an index tensor of its own: while one of them holds a bad value the
others are good, so that the refusal must name that op.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch.export import Dim
from torch.nn import functional

import lowerkit
from lowerkit.capture.contracts.table import CONTRACTS
from lowerkit.compiler import Compiled
from lowerkit.errors import RuntimeFault

aten = torch.ops.aten
ROWS = 4
VALUES = (3, -1, -ROWS, ROWS, -ROWS - 1, -100, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
"""Beside 0, the value of each index tensor."""


@dataclass(frozen=True)
class Case:
    """An op: what it computes of ``x`` [4, 6] and two indices, and the name that a refusal gives."""

    compute: Callable[[Tensor, Tensor], Tensor]
    operator: str
    narrow: bool = True  # whether eager takes indices of 32 bits


def _wide(index: Tensor) -> Tensor:
    return index.reshape(2, 1).repeat(1, 6)


def _expanded(index: Tensor) -> Tensor:
    """As :func:`_wide`, by another way through capture; eager reads such indices of 32 bits wrongly."""
    return index.reshape(2, 1).expand(2, 6)


def _taken(x: Tensor, index: Tensor) -> Tensor:
    return x[index]


def _item(index: Tensor) -> Any:
    return index.item()


def _ones(*shape: int) -> Tensor:
    return torch.ones(shape)


CASES: dict[str, Case] = {
    "embedding": Case(lambda x, i: functional.embedding(i, x), "embedding"),
    "embedding_bag": Case(lambda x, i: functional.embedding_bag(i.reshape(1, -1), x), "embedding_bag"),
    "index_select": Case(lambda x, i: x.index_select(0, i), "index_select"),
    "index": Case(lambda x, i: x[i], "index"),
    "index_second": Case(lambda x, i: x.t()[:, i], "index"),
    "index_pair": Case(lambda x, i: x[i, i], "index"),
    "index_apart": Case(lambda x, i: x.reshape(4, 2, 3)[i, :, i.clamp(0, 2)], "index"),
    "index_scalar": Case(lambda x, i: x[i[1].reshape(())[None]], "index"),
    "select": Case(lambda x, i: x[i[1]], "index"),
    "select_second": Case(lambda x, i: x.t()[:, i[1:]][:, 0] + x.t()[:, i[1]].sin(), "index"),
    "select_item": Case(lambda x, i: x[_item(i[1])].reshape(2, 3).t(), "index"),
    "gather": Case(lambda x, i: x.gather(0, _wide(i)), "gather"),
    "gather_expanded": Case(lambda x, i: x.gather(0, _expanded(i)), "gather", False),
    "scatter_expanded": Case(lambda x, i: x.scatter(0, _expanded(i), x[:2] * 2), "scatter", False),
    "gather_rows": Case(lambda x, i: x.t().gather(1, i.reshape(1, 2)), "gather"),
    "take": Case(lambda x, i: x[:, 0].take(i), "take", False),
    "put": Case(lambda x, i: x[:, 0].put(i, _ones(2)), "put", False),
    "scatter": Case(lambda x, i: x.scatter(0, _wide(i), 1.0), "scatter"),
    "scatter_src": Case(lambda x, i: x.scatter(0, _wide(i), x[:2] * 2), "scatter"),
    "scatter_rows": Case(lambda x, i: x.t().scatter(1, i.reshape(1, 2), 7.0), "scatter"),
    "scatter_add": Case(lambda x, i: x.scatter_add(0, _wide(i), _ones(2, 6)), "scatter_add"),
    "scatter_reduce": Case(lambda x, i: x.scatter_reduce(0, _wide(i), _ones(2, 6), "amax"), "scatter_reduce"),
    "index_put": Case(lambda x, i: x.index_put((i,), _ones(1)), "index_put"),
    "index_put_add": Case(lambda x, i: x.index_put((i,), _ones(1), accumulate=True), "index_put"),
    "index_put_pair": Case(lambda x, i: x.index_put((i, i), _ones(1)), "index_put"),
    "index_copy": Case(lambda x, i: x.index_copy(0, i, _ones(2, 6)), "index_copy", False),
    "index_add": Case(lambda x, i: x.index_add(0, i, _ones(2, 6)), "index_add"),
    "index_fill": Case(lambda x, i: x.index_fill(0, i, 9.0), "index_fill", False),
    "index_reduce": Case(lambda x, i: x.index_reduce(0, i, _ones(2, 6), "amax"), "index_reduce"),
    "one_hot": Case(lambda x, i: functional.one_hot(i, ROWS), "one_hot", False),
    "nll_loss": Case(lambda x, i: functional.nll_loss(x.t()[:2], i, reduction="sum"), "nll_loss_nd", False),
    "cross_entropy": Case(
        lambda x, i: functional.cross_entropy(x.t()[:2], i, reduction="none"), "cross_entropy_loss", False
    ),
    "multilabel_margin_loss": Case(
        lambda x, i: functional.multilabel_margin_loss(x[:, 0], torch.cat([i, i.new_full((2,), -1)])),
        "multilabel_margin_loss",
        False,
    ),
    "take_along_dim": Case(lambda x, i: x[:, 0].take_along_dim(i), "take_along_dim", False),
    # Beside a vmap PyTorch writes it out before there are checks.
    "multi_margin_loss": Case(lambda x, i: functional.multi_margin_loss(x.t()[:2], i), "gather", False),
    "nll_loss_of_rows": Case(lambda x, i: aten.nll_loss(x.t()[:2], i, None, 0), "nll_loss", False),
    "nll_loss_forward": Case(
        lambda x, i: aten.nll_loss_forward(x.t()[:2], i, None, 0, -100)[0], "nll_loss_forward", False
    ),
    "nll_loss2d": Case(
        lambda x, i: aten.nll_loss2d(x.t()[:2, :, None, None], i.reshape(2, 1, 1), None, 0), "nll_loss2d", False
    ),
    "nll_loss2d_forward": Case(
        lambda x, i: aten.nll_loss2d_forward(x.t()[:2, :, None, None], i.reshape(2, 1, 1), None, 0, -100)[0],
        "nll_loss2d_forward",
        False,
    ),
    "max_unpool_of_volumes": Case(
        lambda x, i: aten.max_unpool3d(
            x[:1, :2].reshape(1, 1, 1, 1, 2), i.reshape(1, 1, 1, 1, 2), [1, 2, 2], [1, 1, 1], [0, 0, 0]
        ),
        "max_unpool3d",
        False,
    ),
    "vmap": Case(lambda x, i: torch.vmap(_taken)(x.reshape(6, 4)[:2], i.reshape(2, 1)), "index", False),
    "max_unpool": Case(
        lambda x, i: functional.max_unpool2d(
            x[:1, :2].reshape(1, 1, 1, 2), i.reshape(1, 1, 1, 2), (2, 1), output_size=(2, 2)
        ),
        "max_unpool2d",
        False,
    ),
}


class Module(nn.Module):
    """All cases at once; ``x`` and then an index tensor for each."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.cases = [CASES[name] for name in names]

    def forward(self, x: Tensor, *indices: Tensor) -> list[Tensor]:
        return [case.compute(x, index) for case, index in zip(self.cases, indices, strict=True)]


def _names(dtype: torch.dtype) -> list[str]:
    return [name for name, case in CASES.items() if case.narrow or dtype == torch.int64]


X = torch.arange(24.0).reshape(ROWS, 6) / 8


@cache
def _compiled(dtype: torch.dtype) -> Compiled:
    names = _names(dtype)
    return lowerkit.compile(Module(names).eval(), (X, *(torch.tensor([0, 3], dtype=dtype) for _ in names)))


def _eager(case: Case, index: Tensor) -> np.ndarray[Any, Any] | None:
    try:
        return case.compute(X, index).numpy()
    except (IndexError, RuntimeError) as refusal:
        if re.search(CONTRACTS[case.operator].refusal, str(refusal)):
            return None
        raise


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["i64", "i32"])
def test_refuses_what_eager_refuses(dtype: torch.dtype) -> None:
    names = _names(dtype)
    session = _compiled(dtype).session
    wrong: list[str] = []
    for number, name in enumerate(names):
        for value in VALUES:
            if not torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max:
                continue
            indices = [torch.tensor([0, 3], dtype=dtype) for _ in names]
            indices[number] = torch.tensor([0, value], dtype=dtype)
            expected = _eager(CASES[name], indices[number])
            try:
                found = session.run(X, *indices)[number]
            except RuntimeFault as fault:
                told = fault.code == "LK8015" and f"index {value} of {CASES[name].operator} is out of range" in str(
                    fault
                )
                placed = (fault.location or "").startswith("test_index_checks.py:")
                if expected is not None or not told or not placed:
                    wrong.append(f"{name}, {value}: {fault}")
                continue
            if expected is None or not np.allclose(found, expected, equal_nan=True):
                wrong.append(f"{name}, {value}: {found.ravel()[:6]}, eager {expected}")
    assert not wrong, "\n".join(wrong)


class Rows(nn.Module):
    """Look-ups in tables of unknown size, and in one that is made of two."""

    def forward(self, x: Tensor, y: Tensor, first: Tensor, second: Tensor, third: Tensor) -> tuple[Tensor, ...]:
        return x[first], torch.cat([x, y]).index_select(0, second), x.gather(0, third), x.take(third[0])


def test_extents_of_a_call() -> None:
    n, m, k = Dim("n"), Dim("m"), Dim("k")
    index = torch.tensor([0, 1])
    shapes = ({0: n}, {0: m}, {0: k}, {0: k}, None)
    inputs = (torch.randn(5, 3), torch.randn(6, 3), index, index + 1, torch.tensor([[0, 1, 2]]))
    session = lowerkit.compile(Rows().eval(), inputs, dynamic_shapes=shapes).session
    for rows in (3, 8):
        x, y = torch.randn(rows, 3), torch.randn(2, 3)
        good = torch.tensor([0, rows - 1, 1])
        third = torch.tensor([[0, rows - 1, 2]])
        for name, arguments in {
            "": (good, good + 2, third),
            "index": (good + 1, good, third),
            "index_select": (good, good + 3, third),
            "gather": (good, good, third + 1),
        }.items():
            if not name:
                for found, expected in zip(session.run(x, y, *arguments), Rows()(x, y, *arguments), strict=True):
                    np.testing.assert_array_equal(found, expected.numpy())
                continue
            with pytest.raises(RuntimeFault, match=rf"index \d+ of {name} is out of range") as caught:
                session.run(x, y, *arguments)
            assert caught.value.code == "LK8015"


class Cache(nn.Module):
    """Two caches and a position that is computed of the first, after it was written."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.register_buffer("keys", torch.zeros(ROWS, 6))
        self.register_buffer("values", torch.zeros(ROWS, 6))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.keys: Tensor
        self.values: Tensor
        self.count: Tensor

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        self.keys.index_copy_(0, at, x)
        self.count += 1
        if self.kind == "computed":
            at = at + self.keys[0, :1].long()
        if self.kind == "put":
            self.values[at] = x
        else:
            self.values.index_copy_(0, at, x)
        return self.keys + self.values


@cache
def _with_cache(kind: str) -> Compiled:
    return lowerkit.compile(Cache(kind).eval(), (torch.zeros(1, 6), torch.tensor([0])))


@pytest.mark.parametrize("kind", ["same", "put", "computed"])
def test_a_refused_call_changes_no_state(kind: str) -> None:
    session = _with_cache(kind).session
    eager = Cache(kind).eval()
    for value, at in ((1.0, 0), (1.0, 1), (1.0, ROWS - 1), (1.0, ROWS), (5.0, -ROWS - 1), (1.0, 2), (1.0, 2**40)):
        x, position = torch.full((1, 6), value), torch.tensor([at])
        before = session.state
        saved = {name: buffer.clone() for name, buffer in eager.named_buffers()}
        try:
            expected = eager(x, position)
        except (IndexError, RuntimeError):
            eager.load_state_dict(saved)
            with pytest.raises(RuntimeFault, match="out of range"):
                session.run(x, position)
            for name, array in session.state.items():
                np.testing.assert_array_equal(array, before[name])
            continue
        np.testing.assert_array_equal(session.run(x, position)[0], expected.numpy())
    assert session.state["count"] == eager.count.numpy()


def test_one_check_for_equal_indices() -> None:
    compiled = _with_cache("same")
    program = compiled.parts.program
    kinds = [step.kind for step in program.steps]
    assert kinds.count("index check") == 1
    assert kinds[0] == "index check"
    updates = [step for step in program.steps if step.kind == "scatter"]
    assert len(updates) == 2
    assert all(program.buffers[step.buffers[-1]].kind == "state" for step in updates), "they are made in place"


class Branches(nn.Module):
    """A look-up in a branch and in the body of a loop: only what runs is checked."""

    def forward(self, x: Tensor, at: Tensor, flag: Tensor) -> Tensor:
        chosen = torch.cond(flag.sum() > 0, lambda x, at: x[at] * 2, lambda x, at: x[:1] + at, (x, at))

        def turn(count: Tensor, at: Tensor, total: Tensor, x: Tensor) -> tuple[Tensor, ...]:
            return count + 1, at + 1, total + x.index_select(0, at)

        start = torch.zeros((), dtype=torch.int64)
        _, _, total = while_loop(
            lambda count, at, total: count < flag.sum(),
            lambda count, at, total: turn(count, at, total, x),
            (start, at.clone(), chosen),
        )
        return total


def test_bodies() -> None:
    session = lowerkit.compile(Branches().eval(), (X, torch.tensor([0]), torch.tensor([1]))).session
    for at, flag in ((0, 1), (1, 3), (9, 0), (0, 4)):
        arguments = X, torch.tensor([at]), torch.tensor([flag])
        np.testing.assert_array_equal(session.run(*arguments)[0], Branches()(*arguments).numpy())
    for at, flag, told in ((9, 1, "index 9 of index"), (1, 4, "index 4 of index_select"), (-5, 1, "index -5 of index")):
        with pytest.raises(RuntimeFault, match=rf"{told} is out of range") as caught:
            session.run(X, torch.tensor([at]), torch.tensor([flag]))
        assert (caught.value.location or "").startswith("test_index_checks.py:")


class Constants(nn.Module):
    """Indices that are known at capture: those in range cost nothing, one out of range is for the run to refuse."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(0, torch.tensor([0, self.index])) + x[torch.tensor([1, 2])]


def test_constant_indices() -> None:
    compiled = lowerkit.compile(Constants(3).eval(), (X,))
    assert all(step.check is None for step in compiled.parts.program.steps)
    np.testing.assert_array_equal(compiled(X), Constants(3)(X).numpy())


def test_many_indices_name_the_first_on_any_number_of_threads(tmp_path: Path) -> None:
    table, index = torch.randn(50, 3), torch.randint(0, 50, (300_000,))
    path = tmp_path / "model.lk"
    lowerkit.compile(_Embeds().eval(), (table, index)).save(path)
    bad = index.clone()
    bad[[123_456, 123_457, 299_999]] = torch.tensor([50, -7, 51])
    for threads in (1, 3):
        session = lowerkit.load(path, threads=threads)
        np.testing.assert_array_equal(session.run(table, index)[0], table[index].numpy())
        with pytest.raises(
            RuntimeFault, match=r"index 50 of embedding .*element 123456 of the indices; allowed: 0 to 49"
        ):
            session.run(table, bad)
        with pytest.raises(RuntimeFault, match="LK8015"):
            session.profile(table, bad)


class _Embeds(nn.Module):
    def forward(self, table: Tensor, index: Tensor) -> Tensor:
        return functional.embedding(index, table)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "open"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=["i64", "i32"])
def test_bags_begin_within_the_indices(dtype: torch.dtype, dynamic: bool) -> None:
    """Eager asks this of the first and the last bag; between them, or backwards, it reads what lies there."""

    class Bags(nn.Module):
        def forward(self, x: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
            return functional.embedding_bag(indices, x, offsets, mode="sum")

    indices = torch.tensor([1, 2, 0, 3, 1], dtype=dtype)
    dims: Any = ({}, {0: Dim.AUTO}, {0: Dim.AUTO}) if dynamic else None
    session = lowerkit.compile(Bags(), (X, indices, torch.tensor([0, 2, 3], dtype=dtype)), dynamic_shapes=dims).session
    for offsets in ([0, 2, 3], [0, 0, 5], [0, 4, 5], [0, 5, 5]):
        given = torch.tensor(offsets, dtype=dtype)
        np.testing.assert_array_equal(session.run(X, indices, given)[0], Bags()(X, indices, given))
    for offsets in ([1, 2, 3], [-1, 2, 3], [0, 2, 6], [0, 2, 2**31 - 1], [0, 9, 3], [0, -1, 3], [0, 3, 2]):
        with pytest.raises(RuntimeFault, match="embedding_bag") as caught:
            session.run(X, indices, torch.tensor(offsets, dtype=dtype))
        assert caught.value.code == "LK8015"


class Places(nn.Module):
    """Values that are places though nobody calls them indices: rows that change places, an order of elements."""

    def forward(self, a: Tensor, pivots: Tensor, sorter: Tensor) -> tuple[Tensor, ...]:
        permutation, _, _ = torch.lu_unpack(a, pivots)
        return permutation, torch.searchsorted(a[0], a[1], sorter=sorter), torch.linalg.lu_solve(a, pivots, a)


@pytest.mark.parametrize(
    ("pivots", "sorter", "refused"),
    [
        ([1, 2, 3], [0, 1, 2], ""),
        ([3, 3, 3], [0, 1, 2], ""),
        ([0, 2, 3], [0, 1, 2], "index -1 of lu_unpack"),
        ([1, 4, 3], [0, 1, 2], "index 3 of lu_unpack"),
        ([1, 2, 3], [0, 3, 1], "index 3 of searchsorted"),
        ([1, 2, 3], [0, -1, 1], "index -1 of searchsorted"),
    ],
)
def test_pivots_and_sorters_are_places(pivots: list[int], sorter: list[int], refused: str) -> None:
    a = torch.tensor([[2.0, 3.0, 5.0], [1.0, 4.0, 6.0], [0.5, 0.25, 3.0]])
    good = (a, torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([0, 1, 2]))
    compiled: Any = lowerkit.compile(Places(), good)
    given = (a, torch.tensor(pivots, dtype=torch.int32), torch.tensor(sorter))
    if refused:
        with pytest.raises(RuntimeError):
            Places()(*given)
        with pytest.raises(RuntimeFault, match=refused):
            compiled(*given)
        return
    for ours, eager in zip(compiled(*given), Places()(*given), strict=True):
        np.testing.assert_allclose(ours, eager.numpy(), rtol=1e-5, atol=1e-6)


def test_places_of_an_unpooling_to_open_sizes() -> None:
    class Unpooled(nn.Module):
        def forward(self, x: Tensor, places: Tensor) -> Tensor:
            return torch.ops.aten.max_unpool2d(x, places, [2 * x.shape[2], 4])

    x, places = torch.ones(1, 1, 3, 2), torch.tensor([0, 3, 8, 11, 16, 23]).reshape(1, 1, 3, 2)
    dims = {2: Dim("rows", min=2, max=9)}
    compiled: Any = lowerkit.compile(Unpooled(), (x, places), dynamic_shapes=(dims, dims))
    np.testing.assert_array_equal(compiled(x, places), Unpooled()(x, places).numpy())
    with pytest.raises(RuntimeFault, match="index 16 of max_unpool2d"):
        compiled(x[:, :, :2], places[:, :, [0, 2]].where(torch.tensor([[True, True], [True, False]]), 23))


class MaskedWrites(nn.Module):
    """A value for each place of a mask: as many as there are places, in ``masked_scatter`` as many at least."""

    def forward(self, x: Tensor, mask: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        written, rows = x.clone(), x.clone()
        written[mask] = values
        rows[mask[:, 0]] = values[:2, None]
        return written, rows, x.index_put((mask,), values, accumulate=True)


def _masks(*counts: int) -> list[Tensor]:
    """Of 4 by 3 elements, in which the first column holds at two places."""
    found = torch.zeros(len(counts), 4, 3, dtype=torch.bool)
    found[:, 1:3, 0] = True
    for mask, count in zip(found, counts, strict=True):
        mask.reshape(-1)[[1, 2, 4, 5, 7, 8, 10, 11][: count - 2]] = True
    return list(found)


@pytest.mark.parametrize("count", [None, Dim("n", min=2, max=64)])
def test_values_for_the_places_of_a_mask(count: Any) -> None:
    x, values = torch.randn(4, 3), torch.randn(5)
    right, few, many = _masks(5, 4, 6)
    shapes: Any = None if count is None else (None, None, {0: count})
    compiled = lowerkit.compile(MaskedWrites(), (x, right, values), dynamic_shapes=shapes)
    for have, want in zip(compiled(x, right, values), MaskedWrites()(x, right, values), strict=True):
        np.testing.assert_array_equal(have, want.numpy())
    for mask, index in ((few, "index 1 of index_put's values without a place"), (many, "index 5 of index_put")):
        with pytest.raises(RuntimeError, match="shape mismatch"):
            MaskedWrites()(x, mask, values)
        with pytest.raises(RuntimeFault, match=f"LK8015(.|\n)*{index} is out of range"):
            compiled(x, mask, values)


def test_values_that_a_mask_scatters() -> None:
    class Scattered(nn.Module):
        def forward(self, x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
            return x.masked_scatter(mask, values)

    x, values = torch.randn(2, 4, 3), torch.randn(5, 2)
    few, many = _masks(5, 6)  # in both of the matrices
    compiled = lowerkit.compile(Scattered(), (x, few, values))
    np.testing.assert_array_equal(compiled(x, few, values), Scattered()(x, few, values).numpy())
    with pytest.raises(RuntimeError, match="number of ones in mask"):
        Scattered()(x, many, values)
    with pytest.raises(RuntimeFault, match=r"index 10 of masked_scatter is out of range"):
        compiled(x, many, values)


def test_bounds_of_a_histogram_are_finite() -> None:
    class Counted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.histc(x, 4)

    x = torch.tensor([0.5, 2.0, -1.0])
    compiled = lowerkit.compile(Counted(), (x,))
    np.testing.assert_array_equal(compiled(x), Counted()(x).numpy())
    for wrong in (torch.inf, torch.nan):
        x[1] = wrong
        with pytest.raises(RuntimeError, match="is not finite"):
            Counted()(x)
        with pytest.raises(RuntimeFault, match="index -1 of histc"):
            compiled(x)
