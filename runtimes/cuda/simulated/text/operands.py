"""From the tokens of one statement to an instruction."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.text.syntax import (
    Address,
    Instruction,
    Name,
    Number,
    Operand,
    Pair,
    Place,
    Scope,
    TensorAddress,
    Vector,
)
from lowerkit.runtimes.cuda.simulated.text.tokens import Token, integer, shown


class TokenReader:
    """Walks over the tokens of one statement, or of any list that is known to end."""

    def __init__(self, tokens: Sequence[Token], line: int) -> None:
        """``line`` is the one to name where the tokens end too early."""
        self._tokens = tokens
        self._at = 0
        self._line = line

    @property
    def line(self) -> int:
        """The line of the next token, or of the last one."""
        return self._tokens[self._at].line if self._at < len(self._tokens) else self._line

    def ended(self) -> bool:
        """Returns whether no token is left."""
        return self._at == len(self._tokens)

    def peek(self, ahead: int = 0) -> str:
        """Returns the text of a token to come, empty behind the last one."""
        at = self._at + ahead
        return self._tokens[at].text if at < len(self._tokens) else ""

    def next_kind(self) -> str:
        """Returns the kind of the next token, empty behind the last one."""
        return "" if self.ended() else self._tokens[self._at].kind

    def next(self) -> Token:
        """Returns the next token and moves behind it.

        Raises:
            UnknownPtx: LK8018, none is left.
        """
        if self.ended():
            raise UnknownPtx("the statement ends too early", self._line)
        self._at += 1
        return self._tokens[self._at - 1]

    def take(self, text: str) -> bool:
        """Moves behind the next token if it is ``text``; returns whether it was."""
        found = self.peek() == text
        self._at += found
        return found

    def expect(self, text: str) -> None:
        """Moves behind the next token.

        Raises:
            UnknownPtx: LK8018, it is not ``text``.
        """
        token = self.next()
        if token.text != text:
            raise UnknownPtx(f"{shown(token.text)} where {text!r} is expected", token.line)

    def word(self) -> str:
        """Returns the next token.

        Raises:
            UnknownPtx: LK8018, it is no word.
        """
        token = self.next()
        if token.kind != "word":
            raise UnknownPtx(f"{shown(token.text)} where a name is expected", token.line)
        return token.text

    def integer(self) -> int:
        """Returns the next number, with its sign.

        Raises:
            UnknownPtx: LK8018, there is no number.
        """
        negative = self.take("-")
        value = integer(self.next())
        return -value if negative else value

    def end(self) -> None:
        """Checks that no token is left.

        Raises:
            UnknownPtx: LK8018, one is.
        """
        if not self.ended():
            raise UnknownPtx(f"{shown(self.peek())} is not expected here", self.line)


def parse_instruction(tokens: Sequence[Token], place: Place, scope: Scope) -> Instruction:
    """Returns the instruction that the tokens of a statement (without its ``;``) are.

    Raises:
        UnknownPtx: LK8018, they are none.
    """
    reader = TokenReader(tokens, place.line)
    guard = None
    if reader.take("@"):
        negated = reader.take("!")
        guard = Name(reader.word(), negated=negated)
    opcode, *modifiers = reader.word().split(".")
    operands: list[Operand] = []
    while not reader.ended():
        operands.append(_operand(reader))
        if not reader.ended():
            reader.expect(",")
            if reader.ended():
                raise UnknownPtx("an operand is missing", place.line)
    return Instruction(opcode, tuple(modifiers), tuple(operands), guard, place, scope)


def _operand(reader: TokenReader) -> Operand:
    if reader.take("["):
        base = _simple(reader)
        offset = 0
        if isinstance(base, Name):
            base, offset = Name(base.text, negated=base.negated), base.offset
        if reader.take(","):
            coordinates = _vector(reader)
            reader.expect("]")
            return TensorAddress(base, offset, coordinates)
        reader.expect("]")
        return Address(base, offset)
    if reader.peek() == "{":
        return Vector(_vector(reader))
    first = _simple(reader)
    if isinstance(first, Name) and reader.take("|"):
        return Pair(first, Name(reader.word()))
    return first


def _vector(reader: TokenReader) -> tuple[Name | Number, ...]:
    reader.expect("{")
    parts = [_simple(reader)]
    while reader.take(","):
        parts.append(_simple(reader))
    reader.expect("}")
    return tuple(parts)


def _simple(reader: TokenReader) -> Name | Number:
    if reader.take("!"):
        return Name(reader.word(), negated=True)
    if reader.next_kind() == "real":
        return Number(int.from_bytes(struct.pack("<d", float(reader.next().text)), "little"), real=True)
    if reader.peek() == "-" or reader.peek()[:1].isdigit():
        return Number(reader.integer())
    name = reader.word()
    if reader.take("+"):
        return Name(name, reader.integer())
    if reader.peek() == "-":
        return Name(name, reader.integer())
    return Name(name)
