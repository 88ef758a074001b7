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
        return torch.load(io.BytesIO(serialized), weights_only=True)
    except Exception as error:
        raise CaptureError(
            "LK2002",
            "the file's example inputs, or tensors of an older archive, hold pickled objects, which are not loaded",
            details=[next(iter(str(error).splitlines()), type(error).__name__)],
            hint="export it again with plain tensors as example inputs, or name a factory: path/to/file.py:factory",
        ) from None
