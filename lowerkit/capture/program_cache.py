"""Captured programs on disk: a ``.pt2`` or TorchScript file that was captured once needs no torch the next time.

Vocabulary
    key        sha-256 of the model file's bytes, of how it was asked for (path, inputs, seed, ...), of the source of
               everything that captures and of the versions of torch and the MLIR bindings.
    reference  a weight that lies in the model file as it is: where, and how its dims are laid out.
    inline     a weight that capture made, or that lies there in another form: kept in the cache's entry.

A hit maps the model file and parses the module as it was; the artifact is the same to the byte. Models whose inline
weights outgrow a limit are not cached: the cache never holds a second copy of a model. Factories are code, which no
digest of a file describes, and are captured each time; ONNX is imported faster than it would be worth.

Bytes: looking up reads the model file once, to hash it; storing reads it once more, to find the weights in it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import sys
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lowerkit.dialect.context import new_context
from lowerkit.disk_cache import DiskCache
from lowerkit.mlir import ir
from lowerkit.program.dtypes import NUMPY_DTYPES, name_of
from lowerkit.program.files import hash_file
from lowerkit.program.program import Program
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import Signature
from lowerkit.runtimes.mesh.structs import MeshAxis

Array = np.ndarray[Any, Any]

DEFAULT_LIMIT = 1 << 28
INLINE_LIMIT = 1 << 26
"""Bytes of all entries that are kept, and of the inline weights of one entry."""

_LOCAL_HEADER_BYTES = 30


class Tensor(msgspec.Struct):
    """An array: ``data`` inline (contiguous), or ``strides`` in items from byte ``offset`` of the model file."""

    dtype: str
    shape: list[int]
    data: bytes | None = None
    offset: int = 0
    strides: list[int] = []


class _Entry(msgspec.Struct):
    module: bytes
    signature: Signature
    output_tree: object
    input_tree: object
    weights: dict[str, Tensor]
    inputs: list[Tensor] | None
    mesh: list[MeshAxis]
    given: dict[str, int]


class ProgramCache(DiskCache):
    """Captured programs; at most ``limit`` bytes of them are kept."""

    def __init__(self, folder: Path | None = None, limit: int = DEFAULT_LIMIT) -> None:
        super().__init__("program", folder, limit)


def captured_once(cache: ProgramCache, path: Path, asked: Sequence[object], capture: Callable[[], Program]) -> Program:
    """Returns the program of a model file: the one that is cached, else what ``capture`` makes, which is then cached.

    Args:
        cache: where to look.
        path: a zip: .pt2 or TorchScript.
        asked: everything else that the program depends on; what has a telling ``repr``, and arrays.
        capture: makes the program. Its :attr:`Program.eager` is not cached.
    """
    key = _key(path, asked)
    data = cache.get(key)
    if data is not None:
        return decode_program(data, path)
    program = capture()
    data = encode_program(program, path)
    if data is not None:
        cache.put(key, data)
        cache.trim()
    program.remarks += [cache.problem] if cache.problem else []
    return program


def _key(path: Path, asked: Sequence[object]) -> str:
    hasher = hashlib.sha256(f"{_code_digest()}\0{path}\0".encode())
    hasher.update(hash_file(path))
    for value in asked:
        if isinstance(value, np.ndarray):
            array: Array = value
            hasher.update(f"{array.dtype}{array.shape}".encode())
            hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        else:
            hasher.update(f"{value!r}\0".encode())
    return hasher.hexdigest()


@cache
def _code_digest() -> str:
    """What captures: our own source files, and the versions of what they call."""
    package = Path(__file__).resolve().parents[1]
    folders = ("capture", "program", "dialect")
    sources = [*(path for name in folders for path in package.glob(f"{name}/**/*.py")), package / "mlir.py"]
    hasher = hashlib.sha256(sys.version.encode())
    for name in ("torch", "torch-mlir", "numpy"):
        hasher.update(f"{name} {importlib.metadata.version(name)}\0".encode())
    for source in sorted(sources):
        hasher.update(f"{source.relative_to(package)}\0".encode() + source.read_bytes())
    return hasher.hexdigest()


def encode_program(program: Program, path: Path) -> bytes | None:
    """Returns the entry of a program; None where too many bytes of its weights are not found in the file."""
    content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    places = _places(path, content)
    weights: dict[str, Tensor] = {}
    inline = 0
    for name in program.weights:
        weights[name] = tensor = encode_tensor(program.weights.get(name), places, content)
        inline += len(tensor.data or b"")
        if inline > INLINE_LIMIT:
            return None
    module = io.BytesIO()
    program.module.operation.write_bytecode(module)
    inputs = program.example_inputs
    entry = _Entry(
        module.getvalue(),
        program.signature,
        program.output_tree,
        program.input_tree,
        weights,
        None if inputs is None else [_inline(array) for array in inputs],
        program.mesh,
        program.weights.given,
    )
    return msgspec.msgpack.encode(entry)


def decode_program(data: bytes, path: Path) -> Program:
    """Returns the program of an entry, with the model file mapped for its weights."""
    entry = msgspec.msgpack.decode(data, type=_Entry)
    content = np.memmap(path, np.uint8, "r").view(np.ndarray)
    weights = WeightStore(entry.given)
    for name, tensor in entry.weights.items():
        weights.add(name, decode_tensor(tensor, content))
    context = new_context()
    program = Program(
        context,
        ir.Module.parse(entry.module, context=context),
        weights,
        entry.signature,
        str(path),
        output_tree=entry.output_tree,
        input_tree=entry.input_tree,
        mesh=entry.mesh,
        remarks=[f"{path} was captured before and taken from the program cache"],
    )
    if entry.inputs is not None:
        program.example_inputs = [decode_tensor(tensor, content) for tensor in entry.inputs]
    return program


def _places(path: Path, content: Array) -> dict[int, list[int]]:
    """Returns size -> offsets of the entries of the zip that are stored as they are."""
    places: dict[int, list[int]] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.compress_type == zipfile.ZIP_STORED:
                header = content[info.header_offset : info.header_offset + _LOCAL_HEADER_BYTES].tobytes()
                begin = info.header_offset + len(header)
                begin += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
                places.setdefault(info.file_size, []).append(begin)
    return places


def encode_tensor(array: Array, places: dict[int, list[int]], content: Array) -> Tensor:
    """Returns a reference where the data lies in the file, in whatever order of its dims; else the data."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    stored = array.transpose(order)
    if stored.flags.c_contiguous:
        data = stored.reshape(-1).view(np.uint8)
        for offset in places.get(array.nbytes, []):
            if np.array_equal(data, content[offset : offset + array.nbytes]):
                strides = [stride // array.itemsize for stride in array.strides]
                return Tensor(name_of(array.dtype), list(array.shape), None, offset, strides)
    return _inline(array)


def _inline(array: Array) -> Tensor:
    return Tensor(name_of(array.dtype), list(array.shape), np.ascontiguousarray(array).tobytes())


def decode_tensor(tensor: Tensor, content: Array) -> Array:
    """Returns what :func:`encode_tensor` was given; a view into ``content`` where it is a reference."""
    dtype = NUMPY_DTYPES[tensor.dtype]
    if tensor.data is not None:
        return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)
    order = sorted(range(len(tensor.shape)), key=lambda axis: -tensor.strides[axis])
    size = dtype.itemsize * int(np.prod(tensor.shape, dtype=np.int64))
    stored = content[tensor.offset : tensor.offset + size].view(dtype)
    return stored.reshape([tensor.shape[axis] for axis in order]).transpose(np.argsort(order))
