"""What raising keeps of a model and what it refuses; ``tests/operators/test_functions.py`` compares each function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.errors import UnsupportedError
from lowerkit.passes.base import PassContext
from lowerkit.pipeline import stage_passes
from lowerkit.program.dtypes import to_numpy
from lowerkit.program.program import Program
from tests.support.torch_cases import POSITIVE, X


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: torch.Tensor) -> Any:
        return self.function(*arguments)


def _raise(program: Program) -> None:
    context = PassContext(weights=program.weights)
    for one_pass in stage_passes("raised"):
        one_pass.run(program.module, context)
        assert program.module.operation.verify(), one_pass.name


def test_16_bit_activation_is_rounded_once() -> None:
    arguments = (torch.linspace(-2, 6, 997).bfloat16(),)
    for function in (torch.nn.functional.silu, torch.nn.functional.gelu, torch.nn.functional.hardswish):
        program = capture_module(_Function(function).eval(), arguments)
        _raise(program)
        result = interpret(program.module, [to_numpy(arguments[0])], program.weights.get)[0]
        exact = to_numpy(function(arguments[0].double()).bfloat16())
        # f32 inside is wrong by a hair at a tie now and then; rounding after each step is wrong in one place of seven.
        assert np.mean(result.view(np.uint16) != exact.view(np.uint16)) < 0.01, function


class _Unsupported(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = torch.special.bessel_j0(x)
        b = a.sum()
        return b + torch.special.gammainc(y, x)[:, 0]


def test_all_unsupported_ops_are_named_with_the_users_line() -> None:
    program = capture_module(_Unsupported().eval(), (X, POSITIVE))
    with pytest.raises(UnsupportedError) as caught:
        _raise(program)
    first = _Unsupported.forward.__code__.co_firstlineno
    assert [detail.split(" (")[0] for detail in caught.value.details] == ["aten.igamma", "aten.special_bessel_j0"]
    for detail, line in zip(caught.value.details, (3, 1), strict=True):
        assert f"{__file__}:{first + line}" in detail
