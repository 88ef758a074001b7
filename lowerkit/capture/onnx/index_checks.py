"""Checks before the look-ups and writes by index of an ONNX graph.

An index from ``-size`` to ``size - 1`` is in range, whatever the op; those of GatherND and ScatterND are tuples, with
an extent for each part. What torch-mlir writes a node out of no longer tells such tuples apart, so the checks are made
of the nodes themselves. An index that is constant, and in range of extents that are known, needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from lowerkit.capture.onnx.rewrites.rewriter import IN_RANGE
from lowerkit.errors import CaptureError
from lowerkit.mlir import ir
from lowerkit.passes.raising.raise_ops.raise_index_checks import CHECKED_INDICES
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    constant_bool,
    constant_int,
    constant_none,
    constant_string,
    int_list,
    tensor_info,
)

_ALONG_AXIS = frozenset({"Gather", "GatherElements", "Scatter", "ScatterElements"})
_BY_TUPLES = frozenset({"GatherND", "ScatterND"})


def _is_checked(node: NodeProto) -> bool:
    """Whether a node looks up or writes by indices that may be out of range."""
    own = any(entry.key == IN_RANGE for entry in node.metadata_props)
    return node.op_type in _ALONG_AXIS | _BY_TUPLES and not own


def checked_operands(
    node: NodeProto, operands: list[ir.Value], constant: Callable[[str], np.ndarray[Any, Any] | None]
) -> list[ir.Value]:
    """Returns the operands of a node, its indices checked where it looks up by them.

    Args:
        node: any node.
        operands: in the torch dialect.
        constant: gives the value of a name where it is constant.

    Raises:
        CaptureError: LK2003, the tensor has fewer axes than are indexed.
    """
    if not _is_checked(node):
        return operands
    found = list(operands)
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    try:
        data, indices = tensor_info(found[0]), tensor_info(found[1])
        if node.op_type in _ALONG_AXIS:
            axes = [data.normalized_axis(attributes.get("axis", 0))]
        else:
            first = attributes.get("batch_dims", 0)
            axes = list(range(first, first + indices.static_dim(-1)))
    except RefusalError:
        return found  # of no known rank: nothing converts the node
    if any(axis >= data.rank for axis in axes):
        raise CaptureError(
            "LK2003",
            f"{node.op_type} indexes axis {max(axes)} of {node.input[0]!r}, which has {data.rank} axes",
            op=node.name or node.output[0],
            hint="the model is invalid, though ONNX's checker lets it pass: export it again with other shapes",
        )
    sizes, literal = [data.shape[axis] for axis in axes], constant(node.input[1])
    if not axes or (literal is not None and _in_range(literal, sizes)):
        return found
    integer = ir.Type.parse("!torch.int")
    extents = [
        size if size is not None else build("torch.aten.size.int", [found[0], constant_int(axis)], [integer])[0]
        for axis, size in zip(axes, sizes, strict=True)
    ]
    asked = [found[1], int_list(extents), constant_bool(True), constant_none(), constant_string(node.op_type)]
    attribute = {"name": ir.StringAttr.get(CHECKED_INDICES)}
    checked = ir.Operation.create("torch.operator", results=[found[1].type], operands=asked, attributes=attribute)
    found[1] = checked.results[0]
    return found


def _in_range(indices: np.ndarray[Any, Any], sizes: Sequence[int | None]) -> bool:
    if not indices.size:
        return True
    if None in sizes:
        return False
    limits = np.asarray(sizes, np.int64)
    parts = indices.astype(np.int64).reshape(-1, len(sizes))
    return bool(((parts >= -limits) & (parts < limits)).all())
