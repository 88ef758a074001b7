"""From PTX text to a module: kernels with their scopes, registers and labels, variables, the names of source files.

Statements end at ``;``, labels at ``:``; some directives end with their line. Directives that change no value are left
out by name; any other one is refused, so that nothing that matters is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.text.bodies import LINE_DIRECTIVES, BodyParser
from lowerkit.runtimes.cuda.simulated.text.declarations import LINKAGE, parse_parameters, parse_variable
from lowerkit.runtimes.cuda.simulated.text.functions import find_functions
from lowerkit.runtimes.cuda.simulated.text.operands import TokenReader
from lowerkit.runtimes.cuda.simulated.text.syntax import KernelText, ModuleText, Variable
from lowerkit.runtimes.cuda.simulated.text.token_stream import TokenStream
from lowerkit.runtimes.cuda.simulated.text.tokens import Token, shown, tokenize

_IGNORED_LINES = frozenset({".version"})
_IGNORED_TUNING = frozenset({".minnctapersm", ".maxnctapersm", ".maxnreg"})


def parse_module(text: str) -> ModuleText:
    """Returns the module that ``text`` is.

    Raises:
        UnknownPtx: LK8018, it is none, or has a directive that is not known.
    """
    return _ModuleParser(list(tokenize(text)), text.split("\n")).parse()


class _ModuleParser(TokenStream):
    def __init__(self, tokens: Sequence[Token], lines: Sequence[str]) -> None:
        super().__init__(tokens)
        self.lines = lines
        self.kernels: dict[str, KernelText] = {}
        self.variables: list[Variable] = []
        self.files: dict[int, str] = {}
        self.target = ""
        self.functions = find_functions(tokens)

    def parse(self) -> ModuleText:
        while self.at < len(self.tokens):
            self.module_statement()
        return ModuleText(self.kernels, self.variables, self.files, self.lines, self.target)

    def module_statement(self) -> None:
        word = self.peek()
        if word in LINE_DIRECTIVES:
            self.line_directive(self.rest_of_line())
        elif word == ".section":
            self.section()
        elif self.linked_word() == ".entry":
            self.kernel()
        elif word == ".pragma":
            self.statement()
        elif self.linked_word() in (".global", ".const", ".shared"):
            line = self.line
            self.variables.append(parse_variable(TokenReader(self.statement(), line)))
        elif self.linked_word() == ".func":
            self.function()
        else:
            raise UnknownPtx(f"{shown(word)} is not known outside of a kernel", self.line)

    def linked_word(self) -> str:
        """Returns the next word behind ``.visible`` and its like."""
        ahead = 0
        while self.peek(ahead) in LINKAGE:
            ahead += 1
        return self.peek(ahead)

    def line_directive(self, reader: TokenReader) -> None:
        word = reader.word()
        if word in _IGNORED_LINES:
            return
        if word == ".target":
            self.target = reader.word()
        elif word == ".address_size":
            if reader.integer() != 64:
                raise UnknownPtx("addresses of 64 bits only", reader.line)
            reader.end()
        elif word == ".file":
            number = reader.integer()
            self.files[number] = reader.next().text.strip('"')
        else:
            raise UnknownPtx(f"{word} is not known outside of a kernel", reader.line)

    def section(self) -> None:
        """Passes over a section of debugging data."""
        self.braces("a section")

    def function(self) -> None:
        """Passes over a function: its calls read it."""
        while self.peek() not in ("{", ";", ""):
            self.at += 1
        if self.peek() == ";":
            self.at += 1
        else:
            self.braces("a function")

    def braces(self, what: str) -> None:
        """Passes over everything up to the brace that closes the next one."""
        line = self.line
        while self.peek() not in ("{", ""):
            self.at += 1
        depth = 0
        while self.at < len(self.tokens):
            depth += (self.peek() == "{") - (self.peek() == "}")
            self.at += 1
            if depth == 0:
                return
        raise UnknownPtx(f"{what} does not end", line)

    def kernel(self) -> None:
        line = self.line
        while self.peek() in LINKAGE:
            self.at += 1
        end = self.at
        while end < len(self.tokens) and self.tokens[end].text not in ("{", ";"):
            end += 1
        if end == len(self.tokens) or self.tokens[end].text == ";":
            raise UnknownPtx("a kernel has no body", line)
        head = TokenReader(self.tokens[self.at : end], line)
        self.at = end + 1
        head.expect(".entry")
        name = head.word()
        if name in self.kernels:
            raise UnknownPtx(f"kernel {shown(name)} is there twice", line)
        parameters = parse_parameters(head)
        required, most = _block_sizes(head)
        body = BodyParser(self, self.functions)
        body.parse()
        self.kernels[name] = KernelText(name, parameters, body.instructions, body.variables, required, most, line)


def _block_sizes(head: TokenReader) -> tuple[tuple[int, int, int] | None, int | None]:
    """Reads the directives behind the parameters; returns what ``.reqntid`` and ``.maxntid`` say."""
    required: tuple[int, int, int] | None = None
    most: int | None = None
    while not head.ended():
        word = head.word()
        if word == ".noreturn":
            continue
        if word == ".pragma":
            head.next()
            continue
        if word not in (".reqntid", ".maxntid") and word not in _IGNORED_TUNING:
            raise UnknownPtx(f"{shown(word)} of a kernel is not known", head.line)
        sizes = [head.integer()]
        while head.take(","):
            sizes.append(head.integer())
        if len(sizes) > 3:
            raise UnknownPtx(f"{word} has {len(sizes)} sizes", head.line)
        x, y, z = (*sizes, 1, 1, 1)[:3]
        if word == ".reqntid":
            required = x, y, z
        elif word == ".maxntid":
            most = x * y * z
    return required, most
