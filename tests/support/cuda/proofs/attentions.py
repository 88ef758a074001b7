"""Attention and rotary embedding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lowerkit.targets.region_view import RegionView
from tests.support.cuda.proofs.case import Array, Case
from tests.support.region_kernels import anchored, random, tensor

Shape = Sequence[int | str]


def _attention(
    name: str,
    element: str,
    heads: tuple[int, int],
    features: int,
    sizes: Sequence[tuple[int, int, int]],
    *,
    causal: bool = False,
    mask: str = "",
    queries: int | str = "?",
) -> Case:
    """Attention with open batch, queries and keys: ``sizes`` are those of each run."""
    many, few = heads
    attributes = (
        f'scale = 0.25 : f64, causal = {str(causal).lower()}, masking = "add", fill = 0.0 : f64, '
        f'empty_rows = "zero", operandSegmentSizes = array<i32: 1, 1, 1, {int(bool(mask))}>'
    )
    query, key = tensor(["?", many, queries, features], element), tensor(["?", few, "?", features], element)
    types = [query, key, key, *([tensor(["?", 1, queries, "?"], mask)] if mask else [])]

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, (batch, rows, keys) in enumerate(sizes):
            shapes = [(batch, many, rows, features), *[(batch, few, keys, features)] * 2]
            arrays = [random(shape, element, 5 * seed + number) for number, shape in enumerate(shapes)]
            arrays[0] = _queries(arrays[0], arrays[1], peaked=seed % 2 == 1)
            arrays[2] = np.abs(arrays[2]) + np.asarray(1, arrays[2].dtype)  # a wrong sum of weights shows
            if mask:
                shown = random((batch, 1, rows, keys), mask, 5 * seed + 4)
                if mask == "i1":
                    shown[:, :, rows // 2] = seed % 2 == 0
                arrays.append(shown)
            yield arrays

    # Weights are rounded to the type before they meet the values, scores are not.
    slack = {"f32": 4.0, "f16": 5e2, "bf16": 3e3}[element]
    return Case(
        "attention", f"{element}, {name}",
        lambda: RegionView.from_text(anchored("attention", types, query, attributes), "attention"), sweep,
        cancels=slack,
        not_run=ONE_TRIP,
    )  # fmt: skip


def _queries(query: Array, key: Array, *, peaked: bool) -> Array:
    """Queries that see all keys about alike, or each one key so far above all others that to miss it is infinite."""
    if not peaked or not key.shape[2]:
        return (query.astype(np.float64) / 4).astype(query.dtype)
    many, few = query.shape[1], key.shape[1]
    rows = (7 * np.arange(many)[:, None] + 5 * np.arange(query.shape[2])) % key.shape[2]
    chosen = key[:, np.arange(many)[:, None] // (many // few), rows]
    return (48 * chosen.astype(np.float64)).astype(query.dtype)


def _rope(name: str, element: str, interleaved: bool) -> Case:
    data, table = tensor(["?", 2, "?", 16], element), tensor(["?", 16], element)

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, (batch, length) in enumerate(((2, 5), (1, 1), (3, 33), (1, 70), (2, 16))):
            shapes = ((batch, 2, length, 16), (length, 16), (length, 16))
            yield [random(shape, element, 3 * seed + number) for number, shape in enumerate(shapes)]

    text = anchored("rope", [data, table, table], data, f"interleaved = {str(interleaved).lower()}")
    return Case("rope", f"{element}, {name}", lambda: RegionView.from_text(text, "rope"), sweep, cancels=2.0)


# Those of an odd number have peaks.
TOKENS: Any = [
    (1, 1, 300), (2, 16, 130), (3, 16, 64), (1, 1, 40), (1, 1, 530), (2, 9, 257), (1, 2, 1), (1, 1, 0), (140, 1, 3),
    (1, 1, 8200),
]  # fmt: skip
PROMPTS: Any = [
    (1, 70, 90), (2, 40, 130), (1, 64, 64), (1, 150, 65), (1, 20, 200), (2, 64, 63), (1, 33, 127), (2, 64, 119),
    (1, 64, 33), (2, 64, 30), (1, 40, 50), (2, 64, 183),
]  # fmt: skip
ORDERED: Any = [(1, 270, 270), (1, 270, 300), (1, 270, 64), (1, 270, 150), (2, 270, 33), (1, 270, 1)]
ONE_TRIP = {"bra $L__BB0_": "the tail of the keys is shorter than a tile: its loop makes one trip"}
CASES = [
    _attention("all open", "bf16", (4, 2), 16, [*TOKENS, *PROMPTS]),
    _attention("causal", "bf16", (2, 2), 24, ORDERED, causal=True, queries=270),
    _attention("a mask of bits", "f16", (2, 2), 16, [*TOKENS, *PROMPTS], mask="i1"),
    _attention("a mask that is added", "f32", (2, 1), 20, [*TOKENS, *PROMPTS], mask="f32"),
    _rope("halves", "bf16", False),
    _rope("neighbours", "f32", True),
]
