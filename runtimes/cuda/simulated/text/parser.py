"""From PTX text to a module: kernels with their scopes, registers and labels, variables, the names of source files.

Statements end at ``;``, labels at ``:``; some directives end with their line. Directives that change no value are left
out by name; any other one is refused, so that nothing that matters is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.text.declarations import (
    LINKAGE,
    parse_parameters,
    parse_registers,
    parse_variable,
)
from lowerkit.runtimes.cuda.simulated.text.operands import TokenReader, parse_instruction
from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction, KernelText, ModuleText, Place, Scope, Variable
from lowerkit.runtimes.cuda.simulated.text.tokens import Token, shown, tokenize

_LINE_DIRECTIVES = frozenset({".version", ".target", ".address_size", ".file", ".loc"})
_IGNORED_LINES = frozenset({".version", ".target"})
_IGNORED_TUNING = frozenset({".minnctapersm", ".maxnctapersm", ".maxnreg"})
_MOST_INSTRUCTIONS = 1 << 20
_MOST_SCOPES = 32  # inside of each other: names are looked up from the inside out


def parse_module(text: str) -> ModuleText:
    """Returns the module that ``text`` is.

    Raises:
        UnknownPtx: LK8018, it is none, or has a directive that is not known.
    """
    return _ModuleParser(list(tokenize(text)), text.split("\n")).parse()


class _ModuleParser:
    def __init__(self, tokens: Sequence[Token], lines: Sequence[str]) -> None:
        self.tokens = tokens
        self.lines = lines
        self.at = 0
        self.kernels: dict[str, KernelText] = {}
        self.variables: list[Variable] = []
        self.files: dict[int, str] = {}

    @property
    def line(self) -> int:
        return self.tokens[min(self.at, len(self.tokens) - 1)].line if self.tokens else 1

    def peek(self, ahead: int = 0) -> str:
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

    def parse(self) -> ModuleText:
        while self.at < len(self.tokens):
            self.module_statement()
        return ModuleText(self.kernels, self.variables, self.files, self.lines)

    def module_statement(self) -> None:
        word = self.peek()
        if word in _LINE_DIRECTIVES:
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
            raise UnknownPtx("functions beside kernels are not simulated: let the compiler inline them", self.line)
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
        if word == ".address_size":
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
        line = self.line
        while self.peek() not in ("{", ""):
            self.at += 1
        depth = 0
        while self.at < len(self.tokens):
            depth += (self.peek() == "{") - (self.peek() == "}")
            self.at += 1
            if depth == 0:
                return
        raise UnknownPtx("a section does not end", line)

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
        body = _BodyParser(self)
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


class _BodyParser:
    """Reads what lies between the braces of a kernel."""

    def __init__(self, module: _ModuleParser) -> None:
        self.module = module
        self.instructions: list[Instruction] = []
        self.variables: list[Variable] = []
        self.scope = Scope(0, None)
        self.scopes = 1
        self.source = (0, 0)

    def parse(self) -> None:
        module = self.module
        line = module.line
        depth = 1
        while depth:
            word = module.peek()
            if not word:
                raise UnknownPtx("the body of a kernel does not end", line)
            if word == "{":
                self.scope = Scope(self.scopes, self.scope)
                self.scopes += 1
                depth += 1
                if depth > _MOST_SCOPES:
                    raise UnknownPtx(f"more than {_MOST_SCOPES} braces inside of each other", module.line)
                module.at += 1
            elif word == "}":
                self.scope = self.scope.parent or self.scope
                depth -= 1
                module.at += 1
            elif module.peek(1) == ":":
                self.label(word)
            elif word == ".loc":
                self.location(module.rest_of_line())
            elif word in _LINE_DIRECTIVES:
                raise UnknownPtx(f"{word} is not known inside of a kernel", module.line)
            else:
                self.statement()

    def label(self, name: str) -> None:
        module = self.module
        if name in self.scope.labels or name in self.scope.tables:
            raise UnknownPtx(f"label {shown(name)} is there twice", module.line)
        module.at += 2
        if module.peek() != ".branchtargets":
            self.scope.labels[name] = len(self.instructions)
            return
        line = module.line
        reader = TokenReader(module.statement()[1:], line)
        names = [reader.word()]
        while reader.take(","):
            names.append(reader.word())
        reader.end()
        self.scope.tables[name] = tuple(names)

    def location(self, reader: TokenReader) -> None:
        reader.expect(".loc")
        file, line = reader.integer(), reader.integer()
        if line:  # line 0 is code that the compiler made: it belongs to what stands before it
            self.source = file, line

    def statement(self) -> None:
        module = self.module
        line = module.line
        tokens = module.statement()
        if not tokens:
            return
        word = tokens[0].text
        reader = TokenReader(tokens, line)
        if word == ".reg":
            parse_registers(reader, self.scope)
        elif word in (".shared", ".local", ".extern"):
            self.variables.append(parse_variable(reader))
        elif word == ".pragma":
            return
        elif word.startswith("."):
            raise UnknownPtx(f"{shown(word)} is not known inside of a kernel", line)
        else:
            if len(self.instructions) == _MOST_INSTRUCTIONS:
                raise UnknownPtx(f"a kernel has more than {_MOST_INSTRUCTIONS} instructions", line)
            self.instructions.append(parse_instruction(tokens, Place(line, *self.source), self.scope))
