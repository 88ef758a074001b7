"""Writes ``model.lk``: one stored zip with code, weights, side-car entries and, last, the manifest.

    code/....bin          of each program and its devices, at a multiple of 4096, so that it can be mapped executable
    weights.safetensors   at a multiple of 64, its tensors too, so that kernels read them where they lie
    certificate.json      what was proved of the ranks of a mesh
    debug/..., golden/... side-car, sorted by name
    manifest.json         canonical JSON with the sha-256 of each entry above and the content id

Equal arguments give equal bytes: fixed times, fixed order, no host names, no paths. Weights are streamed: each byte is
read, hashed and written once; one tensor is hashed while it is written, and the next one is read meanwhile. What
depends on running the code (golden outputs) is made when code and weights are in the file already, and appended.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from msgspec.structs import replace

from lowerkit.artifact.atomic_file import replace_file
from lowerkit.artifact.safetensors_blob import ALIGNMENT, TensorSource, blob_chunks, lay_out
from lowerkit.errors import CodegenError
from lowerkit.runtimes.artifact_reader import Artifact
from lowerkit.runtimes.manifest import (
    GOLDEN_INPUTS_ENTRY,
    MANIFEST_ENTRY,
    WEIGHTS_ENTRY,
    EntryInfo,
    Manifest,
)
from lowerkit.runtimes.manifest_json import decode_manifest, encode_manifest
from lowerkit.runtimes.mapping.mapped_file import MappedFile
from lowerkit.runtimes.zip_structure import ZipEntry

PAGE = 4096

CERTIFICATE_ENTRY = "certificate.json"

_CHUNK = 1 << 24
_LOCAL_HEADER_SIZE = 30
_ZIP64_EXTRA_SIZE = 20
_PADDING_FIELD = 0xD935  # the id that Android's zipalign uses for alignment
_SIDE_CAR_NAME = re.compile(r"(debug|golden)(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)+")


def write_artifact(
    path: str | os.PathLike[str],
    manifest: Manifest,
    code: Mapping[str, bytes],
    weights: Mapping[str, np.ndarray[Any, Any] | TensorSource],
    side_car: Mapping[str, bytes] | Callable[[Artifact], Mapping[str, bytes]] | None = None,
    certificate: bytes | None = None,
) -> Manifest:
    """Writes an artifact; ``path`` is replaced when the new file is complete, else left as it was.

    Args:
        path: where to.
        manifest: without ``entries`` and ``content_id``; ``golden`` of a program stands there where it is asked for,
            and is left out where its entry is not among the side-car entries.
        code: by the entries that the programs name.
        weights: the tensors that buffers of kind ``weight`` name; arrays, or sources that are read when written.
        side_car: further entries, named ``debug/...`` or ``golden/...`` (see :mod:`lowerkit.artifact.golden`), or a
            function that makes them from the artifact without them, which has no file of its own yet and can be run.
        certificate: the entry of a program for a mesh (see :mod:`lowerkit.spmd.certificate.binding`).

    Returns:
        The manifest as it was written.

    Raises:
        ResourceError: LK7001, the disk is full.
        InputError: LK1005, the path cannot be written.
        CodegenError: LK5002, the parts do not fit each other.
    """
    if not callable(side_car):
        _check_side_car(side_car or {})
    sources = {name: w if isinstance(w, TensorSource) else TensorSource.of(w) for name, w in weights.items()}
    with replace_file(path) as file:
        entries: dict[str, EntryInfo] = {}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(code):
                entries[name] = _add(archive, file, name, len(code[name]), [code[name]], PAGE)
            if sources:
                layout = lay_out(sources)
                chunks = blob_chunks(layout, sources)
                entries[WEIGHTS_ENTRY] = _add(archive, file, WEIGHTS_ENTRY, layout.size, chunks, ALIGNMENT)
            if certificate is not None:
                entries[CERTIFICATE_ENTRY] = _add(
                    archive, file, CERTIFICATE_ENTRY, len(certificate), [certificate], ALIGNMENT
                )
            if callable(side_car):
                side_car = side_car(
                    _so_far(Path(path), file, archive, replace(_with_golden(manifest, ()), entries=entries))
                )
                _check_side_car(side_car)
            side_car = side_car or {}
            for name in sorted(side_car):
                entries[name] = _add(archive, file, name, len(side_car[name]), [side_car[name]], ALIGNMENT)
            encoded = encode_manifest(replace(_with_golden(manifest, side_car), entries=entries))
            _add(archive, file, MANIFEST_ENTRY, len(encoded), [encoded], 1)
    return decode_manifest(encoded)


def _so_far(path: Path, file: BinaryIO, archive: zipfile.ZipFile, manifest: Manifest) -> Artifact:
    """The code and weights that were written, mapped; what is appended to the file later does not change them."""
    file.flush()
    entries = {
        info.filename: ZipEntry(info.filename, _data_offset(info), info.file_size, info.CRC)
        for info in archive.infolist()
    }
    return Artifact(path, file, MappedFile(file.fileno()), entries, manifest)


def _data_offset(info: zipfile.ZipInfo) -> int:
    large = _ZIP64_EXTRA_SIZE if info.file_size * 1.05 > zipfile.ZIP64_LIMIT else 0
    return info.header_offset + _LOCAL_HEADER_SIZE + len(info.filename) + large + len(info.extra)


def _check_side_car(side_car: Mapping[str, bytes]) -> None:
    bad = [name for name in side_car if not _SIDE_CAR_NAME.fullmatch(name) or len(name) > 200]
    if bad:
        raise CodegenError("LK5002", f"side-car entries must be named debug/... or golden/..., not {', '.join(bad)}")
    golden = {name for name in side_car if name.startswith("golden/")}
    if (GOLDEN_INPUTS_ENTRY in golden) != bool(golden - {GOLDEN_INPUTS_ENTRY}):
        raise CodegenError("LK5002", "golden inputs and outputs go together")


def _with_golden(manifest: Manifest, side_car: Collection[str]) -> Manifest:
    """Leaves out the golden outputs of each program that are not there."""
    programs = [
        program if program.golden is None or program.golden.entry in side_car else replace(program, golden=None)
        for program in manifest.programs
    ]
    return replace(manifest, programs=programs)


def _add(
    archive: zipfile.ZipFile, file: BinaryIO, name: str, size: int, chunks: Iterable[bytes | memoryview], alignment: int
) -> EntryInfo:
    """Appends an entry whose data starts at a multiple of ``alignment`` in the file."""
    large = size * 1.05 > zipfile.ZIP64_LIMIT  # zipfile's own rule; the header grows by a field
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = 0o644 << 16
    info.file_size = size
    start = file.tell() + _LOCAL_HEADER_SIZE + len(name) + (_ZIP64_EXTRA_SIZE if large else 0)
    padding = -start % alignment
    if padding:
        if padding < 4:  # the header of the field itself
            padding += alignment
        info.extra = struct.pack("<HH", _PADDING_FIELD, padding - 4) + bytes(padding - 4)
    digest = hashlib.sha256()
    written = 0
    with archive.open(info, "w", force_zip64=large) as entry, ThreadPoolExecutor(1, "lowerkit-hash") as hasher:
        assert file.tell() % alignment == 0, "the padding field puts the data at its alignment"
        for chunk in chunks:
            for begin in range(0, len(chunk), _CHUNK):
                piece = chunk[begin : begin + _CHUNK]
                hashed = hasher.submit(digest.update, piece)
                entry.write(piece)
                hashed.result()
                written += len(piece)
    assert written == size, f"{name}: {written} bytes written, {size} announced"
    return EntryInfo(size, digest.hexdigest())
