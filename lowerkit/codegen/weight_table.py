"""The weights of an artifact: which stored tensors the steps need, each made when it is written and not before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.program.weights import Shard
from lowerkit.targets.packing import Packing

if TYPE_CHECKING:
    from lowerkit.program.weights import WeightStore

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StoredWeight:
    """A tensor of the artifact.

    Attributes:
        dtype, shape: what :attr:`read` returns.
        read: makes the contiguous array; nothing of it is kept.
        shard: who shares it; the parts of the ranks lie one behind the other.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[], Array]
    shard: Shard | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        count = self.dtype.itemsize
        for extent in self.shape:
            count *= extent
        return count


class WeightTable:
    """Names and makers of the stored tensors.

    A weight used as it is and in two packed layouts is three tensors; used twice in one layout it is one, also where
    two programs of an artifact use it.
    """

    def __init__(self, store: WeightStore) -> None:
        self.store = store
        self.entries: dict[str, StoredWeight] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def plain(self, name: str) -> str:
        """Stores a weight as it is; returns the tensor's name."""
        if name not in self.entries:
            dtype, shape = self.store.spec(name)
            self.entries[name] = StoredWeight(
                NUMPY_DTYPES[dtype],
                shape,
                lambda: np.ascontiguousarray(self.store.get(name)).reshape(shape),
                self.store.shard(name),
            )
        return name

    def packed(self, name: str, shape: Sequence[int], packing: Packing) -> str:
        """Stores a weight, seen as ``shape``, in the layout of ``packing``; returns the tensor's name."""
        shard = self.store.shard(name)
        parameters = ",".join(f"{key}={value}" for key, value in packing.parameters)
        view = "x".join(map(str, shape))
        key = f"{name}|{view}|{packing.kind}({parameters})"
        if key not in self.entries:
            dtype, seen_as = NUMPY_DTYPES[self.store.spec(name)[0]], tuple(shape)
            packed_shape = tuple(packing.packed_shape(seen_as))

            def read() -> Array:
                data = np.ascontiguousarray(self.store.get(name))
                if shard is None:
                    return packing.apply(data.reshape(seen_as))
                parts = [packing.apply(part.reshape(seen_as)) for part in data.reshape(shard.ranks, -1)]
                return np.stack(parts).reshape(*shard.sizes, *parts[0].shape)

            sizes = () if shard is None else shard.sizes
            self.entries[key] = StoredWeight(dtype, (*sizes, *packed_shape), read, shard)
        return key

    def constant(self, array: Array) -> str:
        """Stores a literal of the IR, equal ones once; returns the tensor's name."""
        key = (array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).data).digest())
        if key in self._constants:
            return self._constants[key]
        name = f"constant.{sum(key.startswith('constant.') for key in self.entries)}"
        while name in self.entries or name in self.store:
            name += "_"
        self.entries[name] = StoredWeight(array.dtype, array.shape, lambda: array)
        self._constants[key] = name
        return name
