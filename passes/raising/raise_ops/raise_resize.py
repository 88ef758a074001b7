"""Raises up- and down-sampling to ``lk.resize``.

PyTorch takes either the size of the result, and then derives the step between source positions from the two sizes, or
a scale factor, and then uses that factor itself. The two differ where size times factor is no whole number, so that the
factor goes into the op in that case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import ResizeOp
from lowerkit.dialect.sampling import SAMPLINGS, Sampling
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    bool_of,
    from_builtin,
    is_none,
    list_items,
    number_of,
    tensor_info,
    to_builtin,
)


def _raise(sampling: Sampling, *, vector_form: bool) -> Rule:
    """Makes the rule for one op.

    ``.vec`` overloads: (input, output_size or None, [align_corners,] scale_factors or None).
    Plain overloads: (input, output_size, [align_corners,] one scale or None for each dim).
    """

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        result = tensor_info(op.results[0])
        value = tensor_info(op.operands[0])
        size = [result.static_dim(axis) for axis in range(2, result.rank)]
        sizes_before = [value.static_dim(axis) for axis in range(2, value.rank)]
        tail = list(op.operands)[3 if sampling.has_align_corners else 2 :]
        align_corners = sampling.has_align_corners and bool_of(op.operands[2])
        if vector_form:
            factors = [] if is_none(tail[0]) else [float(number_of(item)) for item in list_items(tail[0])]
        else:
            factors = [] if any(is_none(item) for item in tail) else [float(number_of(item)) for item in tail]
        ratios = [after / before for before, after in zip(sizes_before, size, strict=True)]
        if factors:
            factors = [
                ratio if ratio in sampling.exact_ratios else factor
                for ratio, factor in zip(ratios, factors, strict=True)
            ]
        # Aligned corners fix the step by the sizes; a factor that equals the ratio says nothing new.
        scales = [] if align_corners or factors == ratios else factors
        resized = ResizeOp.build(
            to_builtin(op.operands[0]),
            mode=sampling.mode,
            coordinates="align_corners" if align_corners else sampling.coordinates,
            nearest_rounding=sampling.rounding,
            size=size,
            scales=scales,
        )
        return [from_builtin(resized, result)]

    return rule


@dataclass(frozen=True)
class RaiseResize(TablePass):
    """Raises up- and down-sampling to ``lk.resize``. Precondition: none.

    Anti-aliased sampling is another op and stays.
    """

    name: ClassVar[str] = "raise-resize"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _raise(sampling, vector_form=False) for name, sampling in SAMPLINGS.items()},
        **{f"torch.aten.{name}.vec": _raise(sampling, vector_form=True) for name, sampling in SAMPLINGS.items()},
    }
