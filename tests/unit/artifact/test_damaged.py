"""Damaged, hostile and newer artifacts: one documented error each, never a crash, never a wrong result."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from lowerkit.errors import ArtifactError, LowerkitError
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.manifest import FORMAT_MINOR, MANIFEST_ENTRY, WEIGHTS_ENTRY, KernelEntry
from lowerkit.runtimes.manifest_json import decode_manifest, encode_manifest
from lowerkit.runtimes.session import load
from lowerkit.runtimes.verify import verify_artifact
from tests.support.handmade_code import CODE_ENTRY, changed, reference, write_tanh_of_sum

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tanh_of_sum(tmp_path_factory.mktemp("sound") / "model.lk", golden=True).read_bytes()


def refuse(tmp_path: Path, data: bytes, code: str, match: str | None = None) -> LowerkitError:
    path = tmp_path / "model.lk"
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=match) as caught:
        load(path)
    assert caught.value.code == code
    assert caught.value.exit_code == 3
    assert str(path) in caught.value.message
    return caught.value


def repack(data: bytes, change: Callable[[list[tuple[zipfile.ZipInfo, bytes]]], None]) -> bytes:
    """Rewrites the zip with ``zipfile`` after ``change`` has edited its entries."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    change(entries)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for info, content in entries:
            archive.writestr(info, content, compress_type=info.compress_type)
    return target.getvalue()


def info_named(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.external_attr = 0o644 << 16
    return info


@pytest.mark.parametrize("sixteenth", range(16))
def test_cut_at_every_sixteenth(tmp_path: Path, sound: bytes, sixteenth: int) -> None:
    refuse(tmp_path, sound[: len(sound) * sixteenth // 16], "LK1002" if sixteenth == 0 else "LK8001")


def test_cut_by_one_byte_and_one_byte_more(tmp_path: Path, sound: bytes) -> None:
    refuse(tmp_path, sound[:-1], "LK8001")
    refuse(tmp_path, sound + b"\0", "LK8001")
    refuse(tmp_path, b"\0" + sound, "LK1002")


@pytest.mark.parametrize("name", [CODE_ENTRY, WEIGHTS_ENTRY, MANIFEST_ENTRY])
def test_a_flipped_bit_in_what_runs_is_found_at_load(tmp_path: Path, sound: bytes, name: str) -> None:
    path = tmp_path / "sound.lk"
    path.write_bytes(sound)
    entry = open_artifact(path).entries[name]
    for position in np.linspace(entry.offset, entry.offset + entry.size - 1, 40).astype(int):
        for bit in (0, 7):
            damaged = bytearray(sound)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            # A flipped digit of the format version looks like a newer version; that is an honest answer too.
            with pytest.raises(ArtifactError, match="LK800[12]"):
                load(path)


def test_a_flipped_bit_in_the_side_car_is_found_by_verify(tmp_path: Path, sound: bytes) -> None:
    path = tmp_path / "model.lk"
    path.write_bytes(sound)
    artifact = open_artifact(path)
    for name in artifact.manifest.entries:
        damaged = bytearray(sound)
        damaged[artifact.entries[name].offset + artifact.entries[name].size // 2] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=f"LK8001(.|\n)*{name}"):
            verify_artifact(path)


def test_a_flipped_bit_anywhere_outside_the_side_car_is_found_at_load(tmp_path: Path, sound: bytes) -> None:
    """Headers, padding and directory too: there is one way only to write an artifact."""
    path = tmp_path / "model.lk"
    path.write_bytes(sound)
    artifact = open_artifact(path)
    side_car = [entry for name, entry in artifact.entries.items() if name.startswith(("debug/", "golden/"))]
    generator = np.random.default_rng(7)
    directory = sound.index(b"PK\1\2")
    headers = [entry.offset - distance for entry in artifact.entries.values() for distance in range(1, 70, 2)]
    anywhere: list[int] = generator.integers(0, len(sound), 300).tolist()
    positions = {*headers, *range(directory, len(sound), 11), *range(60), *anywhere}
    unseen: list[int] = []
    for position in sorted(positions):
        if position < 0 or any(entry.offset <= position < entry.offset + entry.size for entry in side_car):
            continue
        damaged = bytearray(sound)
        damaged[position] ^= 1 << int(generator.integers(8))
        path.write_bytes(damaged)
        try:
            load(path, threads=1)
        except ArtifactError:
            continue
        unseen.append(position)
    assert unseen == []


def test_not_an_artifact(tmp_path: Path) -> None:
    refuse(tmp_path, b"", "LK1002", "is empty")
    refuse(tmp_path, b"\x80\x02}q\x00.", "LK1002", "not a lowerkit artifact")
    foreign = io.BytesIO()
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr(info_named("data.pkl"), b"x")
    refuse(tmp_path, foreign.getvalue(), "LK1002", "torch.save")


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing.lk", tmp_path, tmp_path / "fifo", Path("/dev/zero"), Path("nul\0byte")):
        with pytest.raises(ArtifactError) as caught:
            load(path)
        assert caught.value.code == "LK1001"


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_duplicate_entries(tmp_path: Path, sound: bytes) -> None:
    data = repack(sound, lambda entries: entries.append((info_named(CODE_ENTRY), b"\xc3" * 64)))
    refuse(tmp_path, data, "LK8001", "twice")


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "a/../b", "debug//x", ".hidden", "c:x", "a\\b", "debug/\u00fc", "d/"]
)
def test_names_that_lead_elsewhere(tmp_path: Path, sound: bytes, name: str) -> None:
    data = repack(sound, lambda entries: entries.append((info_named(name), b"x")))
    refuse(tmp_path, data, "LK8001", "name|flags")


def test_compressed_entries(tmp_path: Path, sound: bytes) -> None:
    def compress(entries: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
        entries[0][0].compress_type = zipfile.ZIP_DEFLATED

    refuse(tmp_path, repack(sound, compress), "LK8001", "compressed")


def test_entries_that_the_manifest_does_not_know(tmp_path: Path, sound: bytes) -> None:
    refuse(tmp_path, repack(sound, lambda entries: entries.append((info_named("debug/x"), b"x"))), "LK8001", "debug/x")
    refuse(tmp_path, repack(sound, lambda entries: entries.__delitem__(0)), "LK8001", "code/main")


def central_header(data: bytes, name: str) -> int:
    return data.rindex(name.encode()) - 46


def test_overlapping_entries(tmp_path: Path, sound: bytes) -> None:
    damaged = bytearray(sound)
    struct.pack_into("<L", damaged, central_header(sound, WEIGHTS_ENTRY) + 42, 0)
    refuse(tmp_path, bytes(damaged), "LK8001")


@pytest.mark.parametrize("field", [16, 20, 24])
def test_a_local_header_that_differs_from_the_directory(tmp_path: Path, sound: bytes, field: int) -> None:
    """CRC, packed size and size: changed in the directory only."""
    damaged = bytearray(sound)
    damaged[central_header(sound, WEIGHTS_ENTRY) + field] ^= 1
    refuse(tmp_path, bytes(damaged), "LK8001")


def test_bytes_between_entries(tmp_path: Path, sound: bytes) -> None:
    start = sound.index(b"PK\1\2")
    data = bytearray(sound[:start] + b"hidden" + sound[start:])
    struct.pack_into("<L", data, len(data) - 6, start + 6)
    refuse(tmp_path, bytes(data), "LK8001", "belong to no entry")


def with_manifest(sound: bytes, change: Callable[[bytes], bytes]) -> bytes:
    def edit(entries: list[tuple[zipfile.ZipInfo, bytes]]) -> None:
        info, content = entries.pop()
        assert info.filename == MANIFEST_ENTRY
        entries.append((info_named(MANIFEST_ENTRY), change(content)))

    return repack(sound, edit)


def test_a_newer_version_is_named_with_ours_and_the_way_out(tmp_path: Path, sound: bytes) -> None:
    data = with_manifest(sound, lambda text: text.replace(b'"format_major":2', b'"format_major":7,"buffers_v7":{}'))
    error = refuse(tmp_path, data, "LK8002", f"format 7.{FORMAT_MINOR} ")
    assert f"reads format 2.{FORMAT_MINOR}" in error.message
    assert "lowerkit 0.1.0" in error.message
    assert "pip install --upgrade lowerkit" in (error.hint or "")


def test_a_file_of_the_format_before_is_refused_with_the_way_out(tmp_path: Path, sound: bytes) -> None:
    data = with_manifest(
        sound, lambda text: text.replace(b'"format_major":2,"format_minor":0', b'"format_major":1,"format_minor":4')
    )
    error = refuse(
        tmp_path, data, "LK8002", r"has format 1\.4 \(written by lowerkit 0\.1\.0\); this runtime reads format 2\.0"
    )
    assert error.hint == "compile the model again with this lowerkit"


def test_an_unknown_required_feature_is_named(tmp_path: Path, sound: bytes) -> None:
    data = with_manifest(sound, lambda text: text.replace(b'"features":[]', b'"features":["paged_weights"]'))
    refuse(tmp_path, data, "LK8002", "paged_weights")


def test_a_newer_minor_version_with_new_fields_is_read(tmp_path: Path, sound: bytes) -> None:
    import hashlib

    def age(text: bytes) -> bytes:
        identity = decode_manifest(text).content_id.encode()
        text = text.replace(b'"format_minor":0', b'"format_minor":3,"future":[1]').replace(identity, b"")
        return text.replace(b'"content_id":""', b'"content_id":"%s"' % hashlib.sha256(text).hexdigest().encode())

    path = tmp_path / "model.lk"
    path.write_bytes(with_manifest(sound, age))
    np.testing.assert_allclose(load(path).run(X)[0], reference(X), rtol=1e-6)


def test_a_manifest_that_was_edited_is_refused(tmp_path: Path, sound: bytes) -> None:
    refuse(
        tmp_path,
        with_manifest(sound, lambda text: text.replace(b'"target":"c', b'"target":"d')),
        "LK8001",
        "content id",
    )
    deep = b"[" * 5000 + b"]" * 5000
    refuse(tmp_path, with_manifest(sound, lambda text: text.replace(b'"level":', b'"x":%s,"level":' % deep)), "LK8001")
    refuse(tmp_path, with_manifest(sound, lambda text: text.replace(b'"level":"', b'"level":"\xff')), "LK8001")
    refuse(tmp_path, with_manifest(sound, lambda text: b"{}"), "LK8001")


def test_kernels_and_imports_outside_the_code(tmp_path: Path, sound: bytes) -> None:
    def with_fields(**fields: object) -> bytes:
        return with_manifest(sound, lambda text: encode_manifest(changed(decode_manifest(text), **fields)))

    kernels = [KernelEntry(offset, "k") for offset in (0, 64, 128, 1 << 40)]
    refuse(tmp_path, with_fields(kernels=kernels), "LK8001", "outside")
    refuse(tmp_path, with_fields(kernels=[*kernels[:-1], KernelEntry(-1, "k")]), "LK8001", "outside")
    refuse(tmp_path, with_fields(kernels=[*kernels[:-1], KernelEntry(1 << 64, "k")]), "LK8001", "outside")
    refuse(tmp_path, with_fields(imports=["system"]), "LK8001", "unknown routines: system")
    for offset in (-4096, 64, 8192, 1 << 60, 1 << 63):
        refuse(tmp_path, with_fields(import_table_offset=offset), "LK8001", "does not fit")
    refuse(tmp_path, with_fields(imports=["tanhf"] * 513), "LK8001", "does not fit")


@pytest.mark.parametrize("dim", [(1 << 63), (1 << 64) - 1])
def test_dims_of_steps_beyond_64_bits(tmp_path: Path, sound: bytes, dim: int) -> None:
    def change(text: bytes) -> bytes:
        manifest = decode_manifest(text)
        first, *others = manifest.programs[0].steps
        return encode_manifest(changed(manifest, steps=[replace(first, dims=[dim]), *others]))

    path = tmp_path / "model.lk"
    path.write_bytes(with_manifest(sound, change))
    with pytest.raises(ArtifactError, match="LK8001"):
        load(path).run(X)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b'{"a":{"dtype":"F32","shape":[-1,-1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"U8","shape":[9223372036854775807,4],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[-4,4]}}',
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_safetensors_headers_that_lie(header: bytes) -> None:
    from lowerkit.runtimes.safetensors_header import SafetensorsError, parse_safetensors

    blob = np.frombuffer(len(header).to_bytes(8, "little") + header + bytes(4), np.uint8)
    with pytest.raises(SafetensorsError):
        parse_safetensors(blob)


@pytest.mark.parametrize("length", [1 << 63, 1 << 40, 13])
def test_safetensors_lengths_that_lie(length: int) -> None:
    from lowerkit.runtimes.safetensors_header import SafetensorsError, parse_safetensors

    with pytest.raises(SafetensorsError, match="does not fit"):
        parse_safetensors(np.frombuffer(length.to_bytes(8, "little") + b"{}".ljust(12), np.uint8))
