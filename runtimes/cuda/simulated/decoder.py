"""Registers and constants as slots, and what every family of opcodes reads an instruction with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import SPECIAL_REGISTERS
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from lowerkit.runtimes.cuda.simulated.memory_use import MemoryUse
from lowerkit.runtimes.cuda.simulated.scalar_types import BYTES, Array, DType, computed, stored
from lowerkit.runtimes.cuda.simulated.steps import (
    Function,
    Step,
    step_of_any,
    step_of_binary,
    step_of_ternary,
    step_of_unary,
)
from lowerkit.runtimes.cuda.simulated.text.syntax import SINK, Instruction, Name, Number, Operand, Pair, Scope, Vector
from lowerkit.runtimes.cuda.simulated.text.tokens import shown


class Slots:
    """The slots of one kernel.

    Attributes:
        template: what each slot begins with; a batch begins with a copy. Registers begin with zeros.
        special: special registers and their slots: a batch fills them.
        symbols: name of a variable -> its address in its own space.
        parameters: name of a parameter -> its size in bytes.
        parameter_places: name of a parameter -> where it lies among all, in bytes.
    """

    def __init__(
        self, symbols: Mapping[str, int], parameters: Mapping[str, int], parameter_places: Mapping[str, int]
    ) -> None:
        self.symbols = symbols
        self.parameters = parameters
        self.parameter_places = parameter_places
        self.use = MemoryUse()  # by all instructions
        self.template: list[Array] = []
        self.special: dict[str, int] = {}
        self._registers: dict[tuple[int, str], int] = {}
        self._constants: dict[tuple[int, str], int] = {}

    def register(self, name: str, scope: Scope) -> int | None:
        """Returns the slot of a register that is declared in ``scope`` or around it, None if there is none."""
        around: Scope | None = scope
        while around is not None:
            kind = declared(name, around)
            if kind is not None:
                key = around.number, name
                if key not in self._registers:
                    self._registers[key] = self._new(np.zeros((1, 1), stored(kind)))
                return self._registers[key]
            around = around.parent
        return None

    def special_register(self, name: str) -> int:
        """Returns the slot of a special register."""
        if name not in self.special:
            self.special[name] = self._new(np.zeros((1, 1), np.uint32))
        return self.special[name]

    def constant(self, value: int, dtype: DType) -> int:
        """Returns the slot of a constant, cut to ``dtype``."""
        key = value, dtype.str
        if key not in self._constants:
            cut = int(value != 0) if dtype == np.bool_ else value & ((1 << 8 * dtype.itemsize) - 1)
            self._constants[key] = self._new(np.full((1, 1), cut, dtype))
        return self._constants[key]

    def carry(self) -> int:
        """Returns the slot of the carry flag, bool."""
        key = -1, "carry"
        if key not in self._registers:
            self._registers[key] = self._new(np.zeros((1, 1), np.bool_))
        return self._registers[key]

    def sink(self, dtype: DType) -> int:
        """Returns a slot for what nobody reads."""
        return self._new(np.zeros((1, 1), dtype))

    def _new(self, value: Array) -> int:
        self.template.append(value)
        return len(self.template) - 1


def declared(name: str, scope: Scope) -> str | None:
    """Returns the type of a register that ``scope`` itself declares."""
    if name in scope.registers:
        return scope.registers[name]
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    kind, count = scope.families.get(stem, ("", 0))
    if not 0 < len(digits) <= len(str(count)) or int(digits) >= count or str(int(digits)) != digits:
        return None
    return kind


class InstructionReader:
    """Reads one instruction. What is not asked for is not known: :meth:`finish` refuses a modifier that is left."""

    def __init__(self, instruction: Instruction, slots: Slots, origin: Callable[[Instruction], tuple[str, str | None]]):
        """``origin`` returns the op and the location that an error names."""
        self.instruction = instruction
        self.slots = slots
        self.origin = origin
        self._left = list(instruction.modifiers)

    # --- modifiers --------------------------------------------------------------------------------------------

    def flag(self, name: str) -> bool:
        """Returns whether the modifier is there, and takes it."""
        if name in self._left:
            self._left.remove(name)
            return True
        return False

    def choice(self, *names: str) -> str | None:
        """Takes the first modifier that is one of ``names``; None if there is none."""
        for modifier in self._left:
            if modifier in names:
                self._left.remove(modifier)
                return modifier
        return None

    def required(self, *names: str) -> str:
        """Takes a modifier that must be one of ``names``."""
        found = self.choice(*names)
        if found is None:
            raise self.unknown(f"one of .{' .'.join(names)} is missing")
        return found

    def kind(self, *allowed: str) -> str:
        """Takes the first modifier that is a type; it must be one of ``allowed``."""
        found = self.choice(*BYTES)
        if found not in allowed:
            raise self.unknown(f"type {found and '.' + found}")
        return found

    def drop(self, *names: str) -> None:
        """Takes modifiers that change nothing here."""
        self._left = [modifier for modifier in self._left if modifier not in names]

    def drop_hints(self) -> None:
        """Takes what says how caches may treat an access."""
        self._left = [modifier for modifier in self._left if not modifier.startswith(("L1::", "L2::"))]

    def finish(self) -> None:
        """Refuses a modifier that nothing has asked for."""
        if self._left:
            raise self.unknown(f"modifier .{self._left[0]}")

    def unknown(self, reason: str) -> UnknownPtx:
        """Returns the error that this instruction is not known."""
        whole = ".".join((self.instruction.opcode, *self.instruction.modifiers))
        return UnknownPtx(f"{reason} of {shown(whole)} is not known", self.instruction.place.line)

    def fault(self, message: str, *, details: Sequence[str] = (), hint: str | None = None) -> KernelFault:
        """Returns the error that this instruction did what it must not."""
        op, location = self.origin(self.instruction)
        return KernelFault(message, op=op, location=location, details=details, hint=hint)

    # --- operands ---------------------------------------------------------------------------------------------

    def operand(self, index: int) -> Operand:
        """Returns an operand."""
        operands = self.instruction.operands
        if index >= len(operands):
            raise self.unknown(f"the number of operands ({len(operands)})")
        return operands[index]

    def count(self, *allowed: int) -> int:
        """Returns the number of operands, which must be one of ``allowed``."""
        found = len(self.instruction.operands)
        if found not in allowed:
            raise self.unknown(f"the number of operands ({found})")
        return found

    def source(self, index: int, kind: str, *, wider: bool = False) -> int:
        """Returns the slot that operand ``index`` is read from, of type ``kind``."""
        operand = self.operand(index)
        if not isinstance(operand, Name | Number):
            raise self.unknown(f"operand {index + 1}")
        return self.value(operand, kind, wider=wider)

    def value(self, operand: Name | Number, kind: str, *, wider: bool = False) -> int:
        """Returns the slot of a value of type ``kind``; with ``wider``, a register may be wider than that."""
        if isinstance(operand, Number):
            if operand.real and kind != "f64":
                raise self.unknown("a constant with a point")
            return self.slots.constant(operand.value, stored(kind))
        if operand.negated or operand.text == SINK:
            raise self.unknown(f"operand {shown(operand.text)}")
        slot = self.slots.register(operand.text, self.instruction.scope)
        if slot is None and operand.text in SPECIAL_REGISTERS:
            slot = self.slots.special_register(operand.text)
        if slot is None:
            if operand.text not in self.slots.symbols:
                raise UnknownPtx(f"{shown(operand.text)} is not known", self.instruction.place.line)
            return self.slots.constant(self.slots.symbols[operand.text] + operand.offset, stored(kind))
        self._check(operand, self.slots.template[slot].dtype, stored(kind), wider)
        return slot

    def predicate(self, index: int) -> tuple[int, bool]:
        """Returns the slot of a predicate, and whether it is negated."""
        operand = self.operand(index)
        if isinstance(operand, Name) and operand.negated:
            return self.value(Name(operand.text), "pred"), True
        return self.source(index, "pred"), False

    def target(self, operand: Operand, kind: str, *, wider: bool = False) -> int:
        """Returns the slot that a result of type ``kind`` goes to; with ``wider``, it may be wider than that."""
        if not isinstance(operand, Name) or operand.negated:
            raise self.unknown("the result")
        if operand.text == SINK:
            return self.slots.sink(stored(kind))
        slot = self.slots.register(operand.text, self.instruction.scope)
        if slot is None:
            raise UnknownPtx(f"register {shown(operand.text)} is not known", self.instruction.place.line)
        self._check(operand, self.slots.template[slot].dtype, stored(kind), wider)
        return slot

    def parts(self, operand: Operand) -> Sequence[Name | Number]:
        """Returns the parts of ``{a, b}``, or the operand alone."""
        if isinstance(operand, Vector):
            return operand.parts
        if isinstance(operand, Name | Number):
            return (operand,)
        raise self.unknown("an operand")

    def pair(self, operand: Operand) -> tuple[Operand, Operand | None]:
        """Returns the two sides of ``a|b``, or the operand and None."""
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)

    def immediate(self, index: int) -> int:
        """Returns an operand that must be a number."""
        operand = self.operand(index)
        if not isinstance(operand, Number):
            raise self.unknown(f"operand {index + 1}, which is no number,")
        return operand.value

    def _check(self, operand: Name, register: DType, wanted: DType, wider: bool) -> None:
        fits = register == wanted or (
            wider and "b" not in (register.kind, wanted.kind) and register.itemsize > wanted.itemsize
        )
        if not fits or operand.offset:
            raise self.unknown(f"register {shown(operand.text)} of {8 * register.itemsize} bits as an operand")

    # --- steps ------------------------------------------------------------------------------------------------

    def compute(self, function: Function, kinds: Sequence[str], result: str) -> Step:
        """Returns the step ``first operand = function(the others)``.

        Args:
            function: from arrays of the types in which ``kinds`` are computed to one of ``result``; it changes none.
            kinds: the type of each source, in order.
            result: the type of the result.
        """
        self.count(len(kinds) + 1)
        sources = [self.source(number + 1, kind) for number, kind in enumerate(kinds)]
        return self.step(function, sources, kinds, self.target(self.operand(0), result))

    def step(self, function: Function, sources: Sequence[int], kinds: Sequence[str], target: int) -> Step:
        """Returns the step ``target = function(sources)`` on slots; ``kinds`` say how sources are read."""
        self.finish()
        dtype = self.slots.template[target].dtype
        views = [computed(kind) for kind in kinds]
        if len(sources) == 1:
            return step_of_unary(function, sources[0], views[0], target, dtype)
        if len(sources) == 2:
            return step_of_binary(function, (sources[0], sources[1]), (views[0], views[1]), target, dtype)
        if len(sources) == 3:
            return step_of_ternary(
                function, (sources[0], sources[1], sources[2]), (views[0], views[1], views[2]), target, dtype
            )
        pairs = list(zip(sources, views, strict=True))
        return step_of_any(
            lambda registers: function(*[registers[slot].view(view) for slot, view in pairs]), target, dtype
        )
