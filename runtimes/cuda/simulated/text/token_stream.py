"""The tokens of a whole module, and what is read of them piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.text.operands import TokenReader
from lowerkit.runtimes.cuda.simulated.text.tokens import Token


class TokenStream:
    """Tokens.

    Attributes:
        at: the number of the next one.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def line(self) -> int:
        """The line of the next token, or of the last one."""
        return self.tokens[min(self.at, len(self.tokens) - 1)].line if self.tokens else 1

    def peek(self, ahead: int = 0) -> str:
        """Returns the text of a token to come, empty behind the last one."""
        at = self.at + ahead
        return self.tokens[at].text if at < len(self.tokens) else ""

    def rest_of_line(self) -> TokenReader:
        """Takes the tokens on the line of the next one."""
        line = self.line
        end = self.at
        while end < len(self.tokens) and self.tokens[end].line == line:
            end += 1
        reader = TokenReader(self.tokens[self.at : end], line)
        self.at = end
        return reader

    def statement(self) -> list[Token]:
        """Takes the tokens up to the next ``;``, and that too."""
        end = self.at
        while end < len(self.tokens) and self.tokens[end].text != ";":
            end += 1
        if end == len(self.tokens):
            raise UnknownPtx("a statement does not end", self.line)
        taken = list(self.tokens[self.at : end])
        self.at = end + 1
        return taken
