"""Mutations of files: flips, cuts, splices, length fields, duplicated parts; and of JSON inside an artifact.

Each mutation is a function of a generator and the bytes, so that a case is repeated from its seed and number alone.
"""

from __future__ import annotations

import copy
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Mutation = Callable[[np.random.Generator, bytearray, Sequence[bytes]], bytearray]

_NUMBERS = (
    0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 63) - 1, 1 << 63,
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    0, 1, -1, 7, 64, 4096, 1 << 31, 1 << 62, -(1 << 63), (1 << 64) - 1, 1.5, True, None, "", "n", "f32", "f64", "i8",
    [], {}, "x" * 300, ["mul", "n", 1 << 40], ["sub", 0, "n"], ["floordiv", "n", 0],
    ["mul", ["mul", "n", 1 << 30], 1 << 30],
)  # fmt: skip


def _place(rng: np.random.Generator, data: bytearray, room: int = 1) -> int:
    return int(rng.integers(0, max(len(data) - room + 1, 1)))


def flip(rng: np.random.Generator, data: bytearray, _others: Sequence[bytes]) -> bytearray:
    for _ in range(int(rng.integers(1, 9))):
        if data:
            data[_place(rng, data)] ^= 1 << int(rng.integers(8))
    return data


def overwrite(rng: np.random.Generator, data: bytearray, _others: Sequence[bytes]) -> bytearray:
    size = int(rng.integers(1, 33))
    place = _place(rng, data, size)
    data[place : place + size] = rng.bytes(size)
    return data


def number(rng: np.random.Generator, data: bytearray, _others: Sequence[bytes]) -> bytearray:
    """A length field, perhaps: an interesting number of 1 to 8 bytes at any place, or a small step of what is there."""
    size = int(rng.choice([1, 2, 4, 8]))
    place = _place(rng, data, size)
    before = int.from_bytes(data[place : place + size], "little")
    step = int(rng.integers(-4, 5))
    value = before + step if rng.random() < 0.4 else int(_NUMBERS[int(rng.integers(len(_NUMBERS)))])
    data[place : place + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return data


def cut(rng: np.random.Generator, data: bytearray, _others: Sequence[bytes]) -> bytearray:
    return data[: _place(rng, data)] if rng.random() < 0.5 else data[_place(rng, data) :]


def remove(rng: np.random.Generator, data: bytearray, _others: Sequence[bytes]) -> bytearray:
    place, size = _place(rng, data), int(rng.integers(1, 400))
    del data[place : place + size]
    return data


def duplicate(rng: np.random.Generator, data: bytearray, _others: Sequence[bytes]) -> bytearray:
    place, size, to = _place(rng, data), int(rng.integers(1, 2000)), _place(rng, data)
    data[to:to] = data[place : place + size]
    return data


def splice(rng: np.random.Generator, data: bytearray, others: Sequence[bytes]) -> bytearray:
    other = others[int(rng.integers(len(others)))]
    place, start, size = _place(rng, data), int(rng.integers(0, max(len(other), 1))), int(rng.integers(1, 3000))
    piece = other[start : start + size]
    if rng.random() < 0.5:
        data[place : place + len(piece)] = piece
    else:
        data[place:place] = piece
    return data


def append(rng: np.random.Generator, data: bytearray, _others: Sequence[bytes]) -> bytearray:
    return data + rng.bytes(int(rng.integers(1, 100)))


def zip_records(rng: np.random.Generator, data: bytearray, _others: Sequence[bytes]) -> bytearray:
    """A field of a zip's own records: a header, an entry of the directory, the end."""
    magic = (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06")[int(rng.integers(3))]
    places = [found.start() for found in re.finditer(re.escape(magic), data)]
    if not places:
        return flip(rng, data, _others)
    place = places[int(rng.integers(len(places)))] + int(rng.integers(4, 46))
    size = int(rng.choice([1, 2, 4]))
    value = int(_NUMBERS[int(rng.integers(len(_NUMBERS)))])
    data[place : place + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return data


MUTATIONS: tuple[Mutation, ...] = (
    flip, overwrite, number, number, cut, remove, duplicate, splice, append, zip_records, zip_records,
)  # fmt: skip


def mutate(rng: np.random.Generator, data: bytes, others: Sequence[bytes]) -> bytes:
    """Returns ``data`` after one to four mutations."""
    changed = bytearray(data)
    for _ in range(int(rng.choice([1, 1, 1, 2, 4]))):
        changed = MUTATIONS[int(rng.integers(len(MUTATIONS)))](rng, changed, others)
    return bytes(changed)


def mutate_manifest(rng: np.random.Generator, data: bytes, seal: Callable[[bytes], bytes]) -> bytes:
    """Returns an artifact with other values in its manifest, and everything that guards it made to fit again.

    Args:
        rng: the generator.
        data: the artifact; its manifest is the last entry.
        seal: returns the manifest's bytes with the content id that they must have.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        info = archive.infolist()[-1]
        manifest = json.loads(archive.read(info))
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        _change_value(rng, manifest)
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return replace_last_entry(data, info, seal(text))


def mutate_document(rng: np.random.Generator, data: bytes) -> bytes:
    """Returns a JSON document with one to three other values."""
    document = json.loads(data)
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        _change_value(rng, document)
    return json.dumps(document).encode()


def _change_value(rng: np.random.Generator, document: Any) -> None:
    """Changes, doubles or removes one value, chosen by walking down from the root."""
    parent: Any = None
    key: Any = None
    here = document
    while isinstance(here, (dict, list)) and here and (parent is None or rng.random() < 0.85):
        keys = sorted(here) if isinstance(here, dict) else list(range(len(here)))
        parent, key = here, keys[int(rng.integers(len(keys)))]
        here = here[key]
    if parent is None:
        return
    kind = rng.random()
    if kind < 0.1:
        del parent[key]
    elif kind < 0.2 and isinstance(parent, list):
        parent.append(copy.deepcopy(here))
    elif kind < 0.5 and isinstance(here, int) and not isinstance(here, bool):
        parent[key] = here + int(rng.integers(-9, 10))
    else:
        parent[key] = copy.deepcopy(_VALUES[int(rng.integers(len(_VALUES)))])


def replace_last_entry(data: bytes, info: zipfile.ZipInfo, content: bytes) -> bytes:
    """Returns a zip whose last entry holds ``content``: sizes, checksums and the place of the directory fit."""
    names, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
    start = info.header_offset + 30 + names + extra
    head = bytearray(data[:start])
    sums = (zlib.crc32(content), len(content), len(content))
    struct.pack_into("<III", head, info.header_offset + 14, *sums)
    directory = data.index(b"PK\x01\x02", start + info.file_size)
    tail = bytearray(data[directory:])
    struct.pack_into("<III", tail, tail.rindex(b"PK\x01\x02") + 16, *sums)
    end = tail.rindex(b"PK\x05\x06")
    struct.pack_into("<I", tail, end + 16, len(head) + len(content))
    return bytes(head) + content + bytes(tail)
