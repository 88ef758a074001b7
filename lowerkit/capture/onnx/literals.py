"""Literals of an ONNX graph as attributes of the IR."""

# torch-mlir tells apart by names that it keeps private; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

# The importers are part of torch-mlir, not of the MLIR bindings that `lowerkit.mlir` stands for.
from torch_mlir.extras import onnx_importer as upstream

from lowerkit.mlir import ir


def dense_literal(tensor: TensorProto, cache: upstream.ContextCache) -> ir.Attribute:
    """Returns the data of a tensor as a dense attribute of its type in IR."""
    array = numpy_helper.to_array(tensor)
    with ir.Location.unknown(cache._c):
        shaped = cache.tensor_proto_to_builtin_type(tensor)
        if array.dtype == np.bool_:
            values = [ir.BoolAttr.get(bool(value)) for value in array.reshape(-1)]
            return ir.DenseElementsAttr.get(values, shaped)
        if tensor.data_type == TensorProto.BFLOAT16:
            values = [ir.FloatAttr.get(shaped.element_type, float(value)) for value in array.reshape(-1)]
            return ir.DenseElementsAttr.get(values, shaped)
        return ir.DenseElementsAttr.get(np.ascontiguousarray(array), type=shaped.element_type, shape=array.shape)
