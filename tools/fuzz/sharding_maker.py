"""What the steps of a random program have to choose from: values, weights and chance."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from lowerkit.dialect import WeightOp
from lowerkit.dialect.context import new_context
from lowerkit.mlir import ir, tensor
from lowerkit.passes.elementwise import IndexMap, build_elementwise
from lowerkit.passes.rewriting import element_of, shape_of

Array: TypeAlias = np.ndarray[Any, Any]

FEATURES = (4, 6, 8, 12, 16)
MOST_ELEMENTS = 6000


@dataclass
class Maker:
    """A program that grows.

    Attributes:
        rng: decides everything.
        weights, states: by name; empty until their values are drawn.
        values: tensors of floats, in program order.
        ids: the input of integers, 0 to 5.
        path: of the module at hand.
        inside: paths of modules with weights, and of those without.
    """

    rng: random.Random
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    states: dict[str, Array] = field(default_factory=dict[str, Array])
    values: list[ir.Value] = field(default_factory=list[ir.Value])
    ids: ir.Value | None = None
    path: str = ""
    inside: tuple[list[str], list[str]] = field(default_factory=lambda: (list[str](), list[str]()))

    def value(self, accept: Callable[[list[int]], bool] = lambda _: True) -> ir.Value | None:
        """Returns a value whose shape is accepted, mostly a late one; None where there is none."""
        fitting = [value for value in self.values if accept(shape_of(value))]
        return self.rng.choices(fitting, [2**place for place in range(len(fitting))])[0] if fitting else None

    def weight(self, *shape: int, dtype: Any = np.float32) -> ir.Value:
        """Returns a weight of the module at hand: a new one, or now and then one that is there."""
        there = [name for name, array in self.weights.items() if (array.shape, array.dtype) == (shape, dtype)]
        if there and self.rng.random() < 0.15:
            name = self.rng.choice(there)
        else:
            name = f"{self.path}.weight{len(self.weights)}"
            self.weights[name] = np.empty(shape, dtype)
        element = ir.F32Type.get() if dtype == np.float32 else ir.IntegerType.get_signless(8)
        return WeightOp.build(name, ir.RankedTensorType.get(list(shape), element))

    def map(
        self,
        inputs: list[ir.Value],
        maps: list[IndexMap],
        shape: list[int],
        body: Any,
        element: ir.Type | None = None,
    ) -> ir.Value:
        """Returns what an elementwise op gives."""
        empty = tensor.EmptyOp(shape, element or element_of(inputs[0])).result
        return build_elementwise(inputs, maps, [empty], body, ir.Location.current).results[0]


Step: TypeAlias = Callable[[Maker], ir.Value | None]
"""Adds an op, or several; returns the value that they give, None where there is nothing that they could take."""


@cache
def shared_context() -> ir.Context:
    """Returns the context of all programs: to make one takes longer than to judge a program."""
    return new_context()
