"""Every collective is accompanied by a description of it, so that ranks that call different ones learn of it.

A description is 16 integers of 64 bits: sequence number, operation, dtype, reduction, root, elements, sum over the
lengths of all parts, number of dimensions and up to 8 of them; -1 where the operation has no such thing. All ranks
gather all descriptions; MPI alone would wait for ever, or mix up what it is given.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowerkit.runtimes.collective.calls import DTYPES, REDUCTIONS, Call, Operation
from lowerkit.runtimes.collective.mpi.validation import REDUCING

LENGTH = 16
_FIRST_DIM = 8
_ROOTED = {Operation.BROADCAST, Operation.REDUCE, Operation.SCATTER, Operation.GATHER}
_ALIKE = {Operation.BROADCAST, Operation.REDUCE, Operation.ALL_REDUCE}
_ALL_PARTS = {Operation.ALL_GATHER, Operation.REDUCE_SCATTER}
_COUNT = 5


def described(call: Call[Any], sequence: int) -> NDArray[np.int64]:
    """Returns the description of a rank's call."""
    operation = call.operation
    row = np.full(LENGTH, -1, np.int64)
    row[0:2] = sequence, operation
    if operation != Operation.BARRIER:
        row[2] = call.dtype
    if operation in REDUCING:
        row[3] = call.reduction
    if operation in _ROOTED:
        row[4] = call.root
    row[_COUNT] = call.count
    if operation in _ALL_PARTS:
        row[6] = zlib.crc32(np.array([count for _, count in call.parts], np.int64).tobytes())
    if operation in _ALIKE:
        dims = call.shape[: LENGTH - _FIRST_DIM]
        row[7] = len(call.shape)
        row[_FIRST_DIM : _FIRST_DIM + len(dims)] = dims
    return row


def disagreement(call: Call[Any], rank: int, rows: NDArray[np.int64]) -> str | None:
    """Returns what is wrong with the ranks' calls, with both sides of it, or None.

    Args:
        call: this rank's.
        rank: this rank.
        rows: descriptions of all ranks' calls.
    """
    compared = np.ones(LENGTH, bool)
    if call.operation not in _ALIKE:
        compared[_COUNT] = False  # parts may have different lengths
    for other, row in enumerate(rows):
        if not np.array_equal(row[compared], rows[rank][compared]):
            return f"rank {other} called {_readable(row)}, this rank {_readable(rows[rank])}"
    if call.operation in {Operation.SCATTER, Operation.GATHER} and call.root == rank:
        for other, (_, count) in enumerate(call.parts):
            if rows[other][_COUNT] != count:
                return f"rank {other} has {rows[other][_COUNT]} elements, and {count} at the root"
    return None


def _readable(row: NDArray[np.int64]) -> str:
    sequence, operation, dtype, reduction, root, count, parts, dims = (int(one) for one in row[:_FIRST_DIM])
    words = [f"{Operation(operation).name.lower()} #{sequence}"]
    if reduction >= 0:
        words.append(REDUCTIONS[reduction])
    if dtype >= 0:
        words.append(f"of {count} {DTYPES[dtype]}")
    if dims >= 0:
        words.append(f"in the shape {tuple(int(one) for one in row[_FIRST_DIM : _FIRST_DIM + dims])}")
    if parts >= 0:
        words.append(f"in parts with the sum {parts:08x}")
    if root >= 0:
        words.append(f"with root {root}")
    return " ".join(words)
