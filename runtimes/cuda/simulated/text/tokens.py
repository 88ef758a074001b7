"""From PTX text to tokens, in one pass: the time is linear in the length of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx

# Each alternative repeats one class only, or gives nothing back of what it has repeated: nothing backtracks.
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+)
    |(?P<newline>\n)
    |(?P<comment>//[^\n]*)
    |(?P<block>/\*)
    |(?P<string>"[^"\n]*")
    |(?P<real>[0-9]++\.[0-9]++)
    |(?P<number>[0-9][0-9A-Za-z]*)
    |(?P<word>[A-Za-z_$%.](?:[A-Za-z0-9_$%.]|::)*)
    |(?P<sign>[-{}\[\](),;:=+!|@<>])
    """,
    re.VERBOSE | re.ASCII,
)
_LONGEST_NUMBER = 32  # characters; int() takes quadratic time for long ones
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is number, real (written with a point), word, string or sign; ``line`` counts from 1."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> Iterator[Token]:
    """Yields the tokens of ``text``; comments and blanks are left out.

    Raises:
        UnknownPtx: LK8018, a character that is in no token, or a comment without end.
    """
    at, line, length = 0, 1, len(text)
    while at < length:
        found = _TOKEN.match(text, at)
        if found is None:
            raise UnknownPtx(f"the character {text[at]!r} begins nothing", line)
        kind, at = found.lastgroup, found.end()
        if kind == "newline":
            line += 1
        elif kind == "block":
            end = text.find("*/", at)
            if end < 0:
                raise UnknownPtx("a comment does not end", line)
            line += text.count("\n", at, end)
            at = end + 2
        elif kind not in ("space", "comment"):
            yield Token(str(kind), found[0], line)


def integer(token: Token) -> int:
    """Returns the value of a number: decimal, ``0x``, ``0b``, octal, or the bits of a float (``0f``, ``0d``).

    Raises:
        UnknownPtx: LK8018, the token is no number.
    """
    text = token.text.removesuffix("U") if token.text[:2] not in ("0f", "0F", "0d", "0D") else token.text
    base, digits = 10, text
    if text[:2] in ("0f", "0F", "0d", "0D"):
        base, digits = 16, text[2:]
        if len(digits) != (8 if text[1] in "fF" else 16):
            digits = ""
    elif text[:2] in ("0x", "0X"):
        base, digits = 16, text[2:]
    elif text[:2] in ("0b", "0B"):
        base, digits = 2, text[2:]
    elif len(text) > 1 and text[0] == "0":
        base, digits = 8, text[1:]
    if token.kind == "number" and 0 < len(digits) <= _LONGEST_NUMBER and digits.isalnum():
        try:
            return int(digits, base)
        except ValueError:
            pass
    raise UnknownPtx(f"{shown(token.text)} is no number", token.line)


def shown(text: str) -> str:
    """Returns ``text`` quoted, and cut where it is long."""
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}...")
