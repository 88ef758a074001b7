"""Runs a captured program in numpy: it is raised, and the raised IR interpreted. No kernel is compiled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.pipeline import run_stages
from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]


def run_program(program: Program, inputs: list[Array]) -> list[Array]:
    """Returns the outputs of the program, by numpy."""
    run_stages(program, "raised", PassContext(weights=program.weights))
    return interpret(program.module, inputs, program.weights.get)


def assert_same_as_eager(program: Program, inputs: list[Array], tolerance: float = 2e-5) -> None:
    """Compares with ``program.eager``; ``tolerance`` is relative to the largest output."""
    assert program.eager is not None
    expected = program.eager(*inputs)
    found = run_program(program, inputs)
    assert len(expected) == len(found) == len(program.signature.outputs)
    for spec, want, have in zip(program.signature.outputs, expected, found, strict=True):
        assert want.shape == have.shape, spec.name
        scale = float(np.abs(want.astype(np.float64)).max(initial=1e-30))
        assert np.abs(want.astype(np.float64) - have.astype(np.float64)).max(initial=0) <= tolerance * scale, spec.name


def operations(program: Program) -> list[ir.Operation]:
    return [operation.operation for operation in program.main.regions[0].blocks[0].operations]


def op_counts(program: Program) -> Counter[str]:
    return Counter(operation.name for operation in operations(program))
