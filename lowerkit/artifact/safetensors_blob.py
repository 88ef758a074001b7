"""Lays out and writes a safetensors blob whose tensors start at multiples of 64 bytes, two tensors in memory at a time.

The format allows no holes, so the space before a tensor is itself a tensor, ``__padding_N``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from lowerkit.errors import CodegenError
from lowerkit.runtimes.safetensors_header import ITEM_SIZES, NUMPY_NAMES, PADDING_PREFIX

ALIGNMENT = 64
Array = np.ndarray[Any, Any]

_FORMAT_NAMES = {numpy_name: name for name, numpy_name in NUMPY_NAMES.items()}


@dataclass(frozen=True)
class TensorSource:
    """A tensor that is made when it is written.

    Attributes:
        dtype: numpy dtype; ``ml_dtypes.bfloat16`` for bf16.
        shape: its shape.
        read: returns the array; called once, and the result is dropped after writing.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[], Array]

    @staticmethod
    def of(array: Array) -> TensorSource:
        """Returns the source of an array that is there already."""
        return TensorSource(array.dtype, array.shape, lambda: array)


@dataclass(frozen=True)
class BlobLayout:
    """Where everything goes: the header bytes, then (name, padding before it) in order, ``size`` bytes in all."""

    header: bytes
    order: tuple[tuple[str, int], ...]
    size: int


def lay_out(tensors: Mapping[str, TensorSource]) -> BlobLayout:
    """Lays out ``tensors``, sorted by name.

    Raises:
        CodegenError: LK5002, a name is reserved or a dtype is not of the format.
    """
    header: dict[str, dict[str, object]] = {}
    order: list[tuple[str, int]] = []
    position = 0
    for name in sorted(tensors):
        source = tensors[name]
        format_name = _FORMAT_NAMES.get(source.dtype.name)
        if format_name is None or name.startswith(PADDING_PREFIX) or name == "__metadata__":
            raise CodegenError("LK5002", f"tensor {name!r} of dtype {source.dtype} cannot be stored")
        padding = -position % ALIGNMENT
        if padding:
            filler = f"{PADDING_PREFIX}{len(order)}"
            header[filler] = {"dtype": "U8", "shape": [padding], "data_offsets": [position, position + padding]}
            position += padding
        size = math.prod(source.shape) * ITEM_SIZES[format_name]
        header[name] = {"dtype": format_name, "shape": source.shape, "data_offsets": [position, position + size]}
        order.append((name, padding))
        position += size
    encoded = msgspec.json.encode(header, order="sorted")
    encoded += b" " * (-(8 + len(encoded)) % ALIGNMENT)
    prefix = len(encoded).to_bytes(8, "little") + encoded
    return BlobLayout(prefix, tuple(order), len(prefix) + position)


def blob_chunks(layout: BlobLayout, tensors: Mapping[str, TensorSource]) -> Iterator[bytes | memoryview]:
    """Yields the bytes of the blob in order; the next tensor is read in a thread while one is worked on.

    Raises:
        CodegenError: LK5002, a source gave another dtype or shape than it stated.
    """
    yield layout.header
    with ThreadPoolExecutor(1, "lowerkit-weights") as reader:
        arrays = _read_ahead(reader, [tensors[name] for name, _ in layout.order])
        for (name, padding), array in zip(layout.order, arrays, strict=True):
            if padding:
                yield bytes(padding)
            yield _checked(name, tensors[name], array)


def _read_ahead(reader: ThreadPoolExecutor, sources: Sequence[TensorSource]) -> Iterator[Array]:
    pending = reader.submit(sources[0].read) if sources else None
    for following in [*sources[1:], None]:
        assert pending is not None, "only the last has nothing behind it"
        array = pending.result()
        pending = None if following is None else reader.submit(following.read)
        yield array


def _checked(name: str, source: TensorSource, array: Array) -> memoryview:
    if array.dtype != source.dtype or array.shape != source.shape:
        raise CodegenError(
            "LK5002",
            f"tensor {name!r} is {array.dtype} {array.shape}, its source stated {source.dtype} {source.shape}",
        )
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def blob_bytes(tensors: Mapping[str, Array]) -> bytes:
    """Returns the whole blob: for small sets of tensors."""
    sources = {name: TensorSource.of(array) for name, array in tensors.items()}
    return b"".join(blob_chunks(lay_out(sources), sources))
