"""Kernels that go over rows: norms, softmax, reductions, running values, sorting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
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


def _pairs(x: Array, seed: int) -> Array:
    """Rows of which one or two places decide, as far apart as any step of a tree joins.

    The largest number is there once, twice, or from a place on; beside a NaN; it is a zero of one sign among those of
    the other. And rows of NaN, of -inf, of few different numbers.
    """
    random = np.random.default_rng(seed)
    x = -np.abs(x.astype(np.float32)) - 1
    length = x.shape[1]
    for row in x:
        first = int(random.integers(length))
        second = first ^ (1 << int(random.integers(max(1, (length - 1).bit_length()))))
        second = second if second < length else int(random.integers(length))
        kind = int(random.integers(16))
        if kind < 6:  # the second is what is left where they are one place
            row[first], row[second] = [(9, 9), (np.nan, 9), (np.nan, np.nan)][kind % 3]
        elif kind < 12:
            row[first:] = [9, np.nan][kind % 2]
        else:
            row[:] = [-np.inf, random.integers(-3, 3, length), -0.0, -1][kind - 12]
        if kind > 13:
            row[first] = [0.0, 9][kind % 2]
    return x


def _largest(inputs: Sequence[Array]) -> Sequence[Array]:
    """The largest number of each row, +0 above -0, NaN where there is one."""
    x = inputs[0].astype(np.float32)
    found = x.max(1)
    positive = ((x == 0) & ~np.signbit(x)).any(1)
    return [np.where(found == 0, np.where(positive, 0.0, -0.0), found).astype(inputs[0].dtype)]


def _special(x: Array, seed: int) -> Array:
    """Many equal numbers, zeros, NaN and infinities of both signs, the least numbers there are.

    Rows of more than 3000 are left as they are: what comes first in them lies anywhere.
    """
    if x.shape[1] > 3000:
        return x
    dtype, x = x.dtype, x.astype(np.float32).round(1)
    x[1::3] = -np.abs(x[1::3])
    flat = x.reshape(-1)
    least = float(np.nextafter(np.float32(0), np.float32(1)))
    numbers = (np.nan, -0.0, 0.0, np.inf, -np.inf, -np.nan, least, -least)
    for step, number in zip((11, 13, 17, 19, 23, 29, 31, 37), numbers, strict=True):
        flat[seed::step] = number
    return x.astype(dtype)


def _slope(x: Array, seed: int) -> Array:
    """Columns that grow towards the start, the end, and to and fro, so that a maximum stays for long or short."""
    slopes = np.array([-3, 3, -1])[(np.arange(x.shape[1]) + seed) % 3]
    found = (4 * x + slopes * np.arange(x.shape[0])[:, None]).astype(x.dtype)
    found[len(x) // 2 :, seed % x.shape[1]] = np.iinfo(x.dtype).min
    return found


def _softmax(name: str, shape: Sequence[int | str], element: str, axis: int, log: bool, sizes: Sizes) -> Case:
    """Rows far from 0 on both sides, so that a maximum that is wrong shows; in some of them one place decides."""

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, size in enumerate(sizes):
            x = random(size, element, seed, 3.0)
            along = np.moveaxis(x, axis, -1)
            draw = np.random.default_rng(seed)
            for row in along:
                row += np.asarray(draw.choice([300, -300]), x.dtype)
                place, kind = int(draw.integers(row.size)), int(draw.integers(6))
                if kind == 1:  # one NaN makes all of its row NaN, wherever it is
                    row[place] = np.nan
                elif kind == 2:  # one number is so far above the others that to miss it is infinite
                    row[place] = 900
                elif kind == 3:  # nothing before it
                    row[:place] = -np.inf
                elif kind > 3:  # nothing but it, or but it and the same place of the next tile
                    places = np.arange(row.size)
                    row[(places != place) & (places != (place + 1024 * (kind - 4)) % row.size)] = -np.inf
            yield [x]

    type_ = tensor(shape, element)
    text = anchored("softmax", [type_], type_, f"axis = {axis} : i64, log = {str(log).lower()}")
    return Case(
        "softmax",
        f"{element}, {name}",
        lambda: RegionView.from_text(text, "softmax"),
        sweep,
        cancels=40.0 if log else 1e-25,
        not_run=NOTHING,
    )


def _norm_with_epilogue() -> Case:
    def sweep() -> Iterator[Sequence[Array]]:
        for seed, (m, n) in enumerate(LENGTHS):
            scale, other = random((n,), "bf16", seed + 50), random((m, n), "bf16", seed + 90)
            scale[seed % 3 :: 3] = 0  # what is compared is then equal in places
            other[:, seed % 3 :: 6] = 0
            yield random((m, n), "bf16", seed), scale, other

    def view() -> RegionView:
        operand = tensor(["?", "?"], "bf16")
        return with_epilogue(
            "rms_norm", [operand], ["?", "?"], "bf16", "normalized_rank = 1 : i64, epsilon = 1.0e-6 : f64"
        )

    return Case("row_norm", "bf16, rms, open rows and length, an epilogue", view, sweep, cancels=1e4, not_run=NOTHING)


# A tile of 1024 columns is eight times its threads: lengths end in each eighth of it, behind each place of a vector.
LENGTHS = [(3, 40), (1, 1), (2, 300), (5, 130), (2, 1459), (1, 2605), (2, 1670), (2, 3843), (2, 1951), (2, 2048)]
MANY = [(120, 130), (1, 1), (100, 1459), (80, 2605), (90, 11), (9, 3843), (30, 1670), (20, 300), (20, 1951)]
GROUPS = [(2, 35), (1, 1), (3, 64), (1, 700), (1, 217), (2, 290), (1, 350), (1, 400), (1, 500), (1, 1301)]
TOP = [(40, 130), (1, 7), (60, 1031), (30, 2100), (3, 5001), (2, 70_000), (1, 140_000)]
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
          [((m, 6, n), (6,), (6,)) for m, n in GROUPS], _shifted, 4.0),
    _norm_with_epilogue(),
    _softmax("rows of 61", ["?", 61], "f32", 1, False, [(m, 61) for m in (*ROWS, 300)]),
    _softmax("rows of 64, logarithm", ["?", 64], "bf16", 1, True, [(m, 64) for m in (*ROWS, 300)]),
    _softmax("open length", ["?", "?"], "f32", 1, False, [*LENGTHS, (100, 130), (60, 2100)]),
    _softmax("an outer axis", ["?", 180], "bf16", 0, False, [(n, 180) for n in (5, 1, 33, 70, 300, 200, 130)]),
    _case("reduce", "sum of rows", [(None, None)], ["f32"], lambda x: ReduceOp.build(x, kind="sum", axes=[1]),
          [(size,) for size in [*LENGTHS, (2, 0)]], _shifted, 8.0),
    replace(_case("reduce", "max of rows", [(None, None)], ["bf16"],
                  lambda x: ReduceOp.build(x, kind="max", axes=[1]), [(size,) for size in MANY],
                  lambda x, seed: _pairs(x, seed).astype(x.dtype)), wanted=_largest, signs=True),
    _case("reduce", "argmax of rows", [(None, None)], ["f32"], lambda x: ReduceOp.build(x, kind="argmax", axes=[1]),
          [(size,) for size in MANY], _pairs),
    _case("reduce", "mean of columns", [(None, 72)], ["bf16"], lambda x: ReduceOp.build(x, kind="mean", axes=[0]),
          [((n, 72),) for n in (5, 1, 33, 150, 700)], cancels=8.0),
    _case("reduce", "sum of all, in parts", [(None,)], ["f32"], lambda x: ReduceOp.build(x, kind="sum", axes=[0]),
          [((n,),) for n in (5, 1, 3003, 3004, 3006, 3074, 3075, 3076, 270_001)], _shifted, 8.0),
    _case("cumulative", "running sum", [(None, None)], ["f32"], lambda x: CumulativeOp.build(x, kind="sum", axis=1),
          [(size,) for size in [*LENGTHS, (2, 0)]], cancels=16.0),
    _case("cumulative", "running maximum of columns, reversed", [(None, 7)], ["i32"],
          lambda x: CumulativeOp.build(x, kind="max", axis=0, reverse=True),
          [((n, 7),) for n in (150, 1, 33, 64, 128, 129, 5, 12, 28, 38, 45, 53, 61)], _slope),
    replace(_case("ordering", "sort", [(None, 31)], ["f32"], lambda x: list(SortOp.build(x, axis=1)),
                  [((m, 31),) for m in (130, *range(1, 9))], _special), signs=True),
    replace(_case("ordering", "the first seven", [(None, 61)], ["bf16"],
                  lambda x: list(TopkOp.build(x, axis=1, k=7)), [((m, 61),) for m in (130, *range(1, 5))], _special),
            signs=True),
    replace(_case("ordering", "the first seven of open rows", [(None, None)], ["f32"],
                  lambda x: list(TopkOp.build(x, axis=1, k=7)),
                  [(size,) for size in TOP], _special), signs=True),
    replace(_case("ordering", "long rows in runs", [(None, 2100)], ["bf16"], lambda x: list(SortOp.build(x, axis=1)),
                  [((m, 2100),) for m in (2, 1)], _special), signs=True),
    replace(_case("ordering", "runs of keys of 64 bits", [(None, 1100)], ["f64"],
                  lambda x: list(SortOp.build(x, axis=1, descending=True)), [((m, 1100),) for m in (2, 1)], _special),
            signs=True),
]  # fmt: skip
