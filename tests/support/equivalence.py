"""Proves that passes keep the meaning of a module: interpreted before and after, the results are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.registry import parse_pipeline
from lowerkit.program.weights import WeightStore

Array = np.ndarray[Any, Any]


def assert_same_results(
    text: str,
    pipeline: str,
    inputs: Sequence[Array],
    weights: Mapping[str, Array] | None = None,
    tolerance: float = 0.0,
) -> tuple[ir.Module, PassContext]:
    """Runs ``pipeline`` over ``text`` and compares the interpreted results; returns the module and the context.

    ``tolerance`` is relative to the largest magnitude of the expected result; 0 asks for equal bits.
    """
    store = WeightStore()
    for name, array in (weights or {}).items():
        store.add(name, array)
    module = parse_module(text, new_context())
    expected = interpret(module, list(inputs), store.get)
    context = PassContext(weights=store)
    for one_pass in parse_pipeline(pipeline):
        one_pass.run(module, context)
        assert module.operation.verify()
    found = interpret(module, list(inputs), store.get)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert other.size == 0 or np.unique(other).size > 1, "a constant result proves nothing"
        if tolerance == 0.0:
            np.testing.assert_array_equal(one, other)
        else:
            limit = tolerance * float(np.abs(other.astype(np.float64)).max())
            np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=0, atol=limit)
    return module, context


def random_array(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    """Returns normally distributed numbers of the given shape."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
