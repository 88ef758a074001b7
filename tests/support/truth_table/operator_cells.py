"""Cells of operators: a sample, an element type and a form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.eager import quiet
from lowerkit.parity.judge.operators import judge_operator
from lowerkit.parity.judge.units import Finding
from tests.support.truth_table.forms import SYMBOLIC, forms_of, in_form
from tests.support.truth_table.operators import Drawn, drawn, operator_rows
from tests.support.truth_table.values import DTYPES

_OF_SORTED = ("bucketize", "searchsorted")
"""Operators whose arguments special values would put out of order: nothing says what they give then."""


@dataclass(frozen=True)
class OperatorCell:
    """One call of an operator; ``number`` tells which sample."""

    operator: str
    number: int
    dtype: str
    form: str

    @property
    def name(self) -> str:
        """Tells the cell apart from all others."""
        return f"{self.operator}#{self.number}[{self.dtype}]/{self.form}"

    @property
    def symbolic(self) -> bool:
        """Whether every extent is left open."""
        return self.form.startswith(SYMBOLIC)

    @cached_property
    def sample(self) -> Drawn:
        """The arguments as they are drawn; once, and never while a tracer looks on."""
        return next(sample for sample in drawn(self.operator, self.dtype) if sample.number == self.number)

    def tensors(self) -> list[Tensor]:
        """Returns the tensor arguments, the same in every process."""
        given = [leaf for leaf in self.sample.leaves if isinstance(leaf, Tensor)]
        return [in_form(tensor, self.form, self.dtype, place) for place, tensor in enumerate(given)]

    def call(self, tensors: list[Tensor]) -> Any:
        """Calls the operator with ``tensors`` in the place of :meth:`tensors`."""
        rest = iter(tensors)
        sample = self.sample
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in sample.leaves]
        arguments, named = pytree.tree_unflatten(leaves, sample.structure)
        return operator_rows()[self.operator].op(*arguments, **named)

    def judge(self, tensors: list[Tensor], ours: list[Tensor], eager: list[Tensor]) -> list[Finding]:
        """Compares each output with eager's, and with the operator in float64 where that can be computed."""
        exact = self._exact(tensors, len(eager))
        known = exact if exact is not None else [None] * len(eager)
        ties = self.form.removeprefix(SYMBOLIC) in ("zeros", "limits", "large")
        if [value.shape for value in ours] != [value.shape for value in eager]:
            declared = self._declared(tensors)
            if declared is not None and [list(value.shape) for value in ours] == declared:
                return [Finding(better=f"eager's shape is {list(eager[0].shape)}, and its own meta has {declared[0]}")]
        return [
            judge_operator(self.operator, tensors, one, other, precise, ties=ties)
            for one, other, precise in zip(ours, eager, known, strict=True)
        ]

    def _declared(self, tensors: list[Tensor]) -> list[list[int]] | None:
        """The shapes that PyTorch itself gives to the results without computing them: programs are built on them."""
        try:
            with FakeTensorMode() as mode, torch.no_grad():
                results = pytree.tree_leaves(self.call([mode.from_tensor(tensor) for tensor in tensors]))
        except Exception:  # torch raises what it likes
            return None
        return [list(leaf.shape) for leaf in results if isinstance(leaf, Tensor)]

    def _exact(self, tensors: list[Tensor], count: int) -> list[Tensor] | None:
        wide = [tensor.to(torch.float64) if tensor.is_floating_point() else tensor for tensor in tensors]
        try:
            with quiet(), torch.no_grad():
                found = [leaf for leaf in pytree.tree_leaves(self.call(wide)) if isinstance(leaf, Tensor)]
        except Exception:  # torch raises what it likes
            return None
        return found if len(found) == count else None


@cache
def operator_cells(dtypes: tuple[str, ...] = tuple(DTYPES)) -> tuple[list[OperatorCell], dict[str, str]]:
    """Returns the cells of all operators, and why some operators have none in some element type or in any."""
    found: list[OperatorCell] = []
    without: dict[str, str] = {}
    for operator in operator_rows():
        before = len(found)
        for dtype in dtypes:
            try:
                with quiet():
                    samples = drawn(operator, dtype)
            except Exception as error:  # the makers of samples raise what they like
                without[f"{operator}[{dtype}]"] = f"no samples: {' '.join(str(error).split())[:80]}"
                continue
            largest = max((_size(sample) for sample in samples), default=0)
            first = next((sample for sample in samples if _size(sample) == largest), None)
            for sample in samples:
                given = [leaf for leaf in sample.leaves if isinstance(leaf, Tensor)]
                forms = forms_of(dtype, given, first=sample is first and operator not in _OF_SORTED)
                found += [OperatorCell(operator, sample.number, dtype, form) for form in forms]
        if len(found) == before:
            takes = [dtype for dtype in dtypes if operator_rows()[operator].supports_dtype(DTYPES[dtype], "cpu")]
            reason = "its samples hold no tensor, or too large ones" if takes else "takes none of the element types"
            if not any(f"{operator}[{dtype}]" in without for dtype in takes):
                without[operator] = reason
    return found, without


def _size(sample: Drawn) -> int:
    return sum(leaf.numel() for leaf in sample.leaves if isinstance(leaf, Tensor))


def operator_cell(name: str) -> OperatorCell:
    """Returns the cell of a name."""
    operator, _, rest = name.partition("#")
    number, _, rest = rest.partition("[")
    dtype, _, form = rest.partition("]/")
    return OperatorCell(operator, int(number), dtype, form)
