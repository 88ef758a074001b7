"""Products of matrices whose rows and columns are whole tiles: what wgmma and tcgen05.mma add to an accumulator."""

from __future__ import annotations

import numpy as np

from lowerkit.runtimes.cuda.simulated.arithmetic import Arithmetic
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_core.rules import Instruction, sum_rule
from lowerkit.runtimes.cuda.simulated.tensor_core.sums import exact_sum_of_products, sum_of_products
from lowerkit.runtimes.cuda.simulated.tensor_core.terms import Terms, terms_of

_INTEGERS = {"s8": np.int8, "u8": np.uint8}


def add_product(
    how: Arithmetic,
    kinds: tuple[str, str],
    factors: tuple[Array, Array],
    old: Array,
    *,
    negated: tuple[bool, bool] = (False, False),
    saturates: bool = False,
    instruction: Instruction = "mma",
) -> Array | None:
    """Returns old + A B, an array like ``old``; None where nobody knows how the generation adds such products.

    Args:
        how: the arithmetic of the launch.
        kinds: the types of A and B: f16, bf16, tf32, e4m3, e5m2, or s8 and u8.
        factors: A, [tiles, rows, k], and B, [tiles, columns, k], unsigned of the size of their type.
        old: the accumulator, f32, f16 or int32 [tiles, rows, columns].
        negated: whether A, and B, are.
        saturates: whether sums of integers stay in their range.
        instruction: whose rule it is.
    """
    if old.dtype == np.int32:
        return _integer_sum(kinds, factors, old, saturates)
    a, b = (np.ascontiguousarray(np.moveaxis(each, 2, 0)) for each in factors)
    x, y = _terms(a[..., None], kinds[0], negated[0]), _terms(b[:, :, None], kinds[1], negated[1])
    if how.tensor_cores == "float64":
        return exact_sum_of_products(x, y, old)
    result = "f16" if old.dtype == np.float16 else "f32"
    rule = None if how.generation is None else sum_rule(how.generation, kinds[0], result, instruction)
    return None if rule is None else sum_of_products(x, y, old, rule)


def _terms(bits: Array, kind: str, negated: bool) -> Terms:
    terms = terms_of(bits, kind)
    return Terms(-terms.values, terms.exponents, terms.finite) if negated else terms


def _integer_sum(kinds: tuple[str, str], factors: tuple[Array, Array], old: Array, saturates: bool) -> Array:
    # f32 holds the sum of 32 such products, and is multiplied fastest.
    x, y = (
        np.ascontiguousarray(each).view(_INTEGERS[kind]).astype(np.float32)
        for each, kind in zip(factors, kinds, strict=True)
    )
    total = np.matmul(x, np.moveaxis(y, 1, 2)).astype(np.int32)
    if not saturates:
        return old + total
    return np.clip(old.astype(np.int64) + total, -(1 << 31), (1 << 31) - 1).astype(np.int32)
