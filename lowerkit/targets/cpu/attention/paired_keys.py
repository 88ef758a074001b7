"""Weights and values of neighbouring keys side by side, for the product of pairs of bf16 (``gemm/arithmetic.py``).

A last key without a partner has zeros beside it, in weights and values alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.targets.cpu.attention.shape import AttentionTiling
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.text.tile_transpose import interleave
from lowerkit.targets.cpu.vector.math import exp_for_bf16

__all__ = ["paired_values", "paired_weights", "pairs_of"]


def pairs_of(text: KernelText, count: Index) -> Index:
    """How many pairs hold ``count`` keys."""
    return text.idiv(text.iadd(count, 1), 2)


def paired_weights(
    text: KernelText,
    tiling: AttentionTiling,
    scores: Buffer,
    count: Index,
    shift: Sequence[Value],
    sums: list[Value],
) -> list[Value]:
    """Turns scores into weights ``exp(score - shift)``, bf16 in pairs of keys, and adds the rounded ones to ``sums``.

    Args:
        text: where the ops go.
        tiling: of the task.
        scores: f32 ``[count, block_rows]``; the weights of two keys take the place of the first one's scores.
        count: keys.
        shift: the maximum of each row, one vector for ``lanes`` rows.
        sums: of the weights so far, likewise.
    """
    lanes, rows = tiling.lanes, tiling.block_rows
    pairs = Buffer(scores.pointer, "i32")

    def weights(number: Index, totals: list[Value], keys: int) -> list[Value]:
        totals = list(totals)
        for vector in range(tiling.vectors):
            halves: list[Value] = []
            for key in range(keys):
                at = text.iadd(text.imul(text.iadd(text.imul(number, 2), key), rows), vector * lanes)
                score = text.sub(text.read(scores, at, lanes), shift[vector])
                halves.append(text.narrow(exp_for_bf16(text, score, bounded=True), "bf16"))
                totals[vector] = text.add(totals[vector], text.widen(halves[-1]))
            halves += [text.like(0, halves[0])] * (2 - keys)
            text.write(interleave(text, *halves), pairs, text.iadd(text.imul(number, rows), vector * lanes))
        return totals

    whole = text.idiv(count, 2)
    with text.span(0, whole, 1, sums) as loop:
        text.yield_(weights(loop.index, loop.carried, 2))
    with text.span(whole, pairs_of(text, count), 1, loop.results) as rest:
        text.yield_(weights(rest.index, rest.carried, 1))
    return rest.results


def paired_values(text: KernelText, lanes: int, values: Buffer, depth: int, count: Index, target: Buffer) -> Buffer:
    """Copies ``count`` rows of ``depth`` bf16 to ``target``, i32 ``[pairs, depth]``, and returns it."""

    def pair(number: Index, keys: int) -> None:
        here = text.part(values, text.imul(number, 2 * depth))
        there = text.part(target, text.imul(number, depth))

        def columns(at: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            low = text.read(here, at, lanes, mask)
            high = text.like(0, low) if keys == 1 else text.read(here, text.iadd(at, depth), lanes, mask)
            text.write(interleave(text, low, high), there, at, mask)
            return carried

        text.strip(depth, lanes, columns)

    whole = text.idiv(count, 2)
    with text.span(0, whole) as loop:
        pair(loop.index, 2)
    with text.span(whole, pairs_of(text, count)) as rest:
        pair(rest.index, 1)
    return target
