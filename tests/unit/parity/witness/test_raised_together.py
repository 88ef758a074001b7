"""Ops that are captured and lowered as one model compute what each of them does alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from lowerkit.errors import LowerkitError
from lowerkit.parity.witness import raised_together as module
from lowerkit.parity.witness.distinct_ops import occurrences
from lowerkit.parity.witness.op_cases import cases_of, drawn
from lowerkit.parity.witness.raised_alone import raised_op
from lowerkit.parity.witness.raised_together import Example, raised_together

FUNCTIONS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, places: torch.softmax(x, -1) + nn.functional.gelu(x),
    lambda x, places: x.sort(-1),
    lambda x, places: torch.split(x, [1, 2, 3], -1),
    lambda x, places: x[places],
    lambda x, places: x.index_put((places,), x[0]),
    lambda x, places: (x.reshape(-1), x.t(), x + 1, x * 2, x.to(torch.float64)),
    lambda x, places: (x > 0, torch.where(x > 0, x, 0.5), torch.full_like(x, 3), x.var(-1)),
    lambda x, places: nn.functional.pad(x, (1, 2), value=3.0),
]


class Several(nn.Module):
    def forward(self, x: Tensor, places: Tensor) -> list[Any]:
        return [function(x, places) for function in FUNCTIONS]


def examples(*, open_dims: bool = False) -> list[Example]:
    shapes = ({0: Dim("n", min=4)}, None) if open_dims else None
    exported = torch.export.export(Several(), (torch.randn(5, 6), torch.tensor([4, 0])), dynamic_shapes=shapes)
    found = [each.op for each in occurrences(exported) if each.op is not None]
    pairs = [(op, drawn(op)) for op in found]
    return [Example(op, tensors) for op, tensors in pairs if tensors is not None]


def test_each_part_gives_the_bits_of_the_op_alone() -> None:
    given = examples()
    together = raised_together(given)
    assert together.keys() == {each.op.key for each in given} and len(given) > 12
    for each in given:
        part, alone = together[each.op.key], raised_op(each.op, each.tensors)
        assert [spec.dtype for spec in part.signature.outputs] == [spec.dtype for spec in alone.signature.outputs]
        for case in cases_of(each.op, each.tensors, part.signature):
            outcomes = [_outcome(lowered, case.inputs) for lowered in (part, alone)]
            for one, other in zip(*outcomes, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=f"{each.op.key}: {case.text}")


def _outcome(lowered: Any, inputs: list[Any]) -> list[Any]:
    try:
        return lowered.run(inputs)
    except LowerkitError as error:
        return [error.code]


def test_inputs_of_another_shape_are_refused() -> None:
    given = examples()
    part = raised_together(given)[given[0].op.key]
    with pytest.raises(LowerkitError, match="LK8004"):
        part.takes([np.zeros((1, 1, 1), np.float32) for _ in given[0].tensors])


def test_an_op_that_cannot_be_lowered_is_left_out_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    given = examples()
    own = module.capture_module
    bad = next(number for number, each in enumerate(given) if each.op.name == "aten.sort.default")

    def capture(model: Any, tensors: Any) -> Any:
        if any(op is given[bad].op for op, _ in model.counts):
            raise LowerkitError("LK4001", "refused")
        return own(model, tensors)

    monkeypatch.setattr(module, "capture_module", capture)
    together = raised_together(given)
    assert given[bad].op.key not in together and len(together) >= len(given) - 2


def test_open_dims_are_raised_alone() -> None:
    given = examples(open_dims=True)
    together = raised_together(given)
    assert together.keys() == {each.op.key for each in given if not each.op.sizes}
