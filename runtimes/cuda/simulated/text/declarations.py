"""The declarations of a PTX text: parameters, registers, variables with their initial bytes."""

from __future__ import annotations

from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.scalar_types import BYTES
from lowerkit.runtimes.cuda.simulated.text.operands import TokenReader
from lowerkit.runtimes.cuda.simulated.text.syntax import Parameter, Scope, Variable
from lowerkit.runtimes.cuda.simulated.text.tokens import shown

LINKAGE = frozenset({".visible", ".weak", ".extern", ".common"})
_SPACES = frozenset({".global", ".const", ".shared", ".local"})
_LARGEST_ALIGNMENT = 1 << 12
_LARGEST_PARAMETERS = 32764  # bytes, since sm_70
_LARGEST_VARIABLE = 1 << 40


def parse_parameters(reader: TokenReader) -> list[Parameter]:
    """Reads ``(.param ..., .param ...)``, if it is there.

    Raises:
        UnknownPtx: LK8018, the list is malformed, or larger than a launch can pass.
    """
    parameters: list[Parameter] = []
    if not reader.take("(") or reader.take(")"):
        return parameters
    while True:
        parameters.append(parse_parameter(reader))
        if reader.take(")"):
            break
        reader.expect(",")
    if sum(parameter.size for parameter in parameters) > _LARGEST_PARAMETERS:
        raise UnknownPtx(f"the parameters have more than {_LARGEST_PARAMETERS} bytes", reader.line)
    return parameters


def parse_parameter(reader: TokenReader) -> Parameter:
    """Reads ``.param .align 4 .b8 name[9]`` and its like.

    Raises:
        UnknownPtx: LK8018, the declaration is malformed.
    """
    reader.expect(".param")
    alignment = _alignment(reader)
    kind = _type(reader)
    if reader.take(".ptr"):  # says what it points to, which changes nothing here
        if reader.peek() in _SPACES:
            reader.next()
        _alignment(reader)
    name = reader.word()
    count = _count(reader)
    size = BYTES[kind] * (1 if count is None else count)
    return Parameter(name, kind, count, alignment or BYTES[kind], size)


def parse_registers(reader: TokenReader, scope: Scope) -> None:
    """Reads ``.reg .type a, %r<9>`` into ``scope``.

    Raises:
        UnknownPtx: LK8018, the declaration is malformed or a name is there twice.
    """
    reader.expect(".reg")
    kind = "pred" if reader.take(".pred") else _type(reader)
    while True:
        name = reader.word()
        several = reader.take("<")  # a and a<2> are a, a0 and a1
        if name in (scope.families if several else scope.registers):
            raise UnknownPtx(f"register {shown(name)} is there twice", reader.line)
        if several:
            scope.families[name] = kind, reader.integer()
            reader.expect(">")
        else:
            scope.registers[name] = kind
        if reader.ended():
            return
        reader.expect(",")


def parse_variable(reader: TokenReader) -> Variable:
    """Reads ``.global .align 4 .b8 name[9] = {1, 2}`` and its like.

    Raises:
        UnknownPtx: LK8018, the declaration is malformed, or its initial value is no list of numbers.
    """
    line = reader.line
    external = False
    while reader.peek() in LINKAGE:
        external |= reader.next().text == ".extern"
    space = reader.word()
    if space not in _SPACES:
        raise UnknownPtx(f"{shown(space)} is no space of a variable", line)
    alignment = _alignment(reader)
    kind = _type(reader)
    name = reader.word()
    count = _count(reader)
    data: bytes | None = None
    if reader.take("="):
        values = _initial_values(reader)
        count = len(values) if count == 0 else count
        if len(values) > (1 if count is None else count):
            raise UnknownPtx(f"{shown(name)} has more initial values than elements", line)
        mask = (1 << 8 * BYTES[kind]) - 1
        data = b"".join((value & mask).to_bytes(BYTES[kind], "little") for value in values)
    reader.end()
    size = BYTES[kind] * (1 if count is None else count)
    if size > _LARGEST_VARIABLE:
        raise UnknownPtx(f"{shown(name)} has {size} bytes", line)
    if external and space != ".shared":
        raise UnknownPtx(f"{shown(name)} is defined in another module, and there is none", line)
    if data is not None and space in (".shared", ".local"):
        raise UnknownPtx(f"{shown(name)} has initial values, which {space} cannot have", line)
    return Variable(name, space[1:], alignment or BYTES[kind], size, data, line)


def _initial_values(reader: TokenReader) -> list[int]:
    if not reader.take("{"):
        return [reader.integer()]
    values = [reader.integer()]
    while reader.take(","):
        values.append(reader.integer())
    reader.expect("}")
    return values


def _alignment(reader: TokenReader) -> int:
    """Reads ``.align 16`` if it is there; returns 0 if not."""
    if not reader.take(".align"):
        return 0
    value = reader.integer()
    if not 0 < value <= _LARGEST_ALIGNMENT or value & (value - 1):
        raise UnknownPtx(f"an alignment of {value} bytes", reader.line)
    return value


def _type(reader: TokenReader) -> str:
    word = reader.word()
    if word[1:] not in BYTES or word[0] != "." or word == ".pred":
        raise UnknownPtx(f"{shown(word)} is no type that is known", reader.line)
    return word[1:]


def _count(reader: TokenReader) -> int | None:
    """Reads ``[9]`` if it is there; 0 for ``[]``, None for no brackets."""
    if not reader.take("["):
        return None
    if reader.take("]"):
        return 0
    count = reader.integer()
    if count < 0:
        raise UnknownPtx(f"{count} elements", reader.line)
    reader.expect("]")
    return count
