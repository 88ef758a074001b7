"""Regions of convolutions and pools, run through the fast CUDA families and held against the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import Build, region
from tests.support.region_kernels import random
from tests.support.targets.cuda_kernels import compile_cuda, run_cuda

Array = np.ndarray[Any, Any]
Operand = tuple[Sequence[int | None], str]

ROUNDING = {"f64": 2.0**-51, "f32": 2.0**-22, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Two roundings of the type, to the size of a result."""
SUMS, WIDE_SUMS = 1e-6, 1e-14
"""Of sums in f32 and in f64 of some thousand products, to the size of the largest result."""


def with_weights(operands: Sequence[Operand], build: Build, weights: Sequence[int]) -> RegionView:
    """Returns a region of one op some of whose operands are weights."""
    view = region(operands, build)
    names = [f"w{number}" if number in weights else "" for number in range(len(operands))]
    return RegionView.from_text(view.text, "test", names)


def planned(view: RegionView, level: str = "sm_90") -> PlannedRegion:
    """Returns what the first family that does not refuse plans."""
    return select_kernels(view, level)[0]


def hold(
    view: RegionView, family: str, shapes: Sequence[Sequence[int]], level: str = "sm_90", inputs: Sequence[Array] = ()
) -> PlannedRegion:
    """Runs a region on operands of ``shapes`` (or ``inputs``), by ``family``; returns its plan.

    Floats may lie two roundings apart, and as far as sums in f32 do; all else must be equal.
    """
    types = view.operands
    arrays = list(inputs) or [
        random(shape, str(each.type.element_type), seed=number)
        for number, (shape, each) in enumerate(zip(shapes, types, strict=True))
    ]
    compiled = compile_cuda(view, level, fast=True)
    assert compiled.planned.family == family, compiled.planned.note
    expected = interpret(view.clone_module(), arrays, function="region")
    for actual, wanted, type_ in zip(run_cuda(compiled, arrays), expected, view.results, strict=True):
        assert actual.shape == wanted.shape
        limit = ROUNDING.get(str(type_.element_type))
        if limit is None:
            np.testing.assert_array_equal(actual, wanted)
        else:
            found, exact = actual.astype(np.float64), wanted.astype(np.float64)
            size = float(np.abs(exact[np.isfinite(exact)]).max(initial=1.0))
            sums = WIDE_SUMS if str(type_.element_type) == "f64" else SUMS
            np.testing.assert_allclose(found, exact, rtol=limit, atol=sums * size)
    return compiled.planned
