"""Terms that are chosen by questions, and the rules that bring choices which always agree into one shape.

A choice by the order of two numbers is a table of what is chosen for each order that they may be in. Of integers that
are equal it does not matter which is taken, so that such choices become ``min`` and ``max``, whatever the question was;
these are of a set: neither order nor repetition counts. Where one of two floats is NaN, their sum is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.cuda.equivalence.terms import ORDERS, Doubt, Key, Terms


class Choices(Terms):
    """Terms, choices among them."""

    def chosen(self, predicate: int, then: int, other: int) -> int:
        """Returns one term where a predicate holds, another where it does not."""
        number = self.value(predicate)
        if number is not None or then == other:
            return then if number != 0 else other
        order = self.order_of(predicate)
        if order is not None:
            kind, left, right, orders = order
            return self.table(
                kind, left, right, [then if each in orders else other for each in self.possible(kind, left, right)]
            )
        key = self.nodes[predicate]
        if key[0] == "not" and isinstance(key[1], int):
            predicate, then, other = key[1], other, then
        words = self.all_words((then, other))
        if words:
            halves = [self.chosen(predicate, *pair) for pair in zip(*words, strict=True)]
            return self.pack(halves[0], halves[1], 32)
        return self.made("choice", predicate, then, other)

    def possible(self, kind: str, left: int, right: int) -> Sequence[str]:
        """Returns the orders that two terms may be in."""
        return [each for each in ORDERS[kind[0]] if left != right or each in ("eq", "un")]

    def table(self, kind: str, left: int, right: int, entries: Sequence[int]) -> int:
        """Returns the entry for the order in which two terms are."""
        orders = self.possible(kind, left, right)
        entries = [self._under(entry, kind, left, right, order) for entry, order in zip(entries, orders, strict=True)]
        if len(set(entries)) == 1:
            return entries[0]
        if left != right and (extreme := self._extreme_of(kind, left, right, entries)) is not None:
            return extreme
        words = self.all_words(entries)
        if words:
            halves = [self.table(kind, left, right, column) for column in zip(*words, strict=True)]
            return self.pack(halves[0], halves[1], 32)
        found = self.made("table", *entries, more=(kind, left, right))
        if max(self.doubt(left), self.doubt(right)) > (Doubt.VAGUE if kind[0] == "f" else Doubt.NONE):
            self.set_doubt(found, Doubt.UNKNOWN)
        return found

    def _extreme_of(self, kind: str, left: int, right: int, entries: Sequence[int]) -> int | None:
        """Returns the ``min`` or ``max`` that a table is; of floats the one that gives NaN where there is one."""
        for how, small, joined in (("min", left, "or.b32"), ("max", right, "and.b32")):
            large = right if small == left else left
            if kind[1] in "su" and entries == [small, min(left, right), large]:
                return self.extreme(f"{how}.{kind[1:]}", [left, right])
            if kind == "ff32":  # zeros of two signs are joined bit by bit
                zero = self.node("of numbers", joined, *sorted((left, right)))
                if entries == [small, zero, large, self.node("nan", doubt=Doubt.VAGUE)]:
                    found = self.extreme(f"{how}.any.f32", [left, right])
                    return self.set_doubt(found, Doubt.VAGUE)
        return None

    def _under(self, term: int, kind: str, left: int, right: int, order: str) -> int:
        """What a term is where two others are in an order."""
        key = self.nodes[term]
        if key[0] == "table" and key[-3:] == (kind, left, right):
            entry = key[1 + self.possible(kind, left, right).index(order)]
            assert isinstance(entry, int)
            return entry
        if order == "eq" and kind[0] == "i" and term in (left, right):
            return min(left, right)
        if order == "un" and kind[0] == "f" and self._not_a_number(key, left, right, kind[1:]):
            return self.node("nan", doubt=Doubt.VAGUE)
        if order != "un" and kind[0] == "f" and key[0] != "constant" and {left, right} >= set(key[1:]):
            return self.node("of numbers", *key)  # neither is NaN, so that their bits are sure
        return term

    def _not_a_number(self, key: Key, left: int, right: int, kind: str) -> bool:
        """Whether a term is NaN where one of two others is: a sum or difference of just these, or all bits set."""
        if key[0] == "constant":
            return kind == "f32" and key[1] == 0xFFFFFFFF
        return key[0] in (f"add.rn.{kind}", f"sub.rn.{kind}") and set(key[1:]) == {left, right}

    def extreme(self, opcode: str, arguments: Sequence[int]) -> int:
        """Returns ``min`` or ``max``, for a type, of terms: those below of the same kind are taken in."""
        inner: set[int] = set()
        for each in arguments:
            key = self.nodes[each]
            inner |= {part for part in key[1:] if isinstance(part, int)} if key[0] == opcode else {each}
        numbers = {number for each in inner if (number := self.value(each)) is not None}
        kind = opcode.rsplit(".", maxsplit=1)[-1]
        if numbers and kind[0] in "su":
            inner -= {self.constant(number) for number in numbers}
            bits = int(kind[1:])
            ordered = sorted(numbers, key=lambda number: _signed(number, bits) if kind[0] == "s" else number)
            number = ordered[0 if opcode.startswith("min") else -1]
            lowest, highest = (1 << bits - 1, (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
            if opcode.startswith("max"):
                lowest, highest = highest, lowest
            if number == lowest or not inner:  # nothing goes beyond it
                return self.constant(number)
            if number != highest:
                inner.add(self.constant(number))
        opposite = opcode.replace("min", "max") if opcode.startswith("min") else opcode.replace("max", "min")
        if kind[0] in "su":  # max(a, min(a, b)) is a
            inner = {
                each
                for each in inner
                if self.nodes[each][0] != opposite or not inner & {*self.nodes[each][1:]} - {each}
            }
        if len(inner) == 1 and kind[0] in "su":  # of floats a NaN may become another NaN
            return inner.pop()
        return self.made(opcode, *sorted(inner), looked_at=kind[0] in "su")


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number
