"""Tensors of an ONNX file, read when needed: inline, or mapped from an external file that stays in its folder.

External data has been a way out of the model's folder more than once (absolute paths, ``../``, symlinks, hard links).
A location is accepted only if it is a relative path to a regular file below the model's folder with one link, no
component of the path is a symlink, and ``offset + length`` lies inside the file.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.program.weights import Array

DTYPE_NAMES: dict[int, str] = {
    TensorProto.FLOAT: "f32",
    TensorProto.FLOAT16: "f16",
    TensorProto.BFLOAT16: "bf16",
    TensorProto.DOUBLE: "f64",
    TensorProto.BOOL: "i1",
    TensorProto.INT8: "i8",
    TensorProto.UINT8: "u8",
    TensorProto.INT16: "i16",
    TensorProto.UINT16: "u16",
    TensorProto.UINT32: "u32",
    TensorProto.UINT64: "u64",
    TensorProto.INT32: "i32",
    TensorProto.INT64: "i64",
}
_EXTERNAL_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_MAXIMUM_RANK = 64


class TensorError(ValueError):
    """A tensor of the file is damaged or leads out of the model's folder; the message says how."""


@dataclass(frozen=True)
class LazyTensor:
    """A constant of the model: its type now, its data when ``read`` is called."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]

    @property
    def size(self) -> int:
        """Elements."""
        return element_count(self.shape)

    @staticmethod
    def of(array: Array, dtype: str) -> LazyTensor:
        """Wraps an array that is there."""
        return LazyTensor(dtype, array.shape, lambda: array)


def data_type_of(dtype: str) -> int:
    """Returns the ``TensorProto.DataType`` of a name in :data:`DTYPE_NAMES`."""
    return next(number for number, name in DTYPE_NAMES.items() if name == dtype)


def is_scalar(value: onnx.TypeProto | None) -> bool:
    """Whether a value is known to have rank 0."""
    return value is not None and value.tensor_type.HasField("shape") and not value.tensor_type.shape.dim


def element_type_name(data_type: int) -> str:
    """Returns a name for messages: ``f32``, or ONNX's own name where lowerkit has none."""
    known = DTYPE_NAMES.get(data_type)
    if known is not None:
        return known
    try:
        return TensorProto.DataType.Name(data_type).lower()
    except ValueError:
        return f"unknown element type {data_type}"


def element_count(shape: tuple[int, ...]) -> int:
    """Returns the product of the extents."""
    count = 1
    for extent in shape:
        count *= extent
    return count


def bytes_by_type(graph: onnx.GraphProto) -> dict[str, int]:
    """Returns the bytes of the initializers of a graph by the signature's names of their types; others are left out."""
    found: dict[str, int] = {}
    for tensor in graph.initializer:
        if (name := DTYPE_NAMES.get(tensor.data_type)) is not None:
            size = element_count(tuple(tensor.dims)) * NUMPY_DTYPES[name].itemsize
            found[name] = found.get(name, 0) + size
    return found


def checked_shape(tensor: TensorProto) -> tuple[int, ...]:
    """Returns the dims.

    Raises:
        TensorError: a dim is negative, the rank is absurd, or the bytes do not fit 63 bits.
    """
    shape = tuple(tensor.dims)
    if len(shape) > _MAXIMUM_RANK:
        raise TensorError(f"tensor {tensor.name!r} has rank {len(shape)}, more than {_MAXIMUM_RANK}")
    if any(extent < 0 for extent in shape):
        raise TensorError(f"tensor {tensor.name!r} has a negative dim: {shape}")
    if element_count(shape) * 16 >= 1 << 63:
        raise TensorError(f"tensor {tensor.name!r} of shape {shape} does not fit 64 bits")
    return shape


def lazy_tensor(tensor: TensorProto, folder: Path | None) -> LazyTensor:
    """Checks a tensor without reading its data.

    Args:
        tensor: of one of the element types in :data:`DTYPE_NAMES`.
        folder: the folder of the model file; None where there is none, and external data is refused.

    Raises:
        TensorError: sizes contradict each other, or external data is not where it must be.
    """
    dtype = DTYPE_NAMES.get(tensor.data_type)
    if dtype is None:
        raise TensorError(f"tensor {tensor.name!r} has element type {element_type_name(tensor.data_type)}")
    shape = checked_shape(tensor)
    expected = element_count(shape) * NUMPY_DTYPES[dtype].itemsize
    if tensor.data_location == TensorProto.EXTERNAL:
        return LazyTensor(dtype, shape, _external(tensor, folder, dtype, shape, expected))
    if tensor.HasField("raw_data"):
        found = len(tensor.raw_data)
        if found != expected:
            raise TensorError(f"tensor {tensor.name!r} {shape} of {dtype} needs {expected} bytes and has {found}")
    else:
        found = _typed_elements(tensor)
        if found != element_count(shape):
            raise TensorError(f"tensor {tensor.name!r} {shape} needs {element_count(shape)} elements and has {found}")

    def read() -> Array:
        return numpy_helper.to_array(tensor).astype(NUMPY_DTYPES[dtype], copy=False)

    return LazyTensor(dtype, shape, read)


def _typed_elements(tensor: TensorProto) -> int:
    match tensor.data_type:
        case TensorProto.FLOAT:
            return len(tensor.float_data)
        case TensorProto.DOUBLE:
            return len(tensor.double_data)
        case TensorProto.INT64:
            return len(tensor.int64_data)
        case _:
            return len(tensor.int32_data)


def _external(
    tensor: TensorProto, folder: Path | None, dtype: str, shape: tuple[int, ...], expected: int
) -> Callable[[], Array]:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    what = f"external data of tensor {tensor.name!r}"
    if folder is None:
        raise TensorError(f"{what}: the model was given as bytes, so there is no folder to look in")
    unknown = sorted(fields.keys() - _EXTERNAL_KEYS)
    if unknown:
        raise TensorError(f"{what}: unknown keys {', '.join(unknown)}")
    path = contained_file(fields.get("location", ""), folder, what)
    size = path.stat().st_size
    offset = _count(fields.get("offset", "0"), f"{what}: offset")
    length = _count(fields["length"], f"{what}: length") if "length" in fields else expected
    if length != expected:
        raise TensorError(f"{what}: {length} bytes are stated and {shape} of {dtype} needs {expected}")
    if offset + length > size:
        raise TensorError(f"{what}: bytes {offset} to {offset + length} of {path.name!r}, which has {size}")

    def read() -> Array:
        if expected == 0:
            return np.empty(shape, NUMPY_DTYPES[dtype])
        raw = np.memmap(path, dtype=np.uint8, mode="r", offset=offset, shape=(length,))
        return raw.view(NUMPY_DTYPES[dtype]).reshape(shape)

    return read


def external_files(model: onnx.ModelProto, folder: Path | None) -> list[Path]:
    """Returns the files that the weights of a model say they lie in, whether they may or not."""
    if folder is None:
        return []
    locations = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location" and "\0" not in entry.value
    }
    return [folder / location for location in sorted(locations)]


def _count(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise TensorError(f"{what} is {text[:40]!r}, not a count of bytes")
    return int(text)


def contained_file(location: str, folder: Path, what: str) -> Path:
    """Returns the path of an external file, having checked each component of it.

    Raises:
        TensorError: it is not a plain file below ``folder``.
    """
    pure = PurePosixPath(location)
    if not location or "\0" in location or "\\" in location or pure.is_absolute() or ".." in pure.parts:
        raise TensorError(f"{what}: location {location[:200]!r} is not a path below the model's folder")
    path = folder
    for part in pure.parts:
        path = path / part
        if path.is_symlink():
            raise TensorError(f"{what}: {location!r} is a symbolic link, which is not followed")
    try:
        status = path.lstat()
    except OSError as error:
        raise TensorError(f"{what}: {location!r} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise TensorError(f"{what}: {location!r} is no regular file")
    if status.st_nlink != 1:
        raise TensorError(f"{what}: {location!r} has {status.st_nlink} hard links; copy it to a file of its own")
    return path


def type_proto(dtype: str, shape: tuple[int, ...]) -> onnx.TypeProto:
    """Returns the ONNX type of a tensor."""
    data_type = next(number for number, name in DTYPE_NAMES.items() if name == dtype)
    return onnx.helper.make_tensor_type_proto(data_type, shape)
