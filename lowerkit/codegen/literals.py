"""Tensor literals of the IR as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowerkit.mlir import ir
from lowerkit.program.dtypes import NUMPY_DTYPES


def literal_array(op: ir.Operation) -> np.ndarray[Any, Any]:
    """Returns the value of an ``arith.constant`` of tensor type."""
    type_ = ir.RankedTensorType(op.results[0].type)
    attribute: Any = op.attributes["value"]
    dtype = NUMPY_DTYPES[str(type_.element_type)]
    shape = tuple(type_.shape)
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return np.full(shape, attribute.get_splat_value().value, dtype)
    if str(type_.element_type) in ("bf16", "f16"):
        return np.array([attribute[index] for index in range(len(attribute))], dtype).reshape(shape)
    return np.array(attribute).astype(dtype).reshape(shape)
