"""Constants of a few elements as literals of the torch dialect."""

from __future__ import annotations

import numpy as np

from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_ir import TensorInfo
from lowerkit.program.weights import Array


def literal(array: Array, dtype: str) -> ir.Value:
    """Builds a constant tensor of ``dtype``, a name of the torch dialect that fits the array."""
    kind = TensorInfo(array.shape, dtype)
    element = kind.builtin_type().element_type
    if array.dtype == np.bool_:
        values = [ir.BoolAttr.get(bool(value)) for value in array.reshape(-1)]
        dense = ir.DenseElementsAttr.get(values, kind.builtin_type())
    elif array.dtype.name == "bfloat16":
        values = [ir.FloatAttr.get(element, float(value)) for value in array.reshape(-1)]
        dense = ir.DenseElementsAttr.get(values, kind.builtin_type())
    else:
        if array.dtype.kind in "iu":
            signed = array.dtype.kind == "i"
            make = ir.IntegerType.get_signed if signed else ir.IntegerType.get_unsigned
            element = make(array.itemsize * 8)
        dense = ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=element, shape=array.shape)
    made = ir.Operation.create("torch.vtensor.literal", results=[kind.torch_type()], attributes={"value": dense})
    return made.results[0]
