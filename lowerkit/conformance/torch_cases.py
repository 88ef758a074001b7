"""The torch half of the conformance run: the forward samples of PyTorch's own operator tests (OpInfo).

Vocabulary
    operator   an entry of ``op_db``, PyTorch's table of operators with samples of their arguments.
    sample     one set of arguments. Its tensors become the inputs of a small module that calls the operator; all else
               is baked into the module.
    case       a sample that ``torch.export`` captures and whose numbers can be compared: neither random nor undefined.
               The others show as ``skipped`` and are in no total.

Samples are f32 where the operator takes f32, else int64, else bool. They are drawn from one seed for each operator, so
that the same sample comes out whichever others are run.
"""

# PyTorch's operator tests are private to it; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from lowerkit.conformance.suite import Case
from lowerkit.errors import UsageError

SAMPLES_PER_OPERATOR = 4
_SEED = 20260101
_DTYPES = (torch.float32, torch.int64, torch.bool)
_UNDEFINED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
"""Operators whose result is whatever the memory held."""


@dataclass(frozen=True)
class Sample:
    """One sample of an operator.

    Attributes:
        operator: the operator's name, with its variant.
        number: the position among all samples of the operator.
        module: calls the operator; its arguments are ``inputs``.
        inputs: tensors, at least one.
    """

    operator: str
    number: int
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]


class OperatorModule(nn.Module):
    """Calls an operator; tensors among the sample's arguments are given, everything else is fixed."""

    def __init__(self, function: Any, leaves: list[Any], structure: Any) -> None:
        super().__init__()
        self.function = function
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.structure = structure

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Returns what the operator returns, tensors only."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return self.function(*args, **kwargs)


@cache
def known_operators() -> dict[str, Any]:
    """Returns PyTorch's operators (OpInfo) by name, with their variants; those whose result is undefined are left out.

    Raises:
        UsageError: LK1007, what PyTorch's operator tests import is not installed.
    """
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise UsageError(
            "LK1007", f"PyTorch's operator tests cannot be imported: {error}", hint="pip install expecttest"
        ) from error
    found: dict[str, Any] = {}
    for operator in op_db:
        name = f"{operator.name}.{operator.variant_test_name}" if operator.variant_test_name else operator.name
        if operator.name not in _UNDEFINED:
            found.setdefault(name, operator)
    return found


def operator_names() -> list[str]:
    """Returns the names of all operators that have samples of a supported element type, sorted."""
    return sorted(name for name, operator in known_operators().items() if _dtype_of(operator) is not None)


@cache
def operator_aliases() -> frozenset[str]:
    """Returns the names by which ATen may call what the operators compute: their own, and those of their aliases.

    Raises:
        UsageError: LK1007, what PyTorch's operator tests import is not installed.
    """
    found: set[str] = set()
    for operator in known_operators().values():
        for name in (operator.name, operator.aten_name, *(alias.name for alias in operator.aliases)):
            found |= {name.replace(".", "_"), name.rpartition(".")[2]}
    return frozenset(found)


def torch_cases(limit: int = SAMPLES_PER_OPERATOR) -> list[Case]:
    """Returns the names ``operator[number]`` of at most ``limit`` samples of each operator.

    Raises:
        UsageError: LK1007, what PyTorch's operator tests import is not installed.
    """
    return [
        Case(f"{name}[{sample.number}]", name) for name in operator_names() for sample in _drawn_or_none(name, limit)
    ]


def find_sample(name: str) -> Sample:
    """Returns the sample that :func:`torch_cases` called ``name``."""
    operator, _, number = name.removesuffix("]").rpartition("[")
    return next(sample for sample in _all_samples(operator) if sample.number == int(number))


@lru_cache(maxsize=1)
def _all_samples(operator: str) -> list[Sample]:
    """The samples of the operator whose cases come one after another."""
    return list(samples(operator, limit=1 << 30))


def _drawn_or_none(name: str, limit: int) -> list[Sample]:
    """Returns no sample of an operator whose samples cannot be made here: some need further packages."""
    try:
        return list(samples(name, limit))
    except Exception:  # the makers of samples raise what they like
        return []


def samples(name: str, limit: int = SAMPLES_PER_OPERATOR) -> Iterator[Sample]:
    """Yields at most ``limit`` samples of an operator, spread evenly over all that have a tensor as an argument."""
    operator = known_operators()[name]
    torch.manual_seed(_SEED)
    drawn = [
        (number, leaves, structure)
        for number, (leaves, structure) in enumerate(_arguments(operator))
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves)
    ]
    count = min(limit, len(drawn))
    for index in range(count):
        number, leaves, structure = drawn[index * len(drawn) // count]
        module = OperatorModule(operator.op, leaves, structure).eval()
        yield Sample(name, number, module, tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)))


def _arguments(operator: Any) -> Iterator[tuple[list[Any], Any]]:
    for sample in operator.sample_inputs("cpu", _dtype_of(operator), requires_grad=False):
        leaves, structure = pytree.tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
        yield list(leaves), structure


def _dtype_of(operator: Any) -> torch.dtype | None:
    return next((dtype for dtype in _DTYPES if operator.supports_dtype(dtype, "cpu")), None)
