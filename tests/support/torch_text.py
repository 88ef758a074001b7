"""Short notation for functions of the torch dialect, and their way to builtin tensors.

``@[2,3]`` stands for ``!torch.vtensor<[2,3],f32>``, ``@[2,3:si64]`` names the element type. Every function starts with
the constants ``%m1 %0i %1i %2i %3i`` (ints), ``%true %false %none``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.passes.base import PassContext
from lowerkit.pipeline import stage_passes
from lowerkit.program.weights import WeightStore

Array = np.ndarray[Any, Any]
Check = Callable[..., PassContext]

_TYPE = re.compile(r"@\[(?P<shape>[0-9?,]*)(?::(?P<dtype>\w+))?\]")
_CONSTANTS = """
  %m1 = torch.constant.int -1
  %i0 = torch.constant.int 0
  %i1 = torch.constant.int 1
  %i2 = torch.constant.int 2
  %i3 = torch.constant.int 3
  %true = torch.constant.bool true
  %false = torch.constant.bool false
  %none = torch.constant.none
"""


def types(text: str) -> str:
    """Spells the short notation of types out."""
    return _TYPE.sub(lambda match: f"!torch.vtensor<[{match['shape']}],{match['dtype'] or 'f32'}>", text)


def function(arguments: str, result: str, body: str) -> str:
    """Returns ``func.func @main(arguments) -> result`` with the constants and ``body``, which returns."""
    return types(f"func.func @main({arguments}) -> ({result}) {{{_CONSTANTS}{body}\n}}")


def raised(text: str, inputs: Sequence[Array], *, without: Sequence[str] = ()) -> list[Array]:
    """Raises ``text`` with all passes but ``without``, and interprets it."""
    module = parse_module(text, new_context())
    context = PassContext(weights=WeightStore())
    for one_pass in stage_passes("raised"):
        if one_pass.name not in without:
            one_pass.run(module, context)
            assert module.operation.verify(), one_pass.name
    assert "torch." not in str(module)
    return interpret(module, list(inputs), context.weights.get)


def assert_same_meaning(text: str, pass_name: str, inputs: Sequence[Array], rtol: float = 2e-6) -> None:
    """Compares what ``text`` computes with and without one pass."""
    for one, other in zip(raised(text, inputs), raised(text, inputs, without=[pass_name]), strict=True):
        assert np.unique(other).size > 1, "a constant result proves nothing"
        scale = float(np.nanmax(np.abs(other.astype(np.float64))))
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=0, atol=rtol * scale)


def normal(*shape: int, seed: int = 0) -> Array:
    """Returns normally distributed f32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_values(template: str, values: Mapping[str, str]) -> str:
    """Replaces ``NAME`` in a template, so that a near miss differs from the pattern in one place."""
    for name, value in values.items():
        assert name in template, f"{name} is not in the template"
        template = template.replace(name, value)
    return template
