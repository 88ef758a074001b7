"""39 and 40: artifacts with a flipped bit in each section, from a newer version, for another target."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lowerkit.runtimes.manifest import MANIFEST_ENTRY, Manifest
from lowerkit.runtimes.manifest_json import decode_manifest, encode_manifest
from tests.support.bad_inputs.case import BadInput
from tests.support.bad_inputs.files import artifact


def flipped(folder: Path) -> list[list[str]]:
    """A bit in the middle of each entry, of each header, of the directory and of the end record."""
    data = artifact()
    places: dict[str, int] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            names, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
            start = info.header_offset + 30 + names + extra
            label = info.filename.replace("/", "-")
            places[label] = start + info.file_size // 2
            places[f"header-{label}"] = info.header_offset + 14
    places["directory"] = data.index(b"PK\x01\x02") + 20
    places["end"] = data.rindex(b"PK\x05\x06") + 12
    for label, place in places.items():
        changed = bytearray(data)
        changed[place] ^= 1
        (folder / f"{label}.lk").write_bytes(changed)
    return [["verify", f"{label}.lk"] for label in places]


def with_manifest(data: bytes, **fields: Any) -> bytes:
    """The artifact with another manifest, its content id and every header in order."""
    import json

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.getinfo(MANIFEST_ENTRY)
        manifest = decode_manifest(archive.read(MANIFEST_ENTRY))
    own = {name: value for name, value in fields.items() if name in Manifest.__struct_fields__}
    of_program = {name: value for name, value in fields.items() if name not in own}
    changed = encode_manifest(
        replace(manifest, programs=[replace(program, **of_program) for program in manifest.programs], **own)
    )
    assert json.loads(changed)
    directory = data.index(b"PK\x01\x02")
    return _with_last_entry(data, info, changed, directory)


def _with_last_entry(data: bytes, info: zipfile.ZipInfo, content: bytes, directory: int) -> bytes:
    """Replaces the last entry: its data, its size and checksum in both headers, and the place of the directory."""
    import zlib

    names, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
    start = info.header_offset + 30 + names + extra
    head = bytearray(data[:start])
    struct.pack_into("<III", head, info.header_offset + 14, zlib.crc32(content), len(content), len(content))
    tail = bytearray(data[directory:])
    moved = len(content) - info.file_size
    place = tail.rindex(b"PK\x01\x02")
    struct.pack_into("<III", tail, place + 16, zlib.crc32(content), len(content), len(content))
    end = tail.rindex(b"PK\x05\x06")
    struct.pack_into("<I", tail, end + 16, struct.unpack_from("<I", tail, end + 16)[0] + moved)
    return bytes(head) + content + bytes(tail)


def _manifests(**fields: Any) -> Callable[[Path], list[list[str]]]:
    def make(folder: Path) -> list[list[str]]:
        (folder / "model.lk").write_bytes(with_manifest(artifact(), **fields))
        return [["run", "model.lk", "--input", "input:2x8:f32"], ["verify", "model.lk"]]

    return make


CASES = [
    BadInput(39, "flipped-bits", flipped, says=("LK8001", "LK8002")),
    BadInput(40, "newer-version", _manifests(format_major=99), says=("LK8002",)),
    BadInput(40, "unknown-feature", _manifests(features=["time-travel"]), says=("LK8002",)),
    BadInput(40, "another-target", _manifests(target="npu"), exit_code=8, says=("LK8003",)),
    BadInput(40, "missing-cpu-feature", _manifests(requires=["avx10.9"]), exit_code=8, says=("LK8003",)),
]
