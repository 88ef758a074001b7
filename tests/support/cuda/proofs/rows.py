"""Kernels that go over rows: norms, softmax, reductions, running values, sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lowerkit.dialect import CumulativeOp, GroupNormOp, LayerNormOp, ReduceOp, RmsNormOp, SortOp, TopkOp
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.cuda.proofs.case import Array, Case
from tests.support.region_kernels import anchored, random, tensor
from tests.support.targets.cuda_rows import with_epilogue

Shape = Sequence[int | None]
Sizes = Sequence[tuple[int, ...]]
NOTHING = {"bra $L__BB0_": "loops of no trip, or of one: no row is empty here, since it has no result"}


def _case(
    family: str,
    name: str,
    shapes: Sequence[Shape],
    elements: Sequence[str],
    build: Callable[..., Any],
    sizes: Sequence[Sequence[tuple[int, ...]]],
    fill: Callable[[Array, int], Array] = lambda x, seed: x,
    cancels: float = 1.0,
) -> Case:
    """A region of one op: ``sizes`` has the shapes of each run, ``fill`` makes the first one telling."""

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, each in enumerate(sizes):
            arrays = [
                random(size, element, 7 * seed + n)
                for n, (size, element) in enumerate(zip(each, elements, strict=True))
            ]
            yield [fill(arrays[0], seed), *arrays[1:]]

    return Case(
        family,
        f"{elements[0]}, {name}",
        lambda: region(list(zip(shapes, elements, strict=True)), build),
        sweep,
        cancels=cancels,
        not_run=NOTHING,
    )


def _shifted(x: Array, seed: int) -> Array:
    """Rows that are not about zero."""
    return (x.astype(np.float64) + 3 * (-1) ** seed).astype(x.dtype)


def _peaks(x: Array, seed: int) -> Array:
    """Rows with one largest number, each at another place."""
    x = np.minimum(x, np.asarray(0, x.dtype))
    rows = np.arange(x.shape[0])
    x[rows, (37 * rows + 5 * seed) % x.shape[1]] = 9
    return x


def _ties(x: Array, seed: int) -> Array:
    """Rows whose largest number is there twice, and one with NaN."""
    x = _peaks(x, seed)
    rows = np.arange(x.shape[0])
    x[rows, (59 * rows + seed) % x.shape[1]] = 9
    x[rows[4::5], (11 * rows[4::5] + seed) % x.shape[1]] = np.nan
    return x


def _special(x: Array, seed: int) -> Array:
    """Many equal numbers, zeros of both signs, NaN and infinities."""
    x = x.round(1)
    flat = x.reshape(-1)
    for step, number in ((11, np.nan), (13, -0.0), (17, 0.0), (19, np.inf), (23, -np.inf)):
        flat[seed::step] = number
    return x


def _slope(x: Array, seed: int) -> Array:
    """Numbers that grow towards the start, so that a running maximum from the end changes all the time."""
    return x - 3 * np.arange(x.shape[0], dtype=x.dtype)[:, None]


def _softmax(name: str, shape: Sequence[int | str], element: str, axis: int, log: bool, sizes: Sizes) -> Case:
    """Rows far from 0 on both sides, so that a maximum that is wrong shows."""

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, size in enumerate(sizes):
            x = random(size, element, seed, 3.0)
            x = (x.astype(np.float64) + 300 * (-1) ** seed).astype(x.dtype)
            along, across = np.moveaxis(x, axis, -1), np.arange(x.size // x.shape[axis])
            places = (7 * across + seed) % x.shape[axis]
            if seed % 3 == 1:  # one NaN makes all of its row NaN, wherever it is
                along[across[::2], places[::2]] = np.nan
            elif seed % 3 == 2:  # one number is so far above the others that to miss it is infinite
                along[across, places] = 900
            yield [x]

    type_ = tensor(shape, element)
    text = anchored("softmax", [type_], type_, f"axis = {axis} : i64, log = {str(log).lower()}")
    return Case(
        "softmax",
        f"{element}, {name}",
        lambda: RegionView.from_text(text, "softmax"),
        sweep,
        cancels=40.0 if log else 1.0,
        not_run=NOTHING,
    )


def _norm_with_epilogue() -> Case:
    def sweep() -> Iterator[Sequence[Array]]:
        for seed, (m, n) in enumerate(((5, 40), (1, 1), (3, 33), (2, 130), (2, 2100))):
            yield random((m, n), "bf16", seed), random((n,), "bf16", seed + 50), random((m, n), "bf16", seed + 90)

    def view() -> RegionView:
        operand = tensor(["?", "?"], "bf16")
        return with_epilogue(
            "rms_norm", [operand], ["?", "?"], "bf16", "normalized_rank = 1 : i64, epsilon = 1.0e-6 : f64"
        )

    return Case("row_norm", "bf16, rms, open rows and length, an epilogue", view, sweep, cancels=1e4, not_run=NOTHING)


LENGTHS = [(3, 40), (1, 1), (2, 33), (5, 130), (2, 1030), (1, 2100), (2, 1100)]
MANY = [(40, 130), (1, 1), (40, 1030), (2, 2100)]
ROWS = [5, 40, 33, 130, 1, 2]
CASES = [
    _case("row_norm", "layer, open rows", [(None, 64), (64,), (64,)], ["bf16"] * 3, LayerNormOp.build,
          [((m, 64), (64,), (64,)) for m in ROWS], _shifted, 4.0),
    _case("row_norm", "layer, tails", [(None, 33), (33,), (33,)], ["f32"] * 3, LayerNormOp.build,
          [((m, 33), (33,), (33,)) for m in ROWS], _shifted, 4.0),
    _case("row_norm", "rms, open length", [(None, None), (None,)], ["f32"] * 2, RmsNormOp.build,
          [((m, n), (n,)) for m, n in LENGTHS], _shifted),
    _case("row_norm", "groups", [(None, 6, None), (6,), (6,)], ["f32"] * 3,
          lambda x, s, b: GroupNormOp.build(x, s, b, groups=3),
          [((m, 6, n), (6,), (6,)) for m, n in ((2, 35), (1, 1), (3, 64), (1, 700))], _shifted, 4.0),
    _norm_with_epilogue(),
    _softmax("rows of 33", ["?", 33], "f32", 1, False, [(m, 33) for m in ROWS]),
    _softmax("rows of 64, logarithm", ["?", 64], "bf16", 1, True, [(m, 64) for m in ROWS]),
    _softmax("open length", ["?", "?"], "f32", 1, False, LENGTHS),
    _softmax("an outer axis", ["?", 20], "bf16", 0, False, [(n, 20) for n in (5, 1, 33, 70, 300, 200)]),
    *(_case("reduce", f"{kind} of rows", [(None, None)], [element],
            lambda x, kind=kind: ReduceOp.build(x, kind=kind, axes=[1]),
            [(size,) for size in sizes], fill, 8.0)
      for kind, element, sizes, fill in (
          ("sum", "f32", [*LENGTHS, (2, 0)], _shifted), ("max", "bf16", MANY, _ties), ("argmax", "f32", MANY, _ties))),
    _case("reduce", "mean of columns", [(None, 20)], ["bf16"], lambda x: ReduceOp.build(x, kind="mean", axes=[0]),
          [((n, 20),) for n in (5, 1, 33, 150, 700)], cancels=8.0),
    _case("reduce", "sum of all, in parts", [(None,)], ["f32"], lambda x: ReduceOp.build(x, kind="sum", axes=[0]),
          [((n,),) for n in (5, 1, 3000, 20000)], _shifted, 8.0),
    _case("cumulative", "running sum", [(None, None)], ["f32"], lambda x: CumulativeOp.build(x, kind="sum", axis=1),
          [(size,) for size in [*LENGTHS, (2, 0)]], cancels=16.0),
    _case("cumulative", "running maximum of columns, reversed", [(None, 3)], ["i32"],
          lambda x: CumulativeOp.build(x, kind="max", axis=0, reverse=True), [((n, 3),) for n in (5, 1, 33, 150)],
          _slope),
    _case("ordering", "sort", [(None, 17)], ["f32"], lambda x: list(SortOp.build(x, axis=1)),
          [((m, 17),) for m in (3, 1, 9, 130)], _special),
    _case("ordering", "the first five", [(None, 40)], ["bf16"], lambda x: list(TopkOp.build(x, axis=1, k=5)),
          [((m, 40),) for m in (3, 1, 9, 33)]),
]  # fmt: skip
