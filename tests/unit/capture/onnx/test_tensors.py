"""External data stays in the model's folder, and inline data is as long as it says."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from lowerkit.capture.onnx.tensors import TensorError, lazy_tensor

DATA = np.arange(6, dtype=np.float32)


def external(**fields: object) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/sub").mkdir()
    (tmp_path / "model/w.bin").write_bytes(b"\0" * 8 + DATA.tobytes() + b"\0" * 8)
    (tmp_path / "model/sub/w.bin").write_bytes(DATA.tobytes())
    (tmp_path / "secret.bin").write_bytes(DATA.tobytes())
    (tmp_path / "model/link.bin").symlink_to(tmp_path / "secret.bin")
    (tmp_path / "model/dirlink").symlink_to(tmp_path)
    os.link(tmp_path / "secret.bin", tmp_path / "model/hard.bin")
    os.mkfifo(tmp_path / "model/fifo")
    return tmp_path / "model"


def test_external_data_is_mapped(folder: Path) -> None:
    lazy = lazy_tensor(external(location="w.bin", offset=8, length=24), folder)
    assert (lazy.dtype, lazy.shape) == ("f32", (2, 3))
    array = lazy.read()
    assert array.tolist() == DATA.reshape(2, 3).tolist()
    assert not array.flags.writeable
    assert lazy_tensor(external(location="sub/w.bin"), folder).read().tolist() == DATA.reshape(2, 3).tolist()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "location"),
        ({"location": "../secret.bin"}, "not a path below"),
        ({"location": "sub/../../secret.bin"}, "not a path below"),
        ({"location": "/etc/hostname"}, "not a path below"),
        ({"location": "a\0b"}, "not a path below"),
        ({"location": "..\\secret.bin"}, "not a path below"),
        ({"location": "link.bin"}, "symbolic link"),
        ({"location": "dirlink/secret.bin"}, "symbolic link"),
        ({"location": "hard.bin"}, "hard links"),
        ({"location": "fifo"}, "no regular file"),
        ({"location": "sub"}, "no regular file"),
        ({"location": "nobody.bin"}, "cannot be read"),
        ({"location": "w.bin", "offset": 24}, "which has 40"),
        ({"location": "w.bin", "offset": -8}, "not a count"),
        ({"location": "w.bin", "offset": "9" * 30}, "not a count"),
        ({"location": "w.bin", "length": 23}, "23 bytes are stated"),
        ({"location": "w.bin", "length": 2**50}, "are stated"),
        ({"location": "w.bin", "surprise": 1}, "unknown keys surprise"),
    ],
)
def test_external_data_that_is_refused(folder: Path, fields: dict[str, object], words: str) -> None:
    with pytest.raises(TensorError, match=words):
        lazy_tensor(external(**fields), folder)


def test_external_data_without_a_folder() -> None:
    with pytest.raises(TensorError, match="bytes"):
        lazy_tensor(external(location="w.bin"), None)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64, np.bool_, np.int8, np.uint8, np.int32, np.int64]
)
def test_inline_data(dtype: type) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    lazy = lazy_tensor(numpy_helper.from_array(array, "w"), None)
    assert lazy.read().dtype == array.dtype
    assert lazy.read().tolist() == array.tolist()


def test_typed_fields() -> None:
    tensor = onnx.helper.make_tensor("w", TensorProto.FLOAT16, [3], [1.0, 2.0, 3.0])
    assert lazy_tensor(tensor, None).read().tolist() == [1, 2, 3]
    tensor.dims[0] = 4
    with pytest.raises(TensorError, match="needs 4 elements"):
        lazy_tensor(tensor, None)
