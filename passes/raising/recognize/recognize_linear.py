"""Recognizes matrix products and look-ups that a model wraps in reshapes and copies, and drops these.

- ``reshape(addmm(b, reshape(x, [-1, K]), w), [..., N])`` is ``x @ w + b`` over all leading dims of x;
- ``bmm(x, expand(w))`` of one matrix w is ``x @ w``: the weight is not copied for each batch;
- ``reshape(bmm(reshape(x), reshape(y)))`` that merges batch dims and splits them again is ``x @ y``;
- ``unflatten(index_select(t, 0, flatten(i)))`` is a look-up by i as it is.

Without the reshapes the elementwise ops before and after have one shape, and fuse; and attention is recognized.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.matching import Reader, recognize
from lowerkit.passes.raising.torch_dialect.torch_build import binary
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    TensorInfo,
    build,
    constant_bool,
    constant_int,
    defining_op,
    int_of,
    tensor_info,
)

_RESHAPES = (
    "torch.aten.view",
    "torch.aten.reshape",
    "torch.aten._unsafe_view",
    "torch.aten.unflatten.int",
)
_FLATTENINGS = ("torch.aten.view", "torch.aten.reshape", "torch.aten._unsafe_view", "torch.aten.flatten.using_ints")
_PRODUCTS = ("torch.aten.addmm", "torch.aten.mm")


def _match(op: ir.Operation, reader: Reader) -> ir.Value | None:
    inner = defining_op(op.operands[0], *_PRODUCTS, "torch.aten.bmm", "torch.aten.index_select")
    if inner is None:
        return None
    if inner.name == "torch.aten.index_select":
        return _look_up(op, inner)
    if inner.name == "torch.aten.bmm":
        return _batched(op, inner)
    return _linear(op, inner, reader)


def _linear(op: ir.Operation, product: ir.Operation, reader: Reader) -> ir.Value | None:
    is_sum = product.name == "torch.aten.addmm"
    rows, weight = product.operands[1:3] if is_sum else product.operands[:2]
    flattening = defining_op(rows, *_FLATTENINGS)
    if flattening is None:
        return None
    source = flattening.operands[0]
    before, after = tensor_info(source), tensor_info(op.results[0])
    merges_leading = before.rank > 2 and before.shape[-1] == tensor_info(rows).shape[-1] is not None
    if not merges_leading or before.shape[:-1] != after.shape[:-1] or before.shape[:-1].count(None) > 1:
        return None
    if after.shape[-1] != tensor_info(weight).shape[1]:
        return None
    if is_sum and not _adds_vector(product, reader):
        return None
    result = build("torch.aten.matmul", [source, weight], [after.torch_type()])[0]
    return binary("add", result, product.operands[0]) if is_sum else result


def _adds_vector(product: ir.Operation, reader: Reader) -> bool:
    """Whether an addmm adds a vector as it is; a matrix would have to be reshaped like the rows."""
    factors = [reader.scalar(operand) for operand in product.operands[3:5]]
    return tensor_info(product.operands[0]).rank == 1 and factors == [1, 1]


def _batched(op: ir.Operation, product: ir.Operation) -> ir.Value | None:
    """``reshape(bmm(reshape(x), reshape(y)))`` with the batch dims of x and y in the place of the merged one."""
    merges = [defining_op(operand, *_FLATTENINGS) for operand in product.operands]
    if merges[0] is None or merges[1] is None:
        return None
    lhs, rhs = merges[0].operands[0], merges[1].operands[0]
    result = tensor_info(op.results[0])
    batch = result.shape[:-2]
    if None in result.shape or len(batch) < 2 or result.shape[-2:] != tensor_info(product.results[0]).shape[-2:]:
        return None
    for source, merged in ((lhs, product.operands[0]), (rhs, product.operands[1])):
        if tensor_info(source).shape != (*batch, *tensor_info(merged).shape[-2:]):
            return None
    return build("torch.aten.matmul", [lhs, rhs], [op.results[0].type])[0]


def _match_shared(op: ir.Operation, reader: Reader) -> ir.Value | None:
    """``bmm(x, expand(w))`` with a w of rank 2."""
    copies = defining_op(op.operands[1], "torch.aten.expand", "torch.aten.broadcast_to")
    if copies is None:
        return None
    matrix, copied = tensor_info(copies.operands[0]), tensor_info(op.operands[1])
    if matrix.rank != 2 or copied.rank != 3 or copied.shape[1:] != matrix.shape:
        return None
    return build("torch.aten.matmul", [op.operands[0], copies.operands[0]], [op.results[0].type])[0]


def _look_up(op: ir.Operation, selection: ir.Operation) -> ir.Value | None:
    """``reshape(index_select(t, axis, flatten(i)))`` with the dims of i in the place of the axis."""
    table, dim, positions = selection.operands
    flattening = defining_op(positions, *_FLATTENINGS)
    if flattening is None or tensor_info(positions).rank != 1:
        return None
    indices = flattening.operands[0]
    info, axis = tensor_info(table), tensor_info(table).normalized_axis(int_of(dim))
    wanted = (*info.shape[:axis], *tensor_info(indices).shape, *info.shape[axis + 1 :])
    if axis != 0 or None in wanted or tensor_info(op.results[0]) != TensorInfo(wanted, info.dtype):
        return None
    assert math.prod(tensor_info(indices).static_shape()) == tensor_info(positions).shape[0], "flatten keeps elements"
    operands = [table, indices, constant_int(-1), constant_bool(False), constant_bool(False)]
    return build("torch.aten.embedding", operands, [op.results[0].type])[0]


@dataclass(frozen=True)
class RecognizeLinear(Pass):
    """Drops reshapes and copies around matrix products and look-ups. Precondition: runs before they are raised."""

    name: ClassVar[str] = "recognize-linear"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        shared = recognize(module, ("torch.aten.bmm",), _match_shared, context)
        return recognize(module, _RESHAPES, _match, context) + shared > 0
