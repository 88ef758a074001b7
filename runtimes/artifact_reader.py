"""Opens an artifact: structure, version, manifest and bounds are checked; nothing is copied.

What is checked when: the zip structure, the manifest's content id, sizes and bounds always; the sha-256 of the code
always (by the session, on the bytes that will run); the CRC-32 of all weights at each load unless told otherwise
(memory speed), also where a session maps only its part of them; the sha-256 of everything by
:func:`Artifact.hash_mismatches`, for ``lowerkit verify``.

Opening maps the manifest only. An entry is mapped when it is asked for.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from lowerkit.errors import ArtifactError, LowerkitError, ResourceError
from lowerkit.runtimes.manifest import (
    FORMAT_MAJOR,
    FORMAT_MINOR,
    KNOWN_FEATURES,
    MANIFEST_ENTRY,
    WEIGHTS_ENTRY,
    Manifest,
)
from lowerkit.runtimes.manifest_json import decode_manifest, decode_version, stored_content_id_holds
from lowerkit.runtimes.mapping.address_space import limit_lines, megabytes
from lowerkit.runtimes.mapping.mapped_file import MappedFile
from lowerkit.runtimes.safetensors_header import (
    LENGTH_FIELD,
    SafetensorsError,
    StoredTensor,
    header_end,
    parse_safetensors,
)
from lowerkit.runtimes.zip_structure import ZipEntry, ZipStructureError, read_entries

_REMAKE = "compile the model again, or copy the artifact again from where it came"
_HASH_CHUNK = 1 << 24


def damaged(path: Path, reason: str, details: list[str] | None = None) -> ArtifactError:
    """Returns the error for an artifact whose bytes are not those that were written."""
    return ArtifactError("LK8001", f"{path} is damaged: {reason}", details=details or [], hint=_REMAKE)


@dataclass(frozen=True)
class Artifact:
    """An open artifact.

    Attributes:
        path: where it was opened.
        file: open, until :meth:`close`.
        mapped: the same file, of which entries are mapped when they are asked for.
        entries: by their names.
        manifest: as it was read.
        own_parts: a session maps its own parts of the weights only; else all sessions share one mapping of all.
    """

    path: Path
    file: BinaryIO
    mapped: MappedFile
    entries: dict[str, ZipEntry]
    manifest: Manifest
    own_parts: bool = False
    _views: dict[str, npt.NDArray[np.uint8]] = field(default_factory=dict[str, npt.NDArray[np.uint8]], repr=False)

    def entry_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """Returns the bytes of an entry, not copied; empty where there is no such entry.

        Raises:
            ResourceError: LK7002, there is no room to map them.
        """
        if name not in self._views:
            self._views[name] = self._view(name, 0, self._size(name))
        return self._views[name]

    def is_mapped(self, name: str) -> bool:
        """Whether :meth:`entry_bytes` has mapped an entry."""
        return name in self._views

    def weight_bytes(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Returns ``size`` bytes at ``offset`` of the weights, not copied; mapped alone where :attr:`own_parts` is.

        Raises:
            ResourceError: LK7002, there is no room to map them.
        """
        if self.own_parts:
            return self._view(WEIGHTS_ENTRY, offset, size)
        return self.entry_bytes(WEIGHTS_ENTRY)[offset : offset + size]

    def pieces(self, name: str, most: int) -> Iterator[npt.NDArray[np.uint8]]:
        """Yields the bytes of an entry in order, at most ``most`` at a time: read, not mapped, and each over the last.

        Raises:
            ArtifactError: LK8001, the file was cut; LK1001, it cannot be read.
        """
        size = self._size(name)
        buffer = np.empty(min(most, size), np.uint8)
        for begin in range(0, size, most):
            piece = buffer[: size - begin]
            try:
                self.mapped.read_into(piece, self.entries[name].offset + begin)
            except EOFError as error:
                raise damaged(self.path, str(error)) from None
            except OSError as error:
                raise ArtifactError("LK1001", f"{self.path} cannot be read: {error.strerror}") from error
            yield piece

    def tensors(self, name: str) -> dict[str, StoredTensor]:
        """Returns the tensors of a safetensors entry; offsets count from the start of the entry. Reads its header only.

        Raises:
            ArtifactError: LK8001.
        """
        size = self._size(name)
        try:
            end = header_end(self._view(name, 0, min(LENGTH_FIELD, size)), size)
            return parse_safetensors(self._view(name, 0, end), size)
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
            for piece in self.pieces(name, _HASH_CHUNK):
                digest.update(piece.data)
            if digest.hexdigest() != info.sha256:
                problems.append(f"{name}: sha-256 is {digest.hexdigest()}, the manifest says {info.sha256}")
        return problems

    def close(self) -> None:
        """Closes the file; what is mapped lives as long as views of it, and entries can be mapped still."""
        self.file.close()

    def _size(self, name: str) -> int:
        return self.entries[name].size if name in self.entries else 0

    def _view(self, name: str, offset: int, size: int) -> npt.NDArray[np.uint8]:
        if not size:
            return np.empty(0, np.uint8)
        return _mapped(self.path, self.mapped, self.entries[name].offset + offset, size)


def open_artifact(path: str | os.PathLike[str], *, own_parts: bool = False) -> Artifact:
    """Opens and checks an artifact.

    Args:
        path: the ``.lk`` file.
        own_parts: for one rank of a mesh in a process of its own, see :class:`Artifact`.

    Raises:
        ArtifactError: LK1001 not readable, LK1002 no artifact, LK8001 damaged, LK8002 of another format.
        ResourceError: LK7002, there is no room to map the manifest.
    """
    path = Path(path)
    file = _open_regular(path)
    try:
        return _read(path, file, own_parts)
    except BaseException:
        file.close()
        raise


def _open_regular(path: Path) -> BinaryIO:
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        hint = "check the path; artifacts are made by `lowerkit compile MODEL -o model.lk`"
        if isinstance(error, FileNotFoundError):
            raise ArtifactError("LK1001", f"{path} does not exist", hint=hint) from error
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ArtifactError("LK1001", f"{path} cannot be opened: {reason}", hint=hint) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ArtifactError("LK1001", f"{path} is not a file")
    return os.fdopen(descriptor, "rb")


def _read(path: Path, file: BinaryIO, own_parts: bool) -> Artifact:
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
    mapped = MappedFile(file.fileno())
    entry = entries[MANIFEST_ENTRY]
    manifest = _read_manifest(path, _mapped(path, mapped, entry.offset, entry.size).tobytes())
    _check_entries(path, manifest, entries)
    return Artifact(path, file, mapped, entries, manifest, own_parts)


def _mapped(path: Path, mapped: MappedFile, offset: int, size: int) -> npt.NDArray[np.uint8]:
    try:
        return mapped.view(offset, size)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise ArtifactError("LK1001", f"{path} cannot be mapped: {error.strerror}") from error
        raise ResourceError(
            "LK7002",
            f"there is no room to map {megabytes(size)} of {path}",
            details=limit_lines(),
            hint="raise the limit (`ulimit -v`), or load less in this process",
        ) from error


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
