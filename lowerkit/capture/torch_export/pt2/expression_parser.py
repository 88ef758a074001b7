"""Reads the symbolic expressions that a ``.pt2`` carries as text: nothing is evaluated, imported or called.

torch gives such text to ``sympify`` and to ``exec``; here it is parsed by a grammar of its own into a tree, and what is
not in the grammar is refused. Two kinds of text are read alike:

* sizes, as sympy writes its trees: ``FloorDiv(Symbol('s77', positive=True, integer=True), Integer(2))``;
* guards, as Python: ``(L['x'].size()[0] // 2) % 3 != 0``.

Vocabulary
    source     where a number comes from: an argument of the model, and which of its sizes.
    function   an operation under one name, however it was written: ``a // b`` and ``FloorDiv(a, b)`` are ``FloorDiv``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lowerkit.capture.torch_export.pt2.expression_tree import (
    FUNCTIONS,
    MAXIMUM_PARTS,
    Call,
    Expression,
    Number,
    Source,
    Symbol,
)

MAXIMUM_CHARACTERS = 1 << 16
MAXIMUM_DEPTH = 150
MAXIMUM_DIGITS = 40

_SPELLED: dict[str, str] = (
    {name: name for name in FUNCTIONS}
    | {"Equality": "Eq", "Unequality": "Ne", "StrictLessThan": "Lt", "LessThan": "Le", "StrictGreaterThan": "Gt"}
    | {"GreaterThan": "Ge", "max": "Max", "min": "Min", "abs": "Abs", "round": "RoundToInt"}
    | {"floor": "FloorToInt", "ceiling": "CeilToInt", "math.floor": "FloorToInt", "math.ceil": "CeilToInt"}
    | {"math.trunc": "TruncToInt", "torch.sym_float": "ToFloat", "torch._sym_sqrt": "Sqrt"}
    | {"OpaqueUnaryFn_sqrt": "Sqrt", "sqrt": "Sqrt"}
)
_NAMED_NUMBERS = {"True": True, "False": False, "true": True, "false": False} | dict.fromkeys(
    ("math.inf", "int_oo", "oo"), float("inf")
)
_BINARY: dict[str, tuple[int, str]] = (
    {"or": (1, "Or"), "|": (1, "Or"), "and": (2, "And"), "&": (2, "And")}
    | {"==": (4, "Eq"), "!=": (4, "Ne"), "<": (4, "Lt"), "<=": (4, "Le"), ">": (4, "Gt"), ">=": (4, "Ge")}
    | {"+": (6, "Add"), "-": (6, "-"), "*": (7, "Mul"), "/": (7, "TrueDiv"), "//": (7, "FloorDiv"), "%": (7, "Mod")}
    | {"**": (9, "Pow")}
)
"""How tightly an operator binds, and its function. As in Python, and sympy's ``&`` and ``|`` are ``and`` and ``or``."""
_NOT, _COMPARISON, _UNARY = 3, 4, 8
_ASSUMPTIONS = {"positive", "nonnegative", "negative", "integer", "real", "nonzero", "finite", "extended_real"}
_MEASURES = {"size": True, "stride": True, "storage_offset": False, "item": False}
"""Methods that a source may end with, and whether an axis follows."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d{1,4})?)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<text>'[^'\\\n]*'|\"[^\"\\\n]*\")|(?P<sign>\*\*|//|==|!=|<=|>=|[-+*/%<>()\[\],.=&|~]))"
)
_FLOAT = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?")


def parse_symbolic(text: str) -> Expression:
    """Returns the tree of an expression.

    Raises:
        ValueError: the text is not in the grammar, or larger than the bounds of this module.
    """
    if len(text) > MAXIMUM_CHARACTERS:
        raise ValueError(f"an expression of {len(text)} characters; {MAXIMUM_CHARACTERS} are read")
    parser = _Parser(_tokens(text))
    found = parser.expression(0)
    if parser.kind:
        raise ValueError(f"{parser.value!r} follows the expression")
    return found


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            raise ValueError(f"{text[place : place + 20]!r} is in no expression of sizes")
        found.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return found


class _Parser:
    """Reads tokens from left to right; ``kind`` and ``value`` are those of the next one."""

    def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.place = -1
        self.depth = 0
        self.parts = 0
        self.kind = self.value = ""
        self.take()

    def take(self) -> str:
        """Goes on to the next token; returns the value of the one that was there."""
        taken = self.value
        self.place += 1
        self.kind, self.value = self.tokens[self.place] if self.place < len(self.tokens) else ("", "")
        return taken

    def at(self, value: str) -> bool:
        """Whether the next token is the sign ``value``."""
        return (self.kind, self.value) == ("sign", value)

    def skip(self, value: str) -> None:
        """Takes the sign ``value``."""
        if not self.at(value):
            raise ValueError(f"{value!r} was expected, {self.value or 'the end'!r} was found")
        self.take()

    def expression(self, binding: int) -> Expression:
        """Reads operands joined by operators that bind tighter than ``binding``."""
        self.depth += 1
        if self.depth > MAXIMUM_DEPTH:
            raise ValueError(f"an expression nested more than {MAXIMUM_DEPTH} deep")
        found = self.operand()
        compared: Expression | None = None
        while self.kind in ("sign", "name") and self.value in _BINARY and _BINARY[self.value][0] > binding:
            strength, function = _BINARY[self.take()]
            right = self.expression(strength - 1 if function == "Pow" else strength)
            if function == "-":
                function, right = "Add", self.call("Mul", (Number(-1), right))
            if strength == _COMPARISON and compared is not None:  # a < b < c is (a < b) and (b < c)
                found = self.call("And", (found, self.call(function, (compared, right))))
            else:
                found = self.call(function, (found, right))
            compared = right if strength == _COMPARISON else None
        if binding == 0 and (self.kind, self.value) == ("name", "if"):
            self.take()
            condition = self.expression(1)
            if self.take() != "else":
                raise ValueError("'if' without 'else'")
            found = self.call("Where", (condition, found, self.expression(0)))
        self.depth -= 1
        return found

    def operand(self) -> Expression:
        """Reads one operand: a number, a symbol, a source, a call, or an expression in brackets."""
        self.parts += 1
        if self.parts > MAXIMUM_PARTS:
            raise ValueError(f"an expression of more than {MAXIMUM_PARTS} parts")
        kind, value = self.kind, self.take()
        if kind == "number":
            return Number(_number(value))
        if (kind, value) in (("name", "not"), ("sign", "~")):
            return self.call("Not", (self.expression(_NOT if kind == "name" else _UNARY),))
        if (kind, value) in (("sign", "-"), ("sign", "+")):
            operand = self.expression(_UNARY)
            if value == "+":
                return operand
            if isinstance(operand, Number):
                return Number(-operand.value)
            return self.call("Mul", (Number(-1), operand))
        if (kind, value) == ("sign", "("):
            found = self.expression(0)
            self.skip(")")
            return found
        if kind == "name":
            return self.source() if value == "L" and self.value == "[" else self.named(value)
        raise ValueError(f"{value or 'the end'!r} is no operand")

    def named(self, name: str) -> Expression:
        """Reads what follows a name."""
        while self.value == "." and name in ("math", "torch"):
            self.take()
            name = f"{name}.{self.take()}"
        if name in _NAMED_NUMBERS:
            return Number(_NAMED_NUMBERS[name])
        if not self.at("("):
            if "." in name or name in ("if", "else", "and", "or", "lambda", "for", "in", "is"):
                raise ValueError(f"{name!r} is no symbol")
            return Symbol(_short(name))
        self.take()
        if name == "Symbol":
            return self.symbol()
        if name in ("Integer", "Float", "Rational"):
            return self.constant(name)
        function = _SPELLED.get(name)
        if function is None:
            raise ValueError(f"{name!r} is no function of sizes")
        arguments: list[Expression] = []
        while not self.at(")"):
            arguments.append(self.expression(0))
            if not self.at(")"):
                self.skip(",")
        self.skip(")")
        if function == "RoundToInt" and len(arguments) == 2:
            function = "RoundDecimal"
        return self.call(function, tuple(arguments))

    def symbol(self) -> Expression:
        """Reads the arguments of ``Symbol('s0', positive=True)``."""
        name = self.quoted()
        assumptions: list[tuple[str, bool]] = []
        while self.value == ",":
            self.take()
            key = self.take()
            self.skip("=")
            truth = self.take()
            if key not in _ASSUMPTIONS or truth not in ("True", "False"):
                raise ValueError(f"{key}={truth} says nothing about a size")
            assumptions.append((key, truth == "True"))
        self.skip(")")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is no symbol")
        return Symbol(_short(name), tuple(assumptions))

    def constant(self, name: str) -> Expression:
        """Reads the arguments of ``Integer(2)``, ``Float('1.5', precision=53)`` and ``Rational(1, 2)``."""
        if name == "Float":
            text = self.quoted()
            if not _FLOAT.fullmatch(text):
                raise ValueError(f"{text!r} is no number")
            if self.value == ",":
                self.take()
                if (self.take(), self.take(), self.take()) != ("precision", "=", "53"):
                    raise ValueError("a number of another precision than 53 bits")
            self.skip(")")
            return Number(float(text))
        first = self.whole()
        if name == "Integer":
            self.skip(")")
            return Number(first)
        self.skip(",")
        second = self.whole()
        self.skip(")")
        return self.call("TrueDiv", (Number(first), Number(second)))

    def source(self) -> Expression:
        """Reads what follows ``L``: ``['x'].size()[0]``."""
        self.skip("[")
        path: list[str | int] = [self.quoted()]
        self.skip("]")
        while self.value in (".", "["):
            if self.take() == "[":
                path.append(self.quoted() if self.kind == "text" else self.whole())
                self.skip("]")
                continue
            name, kind = self.value, self.kind
            self.take()
            if self.at("("):
                return self.measured(tuple(path), name)
            if kind != "name" or name.startswith("__"):
                raise ValueError(f"{name!r} is no attribute of an argument")
            path.append(_short(name))
        return Source(tuple(path))

    def measured(self, path: tuple[str | int, ...], method: str) -> Expression:
        """Reads ``()[0]`` behind ``size``, or ``()`` behind ``item``."""
        if method not in _MEASURES:
            raise ValueError(f"{method!r} measures no argument")
        self.skip("(")
        self.skip(")")
        axis = 0
        if _MEASURES[method]:
            self.skip("[")
            axis = self.whole()
            self.skip("]")
        return Source(path, method, axis)

    def quoted(self) -> str:
        """Reads text in quotes, without them."""
        if self.kind != "text":
            raise ValueError(f"text in quotes was expected, {self.value or 'the end'!r} was found")
        text = self.take()[1:-1]
        if not text.isprintable():
            raise ValueError(f"{text!r} holds what cannot be printed")
        return _short(text)

    def whole(self) -> int:
        """Reads an integer."""
        negative = self.value == "-"
        if negative:
            self.take()
        found = _number(self.value) if self.kind == "number" else None
        if not isinstance(found, int):
            raise ValueError(f"an integer was expected, {self.value or 'the end'!r} was found")
        self.take()
        return -found if negative else found

    def call(self, function: str, arguments: tuple[Expression, ...]) -> Expression:
        """Returns the node; nested sums, products, ``and`` and ``or`` become one."""
        self.parts += 1
        fewest, most = FUNCTIONS[function]
        if not fewest <= len(arguments) <= most:
            raise ValueError(f"{function} takes {fewest} arguments, {len(arguments)} were given")
        return Call(function, arguments)


def _number(text: str) -> int | float:
    if len(text) > MAXIMUM_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text) if text.isdigit() else float(text)


def _short(name: str) -> str:
    if len(name) > 256:
        raise ValueError(f"a name of {len(name)} characters")
    return name
