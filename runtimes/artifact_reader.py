"""Opens an artifact: structure, version, manifest and bounds are checked; nothing is copied.

What is checked when: the zip structure, the manifest's content id, sizes and bounds always; the sha-256 of the code
always (by the session, on the bytes that will run); the CRC-32 of the weights at each load unless told otherwise
(memory speed); the sha-256 of everything by :func:`Artifact.hash_mismatches`, for ``lowerkit verify``.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from lowerkit.errors import ArtifactError, LowerkitError
from lowerkit.runtimes.manifest import (
    FORMAT_MAJOR,
    FORMAT_MINOR,
    KNOWN_FEATURES,
    MANIFEST_ENTRY,
    WEIGHTS_ENTRY,
    Manifest,
    ProgramSpec,
)
from lowerkit.runtimes.manifest_json import decode_manifest, decode_version, stored_content_id_holds
from lowerkit.runtimes.mesh.places import part_number
from lowerkit.runtimes.safetensors_header import SafetensorsError, StoredTensor, parse_safetensors
from lowerkit.runtimes.zip_structure import ZipEntry, ZipStructureError, read_entries

_REMAKE = "compile the model again, or copy the artifact again from where it came"
_HASH_CHUNK = 1 << 24


def damaged(path: Path, reason: str, details: list[str] | None = None) -> ArtifactError:
    """Returns the error for an artifact whose bytes are not those that were written."""
    return ArtifactError("LK8001", f"{path} is damaged: {reason}", details=details or [], hint=_REMAKE)


@dataclass(frozen=True)
class WeightPlace:
    """Where a weight lies: ``offset`` bytes into the mapped artifact."""

    offset: int
    size: int


def own_part(whole: WeightPlace, axes: str, program: ProgramSpec, ranks: Mapping[str, int]) -> WeightPlace:
    """Returns the part of a stored weight that this rank uses: one of as many as there are ranks along ``axes``.

    Args:
        whole: the stored tensor, whose parts lie row-major over the axes.
        axes: of the mesh, ``dp,tp``; ``""`` where every rank uses the whole.
        program: has the mesh.
        ranks: place of this process along each axis; the first one where an axis is missing.

    Raises:
        ValueError: the tensor cannot be cut into so many parts.
    """
    if not axes:
        return whole
    part, count = part_number(program.mesh, axes, ranks)
    if whole.size % count:
        raise ValueError(f"a weight of {whole.size} bytes is shared by the {count} ranks of {axes!r}")
    size = whole.size // count
    return WeightPlace(whole.offset + part * size, size)


@dataclass(frozen=True)
class Artifact:
    """An open artifact. ``bytes`` is the whole file, mapped read-only; ``file`` is the same file, open."""

    path: Path
    file: BinaryIO
    bytes: npt.NDArray[np.uint8]
    entries: dict[str, ZipEntry]
    manifest: Manifest

    def entry_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """Returns the bytes of an entry, not copied; empty where there is no such entry."""
        entry = self.entries.get(name)
        return self.bytes[entry.offset : entry.offset + entry.size] if entry else self.bytes[:0]

    def tensors(self, name: str) -> dict[str, StoredTensor]:
        """Returns the tensors of a safetensors entry; offsets count from the start of the entry.

        Raises:
            ArtifactError: LK8001.
        """
        try:
            return parse_safetensors(self.entry_bytes(name))
        except SafetensorsError as error:
            raise damaged(self.path, f"entry {name}: {error}") from None

    @cached_property
    def weights(self) -> dict[str, StoredTensor]:
        """The tensors of the weights entry; empty where the model has none."""
        return self.tensors(WEIGHTS_ENTRY) if WEIGHTS_ENTRY in self.entries else {}

    def hash_mismatches(self) -> list[str]:
        """Computes the sha-256 of every entry; returns one line for each that differs from the manifest."""
        problems: list[str] = []
        for name, info in self.manifest.entries.items():
            digest = hashlib.sha256()
            data = self.entry_bytes(name)
            for start in range(0, data.size, _HASH_CHUNK):
                digest.update(data[start : start + _HASH_CHUNK].data)
            if digest.hexdigest() != info.sha256:
                problems.append(f"{name}: sha-256 is {digest.hexdigest()}, the manifest says {info.sha256}")
        return problems

    def close(self) -> None:
        """Closes the file; the mapping lives as long as views of it."""
        self.file.close()


def open_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Opens and checks an artifact.

    Raises:
        ArtifactError: LK1001 not readable, LK1002 no artifact, LK8001 damaged, LK8002 of another format.
    """
    path = Path(path)
    file = _open_regular(path)
    try:
        return _read(path, file)
    except BaseException:
        file.close()
        raise


def _open_regular(path: Path) -> BinaryIO:
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ArtifactError("LK1001", f"{path} cannot be opened: {reason}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError("LK1001", f"{path} is not a file")
    return os.fdopen(descriptor, "rb")


def _read(path: Path, file: BinaryIO) -> Artifact:
    size = os.fstat(file.fileno()).st_size
    if size == 0:
        raise ArtifactError("LK1002", f"{path} is empty", hint=_REMAKE)
    if file.read(4) != b"PK\3\4":
        raise ArtifactError(
            "LK1002",
            f"{path} is not a lowerkit artifact",
            hint="artifacts are made by `lowerkit compile MODEL -o model.lk`",
        )
    try:
        entries = read_entries(file, size)
    except ZipStructureError as error:
        if error.names and MANIFEST_ENTRY not in error.names:
            raise _foreign_zip(path) from None
        raise damaged(path, str(error)) from None
    if MANIFEST_ENTRY not in entries:
        raise _foreign_zip(path)
    try:
        mapped = mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    except OSError as error:
        raise ArtifactError("LK1001", f"{path} cannot be mapped: {error.strerror}") from error
    data = np.frombuffer(mapped, np.uint8)
    entry = entries[MANIFEST_ENTRY]
    manifest = _read_manifest(path, data[entry.offset : entry.offset + entry.size].tobytes())
    _check_entries(path, manifest, entries)
    return Artifact(path, file, data, entries, manifest)


def _foreign_zip(path: Path) -> LowerkitError:
    return ArtifactError(
        "LK1002",
        f"{path} is a zip without {MANIFEST_ENTRY}: not a lowerkit artifact",
        hint="was it made by torch.save or torch.export.save? Compile it: lowerkit compile MODEL -o model.lk",
    )


def _read_manifest(path: Path, data: bytes) -> Manifest:
    try:
        version = decode_version(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, f"{MANIFEST_ENTRY}: {error}") from None
    unknown = sorted(set(version.features) - KNOWN_FEATURES)
    if version.format_major > FORMAT_MAJOR or unknown:
        raise _newer(path, version.format_major, version.format_minor, version.producer.get("lowerkit", "?"), unknown)
    if version.format_major < FORMAT_MAJOR:
        raise ArtifactError(
            "LK8002",
            f"{path} has format {version.format_major}.{version.format_minor} (written by lowerkit "
            f"{version.producer.get('lowerkit', '?')}); this runtime reads format {FORMAT_MAJOR}.{FORMAT_MINOR}",
            hint="compile the model again with this lowerkit",
        )
    try:
        manifest = decode_manifest(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(path, f"{MANIFEST_ENTRY}: {error}") from None
    if not stored_content_id_holds(data, manifest.content_id):
        raise damaged(path, f"{MANIFEST_ENTRY} does not have the content id it states")
    return manifest


def _newer(path: Path, major: int, minor: int, producer: str, unknown: list[str]) -> LowerkitError:
    needs = f", needs the feature {', '.join(unknown)}" if unknown else ""
    return ArtifactError(
        "LK8002",
        f"{path} has format {major}.{minor}{needs} (written by lowerkit {producer}); "
        f"this runtime reads format {FORMAT_MAJOR}.{FORMAT_MINOR}",
        hint="`pip install --upgrade lowerkit`, or compile again with the lowerkit of this machine",
    )


def _check_entries(path: Path, manifest: Manifest, entries: dict[str, ZipEntry]) -> None:
    stored = {name: entry.size for name, entry in entries.items() if name != MANIFEST_ENTRY}
    listed = {name: info.size for name, info in manifest.entries.items()}
    if stored != listed:
        differing = sorted(name for name in stored.keys() | listed.keys() if stored.get(name) != listed.get(name))
        raise damaged(path, f"entries differ from the manifest: {', '.join(differing)}")
