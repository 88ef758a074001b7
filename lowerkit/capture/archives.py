"""What is inside a zip that torch wrote, told from its directory alone: nothing is unpickled, nothing is loaded."""

from __future__ import annotations

import json
import mmap
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from lowerkit.errors import CaptureError, InputError

EXPORTED_MODEL = "models/model.json"
MAXIMUM_ENTRIES = 200_000
MAXIMUM_JSON_BYTES = 1 << 30
MAXIMUM_RATIO = 1200
"""deflate cannot do better than about 1,032 to 1."""

CHECKPOINT_HINT = (
    "save the model itself, without pickle: torch.export.save(torch.export.export(model, inputs), 'model.pt2'), "
    "or torch.jit.trace(model, inputs).save('model.pt'), or name a factory: path/to/file.py:factory"
)

_LOCAL_HEADER = struct.Struct("<4s2xHH4xIIIHH")
"""Magic, flags, method, checksum, stored size, size, bytes of the name and of the extra field."""
_ENCRYPTED, _STREAMED = 1, 8
"""Flags of an entry."""
_ZIP64_LIMIT = 0xFFFFFFFF

ArchiveKind = Literal["exported", "torchscript", "checkpoint", "foreign"]


@dataclass(frozen=True)
class Archive:
    """The kind of a zip and its entries, without the folder that torch puts in front of them."""

    kind: ArchiveKind
    entries: dict[str, zipfile.ZipInfo]


def read_archive(path: Path) -> Archive:
    """Reads and checks the directory of a zip.

    Raises:
        InputError: LK1002, it is cut or damaged, or its entries contradict each other.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            problems = _problems(infos, path.stat().st_size) or _header_problems(file, infos, archive.start_dir)
            problems = problems or _order_problems(archive, infos)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise InputError(
            "LK1002", f"{path} is a cut or damaged zip: {error}", hint="copy or export the file again"
        ) from error
    problems = problems or _folder_problems([info.filename for info in infos])
    if problems:
        raise InputError("LK1002", f"{path} is no sound archive", details=problems[:8], hint="export the file again")
    entries = {info.filename.partition("/")[2]: info for info in infos}
    return Archive(_kind(entries), entries)


def _problems(infos: list[zipfile.ZipInfo], size: int) -> list[str]:
    problems: list[str] = []
    if len(infos) > MAXIMUM_ENTRIES:
        return [f"{len(infos)} entries, more than {MAXIMUM_ENTRIES}"]
    if min((info.header_offset for info in infos), default=0) != 0:
        # Torch's archives hold archives: a cut one ends in the directory of an inner one.
        return ["bytes before the first entry: the file is cut, or two files are joined"]
    seen: set[str] = set()
    for info in infos:
        name = info.filename
        if name in seen:
            problems.append(f"entry {name!r} occurs twice")
        seen.add(name)
        if name.startswith("/") or "\\" in name or ".." in name.split("/"):
            problems.append(f"entry {name!r} leads out of the archive")
        if info.flag_bits & _ENCRYPTED:
            problems.append(f"entry {name!r} is encrypted")
        if info.file_size > MAXIMUM_RATIO * max(info.compress_size, 1) or info.compress_size > size:
            problems.append(f"entry {name!r} states {info.file_size} bytes from {info.compress_size}")
    return problems


def _folder_problems(names: list[str]) -> list[str]:
    """torch takes the first entry's folder for that of all, and finds entries whatever their case: others do not."""
    if not any(name.endswith(("/constants.pkl", f"/{EXPORTED_MODEL}")) for name in names):
        return []
    folder = names[0].partition("/")[0]
    problems = [
        f"entry {name!r} is not in the folder {folder!r}" for name in names if not name.startswith(f"{folder}/")
    ]
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            problems.append(f"entries {other!r} and {name!r} differ in case only")
    return problems


def _header_problems(file: BinaryIO, infos: list[zipfile.ZipInfo], directory: int) -> list[str]:
    """Compares each local header with the directory: loaders differ in which of the two they believe."""
    problems: list[str] = []
    ends = [*sorted(info.header_offset for info in infos)[1:], directory]
    for info, end in zip(sorted(infos, key=lambda info: info.header_offset), ends, strict=True):
        file.seek(info.header_offset)
        head = file.read(_LOCAL_HEADER.size)
        if len(head) < _LOCAL_HEADER.size:
            return [*problems, f"entry {info.filename!r} is cut"]
        magic, flags, method, crc, packed, size, name_size, extra_size = _LOCAL_HEADER.unpack(head)
        name = file.read(name_size)
        streamed = flags & _STREAMED  # then checksum and sizes follow the data
        large = _ZIP64_LIMIT in (packed, size)  # then the sizes are in the extra field
        same = (magic, method, name) == (b"PK\3\4", info.compress_type, info.orig_filename.encode("utf-8"))
        if not streamed:
            same = same and crc == info.CRC and (large or (packed, size) == (info.compress_size, info.file_size))
        if not same:
            problems.append(f"the local header of entry {info.filename!r} differs from the directory")
        if info.header_offset + _LOCAL_HEADER.size + name_size + extra_size + info.compress_size > end:
            problems.append(f"entry {info.filename!r} overlaps the next one")
    return problems


def _order_problems(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> list[str]:
    """torch writes the order of bytes into an entry, and its loaders do not all read it."""
    return [
        f"{info.filename} says that its tensors are {order[:20]!r}-endian: only little-endian data is read"
        for info in infos
        if info.filename.rpartition("/")[2] == "byteorder" and (order := _start(archive, info)) != "little"
    ]


def _start(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    with archive.open(info) as entry:
        return entry.read(64).decode("ascii", "replace").strip()


def _kind(entries: dict[str, zipfile.ZipInfo]) -> ArchiveKind:
    if "archive_format" in entries or any(name.startswith("models/") for name in entries):
        return "exported"
    if "serialized_exported_program.json" in entries:  # torch before 2.7
        return "exported"
    if "constants.pkl" in entries and any(name.startswith("code/") for name in entries):
        return "torchscript"
    return "checkpoint" if "data.pkl" in entries else "foreign"


def require_sums(path: Path) -> None:
    """Compares the checksum of each stored entry with its bytes: torch's own readers do not.

    Raises:
        InputError: LK1002, with each entry whose bytes are not those that were written.
    """
    damaged: list[str] = []
    with (
        path.open("rb") as file,
        zipfile.ZipFile(file) as archive,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
        memoryview(memory) as view,
    ):
        for info in archive.infolist():
            if info.compress_type != zipfile.ZIP_STORED:
                continue  # unpacking fails by itself
            head = _LOCAL_HEADER.unpack_from(view, info.header_offset)
            start = info.header_offset + _LOCAL_HEADER.size + head[-2] + head[-1]
            with view[start : start + info.file_size] as data:
                if zlib.crc32(data) != info.CRC:
                    damaged.append(f"{info.filename}: its bytes have another checksum")
    if damaged:
        raise InputError(
            "LK1002", f"{path} is damaged", details=damaged[:8], hint="copy the file again, or export it again"
        )


def require_harmless_exported(path: Path, archive: Archive) -> None:
    """Refuses a ``.pt2`` whose loading would run code: pickled tensors or objects, native libraries.

    Raises:
        CaptureError: LK2002, with each such entry.
        InputError: LK1002, a JSON entry cannot be read.
    """
    reasons: list[str] = []
    for name in archive.entries:
        if name.endswith((".so", ".dll", ".dylib", ".o", ".cubin")) or name.startswith("data/aotinductor"):
            reasons.append(f"{name}: native code")
        if name.startswith("extra/") and name.endswith((".py", ".pkl")):
            reasons.append(f"{name}: code")
    with zipfile.ZipFile(path) as opened:
        for name, info in archive.entries.items():
            if name.startswith("data/") and name.endswith("_config.json"):
                reasons += _pickled(_json(opened, info, path), name)
    if reasons:
        raise CaptureError(
            "LK2002",
            f"{path} holds code or pickled objects, which are not loaded for safety",
            details=reasons[:16],
            hint="export it again with plain CPU tensors as weights, or name a factory: path/to/file.py:factory",
        )


def _pickled(config: Any, name: str) -> list[str]:
    table = config.get("config") if isinstance(config, dict) else None
    if not isinstance(table, dict):
        return [f"{name}: no table of tensors"]
    return [
        f"{name}: {key} is pickled"
        for key, entry in table.items()
        if not isinstance(entry, dict) or entry.get("use_pickle") is not False
    ]


def _json(opened: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Any:
    if info.file_size > MAXIMUM_JSON_BYTES:
        raise InputError("LK1002", f"{path}: {info.filename} has {info.file_size} bytes", hint="export the file again")
    try:
        return json.loads(opened.read(info))
    except (ValueError, RecursionError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(
            "LK1002", f"{path}: {info.filename} is damaged: {error}", hint="export the file again"
        ) from error
