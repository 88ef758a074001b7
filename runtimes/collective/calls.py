"""Collective operations as values: what to do with which arrays, to be run, started or recorded by a group.

A :class:`Call` holds the numbers of ``lk_call``, the arrays whose memory it names, and its result. Arrays are
C-contiguous, of a dtype of the native interface, and of native byte order; anything else is refused, nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowerkit.errors import UsageError
from lowerkit.runtimes.collective.failures import usage

Array = NDArray[Any]
Result = TypeVar("Result")
Part = tuple[int, int]

Reduction = Literal["sum", "product", "min", "max", "avg", "premul_sum", "band", "bor", "bxor"]
REDUCTIONS: tuple[Reduction, ...] = ("sum", "product", "min", "max", "avg", "premul_sum", "band", "bor", "bxor")
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool",
)  # fmt: skip
ANY_SOURCE = -1


class Operation(IntEnum):
    """``lk_operation`` of ``lowerkit_collective.h``."""

    BARRIER = 0
    BROADCAST = 1
    REDUCE = 2
    ALL_REDUCE = 3
    SCATTER = 4
    GATHER = 5
    ALL_GATHER = 6
    REDUCE_SCATTER = 7
    ALL_TO_ALL = 8
    SEND = 9
    RECEIVE = 10


@dataclass(frozen=True)
class Call(Generic[Result]):
    """One operation: the fields of ``lk_call`` and the arrays behind its addresses.

    Attributes:
        result: what the caller gets when it is done.
        arrays: all arrays whose memory the operation touches; they live as long as the call.
    """

    operation: Operation
    result: Result
    arrays: tuple[Array, ...] = ()
    dtype: int = 0
    count: int = 0
    input: int = 0
    output: int = 0
    input_parts: tuple[Part, ...] = ()
    parts: tuple[Part, ...] = ()
    reduction: int = 0
    root: int = 0
    factor: float = 1.0
    tag: int = 0
    shape: tuple[int, ...] = ()


class Calls:
    """Makes calls for one rank of a group: checks arrays, and allocates those outputs that are not given."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def barrier(self) -> Call[None]:
        """All ranks arrive before any goes on."""
        return Call(Operation.BARRIER, None)

    def broadcast(self, array: Array, root: int = 0) -> Call[Array]:
        """The root's array, into every rank's ``array``."""
        dtype = _checked(array, written=self._rank != root)
        address = array.ctypes.data
        return Call(
            Operation.BROADCAST, array, (array,), dtype, array.size, output=address, root=root, shape=array.shape
        )

    def reduce(
        self,
        array: Array,
        root: int = 0,
        reduction: Reduction = "sum",
        *,
        output: Array | None = None,
        factor: float = 1.0,
    ) -> Call[Array | None]:
        """The reduction of all ranks' arrays, at the root; None elsewhere."""
        dtype = _checked(array)
        if self._rank == root and output is None:
            output = np.empty_like(array)
        if self._rank != root:
            output = None
        address = 0 if output is None else self._like(output, array, "output")
        kept = (array,) if output is None else (array, output)
        return Call(
            Operation.REDUCE, output, kept, dtype, array.size, array.ctypes.data, address,
            reduction=_reduction(reduction), root=root, factor=factor, shape=array.shape,
        )  # fmt: skip

    def all_reduce(
        self, array: Array, reduction: Reduction = "sum", *, output: Array | None = None, factor: float = 1.0
    ) -> Call[Array]:
        """The reduction of all ranks' arrays, at every rank. ``output`` may be ``array`` itself."""
        dtype = _checked(array)
        output = np.empty_like(array) if output is None else output
        address = self._like(output, array, "output")
        return Call(
            Operation.ALL_REDUCE, output, (array, output), dtype, array.size, array.ctypes.data, address,
            reduction=_reduction(reduction), factor=factor, shape=array.shape,
        )  # fmt: skip

    def scatter(self, parts: Sequence[Array] | None, output: Array, root: int = 0) -> Call[Array]:
        """Part r of the root to rank r's ``output``; ``parts`` is read at the root only."""
        dtype = _checked(output, written=True)
        given = self._parts(parts, dtype, "parts") if self._rank == root else ()
        return Call(
            Operation.SCATTER, output, (output, *(parts or ())), dtype, output.size, output=output.ctypes.data,
            parts=given, root=root, shape=output.shape,
        )  # fmt: skip

    def gather(self, array: Array, root: int = 0, *, parts: Sequence[Array] | None = None) -> Call[list[Array] | None]:
        """Every rank's array at the root, by rank; None elsewhere. Without ``parts`` all have the root's shape."""
        dtype = _checked(array)
        received = self._received(parts, array) if self._rank == root else []
        return Call(
            Operation.GATHER, received if self._rank == root else None, (array, *received), dtype, array.size,
            array.ctypes.data, parts=self._parts(received, dtype, "parts", written=True) if received else (), root=root,
        )  # fmt: skip

    def all_gather(self, array: Array, *, parts: Sequence[Array] | None = None) -> Call[list[Array]]:
        """Every rank's array, by rank. Without ``parts`` all have this rank's shape."""
        dtype = _checked(array)
        received = self._received(parts, array)
        return Call(
            Operation.ALL_GATHER, received, (array, *received), dtype, array.size, array.ctypes.data,
            parts=self._parts(received, dtype, "parts", written=True),
        )  # fmt: skip

    def reduce_scatter(
        self, parts: Sequence[Array], reduction: Reduction = "sum", *, output: Array | None = None, factor: float = 1.0
    ) -> Call[Array]:
        """The reduction of all ranks' part r, at rank r."""
        if len(parts) != self._size:
            raise usage(f"{len(parts)} parts for {self._size} ranks")
        own = parts[self._rank]
        dtype = _checked(own)
        output = np.empty_like(own) if output is None else output
        address = self._like(output, own, "output")
        return Call(
            Operation.REDUCE_SCATTER, output, (*parts, output), dtype, own.size, output=address,
            parts=self._parts(parts, dtype, "parts"), reduction=_reduction(reduction), factor=factor,
        )  # fmt: skip

    def all_to_all(self, input_parts: Sequence[Array], parts: Sequence[Array] | None = None) -> Call[list[Array]]:
        """Part s of rank r to rank s's part r. Without ``parts`` what comes has the shapes of what goes."""
        if not input_parts:
            raise usage("all_to_all needs a part for each rank")
        dtype = _checked(input_parts[0])
        received = [np.empty_like(part) for part in input_parts] if parts is None else list(parts)
        return Call(
            Operation.ALL_TO_ALL, received, (*input_parts, *received), dtype,
            input_parts=self._parts(input_parts, dtype, "input parts"),
            parts=self._parts(received, dtype, "parts", written=True),
        )  # fmt: skip

    def send(self, array: Array, to: int, tag: int = 0) -> Call[None]:
        """A message; rank ``to`` receives it with the same tag and type, into an array of this size or a larger one."""
        dtype = _checked(array)
        return Call(Operation.SEND, None, (array,), dtype, array.size, array.ctypes.data, root=to, tag=tag)

    def receive(self, array: Array, source: int = ANY_SOURCE, tag: int = 0) -> Call[Array]:
        """A message into the first elements of ``array``; :class:`Work` tells how many came, and from whom."""
        dtype = _checked(array, written=True)
        return Call(
            Operation.RECEIVE, array, (array,), dtype, array.size, output=array.ctypes.data, root=source, tag=tag
        )

    def _received(self, parts: Sequence[Array] | None, like: Array) -> list[Array]:
        if parts is not None:
            return list(parts)
        whole = np.empty((self._size, *like.shape), like.dtype)
        return [whole[rank, ...] for rank in range(self._size)]  # with "...", views also where there is no dimension

    def _parts(
        self, parts: Sequence[Array] | None, dtype: int, what: str, *, written: bool = False
    ) -> tuple[Part, ...]:
        if parts is None or len(parts) != self._size:
            raise usage(f"{0 if parts is None else len(parts)} {what} for {self._size} ranks")
        for rank, part in enumerate(parts):
            if _checked(part, written=written) != dtype:
                raise usage(f"{what}[{rank}] is {part.dtype}, expected {DTYPES[dtype]}")
        return tuple((part.ctypes.data, part.size) for part in parts)

    def _like(self, output: Array, array: Array, what: str) -> int:
        _checked(output, written=True)
        if output.shape != array.shape or output.dtype != array.dtype:
            raise usage(f"{what} is {output.dtype}{output.shape}, expected {array.dtype}{array.shape}")
        return output.ctypes.data


def _reduction(name: Reduction) -> int:
    if name not in REDUCTIONS:
        raise usage(f"there is no reduction {name!r}; there are {', '.join(REDUCTIONS)}")
    return REDUCTIONS.index(name)


def _checked(array: Array, *, written: bool = False) -> int:
    """Returns the native dtype of an array that the native side may use."""
    problem: UsageError | None = None
    if not isinstance(array, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a checker
        problem = usage(f"{type(array).__name__} is no numpy array", hint="np.asarray makes one")
    elif array.dtype.name not in DTYPES or not array.dtype.isnative:
        problem = usage(f"arrays of {array.dtype} are not communicated", hint="view it as one of " + ", ".join(DTYPES))
    elif not array.flags.c_contiguous:
        problem = usage(f"an array of shape {array.shape} is not C-contiguous", hint="np.ascontiguousarray copies it")
    elif written and not array.flags.writeable:
        problem = usage(f"an array of shape {array.shape} is read-only, and it would be written")
    if problem is not None:
        raise problem
    return DTYPES.index(array.dtype.name)
