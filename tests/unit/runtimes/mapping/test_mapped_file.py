"""Views of a file, and checksums of what is read piece by piece."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from lowerkit.runtimes.mapping.checksum import joined
from lowerkit.runtimes.mapping.mapped_file import MappedFile
from tests.support.suite.randomness import RANDOM

PAGE = 4096


def mappings(path: Path) -> int:
    return sum(line.endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def descriptors(path: Path) -> int:
    return sum(os.path.realpath(name) == str(path) for name in Path("/proc/self/fd").iterdir())


def test_views_are_what_the_file_holds_and_go_with_their_last_slice(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = RANDOM.integers(0, 256, 5 * PAGE + 33, dtype=np.uint8)
    path.write_bytes(data.tobytes())
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno())
    for offset, size in [
        (0, 1),
        (1, PAGE),
        (PAGE, PAGE),
        (PAGE - 1, 2),
        (2 * PAGE + 64, 3 * PAGE - 64),
        (0, data.size),
    ]:
        view = mapped.view(offset, size)
        np.testing.assert_array_equal(view, data[offset : offset + size])
        assert view.ctypes.data % PAGE == offset % PAGE
        assert not view.flags.writeable and mappings(path) == 1
        rest = view[size // 2 :]
        del view
        assert mappings(path) == 1 and rest[-1] == data[offset + size - 1]
        del rest
        assert mappings(path) == 0
    assert mapped.view(7, 0).size == 0 and mappings(path) == 0
    many = [mapped.view(PAGE * number, 8) for number in range(5)]
    assert descriptors(path) == 1
    del mapped
    assert descriptors(path) == 0 and many[4][7] == data[4 * PAGE + 7]


def test_bytes_are_read_where_they_are_and_never_made_up(tmp_path: Path) -> None:
    path = tmp_path / "data"
    data = RANDOM.integers(0, 256, 3 * PAGE + 33, dtype=np.uint8)
    path.write_bytes(data.tobytes())
    with path.open("rb") as file:
        mapped = MappedFile(file.fileno())
    buffer = np.empty(PAGE, np.uint8)
    mapped.read_into(buffer, 77)
    np.testing.assert_array_equal(buffer, data[77 : 77 + PAGE])
    assert mappings(path) == 0
    with pytest.raises(EOFError, match=f"ends at {data.size}"):
        mapped.read_into(buffer, data.size - 5)


def test_what_cannot_be_mapped_is_an_error_with_its_number() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError, match="No such device") as caught:
            MappedFile(read).view(0, 8)
        assert caught.value.errno == 19  # ENODEV
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("cut", [0, 1, 63, 4096, 99_999, 100_000])
def test_checksums_of_two_pieces_join(cut: int) -> None:
    data = RANDOM.bytes(100_000)
    first, second = data[:cut], data[cut:]
    assert joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(data)
