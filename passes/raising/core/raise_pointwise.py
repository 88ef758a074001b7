"""Lowers pointwise torch ops to ``linalg.generic`` by one table of rules, in the types that PyTorch computes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.passes.raising.core.activations import ACTIVATIONS
from lowerkit.passes.raising.core.arithmetic import ARITHMETIC
from lowerkit.passes.raising.core.functions import FUNCTIONS
from lowerkit.passes.raising.core.gradients import GRADIENTS
from lowerkit.passes.raising.core.logic import LOGIC
from lowerkit.passes.raising.core.parts import PARTS
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass


@dataclass(frozen=True)
class RaisePointwise(TablePass):
    """Lowers pointwise ops of the torch dialect. Precondition: none; patterns that know them by name have run."""

    name: ClassVar[str] = "raise-pointwise"
    rules: ClassVar[Mapping[str, Rule]] = {
        f"torch.aten.{name}": pointwise.rule()
        for name, pointwise in {**ARITHMETIC, **LOGIC, **FUNCTIONS, **PARTS, **ACTIVATIONS, **GRADIENTS}.items()
    }
