"""1 to 13 and 37: empty, cut and foreign files; pickles; zips that lie."""

from __future__ import annotations

import io
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.bad_inputs.case import OUTPUT, BadInput, compile_commands
from tests.support.bad_inputs.files import INPUT, artifact, exported, find, onnx_model, rezip, scripted

MARK = "executed"
"""A file that a payload makes when it is unpickled; it must never be there."""


class Payload:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return (open, (MARK, "w"))


def _write(folder: Path, **files: bytes) -> list[str]:
    """Writes ``model_pt2=...`` as ``model.pt2``; returns the names."""
    names: list[str] = []
    for key, data in files.items():
        stem, _, suffix = key.rpartition("_")
        names.append(f"{stem}.{suffix}")
        (folder / names[-1]).write_bytes(data)
    return names


def _compile(folder: Path, **files: bytes) -> list[list[str]]:
    return compile_commands(*_write(folder, **files), inputs=(INPUT,))


def _sound() -> dict[str, bytes]:
    return {"pt2": exported(), "pt": scripted(), "onnx": onnx_model().SerializeToString(), "lk": artifact()}


def empty(folder: Path) -> list[list[str]]:
    _write(folder, a_pt=b"", a_pt2=b"", a_onnx=b"", a_lk=b"", a_mlir=b"")
    stage = ["compile", "a.mlir", "--compile-from", "raised", "-o", OUTPUT]
    return [*compile_commands("a.pt", "a.pt2", "a.onnx", inputs=(INPUT,)), ["run", "a.lk"], ["verify", "a.lk"], stage]


def cut(kind: str) -> Callable[[Path], list[list[str]]]:
    def make(folder: Path) -> list[list[str]]:
        data = _sound()[kind]
        names: list[str] = []
        for sixteenth in range(16):
            names.append(f"cut{sixteenth}.{kind}")
            (folder / names[-1]).write_bytes(data[: len(data) * sixteenth // 16])
        if kind == "lk":
            return [["verify", name] for name in names]
        return compile_commands(*names, inputs=(INPUT,))

    return make


def foreign(folder: Path) -> list[list[str]]:
    png, elf = b"\x89PNG\r\n\x1a\n" + bytes(100), b"\x7fELF" + bytes(200)
    commands = _compile(folder, png_onnx=png, elf_pt2=elf, text_pt=b"this is no model\n", gguf_onnx=b"GGUF" + bytes(99))
    _write(folder, a_lk=exported(), b_lk=png)
    return [*commands, ["run", "a.lk"], ["inspect", "b.lk"]]


def pickle_payload(folder: Path) -> list[list[str]]:
    plain, zipped = pickle.dumps(Payload()), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("model/data.pkl", plain)
        archive.writestr("model/version", "3")
    return _compile(folder, plain_pt=plain, zipped_pt=zipped.getvalue(), named_pt2=plain, named_onnx=plain)


def _with_samples(data: bytes) -> bytes:
    """An export with other bytes where its example inputs should be: the one pickle that is read."""
    return rezip(exported(), lambda entries: entries.update({find(entries, "sample_inputs"): data}))


def _checkpoint(raw_pickle: bytes) -> bytes:
    """A file of torch.save with another pickle in it."""
    file = io.BytesIO()
    torch.save(torch.zeros(1), file)
    return rezip(file.getvalue(), lambda entries: entries.update({find(entries, "data.pkl"): raw_pickle}))


def pickle_bomb(folder: Path) -> list[list[str]]:
    deep = b"\x80\x02" + b"(" * 200_000 + b"t" * 200_000 + b"."
    wide = b"\x80\x02)" + b"".join(b"q%c" % number + b"(" + b"h%c" % number * 8 + b"t" for number in range(60)) + b"."
    return _compile(
        folder,
        deep_pt=deep,
        wide_pt=_checkpoint(wide),
        samples_pt2=_with_samples(_checkpoint(deep)),
        doubled_pt2=_with_samples(_checkpoint(wide)),
    )


def rejected_global(folder: Path) -> list[list[str]]:
    file = io.BytesIO()
    torch.save(((Payload(),), {}), file)
    os_system = b"cos\nsystem\n(S'touch " + MARK.encode() + b"'\ntR."
    return _compile(
        folder, samples_pt2=_with_samples(file.getvalue()), system_pt2=_with_samples(_checkpoint(os_system))
    )


def storage_sizes(folder: Path) -> list[list[str]]:
    def shorter(entries: dict[str, bytes]) -> None:
        name = find(entries, "data/weights/weight_0")
        entries[name] = entries[name][:-8]

    def larger(entries: dict[str, bytes]) -> None:
        name = find(entries, "weights_config.json")
        config = json.loads(entries[name])
        for entry in config["config"].values():
            entry["tensor_meta"]["sizes"] = [{"as_int": 1 << 40}, *entry["tensor_meta"]["sizes"][1:]]
        entries[name] = json.dumps(config).encode()

    def offset(entries: dict[str, bytes]) -> None:
        name = find(entries, "weights_config.json")
        entries[name] = entries[name].replace(b'"storage_offset": {"as_int": 0}', b'"storage_offset": {"as_int": -64}')
        assert b"-64" in entries[name]

    def script(entries: dict[str, bytes]) -> None:
        name = find(entries, "data/0")
        entries[name] = entries[name][:-8]

    changed = {f"{change.__name__}_pt2": rezip(exported(), change) for change in (shorter, larger, offset)}
    return _compile(folder, **changed, script_pt=rezip(scripted(), script))


def script_code(folder: Path) -> list[list[str]]:
    """TorchScript is code: what it may do, it does inside its own interpreter, and the user is told."""
    return _compile(folder, model_pt=scripted())


def use_pickle(folder: Path) -> list[list[str]]:
    def change(entries: dict[str, bytes]) -> None:
        name = find(entries, "weights_config.json")
        entries[name] = entries[name].replace(b'"use_pickle": false', b'"use_pickle": true')
        assert b"true" in entries[name]
        entries[find(entries, "data/weights/weight_0")] = pickle.dumps(Payload())

    return _compile(folder, model_pt2=rezip(exported(), change))


def native_code(folder: Path) -> list[list[str]]:
    prefix = find_folder(exported())
    library = rezip(exported(), lambda entries: entries.update({f"{prefix}/data/aotinductor/model/a.so": b"\x7fELF"}))
    python = rezip(exported(), lambda entries: entries.update({f"{prefix}/extra/hook.py": b"open('executed', 'w')"}))
    return _compile(folder, library_pt2=library, python_pt2=python)


def find_folder(data: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.namelist()[0].partition("/")[0]


def zip_bomb(folder: Path) -> list[list[str]]:
    prefix = find_folder(exported())
    honest, lying = io.BytesIO(exported()), io.BytesIO(exported())
    with zipfile.ZipFile(honest, "a", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(f"{prefix}/data/weights/more_config.json", b" " * (400 << 20))
    with zipfile.ZipFile(lying, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{prefix}/data/weights/more_config.json", b" " * (1 << 20))
    data = bytearray(lying.getvalue())
    place = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, place + 24, 0xFFFFFFF0)  # 4 GB of a few hundred bytes
    return _compile(folder, honest_pt2=honest.getvalue(), lying_pt2=bytes(data))


def _twice(data: bytes, name: str) -> bytes:
    file = io.BytesIO(data)
    with zipfile.ZipFile(file, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(name, b"{}")
    return file.getvalue()


def _overlapping(data: bytes) -> bytes:
    """Lets the second entry of the directory begin where the first does."""
    changed = bytearray(data)
    (first,) = struct.unpack_from("<I", data, data.rindex(b"PK\x05\x06") + 16)  # archives hold archives
    second = changed.index(b"PK\x01\x02", first + 4)
    changed[second + 42 : second + 46] = changed[first + 42 : first + 46]
    return bytes(changed)


def entries_that_collide(folder: Path) -> list[list[str]]:
    prefix = find_folder(exported())
    with zipfile.ZipFile(io.BytesIO(exported())) as archive:
        json_entry = next(name for name in archive.namelist() if name.endswith("model.json"))
    return _compile(
        folder,
        twice_pt2=_twice(exported(), json_entry),
        outside_pt2=_twice(exported(), f"{prefix}/../../etc/x"),
        absolute_pt2=_twice(exported(), "/etc/x"),
        overlap_pt2=_overlapping(exported()),
        overlap_pt=_overlapping(scripted()),
    )


def artifact_entries_that_collide(folder: Path) -> list[list[str]]:
    _write(
        folder,
        twice_lk=_twice(artifact(), "weights.safetensors"),
        outside_lk=_twice(artifact(), "../x"),
        overlap_lk=_overlapping(artifact()),
    )
    return [["run", "twice.lk"], ["verify", "outside.lk"], ["inspect", "overlap.lk"]]


def _other_header(data: bytes, field: int) -> bytes:
    """Changes a field of every local header; the directory says otherwise."""
    changed, place = bytearray(data), 0
    while (place := changed.find(b"PK\x03\x04", place)) >= 0:
        changed[place + field] ^= 0x15
        place += 4
    return bytes(changed)


def headers_that_differ(folder: Path) -> list[list[str]]:
    # 8: compression method, 30: the first letter of the name.
    changed = {f"field{field}_pt2": _other_header(exported(), field) for field in (8, 30)}
    return _compile(folder, **changed, field8_pt=_other_header(scripted(), 8))


def artifact_headers_that_differ(folder: Path) -> list[list[str]]:
    names = [_write(folder, **{f"field{field}_lk": _other_header(artifact(), field)})[0] for field in (8, 18, 30)]
    return [["run", name] for name in names]


def big_endian(folder: Path) -> list[list[str]]:
    def change(entries: dict[str, bytes]) -> None:
        entries[find(entries, "byteorder")] = b"big"

    return _compile(folder, model_pt2=rezip(exported(), change), model_pt=rezip(scripted(), change))


CASES = [
    BadInput(1, "empty-file", empty),
    *(
        BadInput(2, f"cut-{kind}", cut(kind), says=("LK1002", "LK2003", "LK8001"))
        for kind in ("pt2", "pt", "onnx", "lk")
    ),
    BadInput(3, "wrong-extension-or-magic", foreign),
    BadInput(4, "pickle-payload", pickle_payload, says=("LK2002",)),
    BadInput(5, "pickle-bomb", pickle_bomb, says=("LK1002", "LK2002"), seconds=15.0),
    BadInput(6, "rejected-global", rejected_global, says=("LK2002",)),
    BadInput(7, "storage-size", storage_sizes),
    BadInput(8, "torchscript-is-code", script_code, exit_code=0),
    BadInput(9, "use-pickle", use_pickle, says=("LK2002",)),
    BadInput(10, "native-code", native_code, says=("LK2002",)),
    BadInput(11, "zip-bomb", zip_bomb, says=("LK1002",), megabytes=1024),
    BadInput(12, "colliding-entries", entries_that_collide),
    BadInput(12, "colliding-entries-artifact", artifact_entries_that_collide, says=("LK8001",)),
    BadInput(13, "headers-that-differ", headers_that_differ),
    BadInput(13, "headers-that-differ-artifact", artifact_headers_that_differ, says=("LK8001",)),
    BadInput(37, "big-endian", big_endian),
]
