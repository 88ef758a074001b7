"""What lies between the braces of a kernel: scopes, registers, labels, variables and instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.text.declarations import parse_parameter, parse_registers, parse_variable
from lowerkit.runtimes.cuda.simulated.text.functions import (
    DEEPEST,
    RETURN_LABEL,
    FunctionText,
    find_name,
    is_call,
    parse_call,
    with_own_names,
)
from lowerkit.runtimes.cuda.simulated.text.operands import TokenReader, parse_instruction
from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction, Name, Place, Scope, Variable
from lowerkit.runtimes.cuda.simulated.text.token_stream import TokenStream
from lowerkit.runtimes.cuda.simulated.text.tokens import shown

LINE_DIRECTIVES = frozenset({".version", ".target", ".address_size", ".file", ".loc"})
_MOST_INSTRUCTIONS = 1 << 20
_MOST_CALLS = 4096
_MOST_SCOPES = 32  # inside of each other: names are looked up from the inside out


class BodyParser:
    """Reads what lies between the braces of a kernel.

    Attributes:
        instructions, variables: what it has, with those of the functions that it calls.
    """

    def __init__(self, module: TokenStream, functions: Mapping[str, FunctionText]) -> None:
        """``module`` stands behind the brace that opens the body; ``functions`` are those that it may call."""
        self.module = module
        self.functions = functions
        self.instructions: list[Instruction] = []
        self.variables: list[Variable] = []
        self.scope = Scope(0, None)
        self.scopes = 1
        self.source = (0, 0)
        self.calls = 0  # that are being read
        self.read_calls = 0

    def parse(self) -> None:
        """Reads up to the brace that closes the body."""
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
                self._label(word)
            elif word == ".loc":
                self._location(module.rest_of_line())
            elif word in LINE_DIRECTIVES:
                raise UnknownPtx(f"{word} is not known inside of a kernel", module.line)
            else:
                self._statement()

    def _label(self, name: str) -> None:
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

    def _location(self, reader: TokenReader) -> None:
        reader.expect(".loc")
        file, line = reader.integer(), reader.integer()
        if line:  # line 0 is code that the compiler made: it belongs to what stands before it
            self.source = file, line

    def _statement(self) -> None:
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
            variable = parse_variable(reader)
            self.variables.append(self._own(variable) if self.calls else variable)
        elif word == ".param":
            parameter = parse_parameter(reader)
            reader.end()
            variable = Variable(parameter.name, "local", parameter.alignment, parameter.size, None, line)
            self.variables.append(self._own(variable))
        elif is_call(tokens):
            self._call(reader)
        elif word == ".pragma":
            return
        elif word.startswith("."):
            raise UnknownPtx(f"{shown(word)} is not known inside of a kernel", line)
        else:
            if len(self.instructions) == _MOST_INSTRUCTIONS:
                raise UnknownPtx(f"a kernel has more than {_MOST_INSTRUCTIONS} instructions", line)
            self.instructions.append(self._returning(parse_instruction(tokens, Place(line, *self.source), self.scope)))

    def _own(self, variable: Variable) -> Variable:
        """Returns a variable under a name that nothing else in the kernel has."""
        name = f"{variable.name} of {self.scope.number}"
        self.scope.names[variable.name] = name
        return replace(variable, name=name)

    def _returning(self, instruction: Instruction) -> Instruction:
        """Returns an instruction as it stands in the kernel: ``ret`` of a function goes to the end of its body."""
        instruction = with_own_names(instruction)
        if self.calls and instruction.opcode == "ret":
            return replace(instruction, opcode="bra", operands=(Name(RETURN_LABEL),))
        return instruction

    def _call(self, reader: TokenReader) -> None:
        """Reads the body of a function in place of its call."""
        line = reader.line
        call = parse_call(reader)
        function = self.functions.get(call.name)
        if function is None or function.body is None:
            raise UnknownPtx(f"function {shown(call.name)} is not in the module", line)
        if self.calls == DEEPEST:
            raise UnknownPtx(f"more than {DEEPEST} calls inside of each other", line)
        self.read_calls += 1
        if self.read_calls > _MOST_CALLS:
            raise UnknownPtx(f"a kernel has more than {_MOST_CALLS} calls, those of its functions counted", line)
        outer, own = self.scope, Scope(self.scopes, None)
        self.scopes += 1
        for given, asked in ((call.results, function.results), (call.arguments, function.parameters)):
            if len(given) != len(asked):
                raise UnknownPtx(
                    f"function {shown(call.name)} takes {len(asked)} of what a call gives {len(given)}", line
                )
            for name, parameter in zip(given, asked, strict=True):
                found = find_name(name, outer)
                if found is None:
                    raise UnknownPtx(f"parameter {shown(name)} is not known", line)
                own.names[parameter.name] = found
        back, self.module.at = self.module.at, function.body
        self.scope, self.calls = own, self.calls + 1
        self.parse()
        own.labels[RETURN_LABEL] = len(self.instructions)
        self.scope, self.calls, self.module.at = outer, self.calls - 1, back
