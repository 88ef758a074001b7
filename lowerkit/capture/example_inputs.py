"""Example values that a user hands in, by position and by keyword, brought into the order of a model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.capture.input_spec import Expected
from lowerkit.errors import InputError, UsageError
from lowerkit.program.dtypes import to_numpy
from lowerkit.program.program import Array, Program
from lowerkit.runtimes.nesting import flatten_arguments


@dataclass(frozen=True)
class Given:
    """Example inputs as the user gave them: by position and by name."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def flat(self) -> list[Any]:
        """Returns the tensors and arrays among the positional ones; a script's defaults are its own."""
        from torch.utils import _pytree as pytree

        return [leaf for leaf in pytree.tree_leaves(self.positional) if hasattr(leaf, "__array__")]

    def key(self) -> list[object]:
        """Returns what a cached program depends on: the structure, then the arrays."""
        from torch.utils import _pytree as pytree

        leaves, structure = pytree.tree_flatten((self.positional, self.named))
        return [str(structure), *map(as_array, leaves)]


def refuse_dynamic_shapes(dynamic_shapes: Any, what: str, hint: str = "export it with dynamic_shapes") -> None:
    """Raises where dynamic shapes are asked of a model whose dims are decided already.

    Raises:
        UsageError: LK1004.
    """
    if dynamic_shapes is not None:
        raise UsageError("LK1004", f"the shapes of {what} are fixed, so dynamic_shapes has no effect", hint=hint)


def as_array(value: Any) -> Array:
    """Returns a tensor, an array or a number as an array; a tensor is copied."""
    return np.array(to_numpy(value)) if hasattr(value, "detach") else np.asarray(value)


def in_order(expected: Sequence[Expected], positional: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
    """Returns the values of flat inputs in their order; optional ones at the end may be left out.

    Raises:
        InputError: LK1003, with every input that is missing, unknown or given twice.
    """
    names = [entry.name for entry in expected]
    problems = [f"the model has no input {name!r}" for name in named if name not in names]
    if len(positional) > len(names):
        problems.append(f"{len(positional)} inputs were given by position, the model takes {len(names)}")
    values = dict(zip(names, positional, strict=False))
    problems += [f"{name!r} is given twice" for name in named if name in values]
    values.update(named)
    last = max((names.index(name) for name in values if name in names), default=-1)
    problems += [
        f"{entry.name!r} is missing"
        for place, entry in enumerate(expected)
        if entry.name not in values and (entry.required or place < last)
    ]
    if problems:
        raise InputError(
            "LK1003",
            f"{len(positional) + len(named)} inputs were given, the model takes {len(names)} ({', '.join(names)})",
            details=problems,
            hint="pass one for each, in this order or by name",
        )
    return [as_array(values[name]) for name in names if name in values]


def nested_in_order(program: Program, positional: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
    """Returns the values of the inputs of a captured program, from arguments that nest as the model's own do.

    Raises:
        InputError: LK1003, with every mismatch.
    """
    expected = [Expected(spec.name, spec.dtype, tuple(spec.shape)) for spec in program.signature.inputs]
    problems: list[str] = []
    flat = flatten_arguments(program.input_tree, [entry.name for entry in expected], positional, named, problems)
    if problems:
        raise InputError(
            "LK1003", "the example inputs do not nest as the model takes them", details=problems, hint="see its forward"
        )
    return in_order(expected, positional, named) if flat is None else in_order(expected, (), flat)
