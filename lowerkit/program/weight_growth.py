"""Weights that an artifact stores in more bytes than the model does: quantized ones that were expanded to floats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FEW_BITS = ("i2", "u2", "i4", "u4", "i8", "u8")


def growth_remark(given: Mapping[str, int], stored: Iterable[tuple[str, int]]) -> str | None:
    """Returns a sentence with both sizes, of a model whose weights of few bits were expanded.

    Args:
        given: bytes of the model's own tensors by element type, :attr:`WeightStore.given
            <lowerkit.program.weights.WeightStore.given>`.
        stored: element type and bytes of each weight of the artifact.

    Returns:
        None where the weights of few bits are kept, or the others take less to the same amount.
    """
    kept: dict[str, int] = {}
    for dtype, size in stored:
        kept[dtype] = kept.get(dtype, 0) + size
    few = [dtype for dtype in FEW_BITS if given.get(dtype)]
    before, after = sum(given[dtype] for dtype in few), sum(kept.get(dtype, 0) for dtype in FEW_BITS)
    if before - after <= 0 or sum(kept.values()) - sum(given.values()) < before - after:
        return None
    return (
        f"weights of few bits are expanded: the model has {before:,} bytes of {', '.join(few)}, the artifact {after:,};"
        f" all weights take {sum(kept.values()):,} bytes in the artifact and {sum(given.values()):,} in the model "
        "(`lowerkit quantize` makes products of integers, whose weights keep their 8 bits)"
    )
