"""How the elements of ``lk.reduce`` and ``lk.cumulative`` are combined.

Floats of 16 bits are carried in f32. Integers narrower than 32 bits are carried in 32, of which the low bits are what
wrapping around leaves. A NaN counts as the extreme. Positions travel beside the values; of equals the first wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.targets.cuda.families.rowwise.rows import Fold, compute_type
from lowerkit.targets.cuda.triton.scalars import TYPES, constant
from lowerkit.targets.cuda.triton.writer import KernelWriter

KINDS = ("sum", "mean", "prod", "max", "min", "any", "all", "argmax", "argmin")
FAR = 2**31 - 1
_LARGER = "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)"
_SMALLER = "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)"
_PATTERNS = {
    "sum": "{0} + {1}", "mean": "{0} + {1}", "prod": "{0} * {1}", "max": _LARGER, "min": _SMALLER,
    "any": "{0} | {1}", "all": "{0} & {1}",
}  # fmt: skip


@dataclass(frozen=True)
class Combiner:
    """A kind of an element type.

    Attributes:
        kind: of :data:`KINDS`.
        carried: the type in which it is carried.
        neutral: what changes nothing, in the carried type; it is a number of the element type, too.
        pattern: two values combined, as text with two places.
    """

    kind: str
    carried: str
    neutral: float | int
    pattern: str

    def helper(self, writer: KernelWriter) -> str:
        """Adds the function that combines two values; returns its name.

        An extreme of floats is written out: Triton would take an instruction for it that is for sm_100a alone.
        """
        body = self.pattern.format("left", "right")
        if "propagate_nan" in body:
            body = _extreme(self.kind, self.carried)
        return writer.helper(f"combine_{self.kind}", "left, right", body)

    def fold(self, writer: KernelWriter) -> Fold:
        """Returns it as a fold."""
        start = constant(self.neutral, self.carried)
        if self.kind in ("sum", "mean"):  # its own name, for which there is an instruction in some cases
            return Fold((start,), (self.carried,), self._combined, lambda x, axis: f"tl.sum({x[0]}, {axis})")
        helper = self.helper(writer)
        return Fold((start,), (self.carried,), self._combined, lambda x, axis: f"tl.reduce({x[0]}, {axis}, {helper})")

    def _combined(self, left: Sequence[str], right: Sequence[str]) -> list[str]:
        return [self.pattern.format(left[0], right[0])]


def combiner(kind: str, element: str) -> Combiner:
    """Returns how ``kind`` combines elements of a type; for a position, how the extreme is found."""
    kind = kind.removeprefix("arg")
    floating = element[0] in "fb"
    carried = "i32" if kind in ("any", "all") or element in ("i1", "i8", "i16") else compute_type(element)
    if kind in ("max", "min"):
        sign = -1 if kind == "max" else 1
        bits = int(element.lstrip("bfi"))
        neutral = sign * float("inf") if floating else -(1 << (bits - 1)) if sign < 0 else (1 << (bits - 1)) - 1
        pattern = _PATTERNS[kind] if floating else _PATTERNS[kind].replace(", propagate_nan=tl.PropagateNan.ALL", "")
        return Combiner(kind, carried, neutral, pattern)
    return Combiner(kind, carried, int(kind in ("prod", "all")), _PATTERNS[kind])


def position(writer: KernelWriter, found: Combiner, index: str) -> Fold:
    """Returns the fold of the extreme and its position, an integer of type ``index``."""
    sign = ">" if found.kind == "max" else "<"
    better = f"(({{0}} {sign} {{2}}) | (({{0}} != {{0}}) & ({{2}} == {{2}})))"
    equal = "(({0} == {2}) | (({0} != {0}) & ({2} != {2})))"
    takes = f"{better} | ({equal} & ({{1}} < {{3}}))"
    names = ("left", "left_at", "right", "right_at")
    test = writer.helper(f"first_{found.kind}", ", ".join(names), takes.format(*names))
    pair = writer.helper(
        f"pick_{found.kind}",
        ", ".join(names),
        f"tl.where({test}({', '.join(names)}), left, right), tl.where({test}({', '.join(names)}), left_at, right_at)",
    )

    def combine(left: Sequence[str], right: Sequence[str]) -> list[str]:
        take = writer.let(f"{test}({left[0]}, {left[1]}, {right[0]}, {right[1]})")
        return [f"tl.where({take}, {left[0]}, {right[0]})", f"tl.where({take}, {left[1]}, {right[1]})"]

    neutral = (constant(found.neutral, found.carried), constant(FAR if index == "i32" else 2**63 - 1, index))
    return Fold(
        neutral, (found.carried, index), combine, lambda x, axis: f"tl.reduce(({x[0]}, {x[1]}), {axis}, {pair})"
    )


def _extreme(kind: str, element: str) -> str:
    """The larger or smaller of two floats, the same bits in either order: lanes that fold alike must agree.

    +0 is larger than -0, and a NaN is the one that an addition makes.
    """
    sign, bits = (">", "&") if kind == "max" else ("<", "|")
    whole = f"tl.int{element[1:]}"
    zero = f"(left.to({whole}, bitcast=True) {bits} right.to({whole}, bitcast=True)).to({TYPES[element]}, bitcast=True)"
    number = f"tl.where(left == right, {zero}, tl.where(left {sign} right, left, right))"
    return f"tl.where((left != left) | (right != right), left + right, {number})"
