"""Keeps torch from running code that a ``.pt2`` carries where its example inputs should be.

torch unpickles the example inputs safely at first; where that fails it tries again with everything allowed, so a file
with anything else in that place runs what it likes. While lowerkit loads a file, the second try is a refusal.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from lowerkit.errors import CaptureError

MAXIMUM_LEAVES = 100_000
MAXIMUM_DEPTH = 100
"""Of example inputs: tensors and what they are nested in."""


@contextmanager
def plain_pickles() -> Generator[None]:
    """Within the block torch's deserializer takes tensors and plain containers only.

    Raises:
        CaptureError: LK2002, from within the block, for a pickle that holds anything else.
    """
    serializer: Any = importlib.import_module("torch._export.serde.serialize")
    original = serializer.deserialize_torch_artifact
    serializer.deserialize_torch_artifact = _plain
    try:
        yield
    finally:
        serializer.deserialize_torch_artifact = original


def _plain(serialized: Any) -> Any:
    if isinstance(serialized, (dict, tuple)):
        return serialized  # type: ignore[return-value]
    if len(serialized) == 0:
        return {}
    try:
        value = torch.load(io.BytesIO(serialized), weights_only=True)
        _require_small(value)
        return value
    except Exception as error:
        raise CaptureError(
            "LK2002",
            "the file's example inputs, or tensors of an older archive, hold pickled objects, which are not loaded",
            details=[next(iter(str(error).splitlines()), type(error).__name__)],
            hint="export it again with plain tensors as example inputs, or name a factory: path/to/file.py:factory",
        ) from None


def _require_small(value: Any) -> None:
    """Raises ``ValueError`` for a nest that takes for ever to walk: shared tuples in tuples double at each level."""
    stack: list[tuple[Any, int]] = [(value, 0)]
    leaves = 0
    while stack:
        one, depth = stack.pop()
        leaves += 1
        if leaves > MAXIMUM_LEAVES or depth > MAXIMUM_DEPTH:
            raise ValueError(
                f"example inputs nested more than {MAXIMUM_DEPTH} deep or of more than {MAXIMUM_LEAVES} parts"
            )
        if isinstance(one, dict):
            stack += [(inner, depth + 1) for inner in one.values()]  # pyright: ignore[reportUnknownVariableType]
        elif isinstance(one, (list, tuple, set)):
            stack += [(inner, depth + 1) for inner in one]  # pyright: ignore[reportUnknownVariableType]
