"""What a register holds, as an expression that is the same object wherever it is the same expression.

Rules bring expressions that always agree into one shape. Each of them holds for every value of what stands below:

* words that are taken apart and put together again are what they were;
* a question about the order of two terms is the set of orders for which it holds;
* factors may be exchanged, and the square of a difference is that of the difference the other way round.

Which NaN an operation gives is left open: such a term is *vague*, and what looks at its bits is *unknown*.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

Key = tuple[object, ...]
ORDERS = {"i": ("lt", "eq", "gt"), "f": ("lt", "eq", "gt", "un")}
_MIRROR = {"lt": "gt", "gt": "lt", "eq": "eq", "un": "un"}
_TRANSPARENT = frozenset({"add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "cvt", "div", "rcp", "sqrt"})
_COMMUTE = frozenset({"add", "mul", "and", "or", "xor", "min", "max", "fma", "mad"})


class Doubt(IntEnum):
    """Whether a term has the same bits wherever it is the same term: all, all but those of a NaN, perhaps none."""

    NONE = 0
    VAGUE = 1
    UNKNOWN = 2


class Terms:
    """Expressions by their numbers; see the module.

    A predicate is a term too: of the order of two terms, an operation on predicates, or a constant, 0 or 1.
    """

    def __init__(self) -> None:
        self.nodes: list[Key] = []
        self._numbers: dict[Key, int] = {}
        self._doubts: list[Doubt] = []
        self._stable: list[bool] = []

    def node(self, *key: object, doubt: Doubt = Doubt.NONE, stable: bool = False) -> int:
        """Returns the term of a key: what it is, and what it is made of.

        Args:
            key: its parts.
            doubt: about its bits.
            stable: whether it is the same each time that its instruction runs.
        """
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.nodes)
            self.nodes.append(key)
            self._doubts.append(doubt)
            self._stable.append(stable)
        return number

    def constant(self, value: int) -> int:
        """Returns the term of a number, its bits as an unsigned integer."""
        return self.node("constant", value, stable=True)

    def value(self, term: int) -> int | None:
        """Returns the number that a term is; None: it is none."""
        key = self.nodes[term]
        return key[1] if key[0] == "constant" and isinstance(key[1], int) else None

    def doubt(self, term: int) -> Doubt:
        """Returns what is in doubt about its bits."""
        return self._doubts[term]

    def stable(self, term: int) -> bool:
        """Returns whether it is the same each time."""
        return self._stable[term]

    def operation(self, opcode: str, arguments: Sequence[int]) -> int:
        """Returns an operation that no rule is known for."""
        name = opcode.split(".", maxsplit=1)[0]
        if name in _COMMUTE:
            arguments = [*sorted(arguments[:2]), *arguments[2:]]
        if name in ("mul", "fma") and ".rn." in opcode and arguments[0] == arguments[1]:
            arguments = [*[self._turned(arguments[0])] * 2, *arguments[2:]]
        floats = name in _TRANSPARENT and any(f".{kind}" in opcode for kind in ("f", "bf"))
        return self.made(opcode, *arguments, looked_at=not floats)

    def _turned(self, term: int) -> int:
        """A term of the same square: a difference the other way round, also where it is chosen."""
        key = self.nodes[term]
        if str(key[0]).startswith("sub.rn.f"):
            return self.made(str(key[0]), *sorted(part for part in key[1:] if isinstance(part, int)))
        match key:
            case ("choice", int(predicate), int(then), int(other)):
                return self.made("choice", predicate, self._turned(then), self._turned(other))
            case ("table", *entries, str(kind), int(left), int(right)):
                turned = [self._turned(each) for each in entries if isinstance(each, int)]
                return self.set_doubt(self.made("table", *turned, more=(kind, left, right)), self.doubt(term))
            case _:
                return term

    def made(self, name: str, *arguments: int, more: Sequence[object] = (), looked_at: bool = False) -> int:
        """Returns a term of others.

        Args:
            name: what is done to them.
            arguments: the others.
            more: what else belongs to its key.
            looked_at: whether it looks at their bits, so that of a NaN that may be any one nothing is known.
        """
        doubt = max((self._doubts[each] for each in arguments), default=Doubt.NONE)
        return self.node(
            name,
            *arguments,
            *more,
            doubt=Doubt.UNKNOWN if looked_at and doubt else doubt,
            stable=all(self._stable[each] for each in arguments),
        )

    def set_doubt(self, term: int, least: Doubt) -> int:
        """Puts a term in doubt, at least so much; returns it."""
        self._doubts[term] = max(self._doubts[term], least)
        return term

    # Words

    def pack(self, low: int, high: int, bits: int) -> int:
        """Returns two words of ``bits`` bits as one."""
        first, second = self.nodes[low], self.nodes[high]
        if first[0] == second[0] == "half" and first[1] == second[1] and (first[2], second[2]) == (0, 1):
            whole = first[1]
            assert isinstance(whole, int)
            if first[3] == bits:
                return whole
        numbers = self.value(low), self.value(high)
        if numbers[0] is not None and numbers[1] is not None:
            return self.constant(numbers[0] | numbers[1] << bits)
        return self.made("pack", low, high, more=(bits,))

    def words(self, term: int) -> tuple[int, int] | None:
        """Returns the low and high 32 bits of a term of 64 that was put together, or is a number; None: it was not."""
        match self.nodes[term]:
            case ("pack", int(low), int(high), 32):
                return low, high
            case ("constant", int()):
                return self.half(term, 0, 32), self.half(term, 1, 32)
            case _:
                return None

    def all_words(self, terms: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Returns the halves of terms of 64 bits, one of which was put together; none where one of them has none."""
        halves = [pair for each in terms if (pair := self.words(each)) is not None]
        return halves if len(halves) == len(terms) and any(self.nodes[each][0] == "pack" for each in terms) else []

    def half(self, word: int, which: int, bits: int) -> int:
        """Returns the low (0) or high (1) ``bits`` bits of a word twice as long."""
        key = self.nodes[word]
        if key[0] == "pack" and key[3] == bits:
            part = key[1 + which]
            assert isinstance(part, int)
            return part
        number = self.value(word)
        if number is not None:
            return self.constant(number >> (bits * which) & ((1 << bits) - 1))
        return self.made("half", word, more=(which, bits))

    # Predicates

    def compared(self, kind: str, left: int, right: int, orders: frozenset[str]) -> int:
        """Returns whether two terms are in one of some orders; ``kind``: ``i`` (integers) or ``f``, and their type."""
        every = frozenset(ORDERS[kind[0]])
        if left == right:
            every &= {"eq", "un"}
        elif right < left:
            left, right, orders = right, left, frozenset(_MIRROR[each] for each in orders)
        orders &= every
        if orders == every:
            return self.constant(1)
        if not orders:
            return self.constant(0)
        unsure = max(self._doubts[left], self._doubts[right]) > (Doubt.VAGUE if kind[0] == "f" else Doubt.NONE)
        return self.node(
            "order", kind, left, right, orders,
            doubt=Doubt.UNKNOWN if unsure else Doubt.NONE, stable=self._stable[left] and self._stable[right],
        )  # fmt: skip

    def negated(self, predicate: int) -> int:
        """Returns the opposite of a predicate."""
        key, number = self.nodes[predicate], self.value(predicate)
        if number is not None:
            return self.constant(1 - number)
        if key[0] == "not":
            inner = key[1]
            assert isinstance(inner, int)
            return inner
        order = self.order_of(predicate)
        if order is not None:
            kind, left, right, orders = order
            return self.compared(kind, left, right, frozenset(ORDERS[kind[0]]) - orders)
        return self.made("not", predicate)

    def joined(self, how: str, left: int, right: int) -> int:
        """Returns ``and``, ``or`` or ``xor`` of two predicates."""
        left, right = sorted((left, right))
        for one, other in ((left, right), (right, left)):
            number = self.value(one)
            if number is not None:
                return {
                    "and": other if number else one,
                    "or": one if number else other,
                    "xor": self.negated(other) if number else other,
                }[how]
        if left == right:
            return self.constant(0) if how == "xor" else left
        first, second = self.order_of(left), self.order_of(right)
        if first is not None and second is not None and first[:3] == second[:3]:
            joined = {"and": first[3] & second[3], "or": first[3] | second[3], "xor": first[3] ^ second[3]}[how]
            return self.compared(*first[:3], joined)
        return self.made(how, left, right)

    def order_of(self, predicate: int) -> tuple[str, int, int, frozenset[str]] | None:
        """Returns a predicate that asks for an order as type, two terms and orders; None: it asks something else."""
        match self.nodes[predicate]:
            case ("order", str(kind), int(left), int(right), frozenset() as orders):
                return kind, left, right, frozenset(str(each) for each in orders)
            case _:
                return None
