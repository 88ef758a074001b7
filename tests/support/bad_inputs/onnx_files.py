"""14 to 21 and 36: where an ONNX file's data lies, how large the file is, how its parts are named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tests.support.bad_inputs.case import BadInput, compile_commands
from tests.support.bad_inputs.files import onnx_model

DATA = np.linspace(-1, 1, 32, dtype=np.float32).tobytes()


def _external(folder: Path, name: str, **fields: object) -> str:
    """Writes a model whose weight (8x4 of f32, 128 bytes) lies elsewhere; returns its name."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 4], data_location=TensorProto.EXTERNAL)
    for key, value in fields.items():
        tensor.external_data.add(key=key, value=str(value))
    model = onnx_model([helper.make_node("MatMul", ["input", "w"], ["y"])], weights=[tensor])
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    return f"{name}.onnx"


def external_model(folder: Path) -> str:
    """Writes a sound model with its weight in ``w.bin``; returns its name."""
    (folder / "w.bin").write_bytes(DATA)
    return _external(folder, "model", location="w.bin")


def _at(*locations: str, **fields: object) -> Callable[[Path], list[list[str]]]:
    def make(folder: Path) -> list[list[str]]:
        (folder / "sub").mkdir()
        (folder / "w.bin").write_bytes(DATA)
        (folder / "sub/w.bin").write_bytes(DATA)
        (folder.parent / "secret.bin").write_bytes(DATA)
        (folder / "link.bin").symlink_to("w.bin")
        (folder / "folder").symlink_to("sub")
        (folder / "zero").symlink_to("/dev/zero")
        (folder / "first.bin").write_bytes(DATA)
        os.link(folder / "first.bin", folder / "second.bin")
        os.mkfifo(folder / "fifo")
        names = [_external(folder, f"m{n}", location=place, **fields) for n, place in enumerate(locations)]
        return compile_commands(*names)

    return make


def _fields(*tables: dict[str, object]) -> Callable[[Path], list[list[str]]]:
    def make(folder: Path) -> list[list[str]]:
        (folder / "w.bin").write_bytes(DATA)
        names = [_external(folder, f"m{n}", location="w.bin", **table) for n, table in enumerate(tables)]
        return compile_commands(*names)

    return make


def special_files(folder: Path) -> list[list[str]]:
    commands = _at("fifo", "zero", "sub")(folder)
    os.mkfifo(folder / "model.onnx")
    (folder / "null.onnx").symlink_to("/dev/zero")
    return [*commands, *compile_commands("model.onnx", "null.onnx", "/dev/zero", "/dev/null")]


def over_two_gigabytes(folder: Path) -> list[list[str]]:
    with (folder / "large.onnx").open("wb") as file:
        file.write(onnx_model().SerializeToString())
        file.truncate((1 << 31) + 10)  # a hole: no bytes on the disk
    return compile_commands("large.onnx")


def odd_names(folder: Path) -> list[list[str]]:
    data = onnx_model().SerializeToString()
    model = onnx_model()
    model.graph.node[0].name = "x" * (1 << 20)
    model.graph.input[0].name = model.graph.node[0].input[0] = "i" * (1 << 20)
    (folder / "long.onnx").write_bytes(model.SerializeToString())
    model = onnx_model()
    model.graph.input[0].name = model.graph.node[0].input[0] = "a\0b"
    (folder / "nul.onnx").write_bytes(model.SerializeToString())
    place = data.rindex(b"\x0a\x05input")
    (folder / "utf8.onnx").write_bytes(data[: place + 2] + b"\xff\xfe\xfd\xfc\xfb" + data[place + 7 :])
    return compile_commands("long.onnx", "nul.onnx", "utf8.onnx", "no\nsuch\x07file.onnx", "y" * 5000)


CASES = [
    BadInput(
        14, "external-data-parent", _at("../secret.bin", "sub/../../secret.bin", "..", "a/../../x"), says=("LK2003",)
    ),
    BadInput(15, "external-data-absolute", _at("/etc/hostname", "//etc/hostname"), says=("LK2003",)),
    BadInput(16, "external-data-symlink", _at("link.bin", "folder/w.bin"), says=("LK2003",)),
    BadInput(17, "external-data-hard-link", _at("first.bin", "second.bin"), says=("LK2003",)),
    BadInput(18, "external-data-special-file", special_files, says=("LK2003", "LK1001")),
    BadInput(
        19,
        "external-data-offset-and-length",
        _fields(
            {"offset": 4},
            {"offset": 128},
            {"offset": -4},
            {"offset": 2**63 - 1},
            {"offset": 2**64 + 4},
            {"offset": "0x10"},
            {"length": 127},
            {"length": 2**63},
            {"offset": 2**63 - 64, "length": 128},
        ),
        says=("LK2003",),
    ),
    BadInput(20, "external-data-unknown-keys", _fields({"surprise": 1}, {"Location": "x"}), says=("LK2003",)),
    BadInput(21, "protobuf-over-2-gb", over_two_gigabytes, seconds=10.0, megabytes=512),
    BadInput(36, "names", odd_names, says=("LK1001", "LK1002", "LK1003", "LK2003")),
]
