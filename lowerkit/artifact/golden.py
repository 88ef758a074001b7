"""Golden inputs and outputs: what ``lowerkit verify`` runs again on another machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.artifact.safetensors_blob import blob_bytes
from lowerkit.runtimes.manifest import GOLDEN_INPUTS_ENTRY, GOLDEN_OUTPUTS_ENTRY

Array = np.ndarray[Any, Any]


def golden_entries(inputs: Sequence[Array], outputs: Sequence[Array]) -> dict[str, bytes]:
    """Returns the entries that hold ``inputs`` and ``outputs``, in the order of the signature.

    Tensors are named by their position (``0``, ``1``, ...): names of a signature may hold any character.
    """
    return {
        GOLDEN_INPUTS_ENTRY: blob_bytes({str(number): np.asarray(array) for number, array in enumerate(inputs)}),
        GOLDEN_OUTPUTS_ENTRY: blob_bytes({str(number): np.asarray(array) for number, array in enumerate(outputs)}),
    }
