"""One table of the element types: the signature's name, numpy's, torch's and MLIR's.

Builtin MLIR tensors are signless, as torch-mlir's conversions expect: ``u8`` and ``i8`` are both ``i8`` there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from lowerkit.mlir import ir

if TYPE_CHECKING:
    import torch

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f64": np.dtype(np.float64),
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "u16": np.dtype(np.uint16),
    "u32": np.dtype(np.uint32),
    "u64": np.dtype(np.uint64),
}
_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}

_TORCH_NAMES: dict[str, str] = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i1": "bool",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
}

_MLIR_TYPES: dict[str, Callable[[], ir.Type]] = {
    "f32": ir.F32Type.get,
    "f16": ir.F16Type.get,
    "bf16": ir.BF16Type.get,
    "f64": ir.F64Type.get,
    "i1": lambda: ir.IntegerType.get_signless(1),
    "i8": lambda: ir.IntegerType.get_signless(8),
    "u8": lambda: ir.IntegerType.get_signless(8),
    "i16": lambda: ir.IntegerType.get_signless(16),
    "i32": lambda: ir.IntegerType.get_signless(32),
    "i64": lambda: ir.IntegerType.get_signless(64),
    "u16": lambda: ir.IntegerType.get_signless(16),
    "u32": lambda: ir.IntegerType.get_signless(32),
    "u64": lambda: ir.IntegerType.get_signless(64),
}


def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the signature's name of a numpy dtype.

    Raises:
        TypeError: lowerkit has no such element type.
    """
    name = _NAMES.get(dtype)
    if name is None:
        raise TypeError(f"element type {dtype} is not one of {', '.join(NUMPY_DTYPES)}")
    return name


def torch_name_of(dtype: torch.dtype) -> str | None:
    """Returns the signature's name of a torch dtype, or None where lowerkit has no such element type."""
    text = str(dtype).removeprefix("torch.")
    return next((name for name, torch_name in _TORCH_NAMES.items() if torch_name == text), None)


def torch_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype of a signature's name."""
    import torch

    return getattr(torch, _TORCH_NAMES[name])


def mlir_type(name: str) -> ir.Type:
    """Returns the signless MLIR element type in the current context."""
    return _MLIR_TYPES[name]()


def bytes_by_type(tensors: Iterable[Any]) -> dict[str, int]:
    """Returns the bytes of torch tensors by the signature's names of their types; one that comes twice counts once.

    What is not a tensor of a known type is left out.
    """
    import torch

    found: dict[str, int] = {}
    for tensor in {id(tensor): tensor for tensor in tensors}.values():
        if isinstance(tensor, torch.Tensor) and (name := torch_name_of(tensor.dtype)) is not None:
            found[name] = found.get(name, 0) + tensor.numel() * tensor.element_size()
    return found


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns a tensor's data as a read-only numpy view where the memory allows it, bf16 included."""
    import torch

    value = tensor.detach()
    if value.device.type != "cpu":
        value = value.cpu()
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    if value.dtype == torch.bfloat16:
        array = value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    else:
        array = value.numpy()
    view = array.view()
    view.flags.writeable = False
    return view


def to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Returns a fresh tensor with the data of ``array``, bf16 included."""
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        bits = np.array(array, order="C").view(np.int16)
        return torch.from_numpy(bits).view(torch.bfloat16).reshape(array.shape)
    return torch.from_numpy(np.array(array, order="C")).reshape(array.shape)
