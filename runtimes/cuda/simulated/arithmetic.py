"""What a device leaves open, or does in its own way: its tensor cores, and the instructions that only approximate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lowerkit.runtimes.cuda.simulated.tensor_core.rules import Generation, generation_of

TensorCores = Literal["card", "float64"]


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a launch.

    Attributes:
        generation: whose tensor cores are simulated; None where that is not known: products of matrices are refused.
        tensor_cores: ``card`` for sums that are cut as the generation does it; ``float64`` for the sum rounded once,
            which no card computes, but which is closer to the exact one.
        approximate: None: approximations (``ex2.approx``, ``div.full`` and their like) give the nearest value. A
            number: they give one of the values that their documented error allows, chosen by it and the operands.
    """

    generation: Generation | None = None
    tensor_cores: TensorCores = "card"
    approximate: int | None = None

    def of_target(self, target: str) -> Arithmetic:
        """Returns the arithmetic for a module of ``.target target``, which decides what nothing else has decided."""
        if self.generation is not None:
            return self
        return Arithmetic(generation_of(target), self.tensor_cores, self.approximate)
