"""Gives the parts of a concatenation one element type, that of the result: torch-mlir converts none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import cast, concatenate, unsqueeze
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    NotConcernedError,
    int_of,
    like_result,
    list_items,
    tensor_info,
)
from lowerkit.passes.source_location import op_name


def _parts(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """cat, stack: (tensors, dim)."""
    parts, dim = list_items(op.operands[0]), op.operands[1]
    info = tensor_info(op.results[0])
    if not any(tensor_info(part).dtype != info.dtype for part in parts):
        raise NotConcernedError("the parts have the type already")
    axis = info.normalized_axis(int_of(dim))
    alike = [cast(part, info.dtype) for part in parts]
    if op_name(op) == "torch.aten.stack":
        alike = [unsqueeze(part, axis) for part in alike]
    return like_result(concatenate(alike, axis), op)


@dataclass(frozen=True)
class PromoteOperands(TablePass):
    """Gives the parts of concatenations one element type. Precondition: none."""

    name: ClassVar[str] = "promote-operands"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.cat": _parts,
        "torch.aten.stack": _parts,
    }
