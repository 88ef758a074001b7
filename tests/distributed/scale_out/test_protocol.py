"""Requests and responses of the Open Inference Protocol as bytes, and what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.errors import ResourceError, RuntimeFault, UnsupportedError
from lowerkit.runtimes.dtypes import numpy_dtype
from lowerkit.runtimes.manifest import ITEM_SIZES, Signature, TensorSpec
from lowerkit.serving.protocol.datatypes import DATATYPES, NAMES
from lowerkit.serving.protocol.failures import RequestError, error_reply
from lowerkit.serving.protocol.requests import LENGTH_HEADER, InferenceRequest, read_request
from lowerkit.serving.protocol.responses import inference_reply, model_metadata

X = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [1, 2.5, -3, 4]}


def read(*tensors: dict[str, Any], tail: bytes = b"", **fields: Any) -> InferenceRequest:
    head = json.dumps({"inputs": list(tensors), **fields}).encode()
    return read_request(head + tail, str(len(head)) if tail else None)


def test_every_dtype_of_a_signature_has_a_datatype() -> None:
    assert sorted(DATATYPES.values()) == sorted(ITEM_SIZES) == sorted(NAMES)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_values_survive_both_forms(datatype: str) -> None:
    dtype = numpy_dtype(DATATYPES[datatype])
    if datatype == "BOOL":
        values = np.array([[True, False, True]])
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.array([[limits.min, 1, limits.max]], dtype)
    else:
        values = np.array([[0.1, -2.0, 3.5]], np.float64).astype(dtype)
    plain = values.astype(np.float64).tolist() if datatype == "BF16" else values.tolist()
    flat = read({"name": "x", "datatype": datatype, "shape": [1, 3], "data": plain[0]}).inputs["x"]
    nested = read({"name": "x", "datatype": datatype, "shape": [1, 3], "data": plain}).inputs["x"]
    tensor = {"name": "x", "datatype": datatype, "shape": [1, 3], "parameters": {"binary_data_size": values.nbytes}}
    binary = read(tensor, tail=values.tobytes()).inputs["x"]
    signature = Signature(outputs=[TensorSpec("x", DATATYPES[datatype], [1, 3])])
    for array in (flat, nested, binary):
        assert array.dtype == dtype and array.shape == (1, 3) and array.tobytes() == values.tobytes()
        as_json = inference_reply("m", "v", signature, InferenceRequest(None, {}, None, frozenset()), [array], {})
        (output,) = json.loads(as_json.body)["outputs"]
        assert output == {"name": "x", "datatype": datatype, "shape": [1, 3], "data": plain[0]}
        as_bytes = inference_reply("m", "v", signature, InferenceRequest("7", {}, None, None), [array], {})
        length = int(as_bytes.headers[LENGTH_HEADER])
        assert as_bytes.body[length:] == values.tobytes() and json.loads(as_bytes.body[:length])["id"] == "7"


def test_binary_tensors_lie_behind_the_json_in_order() -> None:
    first, second = np.arange(3, dtype=np.int8), np.arange(4, dtype=np.float32)
    head = [
        {"name": "a", "datatype": "INT8", "shape": [3], "parameters": {"binary_data_size": 3}},
        {"name": "b", "datatype": "INT32", "shape": [], "data": [5]},
        {"name": "c", "datatype": "FP32", "shape": [4], "parameters": {"binary_data_size": 16}},
    ]
    inputs = read(*head, tail=first.tobytes() + second.tobytes()).inputs
    assert inputs["a"].tolist() == [0, 1, 2] and inputs["b"].shape == () and inputs["c"].tolist() == [0, 1, 2, 3]


def test_which_outputs_are_wanted_and_how() -> None:
    signature = Signature(outputs=[TensorSpec("a", "f32", [1]), TensorSpec("b", "f32", [1])])
    arrays = [np.ones(1, np.float32), np.zeros(1, np.float32)]

    def given(**fields: Any) -> list[tuple[str, bool]]:
        reply = inference_reply("m", "v", signature, read(X, **fields), arrays, {})
        head = json.loads(reply.body[: int(reply.headers.get(LENGTH_HEADER, len(reply.body)))])
        return [(output["name"], "data" not in output) for output in head["outputs"]]

    assert given() == [("a", False), ("b", False)]
    assert given(parameters={"binary_data_output": True}) == [("a", True), ("b", True)]
    assert given(outputs=[{"name": "b"}, {"name": "a", "parameters": {"binary_data": True}}]) == [
        ("b", False), ("a", True),
    ]  # fmt: skip
    wanted = [{"name": "b", "parameters": {"binary_data": False}}, {"name": "a"}]
    assert given(outputs=wanted, parameters={"binary_data_output": True}) == [("b", False), ("a", True)]
    with pytest.raises(RequestError, match="the model has no output 'c', it has a, b"):
        given(outputs=[{"name": "c"}])


def of(**fields: Any) -> dict[str, Any]:
    return {**X, **fields}


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ([of(datatype="BYTES")], "input 'x' has datatype 'BYTES', expected one of BOOL"),
        ([of(shape=[2, 3])], "input 'x' has data of 4 values, and the shape [2, 3]"),
        ([of(shape=[-1, 4])], "has the shape [-1, 4], which no tensor has"),
        ([of(shape=[1 << 40, 1 << 40])], "has data of 4 values"),
        ([of(data=[[1, 2], [3]])], "its data is no FP32 of shape [2, 2]"),
        ([of(data=[[1, 2], [3, 4], [5, 6]])], "has data of 3 x 2 values, and the shape [2, 2]"),
        ([of(data=["1", 2, 3, 4])], "its data is no FP32"),
        ([of(data=[1e40, 2, 3, 4])], "input 'x' has values beyond the range of FP32"),
        ([of(datatype="INT8", data=[1, 2, 3, 128])], "values beyond the range of INT8"),
        ([of(datatype="UINT64", data=[1, 2, 3, -1])], "values beyond the range of UINT64"),
        ([of(datatype="INT64", data=[1, 2, 3, 4.5])], "its data is no INT64"),
        ([of(datatype="BOOL", data=[1, 0, 1, 0])], "its data is no BOOL"),
        ([of(data=None)], "its data is no FP32"),
        ([{"name": "x", "datatype": "FP32", "shape": [1]}], "input 'x' has neither data nor binary_data_size"),
        ([X, X], "input 'x' is given twice"),
        ([of(parameters={"binary_data_size": 16})], "has data both in JSON and behind it"),
        ([of(shape="2")], "the body is no inference request"),
    ],
)
def test_what_is_wrong_with_a_tensor_is_named(tensors: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(*tensors)
    assert caught.value.code == "LK1012" and said in caught.value.message, caught.value.message


@pytest.mark.parametrize(
    ("size", "tail", "said"),
    [
        (15, bytes(16), "binary_data_size is 15, and FP32 of shape [2, 2] has 16 bytes"),
        (True, bytes(16), "binary_data_size is True"),
        (16, bytes(8), "input 'x' has 16 bytes, and the body ends after 8 of them"),
        (16, bytes(17), "1 bytes of the body belong to no input"),
    ],
)
def test_what_is_wrong_with_bytes_is_named(size: Any, tail: bytes, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        read({"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": size}}, tail=tail)
    assert said in caught.value.message


@pytest.mark.parametrize("length", ["-1", "2000000", "two", "²"])
def test_a_length_that_lies_is_named(length: str) -> None:
    with pytest.raises(RequestError, match=LENGTH_HEADER):
        read_request(b"{}", length)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"inputs": 1}', b"\xff\xfe", b'{"inputs": ' + b"[" * 100000])
def test_what_is_no_request_is_said(body: bytes) -> None:
    with pytest.raises(RequestError, match="the body is no inference request"):
        read_request(body, None)


def test_a_byte_that_is_no_bool_is_refused() -> None:
    tensor = {"name": "x", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}}
    with pytest.raises(RequestError, match="holds a byte other than 0 and 1"):
        read(tensor, tail=b"\1\2")


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)])
def test_json_has_no_infinities_and_bytes_have(dtype: np.dtype[Any]) -> None:
    signature = Signature(outputs=[TensorSpec("y", "f32" if dtype == np.float32 else "bf16", [2])])
    arrays = [np.array([np.inf, np.nan], np.float32).astype(dtype)]
    with pytest.raises(RequestError, match="output 'y' holds infinities or NaN") as caught:
        inference_reply("m", "v", signature, read(X), arrays, {})
    assert error_reply(caught.value).status == 422 and "binary_data" in str(caught.value)
    assert (
        inference_reply("m", "v", signature, read(X, parameters={"binary_data_output": True}), arrays, {}).status == 200
    )


def test_statuses_of_errors() -> None:
    errors = [
        RequestError("m", status=404), RequestError("m"), RuntimeFault("LK8004", "m"), RuntimeFault("LK8016", "m"),
        ResourceError("LK7005", "m"), RuntimeFault("LK8023", "m"), UnsupportedError("LK4008", "m"),
    ]  # fmt: skip
    assert [error_reply(error).status for error in errors] == [404, 400, 400, 500, 503, 503, 501]
    reply = error_reply(ResourceError("LK7005", "full", hint="later"), 0.2)
    assert reply.headers["Retry-After"] == "1"
    assert json.loads(reply.body) == {"error": "error[LK7005]: full\n  hint: later", "code": "LK7005"}


def test_a_symbolic_extent_is_minus_one() -> None:
    signature = Signature([TensorSpec("x", "bf16", ["n", 3])], [TensorSpec("y", "i1", [("mul", "n", 2)])])
    assert model_metadata("m", "v", signature, {}) == {
        "name": "m", "versions": ["v"], "platform": "lowerkit", "parameters": {},
        "inputs": [{"name": "x", "datatype": "BF16", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "BOOL", "shape": [-1]}],
    }  # fmt: skip
