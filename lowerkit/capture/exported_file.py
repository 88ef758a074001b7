"""Loads a ``.pt2`` as ``torch.export.load`` does, in a third of the time and without copying the weights.

What torch's own loader spends its time on, and what is done instead:

* importing TorchDynamo and Inductor, of which next to nothing is used: stand-ins take their place for the time of the
  call, and make way as soon as anything else is asked of them;
* resolving the type hints of a dataclass again for each of ten thousand objects: :class:`_Decoder` does it once each;
* reading every tensor into memory: tensors lie in a private mapping of the file here.

The graph itself is made by torch's deserializer. Programs with symbolic dims, and archives of another layout than the
one that torch 2.9 and newer write, are left to ``torch.export.load``.
"""

# The deserializer and its schema are parts of torch that it keeps private; the version is pinned.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import dataclasses
import importlib
import mmap
import struct
import sys
import types
import typing
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from lowerkit.capture.plain_pickles import plain_pickles

_MODEL = "models/model.json"
_SAMPLE_INPUTS = "data/sample_inputs/model.pt"
_TENSORS = {
    "data/weights/": "data/weights/model_weights_config.json",
    "data/constants/": "data/constants/model_constants_config.json",
}
_LOCAL_HEADER = struct.Struct("<26xHH")
_INPUTS = "torch._export.non_strict_utils"
_INPUTS_NAME = "_enable_graph_inputs_of_type_nn_module"
_VALIDATOR = "torch.fx.experimental.validator"


def read_exported(path: Path) -> ExportedProgram:
    """Loads a ``.pt2``; :func:`lowerkit.capture.archives.require_harmless_exported` was asked first.

    Raises:
        CaptureError: LK2002, it holds pickled objects.
        Exception: whatever torch and zipfile raise for a damaged archive.
    """
    archive = _MappedArchive(path)
    if (
        not {_MODEL, *_TENSORS.values(), "archive_version"} <= archive.names.keys()
        or archive.text("archive_version") != b"0"
    ):
        with plain_pickles():
            return torch.export.load(str(path))
    with _without_dynamo(), plain_pickles():
        program = _deserialized(archive)
    if program is not None:
        return program
    with plain_pickles():
        return torch.export.load(str(path))


def _deserialized(archive: _MappedArchive) -> ExportedProgram | None:
    """Returns the program; None where it has symbolic dims, which take more of torch."""
    serializer: Any = importlib.import_module("torch._export.serde.serialize")
    importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")  # the deserializer takes it for granted
    decoder = _Decoder(serializer.schema)
    program = decoder.decode(serializer.schema.ExportedProgram, archive.text(_MODEL))
    version = program.schema_version.major
    if program.range_constraints or version != serializer.SCHEMA_VERSION[0]:
        return None
    weights, constants = (
        _tensors(archive, folder, decoder.decode(serializer.schema.PayloadConfig, archive.text(config)), serializer)
        for folder, config in _TENSORS.items()
    )
    sample = archive.text(_SAMPLE_INPUTS) if _SAMPLE_INPUTS in archive.names else None
    deserializer = serializer.GraphModuleDeserializer()
    deserializer.deserialize_tensor_meta = lambda meta: _fake_tensor(meta, deserializer.fake_tensor_mode, serializer)
    result = deserializer.deserialize(program.graph_module, weights, constants, sample)
    exported = ExportedProgram(
        root=result.graph_module,
        graph=result.graph_module.graph,
        graph_signature=result.signature,
        state_dict=result.state_dict,
        range_constraints={},
        module_call_graph=result.module_call_graph,
        example_inputs=result.example_inputs,
        constants=result.constants,
        verifiers=[serializer.load_verifier(name) for name in program.verifiers],
    )
    exported._guards_code = program.guards_code
    return exported


def _fake_tensor(meta: Any, mode: Any, serializer: Any) -> FakeTensor:
    """The shape and type of a value, without the dispatch through TorchDynamo by which torch makes it."""
    sizes, strides = serializer.deserialize_size(meta.sizes), serializer.deserialize_stride(meta.strides)
    dtype = serializer.deserialize_scalar_type(meta.dtype)
    empty = torch.empty_strided(sizes, strides, dtype=dtype, device="meta", requires_grad=meta.requires_grad)
    return FakeTensor(mode, empty, serializer.deserialize_device(meta.device))


class _MappedArchive:
    """A zip of stored entries in a private mapping; the folder that torch puts in front of all names is left out."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            self.names = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            # Copy on write: torch wants tensors that may be written, and nothing writes to these.
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def place(self, name: str) -> tuple[int, int]:
        """Returns offset and size of an entry's data.

        Raises:
            ValueError: it is not stored as it is, or does not lie inside the file.
        """
        info = self.names[name]
        names, extra = _LOCAL_HEADER.unpack_from(self.memory, info.header_offset)
        start = info.header_offset + _LOCAL_HEADER.size + names + extra
        if info.compress_type != zipfile.ZIP_STORED or start + info.file_size > len(self.memory):
            raise ValueError(f"entry {name} is compressed or cut")
        return start, info.file_size

    def text(self, name: str) -> bytes:
        """Returns a copy of an entry's bytes."""
        start, size = self.place(name)
        return self.memory[start : start + size]


def _tensors(archive: _MappedArchive, folder: str, payload: Any, serializer: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of one table by name; those that share an entry of the archive share memory."""
    flat: dict[str, torch.Tensor] = {}
    found: dict[str, torch.Tensor] = {}
    for name, entry in payload.config.items():
        meta = entry.tensor_meta
        if entry.use_pickle or meta is None or meta.device.type != "cpu":
            raise ValueError(f"{folder}{entry.path_name} is no plain tensor of the CPU")
        sizes = serializer.deserialize_size(meta.sizes)
        if entry.path_name not in flat:
            dtype = serializer.deserialize_scalar_type(meta.dtype)
            start, size = archive.place(folder + entry.path_name)
            flat[entry.path_name] = (
                torch.frombuffer(archive.memory, dtype=dtype, count=size // dtype.itemsize, offset=start)
                if size
                else torch.empty(0, dtype=dtype)
            )
        strides = serializer.deserialize_stride(meta.strides)
        offset = serializer.deserialize_storage_offset(meta.storage_offset)
        tensor = torch.as_strided(flat[entry.path_name], sizes, strides, offset)
        found[name] = torch.nn.Parameter(tensor, requires_grad=meta.requires_grad) if entry.is_param else tensor
    return found


class _Decoder:
    """JSON to the dataclasses of torch's schema. Keys that the schema does not have are ignored, as torch does."""

    def __init__(self, schema: ModuleType) -> None:
        self.schema = schema
        self.union = importlib.import_module("torch._export.serde.union")._Union
        self.hints = cache(self._hints)
        self.reader = cache(self._reader)

    def decode(self, kind: type, data: bytes) -> Any:
        """Returns the object of class ``kind`` that ``data`` describes."""
        return self.reader(kind)(msgspec.json.decode(data))

    def _hints(self, kind: type) -> dict[str, Callable[[Any], Any]]:
        hints = typing.get_type_hints(kind, globalns=vars(self.schema))
        return {field.name: self.reader(hints[field.name]) for field in dataclasses.fields(kind)}

    def _reader(self, kind: Any) -> Callable[[Any], Any]:
        """Returns what makes a value of type ``kind`` of JSON; fields of a class are looked up at its first object."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self.reader(arguments[0])
        if origin in (typing.Union, types.UnionType):
            inner = self.reader(arguments[0])
            return lambda data: None if data is None else inner(data)
        if origin is list:
            item = self.reader(arguments[0])
            return lambda data: [item(entry) for entry in data]
        if origin is dict:
            value = self.reader(arguments[1])
            return lambda data: {key: value(entry) for key, entry in data.items()}
        if isinstance(kind, type) and issubclass(kind, self.union):
            return lambda data: self._tagged(kind, data)
        if dataclasses.is_dataclass(kind):
            return lambda data: self._object(kind, data)
        return float if kind is float else lambda data: data

    def _tagged(self, kind: Any, data: dict[str, Any]) -> Any:
        ((tag, value),) = data.items()
        return kind.create(**{tag: self.hints(kind)[tag](value)})

    def _object(self, kind: Any, data: dict[str, Any]) -> Any:
        return kind(**{name: read(data[name]) for name, read in self.hints(kind).items() if name in data})


class _StandIn(ModuleType):
    """Takes the place of a module until somebody asks for more than the few names that are set on it."""

    def __init__(self, name: str, names: Mapping[str, Any], leave: Callable[[], None]) -> None:
        super().__init__(name)
        vars(self).update(names)
        self._leave = leave

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._leave()
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _without_dynamo() -> Generator[None]:
    """Keeps TorchDynamo from being loaded for a settings module, a context manager and a switch that is off."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    present = set(sys.modules)
    names: dict[str, dict[str, Any]] = {
        "torch._dynamo": {"__path__": [str(Path(torch.__file__).parent / "_dynamo")]},  # for its module `config`
        _INPUTS: {_INPUTS_NAME: _module_inputs},
        _VALIDATOR: {"translation_validation_enabled": lambda: False},
    }

    def leave() -> None:
        """Makes way for the modules themselves, which are to find no part of them loaded."""
        for name, stand_in in stand_ins.items():
            parent, _, own_name = name.rpartition(".")
            if vars(sys.modules[parent]).get(own_name) is stand_in:
                delattr(sys.modules[parent], own_name)
            if sys.modules.get(name) is stand_in:
                inner = [key for key in sys.modules if key.startswith(name + ".") and key not in present]
                for key in [name, *inner]:
                    del sys.modules[key]

    stand_ins = {name: _StandIn(name, kept, leave) for name, kept in names.items() if name not in present}
    for name, stand_in in stand_ins.items():
        parent, _, own_name = name.rpartition(".")
        setattr(importlib.import_module(parent), own_name, stand_in)
        sys.modules[name] = stand_in
    try:
        yield
    finally:
        leave()


@contextmanager
def _module_inputs(arguments: Any) -> Generator[None]:
    """What torch's context manager of this name does: nothing, unless an input of the model is a module."""
    if not any(isinstance(leaf, torch.nn.Module) for leaf in pytree.tree_leaves(arguments)):
        yield
        return
    inputs: Any = sys.modules[_INPUTS]
    assert inputs.make_fake_inputs, "asking for it brings the module itself"
    with getattr(importlib.import_module(_INPUTS), _INPUTS_NAME)(arguments):
        yield
