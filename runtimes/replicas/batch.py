"""Batches along the first dim: whether a model has one, how it is cut into parts, how parts are put together again.

Vocabulary
    batch      the symbolic dim that is the first one of inputs and of every output.
    rows       what an input or output has along it. Row i of the outputs belongs to row i of the inputs: a signature
               does not say so, so a model whose rows look at each other must not be run in parts.
    shared     an input without the batch among its dims: each part gets the whole of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from lowerkit.errors import RuntimeFault, UnsupportedError
from lowerkit.runtimes.arguments import Array, bind_dims, describe, mismatch
from lowerkit.runtimes.expressions import symbols
from lowerkit.runtimes.manifest import ProgramSpec, Signature, TensorSpec


@dataclass(frozen=True)
class Batch:
    """The batch of a model.

    Attributes:
        signature: of the model.
        dim: the name of the symbolic dim.
        split: for each input, whether it has rows; the others are shared.
    """

    signature: Signature
    dim: str
    split: tuple[bool, ...]

    @staticmethod
    def of(program: ProgramSpec) -> Batch:
        """Returns the batch of a program.

        Raises:
            UnsupportedError: LK4008, it has none; the details say why, for each dim that could have been one.
        """
        signature = program.signature
        reasons = list(_obstacles(program))
        candidates = dict.fromkeys(
            spec.shape[0] for spec in signature.inputs if spec.shape and isinstance(spec.shape[0], str)
        )
        if not candidates:
            inputs = ", ".join(map(describe, signature.inputs)) or "none"
            reasons.append(f"no input has a symbolic first dim: the inputs are {inputs}")
        for dim in candidates:
            found = list(_dim_problems(signature, dim))
            if not (found or reasons):
                return Batch(signature, dim, tuple(_has_rows(spec, dim) for spec in signature.inputs))
            reasons += found
        raise UnsupportedError(
            "LK4008",
            "the model has no batch that can be cut into parts or put together",
            details=reasons,
            hint="compile it with a symbolic first dim, as in `lowerkit compile model.py --dynamic x:0=1..64`",
        )

    def rows(self, arrays: Sequence[Array]) -> int:
        """Returns how many rows inputs have, in the order of the signature.

        Raises:
            RuntimeFault: LK8004, inputs have unlike numbers of rows.
        """
        counts = {
            spec.name: len(array)
            for spec, array, split in zip(self.signature.inputs, arrays, self.split, strict=True)
            if split
        }
        if len(set(counts.values())) > 1:
            given = ", ".join(f"{name!r} has {count}" for name, count in counts.items())
            raise mismatch([f"inputs have unlike numbers of rows ({self.dim}): {given}"], self.signature)
        return next(iter(counts.values()))

    def cut(self, arrays: Sequence[Array], parts: int) -> list[list[Array]]:
        """Cuts inputs into parts whose numbers of rows differ by one at most; views, nothing is copied.

        Args:
            arrays: the inputs, in the order of the signature.
            parts: how many are wanted. There are fewer where the model does not take so few rows (the range of the
                dim, and the conditions of the signature, hold for each part), and more where it does not take so many.

        Raises:
            RuntimeFault: LK8004, no number of parts will do; the error is that of the inputs as a whole.
        """
        rows = self.rows(arrays)
        wanted = max(1, min(parts, rows))
        try:
            bind_dims(self.signature, arrays)
            counts: Iterator[int] = iter(range(wanted, 1, -1))
            whole: RuntimeFault | None = None
        except RuntimeFault as error:
            counts, whole = chain(range(wanted, 1, -1), range(wanted + 1, rows + 1)), error
        for count in counts:
            edges = [rows * part // count for part in range(count + 1)]
            if self._takes(arrays, rows // count) and self._takes(arrays, -(-rows // count)):
                return [self.slice(arrays, first, last) for first, last in pairwise(edges)]
        if whole is not None:
            raise whole
        return [list(arrays)]

    def slice(self, arrays: Sequence[Array], first: int, last: int) -> list[Array]:
        """Returns inputs with the rows from ``first`` up to ``last``; views."""
        return [array[first:last] if split else array for array, split in zip(arrays, self.split, strict=True)]

    def join(self, requests: Sequence[Sequence[Array]]) -> list[Array]:
        """Returns the inputs of several requests as those of one; shared inputs are the first one's."""
        columns = map(list, zip(*requests, strict=True))
        return [
            np.concatenate(column) if split and len(column) > 1 else column[0]
            for column, split in zip(columns, self.split, strict=True)
        ]

    def key(self, arrays: Sequence[Array]) -> tuple[object, ...]:
        """Returns what inputs must have in common to be joined: extents beside the batch, and all of a shared input."""
        return tuple(
            array.shape[1:] if split else (array.shape, array.tobytes())
            for array, split in zip(arrays, self.split, strict=True)
        )

    def _takes(self, arrays: Sequence[Array], rows: int) -> bool:
        try:
            bind_dims(self.signature, self.slice(arrays, 0, rows))
        except RuntimeFault:
            return False
        return True


def join_outputs(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Returns the outputs of all parts, each as one array: a copy where there are several parts."""
    return [column[0] if len(column) == 1 else np.concatenate(column) for column in zip(*parts, strict=True)]


def _obstacles(program: ProgramSpec) -> Iterator[str]:
    for state in program.signature.states:
        yield f"it has the state {state.name!r}: each part would go on with another value of it"
    if program.mesh:
        axes = ",".join(f"{axis.name}={axis.size}" for axis in program.mesh)
        yield f"it is for a mesh {axes}: its ranks run each batch together"
    if not program.signature.outputs:
        yield "it has no outputs"


def _has_rows(spec: TensorSpec, dim: str) -> bool:
    return bool(spec.shape) and spec.shape[0] == dim


def _dim_problems(signature: Signature, dim: str) -> Iterator[str]:
    """Yields why ``dim`` is not the batch: where else it stands, and the outputs that have no rows."""
    for role, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            rest = spec.shape[1:] if _has_rows(spec, dim) else spec.shape
            if any(dim in symbols(entry) for entry in rest):
                yield f"{dim!r} stands elsewhere than first in the {role} {describe(spec)}"
            elif role == "output" and not _has_rows(spec, dim):
                yield f"the output {describe(spec)} has no first dim {dim!r}"
