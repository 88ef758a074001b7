"""The dtypes of a signature as numpy dtypes.

numpy has no bfloat16: where the package ``ml_dtypes`` is installed its type is used, else a bf16 tensor is a
``uint16`` array of its bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

_NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32), "i16": np.dtype(np.int16), "i8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
    "i1": np.dtype(np.bool_), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _NUMPY_DTYPES.items()}


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Returns the numpy dtype of a signature's dtype (a key of ``manifest.ITEM_SIZES``)."""
    if name != "bf16":
        return _NUMPY_DTYPES[name]
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        return np.dtype(np.uint16)
    return np.dtype(bfloat16)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns a signature's name for ``dtype``, or numpy's own name where a signature cannot hold it."""
    known = _NAMES.get(dtype)
    if known is not None and dtype.isnative:
        return known
    return "bf16" if dtype.name == "bfloat16" else str(dtype)


def fits(dtype: np.dtype[Any], name: str) -> bool:
    """Tells whether an array of ``dtype`` may be given for a tensor of dtype ``name``; bf16 also comes as uint16."""
    return dtype_name(dtype) == name or (name == "bf16" and dtype == np.uint16 and dtype.isnative)
