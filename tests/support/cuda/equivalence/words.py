"""Instructions that move the words of a number, or do nothing to it, and the numbers that stand in instructions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tests.support.cuda.equivalence.choices import Choices
from tests.support.cuda.equivalence.integers import types_of


def simpler_word(
    terms: Choices,
    opcode: str,
    sources: tuple[int, ...],
    numbers: Sequence[int | None],
    make: Callable[[str, tuple[int, ...]], int],
) -> int | None:
    """Returns what an instruction gives that moves words, or does nothing to a number; None: it is another one.

    Args:
        terms: all of them.
        opcode, sources: the instruction.
        numbers: what its sources are, None for those that are no numbers.
        make: gives the term of another instruction.
    """
    name = opcode.split(".", maxsplit=1)[0]
    match opcode:
        case "cvt.u32.u64":
            return terms.half(sources[0], 0, 32)
        case "cvt.u64.u32":
            return terms.pack(sources[0], terms.constant(0), 32)
        case "cvt.s64.s32":
            return terms.pack(sources[0], make("shr.s32", (sources[0], terms.constant(31))), 32)
        case "shl.b64" if numbers[1] == 32:
            return terms.pack(terms.constant(0), terms.half(sources[0], 0, 32), 32)
        case "shr.u64" if numbers[1] == 32:
            return terms.pack(terms.half(sources[0], 1, 32), terms.constant(0), 32)
        case "or.b64" | "and.b64" | "xor.b64":
            words = [terms.words(each) for each in sources]
            if words[0] is not None and words[1] is not None:
                halves = [make(f"{name}.b32", pair) for pair in zip(*words, strict=True)]
                return terms.pack(halves[0], halves[1], 32)
        case _:
            pass
    if len(sources) == 2 and types_of(opcode):
        if name in ("add", "or", "xor", "sub", "shl", "shr") and numbers[1] == 0:
            return sources[0]
        if name in ("add", "or", "xor") and numbers[0] == 0:
            return sources[1]
        if name in ("and", "mul") and 0 in numbers:
            return terms.constant(0)
        if name == "and" and (1 << int(types_of(opcode)[0][1:])) - 1 in numbers:
            return sources[1 if numbers[0] is not None else 0]
        if name in ("and", "or") and sources[0] == sources[1]:
            return sources[0]
        if name in ("xor", "sub") and sources[0] == sources[1] and "cc" not in opcode:
            return terms.constant(0)
    return None


def width_of(opcode: str, place: int, operand: str) -> int:
    """Returns how many bits a number has that stands as a source."""
    parts = opcode.split(".")
    if parts[-1] == "pred":
        return 1
    bits = next((int(each[1]) for part in reversed(parts) if (each := re.fullmatch(r"[a-z]+(\d+)(x2)?", part))), 64)
    if parts[0] in ("shl", "shr") and place == 1:
        return 32
    if "wide" in parts and place == 2:
        return 2 * bits
    if parts[0] == "cvt":
        return int(re.sub(r"\D", "", parts[-1])[:2])
    return 2 * bits if parts[-1].endswith("x2") else bits


def number_of(text: str) -> int:
    """Returns the number that a text stands for; of a float its bits."""
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16)
    return int(text.rstrip("U"), 0)
