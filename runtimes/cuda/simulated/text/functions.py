"""Functions that kernels call: their bodies are read once more at each call, so that a kernel has no calls left.

Parameters of functions and of calls (``.param`` between braces) become variables in local memory, under names that are
theirs alone. The end of the body has a label, at which ``ret`` of a function goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.text.declarations import parse_parameters
from lowerkit.runtimes.cuda.simulated.text.operands import TokenReader
from lowerkit.runtimes.cuda.simulated.text.syntax import Address, Instruction, Name, Operand, Parameter, Scope, Vector
from lowerkit.runtimes.cuda.simulated.text.tokens import Token

RETURN_LABEL = "$return"
DEEPEST = 8  # calls inside of calls; a function that calls itself gets there


@dataclass(frozen=True)
class FunctionText:
    """A function: the names of its results and parameters, and where its body begins among the tokens.

    ``body`` is None for one that is only declared.
    """

    name: str
    results: Sequence[Parameter]
    parameters: Sequence[Parameter]
    body: int | None


def find_functions(tokens: Sequence[Token]) -> Mapping[str, FunctionText]:
    """Returns the functions of a module; one that is declared and defined is there as defined.

    Raises:
        UnknownPtx: LK8018, a head is malformed.
    """
    functions: dict[str, FunctionText] = {}
    for at, token in enumerate(tokens):
        if token.text == ".func":
            function = _head(tokens, at)
            if functions.get(function.name, function).body is None or function.body is not None:
                functions[function.name] = function
    return functions


def _head(tokens: Sequence[Token], at: int) -> FunctionText:
    end = at
    while end < len(tokens) and tokens[end].text not in ("{", ";"):
        end += 1
    if end == len(tokens):
        raise UnknownPtx("a function has no body", tokens[at].line)
    reader = TokenReader(tokens[at + 1 : end], tokens[at].line)
    results = parse_parameters(reader)
    name = reader.word()
    parameters = parse_parameters(reader)
    while reader.take(".noreturn"):
        pass
    reader.end()
    return FunctionText(name, results, parameters, end + 1 if tokens[end].text == "{" else None)


@dataclass(frozen=True)
class CallText:
    """``call (results), name, (arguments)``: names as they are written."""

    name: str
    results: Sequence[str]
    arguments: Sequence[str]


def parse_call(reader: TokenReader) -> CallText:
    """Reads a call.

    Raises:
        UnknownPtx: LK8018, it is guarded, or to a function that only a register names.
    """
    if reader.peek() == "@":
        raise UnknownPtx("a call behind a predicate is not simulated", reader.line)
    reader.word()
    results = _names(reader) if reader.peek() == "(" else []
    if results:
        reader.expect(",")
    name = reader.word()
    arguments: list[str] = []
    if reader.take(","):
        arguments = _names(reader)
    reader.end()
    return CallText(name, results, arguments)


def is_call(tokens: Sequence[Token]) -> bool:
    """Returns whether a statement is a call, guarded or not."""
    words = [token.text for token in tokens[:4]]
    return any(word in ("call", "call.uni") for word in words[: 1 if words[:1] != ["@"] else 4])


def _names(reader: TokenReader) -> list[str]:
    reader.expect("(")
    names: list[str] = []
    if reader.take(")"):
        return names
    names.append(reader.word())
    while reader.take(","):
        names.append(reader.word())
    reader.expect(")")
    return names


def find_name(name: str, scope: Scope | None) -> str | None:
    """Returns what a variable of ``scope`` or around it is called in the kernel, None if there is none."""
    while scope is not None:
        if name in scope.names:
            return scope.names[name]
        scope = scope.parent
    return None


def with_own_names(instruction: Instruction) -> Instruction:
    """Returns an instruction with the variables of its scope under their own names, parameters in local memory."""
    operands = tuple(_renamed(operand, instruction.scope) for operand in instruction.operands)
    if operands == instruction.operands:
        return instruction
    modifiers = tuple("local" if modifier == "param" else modifier for modifier in instruction.modifiers)
    return replace(instruction, operands=operands, modifiers=modifiers)


def _renamed(operand: Operand, scope: Scope) -> Operand:
    if isinstance(operand, Address) and isinstance(operand.base, Name):
        return replace(operand, base=_renamed_name(operand.base, scope))
    if isinstance(operand, Name):
        return _renamed_name(operand, scope)
    if isinstance(operand, Vector):
        parts = (_renamed_name(part, scope) if isinstance(part, Name) else part for part in operand.parts)
        return Vector(tuple(parts))
    return operand


def _renamed_name(name: Name, scope: Scope) -> Name:
    found = find_name(name.text, scope)
    return name if found is None else replace(name, text=found)
