"""Which registers an instruction reads and writes, and what an address is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowerkit.runtimes.cuda.simulated.decoder import declared
from lowerkit.runtimes.cuda.simulated.text.syntax import (
    Address,
    Instruction,
    Name,
    Number,
    Operand,
    Pair,
    Scope,
    TensorAddress,
    Vector,
)

# A register: the scope that declares it, and its name.
Register = tuple[int, str]
# Their first operand is no result, though it is no address.
_WITHOUT_RESULT = ("bar", "barrier", "bra", "brx", "setmaxnreg", "wgmma")


def register(name: str, scope: Scope) -> Register | None:
    """Returns the register of a name; None if it is none that is declared."""
    around: Scope | None = scope
    while around is not None:
        if declared(name, around) is not None:
            return around.number, name
        around = around.parent
    return None


def registers_of(operand: Operand, scope: Scope) -> Iterator[Register]:
    """Yields the registers in an operand."""
    for name in _names(operand):
        found = register(name, scope)
        if found is not None:
            yield found


def _names(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Name):
        yield operand.text
    elif isinstance(operand, Pair):
        yield operand.first.text
        yield operand.second.text
    elif isinstance(operand, Vector):
        yield from (part.text for part in operand.parts if isinstance(part, Name))
    elif isinstance(operand, TensorAddress):
        yield from (part.text for part in (operand.base, *operand.coordinates) if isinstance(part, Name))
    elif isinstance(operand, Address) and isinstance(operand.base, Name):
        yield operand.base.text


def has_result(instruction: Instruction) -> bool:
    """Returns whether the first operand is the result."""
    if not instruction.operands or instruction.opcode in _WITHOUT_RESULT:
        return False
    if instruction.opcode == "tcgen05" and instruction.modifiers[0] != "ld":
        return False
    return isinstance(instruction.operands[0], Name | Vector | Pair)


def written(instruction: Instruction) -> set[Register]:
    """Returns the registers that an instruction writes; those of wgmma are not among them."""
    if not has_result(instruction):
        return set()
    return set(registers_of(instruction.operands[0], instruction.scope))


def read(instruction: Instruction) -> set[Register]:
    """Returns the registers that an instruction reads; the predicate in front of it too."""
    operands = instruction.operands[1:] if has_result(instruction) else instruction.operands
    found = {each for operand in operands for each in registers_of(operand, instruction.scope)}
    if instruction.guard is not None:
        found |= set(registers_of(instruction.guard, instruction.scope))
    return found


@dataclass(frozen=True)
class Origin:
    """A value: ``offset`` more than that of a register or a symbol; two that are equal have one value in an iteration.

    Attributes:
        fixed: whether it is the same for all threads and at all times: that of a symbol, or a number.
    """

    base: str
    offset: int
    fixed: bool


class Origins:
    """What values are made of, as far as registers have one definition each."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._definitions: dict[Register, Instruction | None] = {}
        for instruction in instructions:
            for each in written(instruction):
                # Of two definitions nothing is known, nor of one that is not always made.
                several = each in self._definitions or instruction.guard is not None
                self._definitions[each] = None if several else instruction

    def definition(self, name: str, scope: Scope) -> Instruction | None:
        """Returns the one definition of a register; None if there are others, or it is no register."""
        found = register(name, scope)
        return None if found is None else self._definitions.get(found)

    @staticmethod
    def is_symbol(name: str, scope: Scope) -> bool:
        """Returns whether a name is no register."""
        return register(name, scope) is None

    def of(self, operand: Name | Number, scope: Scope, offset: int = 0) -> Origin:
        """Returns what a value, and ``offset`` more, is made of."""
        while isinstance(operand, Name):
            found = register(operand.text, scope)
            definition = None if found is None else self._definitions.get(found)
            step = None if definition is None else _step(definition)
            if step is None or definition is None:
                base = operand.text if found is None else f"{found[0]}:{found[1]}"
                return Origin(base, offset + operand.offset, found is None)
            operand, more = step
            offset, scope = offset + more, definition.scope
        return Origin("", operand.value + offset, True)


def _step(definition: Instruction) -> tuple[Name | Number, int] | None:
    """Returns the one value that a definition copies, and what it adds; None for others."""
    operands = definition.operands
    if not isinstance(operands[0], Name):
        return None
    if definition.opcode in ("mov", "cvta") or (definition.opcode == "cvt" and definition.modifiers == ("u64", "u32")):
        source = operands[1]
        return (source, 0) if isinstance(source, Name | Number) else None
    if definition.opcode == "add" and definition.modifiers[-1] in ("s32", "u32", "s64", "u64"):
        first, second = operands[1:3]
        if isinstance(first, Name) and isinstance(second, Number):
            return first, second.value
        if isinstance(first, Number) and isinstance(second, Name):
            return second, first.value
    return None
