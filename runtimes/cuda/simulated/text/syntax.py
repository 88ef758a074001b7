"""A PTX module as it is written: kernels, variables, instructions and their operands. Nothing is looked up here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SINK = "_"


@dataclass(frozen=True)
class Name:
    """A register, a special register, a symbol or a label; ``offset`` bytes behind a symbol; ``negated`` for ``!p``."""

    text: str
    offset: int = 0
    negated: bool = False


@dataclass(frozen=True)
class Number:
    """A constant; of one written as a float (``0f``, ``0d``, ``1.0``) these are the bits, of f64 where ``real``."""

    value: int
    real: bool = False


@dataclass(frozen=True)
class Address:
    """``[base+offset]``; offset in bytes."""

    base: Name | Number
    offset: int


@dataclass(frozen=True)
class TensorAddress:
    """``[map, {x, y}]``: a place in the tensor that a tensor map describes."""

    base: Name | Number
    offset: int
    coordinates: tuple[Name | Number, ...]


@dataclass(frozen=True)
class Vector:
    """``{a, b}``."""

    parts: tuple[Name | Number, ...]


@dataclass(frozen=True)
class Pair:
    """``a|b``: two results."""

    first: Name
    second: Name


Operand = Name | Number | Address | TensorAddress | Vector | Pair


@dataclass(frozen=True)
class Place:
    """Where an instruction stands: its line of PTX, and the file number and line of the source (0, 0: not known)."""

    line: int
    file: int = 0
    source_line: int = 0


@dataclass
class Scope:
    """A pair of braces: its registers and labels are seen in it and in the scopes inside.

    Attributes:
        number: tells apart what two scopes call by one name.
        parent: the scope around, None for the body of the kernel.
        registers: type of each register that is declared alone.
        families: ``%r<9>`` as prefix -> (type, count).
        labels: instruction number of each label.
        tables: the labels that ``.branchtargets`` lists under a name.
        names: what variables that are declared here are called in the kernel.
    """

    number: int
    parent: Scope | None
    registers: dict[str, str] = field(default_factory=dict[str, str])
    families: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    names: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Instruction:
    """One instruction; ``guard`` is the predicate in front of it."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Name | None
    place: Place
    scope: Scope


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel. ``count`` is None for a scalar; sizes in bytes."""

    name: str
    type: str
    count: int | None
    alignment: int
    size: int


@dataclass(frozen=True)
class Variable:
    """A variable: ``space`` is global, const, shared or local; ``size`` in bytes, 0 for what a launch decides.

    ``data`` has the initial bytes, None where the text gives none.
    """

    name: str
    space: str
    alignment: int
    size: int
    data: bytes | None
    line: int


@dataclass(frozen=True)
class KernelText:
    """One ``.entry``.

    Attributes:
        required_block: ``.reqntid``, threads in x, y, z.
        most_threads: ``.maxntid``, the product.
        variables: its shared and local variables.
    """

    name: str
    parameters: Sequence[Parameter]
    instructions: Sequence[Instruction]
    variables: Sequence[Variable]
    required_block: tuple[int, int, int] | None
    most_threads: int | None
    line: int


@dataclass(frozen=True)
class ModuleText:
    """A module; ``files`` has the name for each number that ``.loc`` uses, ``lines`` the text.

    ``target`` is the first word behind ``.target``, empty where there is none.
    """

    kernels: Mapping[str, KernelText]
    variables: Sequence[Variable]
    files: Mapping[int, str]
    lines: Sequence[str]
    target: str = ""
