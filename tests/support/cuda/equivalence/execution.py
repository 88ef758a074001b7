"""Runs a block of instructions on terms: what each thread's registers hold, and what the block does to the outside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.cuda.equivalence.assumptions import Assumption, facts_of
from tests.support.cuda.equivalence.choices import Choices
from tests.support.cuda.equivalence.flow import results
from tests.support.cuda.equivalence.integers import evaluate, orders_of
from tests.support.cuda.equivalence.ranges import Ranges
from tests.support.cuda.equivalence.terms import Doubt, Key
from tests.support.cuda.equivalence.words import number_of, simpler_word, width_of
from tests.support.cuda.mutants import REGISTER, Line, split_operands

Values = Sequence[int]  # a term for each thread
BITS: Mapping[str, int] = {"p": 1, "rs": 16, "r": 32, "rd": 64}
_EQUALITY = (frozenset({"eq"}), frozenset({"lt", "gt"}))  # the same for signed and unsigned numbers
_ORDERED = frozenset({"volatile", "relaxed", "acquire", "mmio"})
_WARP = 32
_NEAR = 4
_EFFECTS = frozenset({
    "st", "ld", "bar", "red", "atom", "cp", "fence", "membar", "bra", "ret", "stmatrix", "ldmatrix", "mma", "wgmma",
    "mbarrier", "vote", "match", "activemask", "elect", "redux", "griddepcontrol", "prefetch", "nanosleep", "call",
    "applypriority", "discard", "setmaxnreg", "isspacep", "trap",
})  # fmt: skip
_EXTREME = re.compile(r"(min|max)(\.ftz)?(\.NaN)?\.(s|u|f|bf)(16|32|64)")
_NUMBER = re.compile(r"-?\d+U?|0x[0-9a-fA-F]+U?|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}")


_HIDDEN = frozenset({"addc", "subc", "madc", "call", "wgmma"})  # what they read or write is not in their operands


class NotKnown(Exception):
    """An instruction that cannot be run on terms."""


@dataclass(frozen=True)
class Done:
    """What an instruction did.

    Attributes:
        written: each register that it wrote, with a term for each thread.
        effect: what the outside sees of it: for each thread, whether it runs (a predicate) and its operands; None:
            nothing.
    """

    written: Mapping[str, Values]
    effect: Sequence[tuple[int, Sequence[int]]] | None


class Execution:
    """Instructions of one kernel, on terms, for all threads of a block of ``threads``."""

    def __init__(self, terms: Choices, threads: int, blocks: int) -> None:
        """``blocks``: of a launch at most."""
        self.terms, self.threads, self._alone = terms, threads, blocks == 1
        self._ranges = Ranges(terms, blocks)
        self._known: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}

    def every(self, term: int) -> Values:
        """Returns a term for all threads."""
        return [term] * self.threads

    def run(self, line: Line, env: Mapping[str, Values], *, doubt: Doubt) -> Done:
        """Runs an instruction; one that no rule is known for gives what stands for itself alone.

        Args:
            line: which.
            env: what registers hold.
            doubt: about what memory holds.
        """
        try:
            return self._run(line, env, doubt)
        except NotKnown:
            return self._effect(line, env, None, doubt, whole=True)

    def _run(self, line: Line, env: Mapping[str, Values], doubt: Doubt) -> Done:
        guard = None
        if line.guard is not None:
            guard = [*env[line.guard]]
            if line.negated:
                guard = [self.terms.negated(each) for each in guard]
        if line.name in _HIDDEN or "cc" in line.opcode.split("."):
            raise NotKnown(line.opcode)
        if line.name in _EFFECTS and not line.opcode.startswith("ld.param"):
            return self._effect(line, env, guard, doubt)
        operands = split_operands(line.operands)
        targets = operands[0]
        if line.name == "shfl":
            found = self._shuffled(line, env, operands, guard)
        else:
            found = self._computed(line, env, operands)
        written: dict[str, Values] = {}
        names = [each.strip() for each in re.split(r"[,|]", targets.strip("{} "))]
        for name, values in zip(names, found, strict=True):
            if name == "_":
                continue
            if guard is not None:
                values = [self.terms.chosen(*each) for each in zip(guard, values, env[name], strict=True)]
            written[name] = values
        return Done(written, None)

    def _effect(
        self, line: Line, env: Mapping[str, Values], guard: Values | None, doubt: Doubt, *, whole: bool = False
    ) -> Done:
        names = results(line)
        operands = split_operands(line.operands)
        outside = line.text() if whole else " ".join(operands[1:] if names else operands)
        columns = [env[name] for name, _ in REGISTER.findall(outside)]
        text = self.terms.node("leaf", "text", line.opcode, REGISTER.sub("%", outside))
        rows = [(text, *each) for each in zip(*columns, strict=True)] if columns else [(text,)] * self.threads
        runs = self.every(self.terms.constant(1)) if guard is None else guard
        effect = list(zip(runs, rows, strict=True))
        written: dict[str, Values] = {}
        plain = line.name == "ld" and not _ORDERED & {*line.opcode.split(".")}  # one place has one value for all
        for place, name in enumerate(names):
            values: Values = [
                self.terms.node("leaf", "result", line.number, place, source, doubt, doubt=doubt)
                for source in (rows if plain else range(self.threads))
            ]
            if guard is not None:
                values = [self.terms.chosen(*each) for each in zip(guard, values, env[name], strict=True)]
            written[name] = values
        return Done(written, effect)

    def _shuffled(
        self, line: Line, env: Mapping[str, Values], operands: Sequence[str], guard: Values | None
    ) -> Sequence[Values]:
        terms = self.terms
        whole = self.threads % _WARP == 0 and guard is None
        columns = [self._source(each, env, 32) for each in operands[1:]]
        by, bound, members = ([terms.value(each) for each in column] for column in columns[1:])
        if not whole or set(members) != {0xFFFFFFFF}:
            raise NotKnown(line.opcode)
        found: list[int] = []
        inside: list[int] = []
        mode = next(part for part in line.opcode.split(".") if part in ("up", "down", "bfly", "idx"))
        for thread in range(self.threads):
            lane, distance, limit = thread % _WARP, by[thread], bound[thread]
            if distance is None or limit is None:
                raise NotKnown(line.opcode)
            distance, segment = distance & 31, limit >> 8 & 31
            highest = lane & segment | limit & 31 & ~segment
            source = {
                "up": lane - distance,
                "down": lane + distance,
                "bfly": lane ^ distance,
                "idx": lane & segment | distance & ~segment,
            }[mode]
            valid = source >= highest if mode == "up" else source <= highest
            found.append(columns[0][thread - lane + source] if valid else columns[0][thread])
            inside.append(terms.constant(int(valid)))
        return [found, inside][: 2 if "|" in operands[0] else 1]

    def _computed(self, line: Line, env: Mapping[str, Values], operands: Sequence[str]) -> Sequence[Values]:
        opcode, wanted = line.opcode, len(re.split(r"[,|]", operands[0]))
        parts = opcode.split(".")
        if parts[0] == "mov" and ("{" in operands[0] or "{" in operands[1]):
            bits = int(parts[1][1:]) // 2
            if "{" in operands[0]:
                word = self._source(operands[1], env, 2 * bits)
                return [[self.terms.half(each, which, bits) for each in word] for which in (0, 1)]
            halves = [self._source(each.strip(), env, bits) for each in operands[1].strip("{} ").split(",")]
            if wanted != 1 or len(halves) != 2:
                raise NotKnown(opcode)
            return [[self.terms.pack(low, high, bits) for low, high in zip(*halves, strict=True)]]
        sources = [
            self._source(operand, env, width_of(opcode, place, operand)) for place, operand in enumerate(operands[1:])
        ]
        found = [self._one(opcode, each, wanted) for each in zip(*sources, strict=True)]
        return [[each[place] for each in found] for place in range(wanted)]

    def _source(self, operand: str, env: Mapping[str, Values], bits: int) -> Values:
        if (match := re.fullmatch(r"(!?)(%(?:p|r|rd|rs)\d+)", operand)) is not None:
            values = env[match[2]]
            return [self.terms.negated(each) for each in values] if match[1] else values
        if operand == "%tid.x":
            return [self.terms.constant(thread) for thread in range(self.threads)]
        if operand == "%ctaid.x" and self._alone:
            return self.every(self.terms.constant(0))
        if operand == "%laneid":
            return [self.terms.constant(thread % _WARP) for thread in range(self.threads)]
        if _NUMBER.fullmatch(operand) and bits == 1:
            return self.every(self.terms.constant(int(number_of(operand) != 0)))
        if _NUMBER.fullmatch(operand):
            return self.every(self.terms.constant(number_of(operand) & ((1 << bits) - 1)))
        if re.fullmatch(r"%(ctaid|nctaid|ntid)\.[xyz]|\[\s*\w+(\+\d+)?\s*\]|\w+", operand):
            return self.every(self.terms.node("leaf", "outside", operand, stable=True))
        raise NotKnown(operand)

    def _one(self, opcode: str, sources: tuple[int, ...], wanted: int) -> tuple[int, ...]:
        found = self._known.get((opcode, sources))
        if found is None:
            found = self._known[opcode, sources] = self._rules(opcode, sources)
        if len(found) != wanted:
            raise NotKnown(opcode)
        return found

    def _chosen(self, predicate: int, then: int, other: int) -> int:
        """A choice, whose sides are what they are where they are chosen; not far down, which would take long."""
        order = self.terms.order_of(predicate)
        if self.terms.value(predicate) is None and (order is None or not {then, other} <= {*order[1:3]}):
            then, other = (self.where(predicate, value, _NEAR).of(each) for value, each in ((1, then), (0, other)))
        return self.terms.chosen(predicate, then, other)

    def where(self, predicate: int, value: int, deepest: int = 1 << 30) -> Assumption:
        """Returns what terms are where a predicate has a value, as many terms down."""
        return Assumption(self.terms, facts_of(self.terms, predicate, value), self.remake, deepest)

    def remake(self, key: Key) -> int:
        """Returns the term of a key whose parts have changed."""
        terms = self.terms
        match key:
            case ("choice", int(predicate), int(then), int(other)):
                return terms.chosen(predicate, then, other)
            case ("not", int(predicate)):
                return terms.negated(predicate)
            case ("and" | "or" | "xor", int(left), int(right)):
                return terms.joined(str(key[0]), left, right)
            case (str(opcode), *parts):
                return self._rules(opcode, tuple(part for part in parts if isinstance(part, int)))[0]
            case _:
                raise AssertionError("no key")

    def _rules(self, opcode: str, sources: tuple[int, ...]) -> tuple[int, ...]:
        terms = self.terms
        parts = opcode.split(".")
        name, kind = parts[0], parts[-1]
        if (name == "mov" and len(parts) == 2) or name == "cvta" or opcode.startswith("ld.param"):
            return sources
        if name == "setp":
            return self._compared(opcode, kind, sources)
        if name == "selp":
            return (self._chosen(sources[2], sources[0], sources[1]),)
        if kind == "pred":
            return (terms.negated(*sources) if name == "not" else terms.joined(name, *sources),)
        if _EXTREME.fullmatch(opcode):
            return (terms.extreme(opcode, sources),)
        numbers = [terms.value(each) for each in sources]
        known = [each for each in numbers if each is not None]
        if len(known) == len(numbers) and (number := evaluate(opcode, known)) is not None:
            return (terms.constant(number),)
        if self._ranges.shifts_all_away(opcode, sources):
            return (terms.constant(0),)
        simpler = simpler_word(self.terms, opcode, sources, numbers, lambda name, pair: self._one(name, pair, 1)[0])
        return (terms.operation(opcode, sources) if simpler is None else simpler,)

    def _compared(self, opcode: str, kind: str, sources: tuple[int, ...]) -> tuple[int, ...]:
        terms, orders = self.terms, orders_of(opcode)
        if orders is None or len(sources) != 2:
            raise NotKnown(opcode)
        if kind in ("bf16x2", "f16x2"):
            pairs = [[terms.half(each, which, 16) for each in sources] for which in (0, 1)]
            return tuple(self._floats(kind[:-2], left, right, orders) for left, right in pairs)
        if kind[0] == "f" or kind == "bf16":
            return (self._floats(kind, *sources, orders),)
        numbers = [terms.value(each) for each in sources]
        if numbers[0] is not None and numbers[1] is not None:
            left, right = (self._signed(each, kind) for each in numbers if each is not None)
            return (terms.constant(int(("lt" if left < right else "gt" if left > right else "eq") in orders)),)
        kind = f"i{kind[0] if orders not in _EQUALITY else 'b'}{kind[1:]}"
        return (terms.compared(kind, *sources, orders),)

    def _signed(self, number: int, kind: str) -> int:
        bits = int(kind[1:])
        return number - (1 << bits) if kind[0] == "s" and number >> (bits - 1) else number

    def _floats(self, kind: str, left: int, right: int, orders: frozenset[str]) -> int:
        """A question about floats; those of 16 bits are in the order of the same numbers in f32."""
        if kind in ("f16", "bf16"):
            left, right = (self._one(f"cvt.f32.{kind}", (each,), 1)[0] for each in (left, right))
            kind = "f32"
        return self.terms.compared(f"f{kind}", left, right, orders)
