"""Lowers pointwise torch ops to ``linalg.generic`` by one table of rules, in the types that PyTorch computes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.activations import ACTIVATIONS
from lowerkit.passes.raising.core.arithmetic import ARITHMETIC
from lowerkit.passes.raising.core.functions import FUNCTIONS
from lowerkit.passes.raising.core.gradients import GRADIENTS
from lowerkit.passes.raising.core.logic import LOGIC
from lowerkit.passes.raising.core.parts import PARTS
from lowerkit.passes.raising.core.promotion import WIDTHS
from lowerkit.passes.raising.torch_dialect.integer_casts import reinterpret_bits
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import RefusalError, tensor_info


def _view_as_type(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """view.dtype: (input, dtype): the bits of each element as another type of the same width."""
    info, wanted = tensor_info(op.operands[0]), tensor_info(op.results[0])
    if WIDTHS[info.dtype] != WIDTHS[wanted.dtype] or "i1" in (info.dtype, wanted.dtype):
        raise RefusalError(f"{info.dtype} and {wanted.dtype} have different widths")
    return [reinterpret_bits(op.operands[0], op.results[0].type)]


@dataclass(frozen=True)
class RaisePointwise(TablePass):
    """Lowers pointwise ops of the torch dialect. Precondition: none; patterns that know them by name have run."""

    name: ClassVar[str] = "raise-pointwise"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{
            f"torch.aten.{name}": pointwise.rule()
            for name, pointwise in {**ARITHMETIC, **LOGIC, **FUNCTIONS, **PARTS, **ACTIVATIONS, **GRADIENTS}.items()
        },
        "torch.aten.view.dtype": _view_as_type,
    }
