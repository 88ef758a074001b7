"""Checks that the tensors of a TorchScript file are as large as its pickles say, without unpickling anything.

torch's loader takes a storage of n elements from an entry of whatever size, so a cut entry is read past its end. The
pickles say ``('storage', <class>, key, device, n)`` as a persistent id; their opcodes are followed on a stack that
holds text, numbers and tuples only. Nothing is imported or called.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowerkit.capture.archives import Archive
from lowerkit.errors import InputError

_ITEM_BYTES = {
    "DoubleStorage": 8,
    "FloatStorage": 4,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}
_PICKLES = {"data.pkl": "data", "constants.pkl": "constants"}
_MARK = object()
MAXIMUM_PICKLE_BYTES = 1 << 28


def require_whole_storages(path: Path, archive: Archive) -> None:
    """Compares every storage that the pickles name with the entry that holds it.

    Raises:
        InputError: LK1002, with every storage whose size differs.
    """
    problems: list[str] = []
    with zipfile.ZipFile(path) as opened:
        for pickle_name, folder in _PICKLES.items():
            info = archive.entries.get(pickle_name)
            if info is None:
                continue
            if info.file_size > MAXIMUM_PICKLE_BYTES:
                problems.append(f"{pickle_name} has {info.file_size} bytes")
                continue
            try:
                storages = list(_storages(opened.read(info)))
            except (ValueError, IndexError, zipfile.BadZipFile, EOFError, NotImplementedError, OSError) as error:
                problems.append(f"{pickle_name}: {error}")
                continue
            for kind, key, count in storages:
                entry = archive.entries.get(f"{folder}/{key}")
                wanted = _ITEM_BYTES.get(kind, 0) * count
                if entry is None or (kind in _ITEM_BYTES and entry.file_size != wanted):
                    found = "is not there" if entry is None else f"has {entry.file_size} bytes"
                    problems.append(f"{folder}/{key} {found}, its {count} elements of {kind} take {wanted}")
    if problems:
        raise InputError(
            "LK1002",
            f"{path} is a TorchScript file whose tensors are not as large as it says",
            details=problems[:16],
            hint="copy or export the file again",
        )


def _storages(data: bytes) -> Iterator[tuple[str, str, int]]:
    """Yields (class, key, number of elements) of each storage that a pickle names."""
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(_taken(stack, -1 if name == "TUPLE" else int(name[-1]))))
        elif name == "BINPERSID":
            found = stack.pop()
            if isinstance(found, tuple) and len(found) == 5 and found[0] == "storage":
                kind, key, count = str(found[1]).rpartition(" ")[2], str(found[2]), found[4]
                if not isinstance(count, int) or count < 0:
                    raise ValueError(f"storage {key} has {count!r} elements")
                yield kind, key, count
            stack.append(None)
        else:
            before = [entry.name for entry in opcode.stack_before]
            _taken(stack, -1 if "mark" in before else len(before))
            simple = isinstance(argument, (str, int)) and len(opcode.stack_after) == 1
            stack += [argument] if simple else [None] * len(opcode.stack_after)


def _taken(stack: list[Any], count: int) -> list[Any]:
    """Removes ``count`` values, or those down to the last mark and the mark (and what stands under it stays)."""
    if count == 0:
        return []
    if count > 0:
        if len(stack) < count:
            raise ValueError("the pickle takes more than there is")
        taken = stack[-count:]
        del stack[-count:]
        return taken
    place = next((number for number in range(len(stack) - 1, -1, -1) if stack[number] is _MARK), None)
    if place is None:
        raise ValueError("the pickle takes more than there is")
    taken = stack[place + 1 :]
    del stack[place:]
    return taken
