"""Weights by reference: names in IR, data here, read when it is needed and not before.

Vocabulary
    provider   where the data of a weight comes from: an array, or a function that returns one (a memory map, a
               tensor of the user's model, a constant that is cheaper to make than to keep); None for a weight that is
               only declared: such a program can be sized, not compiled.
    derived    a weight computed from others (batch-norm folding, transposition). Its function runs when the data is
               asked for, so that a pass over a model of 100 GB reads nothing.
    shard      of a weight that the ranks of a mesh share, each with a part of its own. The data is the parts, stacked
               along one new leading dimension per axis; an ``lk.weight`` of its name is the part of its rank.

Bytes: provider arrays are never copied; results of functions are kept in a cache of bounded size.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowerkit.program.dtypes import NUMPY_DTYPES, name_of

Array = np.ndarray[Any, Any]
Provider = Array | Callable[[], Array]

CACHE_BYTES = 512 << 20
"""Results of providers and of derivations kept at most; a larger one is handed out and not kept."""


class MissingDataError(Exception):
    """The data of a weight was asked for that was only declared."""


@dataclass(frozen=True)
class Shard:
    """Who shares a weight: the ranks along axes of the mesh.

    Attributes:
        axes: name and size of each; the data has a leading dimension for each, in this order.
    """

    axes: tuple[tuple[str, int], ...]

    @property
    def ranks(self) -> int:
        """How many parts there are."""
        return math.prod(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The leading dimensions of the data."""
        return tuple(size for _, size in self.axes)

    @property
    def label(self) -> str:
        """The names of the axes, as a manifest has them: ``dp,tp``."""
        return ",".join(name for name, _ in self.axes)

    def part(self, data: Array, place: Mapping[str, int]) -> Array:
        """Returns the part of the rank at ``place``, which says where it is along each axis."""
        return data[tuple(place[name] for name, _ in self.axes)]


@dataclass(frozen=True)
class _Entry:
    provider: Provider | None
    dtype: str | None
    shape: tuple[int, ...] | None
    parents: tuple[str, ...]
    function: Callable[..., Array] | None = None
    shard: Shard | None = None


class WeightStore:
    """The weights of one program. Names are unique; entries are never replaced.

    Attributes:
        given: bytes of the tensors that the model itself has, by element type (``i4`` and such, too): constants that
            were folded are not among them.
    """

    def __init__(self, given: Mapping[str, int] | None = None) -> None:
        self.given = dict(given or {})
        self._entries: dict[str, _Entry] = {}
        self._cache: OrderedDict[str, Array] = OrderedDict()
        self._cached_bytes = 0
        self._digests: dict[str, str] = {}
        self._reserved: set[str] = set()
        self._lock = threading.RLock()

    def add(
        self, name: str, provider: Provider, *, dtype: str | None = None, shape: Sequence[int] | None = None
    ) -> None:
        """Adds a weight.

        Args:
            name: the symbol that ``lk.weight`` refers to.
            provider: the data, or a function that returns it: the same data at each call.
            dtype: the element type a function will return; without it :meth:`spec` has to call the function.
            shape: the shape a function will return; as ``dtype``.

        Raises:
            ValueError: the name is taken.
            TypeError: the element type is not one of lowerkit's.
        """
        if name in self._entries:
            raise ValueError(f"weight {name!r} exists already")
        if isinstance(provider, np.ndarray):
            dtype, shape = name_of(provider.dtype), provider.shape
        elif dtype is not None and dtype not in NUMPY_DTYPES:
            raise TypeError(f"element type {dtype} is not one of {', '.join(NUMPY_DTYPES)}")
        self._entries[name] = _Entry(provider, dtype, None if shape is None else tuple(shape), ())

    def declare(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        """Adds a weight without data.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._entries:
            raise ValueError(f"weight {name!r} exists already")
        self._entries[name] = _Entry(None, dtype, tuple(shape), ())

    def has_data(self, name: str) -> bool:
        """Whether :meth:`get` can return the data: neither the weight nor one it is derived from is only declared."""
        entry = self._entries[name]
        return entry.provider is not None and all(self.has_data(parent) for parent in entry.parents)

    def derive(
        self,
        name: str,
        parents: Sequence[str],
        function: Callable[..., Array],
        *,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        shard: Shard | None = None,
    ) -> None:
        """Adds a weight computed as ``function(*parents' arrays)`` when it is asked for.

        Args:
            name: as for :meth:`add`.
            parents: the weights that the function reads.
            function: gives the data; with ``shard`` the stacked parts.
            dtype: as for :meth:`add`.
            shape: as for :meth:`add`; with ``shard`` it begins with the sizes of its axes.
            shard: who shares the weight; None: every rank has the whole.

        Raises:
            ValueError: the name is taken.
            KeyError: a parent is unknown.
        """
        if name in self._entries:
            raise ValueError(f"weight {name!r} exists already")
        for parent in parents:
            if parent not in self._entries:
                raise KeyError(parent)
        inputs = tuple(parents)

        def provider() -> Array:
            return function(*(self.get(parent) for parent in inputs))

        self._entries[name] = _Entry(provider, dtype, None if shape is None else tuple(shape), inputs, function, shard)

    def fork(self) -> WeightStore:
        """Returns a store of the same weights that learns names of its own: for a program lowered on trial."""
        other = WeightStore(self.given)
        other._entries = dict(self._entries)
        other._reserved = set(self._reserved)
        return other

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps :meth:`unique_name` from giving ``names`` away; :meth:`add` takes them."""
        self._reserved.update(names)

    def unique_name(self, stem: str) -> str:
        """Returns ``stem``, or ``stem.1``, ``stem.2``, ... where it is taken or reserved."""
        name, number = stem, 0
        while name in self._entries or name in self._reserved:
            number += 1
            name = f"{stem}.{number}"
        return name

    def get(self, name: str) -> Array:
        """Returns the data, read-only; possibly a view that is not contiguous.

        Raises:
            KeyError: no such weight.
            MissingDataError: it was only declared.
            ValueError: the provider returned another element type or shape than was declared.
        """
        entry = self._entries[name]
        if entry.provider is None:
            raise MissingDataError(name)
        if isinstance(entry.provider, np.ndarray):
            return _read_only(entry.provider)
        with self._lock:
            cached = self._cache.get(name)
            if cached is not None:
                self._cache.move_to_end(name)
                return cached
            array = _read_only(np.asarray(entry.provider()))
            found = (name_of(array.dtype), array.shape)
            declared = (entry.dtype or found[0], found[1] if entry.shape is None else entry.shape)
            if found != declared:
                raise ValueError(f"weight {name!r} was declared as {declared} and its provider returned {found}")
            self._keep(name, array)
            return array

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Returns element type and shape, without reading the data where they were declared."""
        entry = self._entries[name]
        if entry.dtype is not None and entry.shape is not None:
            return entry.dtype, entry.shape
        array = self.get(name)
        found = (name_of(array.dtype), array.shape)
        self._entries[name] = replace(entry, dtype=found[0], shape=found[1])
        return found

    def shard(self, name: str) -> Shard | None:
        """Returns who shares a weight; None where every rank has the whole."""
        return self._entries[name].shard

    def nbytes(self, name: str) -> int:
        """Returns the bytes of the data, contiguous."""
        dtype, shape = self.spec(name)
        count = NUMPY_DTYPES[dtype].itemsize
        for extent in shape:
            count *= extent
        return count

    def parents(self, name: str) -> tuple[str, ...]:
        """Returns the weights that a derived weight is computed from; empty for the others."""
        return self._entries[name].parents

    def derivation(self, name: str) -> Callable[..., Array] | None:
        """Returns the function that computes a weight from its parents; None where it is not derived."""
        return self._entries[name].function

    def recompute(self, name: str, parent_data: Callable[[str], Array]) -> Array:
        """Returns a derived weight computed from ``parent_data`` of its parents (wider ones, say); nothing is kept.

        Of a weight that is not derived, the data itself.
        """
        entry = self._entries[name]
        if entry.function is None:
            return self.get(name)
        return np.asarray(entry.function(*(parent_data(parent) for parent in entry.parents)))

    def names(self) -> list[str]:
        """Returns all names in the order they were added."""
        return list(self._entries)

    def digest(self, name: str) -> str:
        """Returns the sha-256 of element type, shape and contiguous data, in hexadecimal."""
        known = self._digests.get(name)
        if known is None:
            dtype, shape = self.spec(name)
            hasher = hashlib.sha256(f"{dtype}:{'x'.join(map(str, shape))}:".encode())
            data = np.ascontiguousarray(self.get(name))
            hasher.update(data.reshape(-1).view(np.uint8).data)
            known = self._digests[name] = hasher.hexdigest()
        return known

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._entries))

    def _keep(self, name: str, array: Array) -> None:
        if array.nbytes > CACHE_BYTES:
            return
        self._cache[name] = array
        self._cached_bytes += array.nbytes
        while self._cached_bytes > CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.nbytes


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
