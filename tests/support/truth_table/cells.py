"""The cells of the table: a row, its settings, the element types of its tensors, and a form."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.eager import quiet
from lowerkit.parity.judge.units import Finding, judge
from tests.support.truth_table.exact import exactly
from tests.support.truth_table.registry import HIGHEST_DEGREE, NUMBERS, Row, rows
from tests.support.truth_table.values import DTYPES, FLOATS, operand

_NUMBERED = frozenset(
    {
        *("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "remainder.Tensor", "fmod.Tensor"),
        *("floor_divide.default", "pow.Tensor_Scalar", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor"),
        *("gt.Tensor", "ge.Tensor", "bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor"),
    }
)
"""Overloads of two tensors that Python's operators call with a number in the place of the second."""


@dataclass(frozen=True)
class Cell:
    """One call of an op.

    Attributes:
        dtypes: of each tensor argument; ``number`` for the last is a Python number.
    """

    row: Row
    setting: int
    dtypes: tuple[str, ...]
    form: str

    @property
    def name(self) -> str:
        """Tells the cell apart from all others."""
        given = ",".join(f"{key}={value}" for key, value in self.row.settings[self.setting].items())
        return f"{self.row.name}({given})[{','.join(self.dtypes)}]/{self.form}"

    @property
    def symbolic(self) -> bool:
        """Whether every extent is left open."""
        return self.form == "symbolic"

    @property
    def seed(self) -> int:
        """Chooses values of rank 0."""
        return zlib.crc32(self.name.encode()) % 1000

    def tensors(self) -> list[Tensor]:
        """Returns the tensor arguments, the same in every process."""
        given = [dtype for dtype in self.dtypes if not dtype.startswith("#")]
        if self.form == "same":
            return _defined(self, [operand(given[0], "grid", 0, 1, self.seed)])
        made = [operand(dtype, self.form, place, len(given), self.seed) for place, dtype in enumerate(given)]
        return _defined(self, made)

    def call(self, tensors: list[Tensor]) -> Any:
        """Calls the op with ``tensors`` in the place of :meth:`tensors`."""
        named = dict(self.row.settings[self.setting])
        values: list[Any] = list(tensors) * len(self.dtypes) if self.form == "same" else list(tensors)
        for dtype in self.dtypes:
            if dtype.startswith("#"):
                values.append(NUMBERS[int(dtype[1:])])
        given = {**named, **dict(zip(self.row.tensors, values, strict=True))}
        return call_overload(self.row.overload, given)

    def judge(self, tensors: list[Tensor], ours: list[Tensor], eager: list[Tensor]) -> list[Finding]:
        """Compares each output with eager's, and with the op in float64."""
        alike = self.row.name.partition(".")[0] in _ZEROS_ALIKE
        found: list[Finding] = []
        for place, (one, other) in enumerate(zip(ours, eager, strict=True)):
            with quiet(), torch.no_grad():
                exact = exact_outputs(self, tensors, other.dtype)
            leaves = [leaf for leaf in pytree.tree_leaves(exact) if isinstance(leaf, Tensor)]
            found.append(judge(one, other, leaves[place] if leaves else None, zeros_alike=alike))
        return found


def call_overload(overload: Any, given: dict[str, Any]) -> Any:
    """Calls an overload by the names of its arguments."""
    positional, named = [], {}
    for argument in overload._schema.arguments:
        if argument.kwarg_only:
            if argument.name in given:
                named[argument.name] = given[argument.name]
        elif argument.name in given and len(positional) == _position(overload, argument.name):
            positional.append(given[argument.name])
        elif argument.name in given:
            named[argument.name] = given[argument.name]
    return overload(*positional, **named)


def _position(overload: Any, name: str) -> int:
    return [argument.name for argument in overload._schema.arguments if not argument.kwarg_only].index(name)


_ZEROS_ALIKE = frozenset(
    {
        *("maximum", "minimum", "max", "min", "fmax", "fmin", "clamp", "clip", "clamp_min", "clamp_max"),
        *("relu", "hardtanh", "relu6", "softshrink"),
    }
)
"""Which zero the larger of 0 and -0 is, no standard says; eager's vectors and the rest behind them differ."""

_INTEGER_DIVISIONS = ("div", "floor_divide", "remainder", "fmod", "true_divide", "divide")


def _defined(cell: Cell, tensors: list[Tensor]) -> list[Tensor]:
    """Replaces values for which C++ leaves the result of eager undefined: division of integers by 0, and its overflow;
    a float beyond the integer that it is converted to. Degrees of polynomials end where eager still ends."""
    base = cell.row.name.partition(".")[0].strip("_")
    if "_polynomial_" in base and "n" in cell.row.tensors:
        degrees = tensors[-1]
        if degrees.dtype is not torch.bool and not degrees.is_floating_point():
            limit = min(HIGHEST_DEGREE, torch.iinfo(degrees.dtype).max)
            degrees.copy_(torch.where(degrees > limit, limit, degrees))
        elif degrees.is_floating_point():
            above = torch.isfinite(degrees) & (degrees > HIGHEST_DEGREE)
            degrees.copy_(torch.where(above, HIGHEST_DEGREE, degrees))
        return tensors
    if base == "cast_Long":
        return [value if not value.is_floating_point() else _within(value, 2.0**62) for value in tensors]
    if base not in _INTEGER_DIVISIONS or any(value.is_floating_point() for value in tensors):
        return tensors
    first = tensors[0]
    if not first.dtype.is_floating_point and first.dtype is not torch.bool:
        first = torch.where(first == torch.iinfo(first.dtype).min, first + 1, first)
    rest = [torch.where(value == 0, torch.ones_like(value), value) for value in tensors[1:]]
    if cell.form == "same":  # the first is also the divisor
        first = torch.where(first == 0, torch.ones_like(first), first)
    return [first if cell.form != "strided" else tensors[0].copy_(first), *rest]


def _within(values: Tensor, limit: float) -> Tensor:
    return torch.nan_to_num(values.to(torch.float64), nan=3.0).clamp(-limit, limit).to(values.dtype)


def _combinations(row: Row) -> Iterator[tuple[str, ...]]:
    count = len(row.tensors)
    names = list(DTYPES)
    if count == 1:
        yield from ((name,) for name in names)
    elif row.name.startswith("where"):
        for rest in ((one,) for one in names) if count == 2 else ((one, two) for one in names for two in names):
            yield ("bool", *rest)
    elif row.name.startswith("masked_fill"):
        yield from ((one, "bool", *two) for one in names for two in ([[n] for n in names] if count == 3 else [[]]))
    else:
        for one in names:
            for two in names:
                if count == 2:
                    yield (one, two)
                else:
                    yield (one, *(two,) * (count - 1))
                    if one != two:
                        yield (*(one,) * (count - 1), two)


def _forms(dtypes: tuple[str, ...]) -> tuple[str, ...]:
    if len(dtypes) == 1:
        wide = dtypes[0] in ("f32", "bf16", "i64", "u8", "bool")
        return ("grid", "all0", "strided", "empty", "symbolic") if wide else ("grid",)
    alike = len(set(dtypes)) == 1
    mixed = ("grid", "left0", "right0")
    return (*mixed, "all0", "strided", "empty", "same", "symbolic") if alike else (*mixed, "all0")


_CORE_PAIRS = frozenset(
    {
        *(
            ("f32", "f64"),
            ("f32", "f16"),
            ("f16", "bf16"),
            ("bf16", "f32"),
            ("f32", "i64"),
            ("i64", "f32"),
            ("f64", "i32"),
        ),
        *(("f32", "bool"), ("bool", "f16"), ("i32", "i64"), ("i64", "i32"), ("i8", "u8"), ("u8", "i8"), ("i32", "u8")),
        *(
            ("bool", "i8"),
            ("i8", "bool"),
            ("u8", "bool"),
            ("bool", "u8"),
            ("i64", "bool"),
            ("bool", "i64"),
            ("i8", "i16"),
        ),
        *(("u8", "f32"), ("bf16", "i8"), ("u8", "i64")),
    }
)
"""Pairs of unlike element types that stand for the others: one of each kind of promotion, both ways."""


_OF_POLYNOMIALS = ("f64", "f32", "i64", "bool")
"""Polynomials and zeta know no other kind: eager has none of 16-bit floats, and makes f32 of all integers."""


def is_core(cell: Cell) -> bool:
    """Whether a cell belongs to the short table: like element types, or a pair of the kinds of promotion."""
    if cell.form in ("strided", "empty", "symbolic"):
        return cell.dtypes[0] in ("f32", "i8")
    if re.match("special_.*(polynomial|zeta).*_scalar", cell.row.name):
        return cell.dtypes[0] in _OF_POLYNOMIALS and cell.form == "grid"
    if any(dtype.startswith("#") for dtype in cell.dtypes):
        return True
    kinds = [dtype for dtype in cell.dtypes if not (dtype == "bool" and cell.row.name.startswith(("where", "masked")))]
    unlike = {pair for pair in pairwise(kinds) if pair[0] != pair[1]}
    return not unlike or (unlike <= _CORE_PAIRS and cell.form != "all0")


@cache
def cells() -> dict[str, Cell]:
    """Returns all cells by name."""
    found: dict[str, Cell] = {}
    for row in rows().values():
        for setting in range(len(row.settings)):
            for dtypes in _combinations(row):
                for form in _forms(dtypes):
                    cell = Cell(row, setting, dtypes, form)
                    found[cell.name] = cell
        if row.name in _NUMBERED and len(row.tensors) == 2:
            for dtype in DTYPES:
                for place in range(len(NUMBERS)):
                    cell = Cell(row, 0, (dtype, f"#{place}"), "grid")
                    found[cell.name] = cell
    return found


def exact_outputs(cell: Cell, tensors: list[Tensor], result: torch.dtype) -> Any:
    """Calls the op in float64, its integers first rounded as eager rounds them; None where that makes no sense."""
    if not result.is_floating_point:
        return None
    is_mask = cell.row.name.startswith(("where", "masked_fill"))
    wide = [
        value
        if value.dtype is torch.bool and is_mask
        else (value.to(result) if cell.dtypes[place] not in FLOATS else value).to(torch.float64)
        for place, value in enumerate(tensors)
    ]
    numbers = [NUMBERS[int(dtype[1:])] for dtype in cell.dtypes if dtype.startswith("#")]
    numbers += [number for number in cell.row.settings[cell.setting].values() if isinstance(number, (int, float))]
    try:
        given = [
            *(tensors * len(cell.dtypes) if cell.form == "same" else tensors),
            *(torch.tensor(number, dtype=torch.float64) for number in numbers),
        ]
        precise = exactly(cell.row.name, [value.to(result).to(torch.float64) for value in given])
        return cell.call(wide) if precise is None else precise
    except Exception:  # torch raises what it likes
        return None
