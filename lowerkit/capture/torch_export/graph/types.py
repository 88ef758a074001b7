"""The builtin MLIR type of a traced tensor."""

from __future__ import annotations

import torch

from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.program.dtypes import mlir_type, torch_name_of


def builtin_type(tensor: torch.Tensor) -> ir.Type:
    """Returns the ranked tensor type of ``tensor`` in the current context; symbolic extents are dynamic.

    Raises:
        UnsupportedError: LK4001, lowerkit has no such element type.
    """
    name = torch_name_of(tensor.dtype)
    if name is None:
        raise UnsupportedError("LK4001", f"tensors of element type {tensor.dtype} are not supported")
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [int(extent) if is_static(extent) else dynamic for extent in tensor.shape]
    return ir.RankedTensorType.get(shape, mlir_type(name))
