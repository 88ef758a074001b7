"""Grows a random function statement by statement, each run eagerly at once so that shapes and dtypes are known."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from graph.control import cond, scan, while_loop
from graph.function import FLOATS, INTEGERS, Function, Given
from graph.registry import registered

EXTENTS = (1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 31, 33, 64, 65, 130)
_MOST_ELEMENTS = 6000

Statement = Callable[["Builder"], None]


class Builder:
    """The state of one function under construction; statements call :meth:`emit`."""

    def __init__(self, rng: random.Random, *, scriptable: bool = False) -> None:
        self.rng = rng
        self.scriptable = scriptable
        self.function = Function()
        self.values: dict[str, torch.Tensor] = {}
        self._scope: dict[str, Any] = {
            "torch": torch, "F": F, "cond": cond, "while_loop": while_loop, "scan": scan, "registered": registered,
        }  # fmt: skip
        self.main = rng.choice(("float32",) * 5 + ("float64", "float16", "bfloat16", "int64", "int32"))

    # what statements choose from

    def shape(self, rank: int | None = None, most: int = _MOST_ELEMENTS) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            found = tuple(self.rng.choice(EXTENTS) for _ in range(rank))
            if torch.Size(found).numel() <= most:
                return (*found[:-1], 0) if rank and self.rng.random() < 0.01 else found

    def dtype(self) -> str:
        roll = self.rng.random()
        if roll < 0.7:
            return self.main
        if roll < 0.85:
            return self.rng.choice(FLOATS)
        return self.rng.choice((*INTEGERS, "bool"))

    def tensor(self, shape: tuple[int, ...], dtype: str, *, holds: str = "", bound: int = 1, role: str = "") -> str:
        """A value of that shape and dtype: one that stands, or a new given one."""
        kind = getattr(torch, dtype)
        if not holds and not role:
            fitting = [n for n, v in self.values.items() if tuple(v.shape) == shape and v.dtype == kind]
            if fitting and self.rng.random() < 0.6:
                return self.rng.choice(fitting)
        floating = kind.is_floating_point
        if not holds:
            roll = self.rng.random()
            holds = "bool" if dtype == "bool" else "small" if not floating else "special" if roll < 0.04 else "normal"
        role = role or ("weight" if self.rng.random() < 0.2 else "input")
        prefix = {"input": "x", "state": "s", "weight": "w"}[role]
        name = f"{prefix}{len(self.function.given)}"
        strided = role == "input" and self.rng.random() < 0.08
        given = Given(name, role, shape, dtype, holds, self.rng.randrange(1 << 30), bound, strided)
        self.function.given.append(given)
        self.values[name] = given.tensor()
        return name

    def any(self, accept: Callable[[torch.Tensor], bool] = lambda _: True, *, fresh: float = 0.1) -> str:
        """A value that ``accept`` takes; a new one with chance ``fresh`` or where none fits."""
        fitting = [name for name, value in self.values.items() if accept(value)]
        if fitting and self.rng.random() > fresh:
            return self.rng.choice(fitting[-3:] if self.rng.random() < 0.6 else fitting)
        for _ in range(60):
            name = self.tensor(self.shape(), self.dtype())
            if accept(self.values[name]):
                return name
        raise LookupError("no value fits")

    def floating(self, rank: int = -1, least_rank: int = 0) -> str:
        def accept(value: torch.Tensor) -> bool:
            right = value.dim() == rank if rank >= 0 else value.dim() >= least_rank
            return value.is_floating_point() and right

        fitting = [name for name, value in self.values.items() if accept(value)]
        if fitting and self.rng.random() > 0.1:
            return self.rng.choice(fitting[-3:] if self.rng.random() < 0.6 else fitting)
        kind = self.main if self.main in FLOATS else "float32"
        return self.tensor(self.shape(rank if rank >= 0 else max(least_rank, self.rng.choice((1, 2, 3, 4)))), kind)

    def of(self, name: str) -> torch.Tensor:
        return self.values[name]

    def dtype_of(self, name: str) -> str:
        return str(self.values[name].dtype).removeprefix("torch.")

    def axis(self, name: str) -> int:
        rank = self.values[name].dim()
        return self.rng.randrange(-rank, rank) if rank else 0

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    # what statements do

    def emit(self, expression: str, *, parts: int = 1) -> list[str]:
        """Adds ``v = expression`` and returns the new names; raises what eager raises."""
        names = [f"v{len(self.function.lines)}" + (f"_{part}" if parts > 1 else "") for part in range(parts)]
        value = self.evaluate(expression)
        values = list(value) if parts > 1 else [value]
        if len(values) != parts or not all(isinstance(v, torch.Tensor) for v in values):
            raise TypeError(f"{expression} gives no {parts} tensors")
        if any(v.numel() > 8 * _MOST_ELEMENTS or v.layout != torch.strided or v.is_complex() for v in values):
            raise ValueError(f"{expression} is too large or no plain tensor")
        self.values.update(zip(names, values, strict=True))
        self.function.lines.append(f"{', '.join(names)} = {expression}")
        return names

    def write(self, target: str, statement: str) -> None:
        """Adds a statement that writes into ``target`` or a view of it."""
        storages = {self.values[g.name].untyped_storage().data_ptr() for g in self.function.given if g.role != "state"}
        if self.values[target].untyped_storage().data_ptr() in storages:
            raise LookupError("an input may not be written")
        self._execute(statement)
        self.function.lines.append(statement)

    def _names(self) -> dict[str, Any]:
        return {**self._scope, **self.values}

    def evaluate(self, expression: str) -> Any:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return eval(expression, self._names())

    def _execute(self, statement: str) -> None:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(statement, self._names())


def random_function(
    rng: random.Random, statements: list[tuple[float, Statement]], *, scriptable: bool = False
) -> Function:
    """A function of 2 to 12 statements."""
    builder = Builder(rng, scriptable=scriptable)
    wanted = rng.choice((2, 3, 3, 4, 4, 5, 6, 7, 8, 10, 12))
    weights = [weight for weight, _ in statements]
    for _ in range(wanted * 12):
        if len(builder.function.lines) >= wanted:
            break
        ((_, statement),) = rng.choices(statements, weights)
        given, lines, values = list(builder.function.given), list(builder.function.lines), dict(builder.values)
        try:
            statement(builder)
        except Exception:
            builder.function.given, builder.function.lines, builder.values = given, lines, values
    return _finished(builder)


def _finished(builder: Builder) -> Function:
    """Returns values that nothing reads, and some others."""
    function = builder.function
    made = [name for name in builder.values if name.startswith("v")]
    read = " ".join(line.split(" = ", 1)[-1] for line in function.lines)
    last = [name for name in made if name not in re.findall(r"\w+", read)]
    others = [name for name in made if name not in last and builder.rng.random() < 0.15]
    function.returns = list(dict.fromkeys([*last, *others]))[:6] or made[-1:]
    return function.without_unused()
