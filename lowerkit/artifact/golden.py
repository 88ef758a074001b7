"""Golden inputs and outputs: what ``lowerkit verify`` runs again on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.artifact.safetensors_blob import blob_bytes
from lowerkit.runtimes.manifest import GOLDEN_INPUTS_ENTRY

Array = np.ndarray[Any, Any]


def golden_entries(inputs: Sequence[Array], outputs: Mapping[str, Sequence[Array]]) -> dict[str, bytes]:
    """Returns the entries that hold ``inputs`` and the ``outputs`` of each program, in the order of the signature.

    Tensors are named by their position (``0``, ``1``, ...): names of a signature may hold any character.

    Args:
        inputs: of all programs.
        outputs: by the entry that ``ProgramSpec.golden`` of the program names.
    """
    return {name: _blob(arrays) for name, arrays in {GOLDEN_INPUTS_ENTRY: inputs, **outputs}.items()}


def _blob(arrays: Sequence[Array]) -> bytes:
    return blob_bytes({str(number): np.asarray(array) for number, array in enumerate(arrays)})
