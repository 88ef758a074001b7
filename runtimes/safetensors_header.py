"""Reads the header of a safetensors blob, strictly: every byte of the blob belongs to exactly one tensor.

Layout: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape, data_offsets), the data.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

ITEM_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8,
    "I64": 8, "U64": 8,
}  # fmt: skip
"""The dtypes of the format that lowerkit writes, and their bytes per element."""

NUMPY_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip
"""The name of the numpy (or ml_dtypes) dtype of each dtype of the format."""

PADDING_PREFIX = "__padding_"
"""Tensors of this name only fill the space before an aligned tensor: the format allows no holes."""

LENGTH_FIELD = 8
"""Bytes of a blob before its header: the length of that."""

MAXIMUM_HEADER = 100_000_000


class SafetensorsError(ValueError):
    """The blob breaks a rule of the format."""


class TensorEntry(msgspec.Struct, frozen=True):
    """One tensor; ``data_offsets`` count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class StoredTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies: ``begin`` to ``end`` counted from the start of the blob."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def header_end(field: npt.NDArray[np.uint8], size: int) -> int:
    """Returns where the header of a blob of ``size`` bytes ends, by the first bytes of the blob.

    Raises:
        SafetensorsError: outside of the blob.
    """
    if size < LENGTH_FIELD:
        raise SafetensorsError("it is shorter than its length field")
    length = int.from_bytes(field[:LENGTH_FIELD].tobytes(), "little")
    if length > min(size - LENGTH_FIELD, MAXIMUM_HEADER):
        raise SafetensorsError(f"its header of {length} bytes does not fit {size} bytes")
    return LENGTH_FIELD + length


def parse_safetensors(blob: npt.NDArray[np.uint8], size: int | None = None) -> dict[str, StoredTensor]:
    """Returns the tensors of ``blob`` by name, without the padding.

    Args:
        blob: it, or its beginning, at least to the end of the header.
        size: of the whole blob in bytes; None: that of ``blob``.

    Raises:
        SafetensorsError: for anything that is not a well-formed blob without holes and overlaps.
    """
    size = blob.size if size is None else size
    start = header_end(blob, size)
    try:
        raw = msgspec.json.decode(blob[LENGTH_FIELD:start].tobytes(), type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=TensorEntry) for name, entry in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SafetensorsError(f"its header cannot be read: {error}") from None

    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if entry.dtype not in ITEM_SIZES or any(extent < 0 for extent in entry.shape):
            raise SafetensorsError(f"tensor {name!r} has dtype {entry.dtype} and shape {entry.shape}")
        if begin != position:
            raise SafetensorsError(f"tensor {name!r} starts at {begin}, the one before it ends at {position}")
        if end - begin != math.prod(entry.shape) * ITEM_SIZES[entry.dtype]:
            raise SafetensorsError(f"tensor {name!r} has {end - begin} bytes for {entry.dtype} {entry.shape}")
        position = end
    if start + position != size:
        raise SafetensorsError(f"its tensors end at {start + position} of {size} bytes")
    tensors: dict[str, StoredTensor] = {}
    for name, entry in entries.items():
        if not name.startswith(PADDING_PREFIX):
            begin, end = entry.data_offsets
            tensors[name] = StoredTensor(entry.dtype, tuple(entry.shape), start + begin, start + end)
    return tensors


def tensor_view(blob: npt.NDArray[np.uint8], tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """Returns the tensor as a view of ``blob``; bf16 as ``uint16`` where ml_dtypes is not installed."""
    return typed_view(blob[tensor.begin : tensor.end], tensor)


def typed_view(data: npt.NDArray[np.uint8], tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """Returns the bytes of a tensor with its dtype and shape, as :func:`tensor_view` does."""
    from lowerkit.runtimes.dtypes import numpy_dtype

    dtype = numpy_dtype("bf16") if tensor.dtype == "BF16" else np.dtype(NUMPY_NAMES[tensor.dtype])
    return data.view(dtype).reshape(tensor.shape)
