"""From arrays to the bytes of an inference response, and what a model says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from lowerkit.runtimes.arguments import Array
from lowerkit.runtimes.manifest import Signature, TensorSpec
from lowerkit.serving.protocol.datatypes import NAMES
from lowerkit.serving.protocol.failures import Reply, RequestError
from lowerkit.serving.protocol.requests import LENGTH_HEADER, InferenceRequest

EXTENSIONS = ("binary_tensor_data",)
PLATFORM = "lowerkit"


def json_reply(document: Mapping[str, Any], status: int = 200) -> Reply:
    """Returns a response of JSON alone."""
    return Reply(status, msgspec.json.encode(document))


def inference_reply(
    model: str,
    version: str,
    signature: Signature,
    request: InferenceRequest,
    outputs: Sequence[Array],
    parameters: Mapping[str, Any],
) -> Reply:
    """Returns the response with outputs.

    Args:
        model, version: names of what ran.
        signature: of the model.
        request: what was asked for.
        outputs: of the model, in the order of its signature.
        parameters: of the response.

    Raises:
        RequestError: LK1012, the model has no such output, or one has values that JSON has not.
    """
    arrays = {spec.name: (spec, array) for spec, array in zip(signature.outputs, outputs, strict=True)}
    wanted = list(arrays) if request.outputs is None else request.outputs
    check_outputs(signature, request)
    rows: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name in wanted:
        spec, array = arrays[name]
        row: dict[str, Any] = {"name": name, "datatype": NAMES[spec.dtype], "shape": list(array.shape)}
        if request.binary is None or name in request.binary:
            row["parameters"] = {"binary_data_size": array.nbytes}
            tail.append(array.tobytes())
        else:
            row["data"] = _json_values(spec, array)
        rows.append(row)
    document: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": rows}
    if request.id is not None:
        document["id"] = request.id
    if parameters:
        document["parameters"] = dict(parameters)
    head = msgspec.json.encode(document)
    if not tail:
        return Reply(200, head)
    headers = {"Content-Type": "application/octet-stream", LENGTH_HEADER: str(len(head))}
    return Reply(200, b"".join([head, *tail]), headers)


def check_outputs(signature: Signature, request: InferenceRequest) -> None:
    """Checks that the model has the outputs that a request names.

    Raises:
        RequestError: LK1012, it has not.
    """
    names = [spec.name for spec in signature.outputs]
    for name in request.outputs or ():
        if name not in names:
            raise RequestError(f"the model has no output {name!r:.80}, it has {', '.join(names)}")


def model_metadata(name: str, version: str, signature: Signature, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the protocol tells of a model; a symbolic extent is -1."""
    return {
        "name": name,
        "versions": [version],
        "platform": PLATFORM,
        "inputs": [_described(spec) for spec in signature.inputs],
        "outputs": [_described(spec) for spec in signature.outputs],
        "parameters": dict(parameters),
    }


def _described(spec: TensorSpec) -> dict[str, Any]:
    shape = [extent if isinstance(extent, int) else -1 for extent in spec.shape]
    return {"name": spec.name, "datatype": NAMES[spec.dtype], "shape": shape}


def _json_values(spec: TensorSpec, array: Array) -> list[Any]:
    if spec.dtype in ("f16", "bf16"):
        array = array.astype(np.float32)
    if spec.dtype in ("f16", "bf16", "f32", "f64") and not np.isfinite(array).all():
        raise RequestError(
            f"output {spec.name!r} holds infinities or NaN, which JSON has not",
            status=422,
            hint=f'ask for bytes: "outputs": [{{"name": "{spec.name}", "parameters": {{"binary_data": true}}}}]',
        )
    return array.ravel().tolist()
