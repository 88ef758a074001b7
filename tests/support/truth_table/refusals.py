"""What eager refuses by PyTorch's own account: arguments that are errors, each given to eager and to ours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.capture.torch_export.eager import quiet
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.conformance.torch_cases import known_operators
from lowerkit.errors import LowerkitError
from lowerkit.program.dtypes import to_numpy


class Refusal(msgspec.Struct, frozen=True):
    """One call: what eager says, and our error's code, op and line; empty where nothing is refused."""

    name: str
    eager: str
    code: str = ""
    op: str = ""
    location: str = ""


class _Call(nn.Module):
    def __init__(self, operator: Any, leaves: list[Any], structure: Any) -> None:
        super().__init__()
        self.operator, self.leaves, self.structure = operator, leaves, structure

    def forward(self, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        arguments, named = pytree.tree_unflatten(leaves, self.structure)
        return self.operator(*arguments, **named)


def operators_with_errors() -> list[str]:
    """Returns the operators of which PyTorch knows arguments that are errors."""
    return sorted(name for name, operator in known_operators().items() if operator.error_inputs_func is not None)


def refusals(name: str) -> Iterator[Refusal]:
    """Yields what becomes of each call of an operator that PyTorch calls an error, and that tensors are given to."""
    operator = known_operators()[name]
    for number, error in enumerate(operator.error_inputs("cpu")):
        sample = error.sample_input
        leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
        module = _Call(operator.op, leaves, structure).eval()
        if tensors:
            with quiet(), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield _refusal(f"{name}#{number}", module, tensors)


def _refusal(name: str, module: _Call, tensors: tuple[Tensor, ...]) -> Refusal:
    try:
        module(*(tensor.clone() for tensor in tensors))
    except Exception as error:  # torch raises what it likes
        eager = " ".join(str(error).split())[:120] or type(error).__name__
    else:
        return Refusal(name, "")
    try:
        compiled = compile_program(capture_module(module, tensors), CompileOptions(golden=False, workers=1))
        compiled.session.run(*map(to_numpy, tensors))
    except LowerkitError as error:
        return Refusal(name, eager, error.code, error.op or "", error.location or "")
    return Refusal(name, eager)
