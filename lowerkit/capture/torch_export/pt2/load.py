"""Loads a ``.pt2`` as ``torch.export.load`` does, in a third of the time and without copying the weights.

What torch's own loader spends its time on, and what is done instead:

* importing TorchDynamo and Inductor, of which next to nothing is used: stand-ins take their place for the time of the
  call, and make way as soon as anything else is asked of them;
* resolving the type hints of a dataclass again for each of ten thousand objects: :mod:`schema` does it once;
* reading every tensor into memory: tensors lie in a private mapping of the file here.

The graph itself is made by torch's deserializer, of objects that were checked before (:mod:`checks`): a file
cannot make it evaluate, import or compile anything of its own. torch's reader of archives is never asked.
"""

# The deserializer and its schema are parts of torch that it keeps private; the version is pinned.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import importlib
import mmap
import struct
import sys
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from lowerkit.capture.archives import EXPORTED_MODEL
from lowerkit.capture.torch_export.pt2.checks import ExportedChecks
from lowerkit.capture.torch_export.pt2.pickles import plain_pickles
from lowerkit.capture.torch_export.pt2.schema import SchemaDecoder
from lowerkit.capture.torch_export.pt2.sympy_builder import to_sympy
from lowerkit.errors import CaptureError, InputError

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

    The guards of the program are kept as text (``_guards_code``), each of the grammar of
    :mod:`expression_parser`.

    Raises:
        CaptureError: LK2002, it holds pickled objects, or names what is no operator, size or identifier.
        InputError: LK1002, it is of another layout.
        Exception: whatever torch and zipfile raise for a damaged archive.
    """
    archive = _MappedArchive(path)
    if (
        EXPORTED_MODEL not in archive.names
        or "archive_version" not in archive.names
        or archive.text("archive_version") != b"0"
    ):
        raise InputError(
            "LK1002",
            f"{path} holds no exported program of the layout that torch 2.8 and newer write ({EXPORTED_MODEL})",
            hint="export it again with this version of torch: torch.export.save(torch.export.export(...), 'model.pt2')",
        )
    with _without_dynamo(), plain_pickles():
        serializer: Any = importlib.import_module("torch._export.serde.serialize")
        importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")  # the deserializer takes it for granted
        program, payloads = _decoded(path, archive, serializer)
        if not program.range_constraints and program.schema_version.major == serializer.SCHEMA_VERSION[0]:
            return _static(program, payloads, archive, serializer)
    with plain_pickles():  # symbolic dims take more of torch
        return serializer.ExportedProgramDeserializer().deserialize(program, *payloads, _sample_inputs(archive))


def _decoded(path: Path, archive: _MappedArchive, serializer: Any) -> tuple[Any, list[Any]]:
    """Returns the program as torch's schema has it, and the weights and constants.

    Raises:
        CaptureError: LK2002, with everything in it that torch would evaluate, import or compile.
    """
    checks = ExportedChecks()

    def symbolic(text: Any) -> Any:
        try:
            return to_sympy(text)
        except (ValueError, TypeError) as error:
            checks.refuse(f"the size {str(text)[:80]!r}: {error}")
            return None

    decoder = SchemaDecoder(serializer.schema, symbolic, checks.by_class())
    program = decoder.decode(serializer.schema.ExportedProgram, archive.text(EXPORTED_MODEL))
    tables = {
        folder: decoder.decode(serializer.schema.PayloadConfig, archive.text(config))
        for folder, config in _TENSORS.items()
        if config in archive.names
    }
    if checks.problems:
        raise CaptureError(
            "LK2002",
            f"{path} names what torch would look up, evaluate or write into Python code; it is not loaded",
            details=checks.problems,
            hint="export the model again with torch.export.save; custom operators must be imported, and take tensors "
            "and numbers only; or name a factory: path/to/file.py:factory",
        )
    payloads = [
        _tensors(archive, folder, tables[folder], serializer)
        if folder in tables
        else archive.text(f"{folder}model.pt")  # as torch 2.8 wrote them: plain_pickles reads it
        for folder in _TENSORS
    ]
    return program, payloads


def _sample_inputs(archive: _MappedArchive) -> bytes | None:
    return archive.text(_SAMPLE_INPUTS) if _SAMPLE_INPUTS in archive.names else None


def _static(program: Any, payloads: list[Any], archive: _MappedArchive, serializer: Any) -> ExportedProgram:
    """Returns a program without symbolic dims."""
    deserializer = serializer.GraphModuleDeserializer()
    deserializer.deserialize_tensor_meta = lambda meta: _fake_tensor(meta, deserializer.fake_tensor_mode, serializer)
    result = deserializer.deserialize(program.graph_module, *payloads, _sample_inputs(archive))
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
