"""The strict part of reading a zip: only what :mod:`lowerkit.artifact.writer` can have written is let through.

``zipfile`` reads the central directory and is lenient; this module compares it with the local headers and with the
bytes of the file. Afterwards each byte of the file belongs to one entry, one header or the directory.
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_END_RECORD = struct.Struct("<4s4H2LH")
_ZIP64_LOCATOR_SIZE = 20
_ZIP64_END_SIZE = 56 + _ZIP64_LOCATOR_SIZE  # the 64-bit end record and its locator
_ZIP64_LIMIT = 0xFFFFFFFF
_ZIP64_FIELD = 1
_PADDING_FIELD = 0xD935
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)*")
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)


class ZipStructureError(ValueError):
    """The file is no zip, or not one that lowerkit writes; ``names`` are its entries, where they could be read."""

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = names


@dataclass(frozen=True)
class ZipEntry:
    """One stored entry: ``size`` bytes at ``offset`` of the file, and their CRC-32."""

    name: str
    offset: int
    size: int
    crc32: int


def read_entries(file: BinaryIO, file_size: int) -> dict[str, ZipEntry]:
    """Returns the entries by name.

    Raises:
        ZipStructureError: the file is cut, has duplicate, overlapping, compressed, encrypted or ill-named entries,
            bytes outside entries, or local headers that differ from the central directory.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            infos, directory = archive.infolist(), archive.start_dir
            if archive.comment:
                raise ZipStructureError("it has a comment")
    except (zipfile.BadZipFile, NotImplementedError, struct.error, UnicodeDecodeError, ValueError, OSError) as error:
        raise ZipStructureError(str(error).lower()) from None

    try:
        return _checked_entries(file, file_size, infos, directory)
    except ZipStructureError as error:
        raise ZipStructureError(str(error), [info.filename for info in infos]) from None


def _checked_entries(
    file: BinaryIO, file_size: int, infos: Sequence[zipfile.ZipInfo], directory: int
) -> dict[str, ZipEntry]:
    entries: dict[str, ZipEntry] = {}
    position = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.filename in entries:
            raise ZipStructureError(f"entry {info.filename!r} is there twice")
        if info.header_offset != position:
            raise ZipStructureError(f"entry {info.filename!r} starts at {info.header_offset}, not at {position}")
        entry = _check_entry(file, info)
        entries[entry.name] = entry
        position = entry.offset + entry.size
        if position > directory:
            raise ZipStructureError(f"entry {info.filename!r} reaches into the directory")
    if position != directory:
        raise ZipStructureError(f"{directory - position} bytes before the directory belong to no entry")
    _check_end(file, file_size, directory, len(entries))
    return entries


def _check_end(file: BinaryIO, file_size: int, directory: int, count: int) -> None:
    """Checks that the file ends with the end record of exactly this directory."""
    start = file_size - _END_RECORD.size
    size = start - directory
    file.seek(max(start - _ZIP64_LOCATOR_SIZE, 0))
    if file.read(4) == b"PK\6\7":
        size -= _ZIP64_END_SIZE
    expected = (b"PK\5\6", 0, 0, count, count, size, min(directory, _ZIP64_LIMIT), 0)
    file.seek(max(start, 0))
    if size < 0 or _END_RECORD.unpack(file.read(_END_RECORD.size)) != expected:
        raise ZipStructureError("its end is not where its directory says")


def _check_entry(file: BinaryIO, info: zipfile.ZipInfo) -> ZipEntry:
    name = info.filename
    if info.orig_filename != name or not _NAME.fullmatch(name) or len(name) > 200:
        raise ZipStructureError(f"entry name {name[:200]!r} is not allowed")
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise ZipStructureError(f"entry {name!r} is compressed")
    if info.flag_bits != 0:
        raise ZipStructureError(f"entry {name!r} is encrypted or streamed (flags {info.flag_bits:#x})")
    attributes = (info.date_time, info.create_system, info.external_attr, info.internal_attr, info.volume, info.comment)
    if attributes != (_FIXED_TIME, 3, 0o644 << 16, 0, 0, b"") or info.extract_version not in (20, 45):
        raise ZipStructureError(f"entry {name!r} has attributes that lowerkit does not write: {attributes}")

    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) != _LOCAL_HEADER.size:
        raise ZipStructureError(f"the header of entry {name!r} is cut")
    (magic, version, flags, method, time, date, crc, packed, size, name_size, extra_size) = _LOCAL_HEADER.unpack(header)
    local_name, extra = file.read(name_size), file.read(extra_size)
    sizes = _check_extra(name, extra)
    _check_extra(name, info.extra)
    if sizes:
        size, packed = sizes
    local = (magic, version in (20, 45), flags, method, time, date, crc, packed, size, local_name)
    central = (b"PK\3\4", True, 0, 0, 0, 0x21, info.CRC, info.compress_size, info.file_size, name.encode())
    if local != central:
        raise ZipStructureError(f"the local header of entry {name!r} differs from the central directory")
    offset = info.header_offset + _LOCAL_HEADER.size + name_size + extra_size
    return ZipEntry(name, offset, info.file_size, info.CRC)


def _check_extra(name: str, extra: bytes) -> Sequence[int] | None:
    """Checks that ``extra`` holds alignment padding and 64-bit sizes only; returns the sizes, if any."""
    sizes: Sequence[int] | None = None
    position = 0
    while position < len(extra):
        if position + 4 > len(extra):
            raise ZipStructureError(f"entry {name!r} has a broken extra field")
        kind, length = struct.unpack_from("<HH", extra, position)
        field = extra[position + 4 : position + 4 + length]
        if kind == _ZIP64_FIELD and len(field) == length and length in (8, 16, 24):
            sizes = struct.unpack_from("<QQ", field) if length >= 16 else sizes
        elif kind != _PADDING_FIELD or field != bytes(length):
            raise ZipStructureError(f"entry {name!r} has an extra field that lowerkit does not write")
        position += 4 + length
    return sizes
