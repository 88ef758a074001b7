"""How the tensor cores of each generation add: how far terms are aligned, how many at once, what a result keeps.

Sources: recorded results of an A100, an L40S, an H100 and a B200 (public project north-numerical-computing/
MATLAB-tensor-core) for f16, bf16 and on the H100 tf32, to f32: these are held bit for bit by a test. Everything else
is what the models of that project and of MMA-Sim (Microsoft Research) say, whose authors compared them with cards:
tf32 of Ampere, Ada and Blackwell, the types of 8 bits, results in f16, special values, the order of several groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Generation = Literal["ampere", "ada", "hopper", "blackwell"]
Instruction = Literal["mma", "wgmma"]

_NO_LIMIT = -4096
_FRACTION_BITS: Mapping[Generation, int] = {"ampere": 24, "ada": 24, "hopper": 25, "blackwell": 25}
_OF_TARGETS: Mapping[str, Generation] = {
    "80": "ampere", "86": "ampere", "87": "ampere", "89": "ada", "90": "hopper", "100": "blackwell",
    "101": "blackwell", "103": "blackwell", "110": "blackwell", "120": "blackwell", "121": "blackwell",
}  # fmt: skip
_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}


@dataclass(frozen=True)
class SumRule:
    """One way to add products to an accumulator.

    Attributes:
        fraction_bits: how many bits below the largest exponent a term keeps; what is lower is cut off.
        group: how many products are added at once; a longer row is several sums, one after another.
        least_exponent: terms are aligned to this exponent where all of them are smaller.
        result_bits: fraction bits that a result in f32 keeps, cut towards zero; a result in f16 is rounded to nearest.
    """

    fraction_bits: int
    group: int
    least_exponent: int = _NO_LIMIT
    result_bits: int = 23


def generation_of(target: str) -> Generation | None:
    """Returns the generation of a ``.target`` such as ``sm_90a``; None for one whose arithmetic is not known."""
    return _OF_TARGETS.get(target.removeprefix("sm_").rstrip("af"))


def sum_rule(generation: Generation, kind: str, result: str, instruction: Instruction = "mma") -> SumRule | None:
    """Returns how products of ``kind`` (f16, bf16, tf32, e4m3 or e5m2) are added.

    Args:
        generation: of the card.
        kind: the type of the factors; of mixed ones either.
        result: the type of the accumulator: f32 or f16.
        instruction: the tensor cores of Hopper add the types of 8 bits with fewer bits in wgmma than in mma.

    Returns:
        The rule; None where the generation has no such instruction.
    """
    size = _BYTES[kind]
    bits = _FRACTION_BITS[generation]
    if generation in ("ampere", "ada"):
        if size > 1:
            return SumRule(bits, 16 // size)
        return SumRule(13, 16, result_bits=13) if generation == "ada" else None
    # What lies below is cut off before the sum even if every term lies there.
    least = -15 if generation == "blackwell" and result == "f16" else -133
    if generation == "hopper" and size == 1 and instruction == "wgmma":
        return SumRule(13, 32, least, 13)
    return SumRule(bits, 32 // size, least)
