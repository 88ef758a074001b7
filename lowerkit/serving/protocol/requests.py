"""From the bytes of an inference request to arrays.

A body is JSON, or JSON whose tensors lie behind it as bytes (the binary tensor data extension): the header
``Inference-Header-Content-Length`` then says how long the JSON is, each tensor's ``binary_data_size`` how many bytes
are its. Bytes are used where they lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from lowerkit.runtimes.arguments import Array
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.serving.protocol.datatypes import DATATYPES
from lowerkit.serving.protocol.failures import RequestError

LENGTH_HEADER = "Inference-Header-Content-Length"
_MOST_RANK = 32
_MISSING = msgspec.Raw()


class _Tensor(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = _MISSING


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct):
    inputs: list[_Tensor]
    id: str | None = None
    outputs: list[_Output] = []
    parameters: dict[str, Any] = {}


@dataclass(frozen=True)
class InferenceRequest:
    """What a client asks for.

    Attributes:
        id: the client's name of the request, or None.
        inputs: by name.
        outputs: names of those that it wants, in its order; None: all.
        binary: the outputs that it wants as bytes; None: all.
    """

    id: str | None
    inputs: dict[str, Array]
    outputs: list[str] | None
    binary: frozenset[str] | None


def read_request(body: bytes, header_length: str | None) -> InferenceRequest:
    """Reads a request.

    Args:
        body: of the HTTP request.
        header_length: the value of :data:`LENGTH_HEADER`, None where it is missing: all of the body is JSON.

    Raises:
        RequestError: LK1012, with what is wrong and in which tensor.
    """
    length = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit() and int(header_length) <= length):
            raise RequestError(f"{LENGTH_HEADER} is {header_length!r:.40}, and the body has {length} bytes")
        length = int(header_length)
    view = memoryview(body)
    try:
        request = msgspec.json.decode(view[:length], type=_Request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is no inference request: {error}") from None
    inputs: dict[str, Array] = {}
    rest = view[length:]
    for tensor in request.inputs:
        if tensor.name in inputs:
            raise RequestError(f"input {tensor.name!r} is given twice")
        inputs[tensor.name], rest = _array(tensor, rest)
    if len(rest):
        raise RequestError(f"{len(rest)} bytes of the body belong to no input")
    names = [output.name for output in request.outputs] or None
    if request.parameters.get("binary_data_output") is True and names is None:
        return InferenceRequest(request.id, inputs, None, None)
    whole = request.parameters.get("binary_data_output") is True
    binary = frozenset(one.name for one in request.outputs if one.parameters.get("binary_data", whole) is True)
    return InferenceRequest(request.id, inputs, names, binary)


def _array(tensor: _Tensor, rest: memoryview) -> tuple[Array, memoryview]:
    """Returns the array of a tensor, and the bytes that belong to those behind it."""
    name, shape = tensor.name, tensor.shape
    if tensor.datatype not in DATATYPES:
        known = ", ".join(DATATYPES)
        raise RequestError(f"input {name!r} has datatype {tensor.datatype!r:.40}, expected one of {known}")
    if len(shape) > _MOST_RANK or any(extent < 0 for extent in shape):
        raise RequestError(f"input {name!r} has the shape {shape!r:.80}, which no tensor has")
    dtype, count = numpy_dtype(DATATYPES[tensor.datatype]), math.prod(shape)
    size = tensor.parameters.get("binary_data_size")
    if size is None:
        return _from_json(tensor, dtype, count), rest
    if bytes(tensor.data):
        raise RequestError(f"input {name!r} has data both in JSON and behind it")
    if type(size) is not int or size != count * dtype.itemsize:
        expected = f"{tensor.datatype} of shape {shape} has {count * dtype.itemsize} bytes"
        raise RequestError(f"input {name!r}: binary_data_size is {size!r:.40}, and {expected}")
    if size > len(rest):
        raise RequestError(f"input {name!r} has {size} bytes, and the body ends after {len(rest)} of them")
    raw = np.frombuffer(rest[:size], np.uint8)
    if tensor.datatype == "BOOL" and raw.size and raw.max() > 1:
        raise RequestError(f"input {name!r} is BOOL and holds a byte other than 0 and 1")
    return raw.view(dtype).reshape(shape), rest[size:]


def _from_json(tensor: _Tensor, dtype: np.dtype[Any], count: int) -> Array:
    if not bytes(tensor.data):
        raise RequestError(f"input {tensor.name!r} has neither data nor binary_data_size")
    of_floats = tensor.datatype in ("FP16", "FP32", "FP64", "BF16")
    element: Any = float if of_floats else bool if tensor.datatype == "BOOL" else int
    values = _values(tensor, element)
    if values.shape not in ((count,), tuple(tensor.shape)):
        found = " x ".join(map(str, values.shape))
        raise RequestError(f"input {tensor.name!r} has data of {found} values, and the shape {tensor.shape}")
    if of_floats:
        with np.errstate(over="ignore"):
            result = values.astype(dtype)
        fits = np.isfinite(result.astype(np.float64)).all()
    else:
        limits = None if dtype == np.bool_ else np.iinfo(dtype)
        fits = limits is None or not count or (values.min() >= limits.min and values.max() <= limits.max)
        result = values.astype(dtype) if fits else values
    if not fits:
        raise RequestError(f"input {tensor.name!r} has values beyond the range of {tensor.datatype}")
    return result.reshape(tensor.shape)


def _values(tensor: _Tensor, element: Any) -> Array:
    """Returns the data of a tensor, flat or nested as its shape, as a wide dtype."""
    nested: Any = element
    for _ in range(max(1, len(tensor.shape))):
        nested = list[nested]
    error: Exception | None = None
    # Flat data is what clients send, and fast.
    for form in dict.fromkeys((list[element], nested)):
        try:
            return np.array(msgspec.json.decode(tensor.data, type=form), _WIDE[element])
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as reason:
            error = reason
    raise RequestError(f"input {tensor.name!r}: its data is no {tensor.datatype} of shape {tensor.shape}: {error}")


# Python's own integers: those of UINT64 and of INT64 fit no other dtype together.
_WIDE: dict[Any, Any] = {float: np.float64, bool: np.bool_, int: np.object_}
