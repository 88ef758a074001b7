"""What a file is, is told by its content; what cannot be loaded safely is refused, and never unpickled."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from lowerkit.capture.file_kind import file_kind
from lowerkit.capture.load_model import capture_path
from lowerkit.errors import CaptureError, InputError, LowerkitError, UsageError
from lowerkit.runtimes.manifest import Dim


class Poison:
    """Unpickling this leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (open, (str(self.path), "w"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    module = nn.Linear(4, 2).eval()
    x = torch.ones(3, 4)
    torch.export.save(torch.export.export(module, (x,), strict=False), folder / "model.pt2")
    dim = torch.export.Dim("rows", min=2, max=8)
    torch.export.save(
        torch.export.export(module, (x,), dynamic_shapes=({0: dim},), strict=False), folder / "dynamic.pt2"
    )
    torch.jit.save(torch.jit.trace(module, x), str(folder / "traced.pt"))
    torch.save(module.state_dict(), folder / "state.pt")
    torch.save(module, folder / "module.pt")
    torch.save(module.state_dict(), folder / "legacy.pt", _use_new_zipfile_serialization=False)
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), folder / "model.onnx"
    )
    return folder


@pytest.mark.parametrize(
    ("name", "kind"), [("model.pt2", "exported"), ("traced.pt", "torchscript"), ("model.onnx", "onnx")]
)
def test_content_decides_not_the_extension(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    for suffix in ("", ".pt", ".pt2", ".onnx", ".bin"):
        renamed = tmp_path / f"model{suffix}"
        renamed.write_bytes((folder / name).read_bytes())
        assert file_kind(renamed) == kind


def test_exported_file(folder: Path) -> None:
    program = capture_path(folder / "model.pt2")
    assert program.signature.inputs[0].shape == [3, 4]
    assert program.example_inputs is not None
    given = capture_path(folder / "model.pt2", ["input:3x4:f32"], seed=3)
    assert given.example_inputs is not None
    assert not np.array_equal(given.example_inputs[0], program.example_inputs[0])


def test_symbolic_dims_survive_the_file(folder: Path) -> None:
    program = capture_path(folder / "dynamic.pt2", ["input:5x4:f32"])
    (dim,) = program.signature.dims
    assert (dim.minimum, dim.maximum) == (2, 8)
    assert isinstance(dim, Dim)


@pytest.mark.parametrize("name", ["state.pt", "module.pt", "legacy.pt"])
def test_pickled_checkpoints_are_refused_with_the_way_out(folder: Path, name: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture_path(folder / name)
    assert caught.value.code == "LK2002"
    assert "torch.export.save" in str(caught.value)


@pytest.mark.parametrize("name", ["plain.pt", "zipped.pt", "weights.pt2", "constants.pt2"])
def test_nothing_is_unpickled(folder: Path, tmp_path: Path, name: str) -> None:
    mark, path = tmp_path / "mark", tmp_path / name
    payload = pickle.dumps(Poison(mark))
    if name == "plain.pt":
        path.write_bytes(payload)
    elif name == "zipped.pt":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", payload)
    else:
        part = name.removesuffix(".pt2")
        with zipfile.ZipFile(folder / "model.pt2") as source, zipfile.ZipFile(path, "w") as archive:
            for info in source.infolist():
                data = source.read(info)
                if info.filename.endswith(f"model_{part}_config.json"):
                    entry = {"path_name": "evil", "is_param": True, "use_pickle": True, "tensor_meta": None}
                    data = json.dumps({"config": {"weight": entry}}).encode()
                archive.writestr(info.filename, data)
            archive.writestr(f"model/data/{part}/evil", payload)
            if not any(f"model_{part}_config.json" in info.filename for info in source.infolist()):
                entry = {"path_name": "evil", "is_param": False, "use_pickle": True, "tensor_meta": None}
                archive.writestr(
                    f"model/data/{part}/model_{part}_config.json", json.dumps({"config": {"weight": entry}})
                )
    with pytest.raises(CaptureError) as caught:
        capture_path(path)
    assert caught.value.code == "LK2002"
    assert not mark.exists()


@pytest.mark.parametrize("model", ["model.pt2", "dynamic.pt2"])
def test_example_inputs_are_not_unpickled(folder: Path, tmp_path: Path, model: str) -> None:
    """torch itself tries again with everything allowed when its safe loader refuses them."""
    mark, path = tmp_path / "mark", tmp_path / "poisoned.pt2"
    poisoned = io.BytesIO()
    torch.save(((Poison(mark),), {}), poisoned)
    with zipfile.ZipFile(folder / model) as source, zipfile.ZipFile(path, "w") as archive:
        names = [info.filename for info in source.infolist()]
        assert any("sample_inputs" in name for name in names)
        for name in names:
            archive.writestr(name, poisoned.getvalue() if "sample_inputs" in name else source.read(name))
    with pytest.raises(CaptureError) as caught:
        capture_path(path, ["input:3x4:f32"])
    assert caught.value.code == "LK2002"
    assert not mark.exists()


@pytest.mark.parametrize("name", ["model.pt2", "traced.pt"])
def test_a_flipped_weight_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = bytearray((folder / name).read_bytes())
    with zipfile.ZipFile(folder / name) as archive:
        entries = [info for info in archive.infolist() if re.search(r"data/(weights/weight_)?0$", info.filename)]
        place = data.index(archive.read(entries[0]), entries[0].header_offset)
    data[place + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="checksum") as caught:
        capture_path(path, ["input:3x4:f32"])
    assert caught.value.code == "LK1002"
    assert entries[0].filename in str(caught.value)


def test_an_encrypted_entry_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    data = bytearray((folder / "model.pt2").read_bytes())
    with zipfile.ZipFile(folder / "model.pt2") as archive:
        data[archive.start_dir + 8] |= 1  # a flag of the first entry in the directory
    path.write_bytes(data)
    with pytest.raises(InputError, match="encrypted") as caught:
        capture_path(path)
    assert caught.value.code == "LK1002"


def test_native_code_in_an_archive_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes((folder / "model.pt2").read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/data/aotinductor/model/a.so", b"\x7fELF")
    with pytest.raises(CaptureError) as caught:
        capture_path(path)
    assert caught.value.code == "LK2002"
    assert "a.so" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.onnx", b""),
        ("text.onnx", b"this is no model\n"),
        ("json.pt", b'{"a": 1}'),
        ("hdf.pt", b"\x89HDF\r\n\x1a\n" + bytes(64)),
        ("elf.pt2", b"\x7fELF" + bytes(64)),
        ("cut.pt", b"PK\x03\x04" + bytes(40)),
        ("zeros.onnx", bytes(4096)),
        ("weights.safetensors", (2).to_bytes(8, "little") + b"{}"),
    ],
)
def test_foreign_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        capture_path(tmp_path / name)
    assert caught.value.code == "LK1002"
    assert caught.value.hint


def test_archives_that_contradict_themselves(folder: Path, tmp_path: Path) -> None:
    for change in ("twice", "outside"):
        path = tmp_path / f"{change}.pt2"
        path.write_bytes((folder / "model.pt2").read_bytes())
        with zipfile.ZipFile(path, "a") as archive, pytest.warns() if change == "twice" else nothing():
            archive.writestr("model/models/model.json" if change == "twice" else "model/../../x", b"{}")
        with pytest.raises(InputError) as caught:
            capture_path(path)
        assert caught.value.code == "LK1002"


class nothing:  # noqa: N801
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_missing_files_and_folders(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "nobody.pt", folder, tmp_path / "a/b/c.onnx"):
        with pytest.raises(InputError) as caught:
            capture_path(path)
        assert caught.value.code == "LK1001"
    with pytest.raises(InputError, match=r"did you mean .*model"):
        capture_path(folder / "MODEL.onnx")


def test_every_cut_of_an_exported_file_is_refused(folder: Path, tmp_path: Path) -> None:
    data, path = (folder / "model.pt2").read_bytes(), tmp_path / "cut.pt2"
    for sixteenth in range(16):
        path.write_bytes(data[: len(data) * sixteenth // 16])
        with pytest.raises(InputError) as caught:
            capture_path(path)
        assert caught.value.code == "LK1002"


@pytest.mark.parametrize(
    ("name", "inputs", "dynamic", "dtype", "error", "code"),
    [
        ("model.pt2", ["input:3x5:f32"], [], None, InputError, "LK1003"),
        ("model.pt2", ["input:3x4:f16"], [], None, InputError, "LK1003"),
        ("model.pt2", ["nobody:3x4:f32"], [], None, InputError, "LK1003"),
        ("model.pt2", [], ["input:0=1..4"], None, UsageError, "LK1004"),
        ("model.pt2", [], [], "bf16", UsageError, "LK1004"),
        ("traced.pt", [], [], None, InputError, "LK1003"),
        ("model.onnx", ["x:3:i64"], [], None, InputError, "LK1003"),
        ("model.onnx", ["x:4:f32"], [], None, InputError, "LK1003"),
        ("model.onnx", ["x:"], [], None, UsageError, "LK1004"),
        ("model.onnx", [], [], "f16", UsageError, "LK1004"),
    ],
)
def test_options_that_do_not_fit(
    folder: Path,
    name: str,
    inputs: list[str],
    dynamic: list[str],
    dtype: str | None,
    error: type[LowerkitError],
    code: str,
) -> None:
    with pytest.raises(error) as caught:
        capture_path(folder / name, inputs, dynamic, dtype=dtype)
    assert caught.value.code == code
