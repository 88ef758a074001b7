"""Terms where it is known that a predicate holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.support.cuda.equivalence.choices import Choices
from tests.support.cuda.equivalence.terms import Key

_LEAVES = ("constant", "leaf", "nan", "of numbers")


def facts_of(terms: Choices, predicate: int, value: int) -> dict[int, int]:
    """Returns the predicates that are known where one has a value, 0 or 1, with their values."""
    found: dict[int, int] = {}
    waiting = [(predicate, value)]
    while waiting:
        term, known = waiting.pop()
        found[term] = known
        match terms.nodes[term]:
            case ("not", int(inner)):
                waiting.append((inner, 1 - known))
            case ("and" | "or" as how, int(left), int(right)) if known == (how == "and"):
                waiting += [(left, known), (right, known)]
            case _:
                pass
    return found


class Assumption:
    """What terms are where predicates are known.

    Args:
        terms: all of them.
        facts: predicates, with their values.
        remake: makes the term of a key anew.
        deepest: how many terms down predicates are replaced.
    """

    def __init__(self, terms: Choices, facts: Mapping[int, int], remake: Callable[[Key], int], deepest: int) -> None:
        self._terms, self._facts, self._remake, self._deepest = terms, facts, remake, deepest
        self._known: dict[tuple[int, int], int] = {}

    def of(self, term: int, depth: int = 0) -> int:
        """Returns what a term is, which lies ``depth`` terms down."""
        if term in self._facts:
            return self._terms.constant(self._facts[term])
        if depth > self._deepest:
            return term
        found = self._known.get((term, depth))
        if found is None:
            found = self._known[term, depth] = self._changed(term, depth + 1)
        return found

    def _changed(self, term: int, depth: int) -> int:
        terms = self._terms

        def again(part: object) -> int:
            assert isinstance(part, int)
            return self.of(part, depth)

        key = terms.nodes[term]
        if key[0] in _LEAVES:
            return term
        match key:
            case ("order", str(kind), left, right, frozenset() as orders):
                return terms.compared(kind, again(left), again(right), frozenset(str(each) for each in orders))
            case ("half", word, int(which), int(bits)):
                return terms.half(again(word), which, bits)
            case ("pack", low, high, int(bits)):
                return terms.pack(again(low), again(high), bits)
            case ("table", *entries, str(kind), int(left), int(right)):
                possible = terms.possible(kind, left, right)
                orders = self._orders(kind, left, right)
                kept = [(order, again(each)) for order, each in zip(possible, entries, strict=True) if order in orders]
                found = kept[-1][1]
                for order, entry in kept[-2::-1]:
                    question = terms.compared(kind, again(left), again(right), frozenset({order}))
                    found = terms.chosen(question, entry, found)
                return found
            case _:
                parts = tuple(again(part) for part in key[1:])
                return term if parts == key[1:] else self._remake((key[0], *parts))

    def _orders(self, kind: str, left: int, right: int) -> set[str]:
        """The orders that two terms may still be in."""
        orders = set(self._terms.possible(kind, left, right))
        for fact, value in self._facts.items():
            asked = self._terms.order_of(fact)
            if asked is not None and asked[:3] == (kind, left, right):
                orders = orders & asked[3] if value else orders - asked[3]
        return orders or set(self._terms.possible(kind, left, right))
