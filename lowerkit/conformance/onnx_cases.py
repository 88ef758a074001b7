"""The cases of ``onnx.backend.test``, as folders in ONNX's own layout that worker processes read one by one.

ONNX makes its node cases with a Python function each, all of them at the import of a package, which takes half a
minute. They are therefore written out once for each version of onnx. A folder ``NAME`` holds ``model.onnx`` and
``test_data_set_N/{input,output}_M.pb``; ``index.json`` lists the cases in order.
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import platformdirs
from onnx import ModelProto, TensorProto, numpy_helper

from lowerkit.conformance.suite import Case

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
_INDEX = "index.json"
_FORMAT = 1


class OnnxCase(msgspec.Struct, frozen=True):
    """A case of the suite.

    Attributes:
        name: ``test_...``; unique.
        kind: one of :data:`KINDS`.
        family: for a node case the operator (its ``_expanded`` twins count to it too), else the kind.
        folder: where model and data are; a path, or a name inside the suite's folder.
        rtol, atol: the tolerances that the case states.
    """

    name: str
    kind: str
    family: str
    folder: str
    rtol: float
    atol: float


class DataSet(msgspec.Struct, frozen=True):
    """Inputs and the outputs that belong to them: arrays, lists of arrays for sequences, None for empty optionals."""

    inputs: list[Any]
    outputs: list[Any]


def suite_folder() -> Path:
    """Returns the folder of the cases of the installed onnx; writes them if they are not there yet."""
    root = Path(platformdirs.user_cache_dir("lowerkit")) / "conformance"
    folder = root / f"onnx-{onnx.__version__}-{_FORMAT}"
    if not (folder / _INDEX).exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as temporary:
            written = Path(temporary) / "cases"
            _write_suite(written)
            # Another process may have been faster: then its folder is as good.
            with suppress(OSError):
                written.rename(folder)
    return folder


def read_index(folder: Path) -> list[OnnxCase]:
    """Returns the cases of a folder in order."""
    return msgspec.json.decode((folder / _INDEX).read_bytes(), type=list[OnnxCase])


def cases_of(index: Sequence[OnnxCase], kinds: Sequence[str] = KINDS) -> list[Case]:
    """Returns the cases of some kinds as the runner takes them."""
    return [Case(case.name, case.family) for case in index if case.kind in kinds]


def read_case(folder: Path, case: OnnxCase) -> tuple[ModelProto, list[DataSet]]:
    """Returns the model and the data sets of a case."""
    place = folder / case.folder
    model = onnx.load(place / "model.onnx")
    sets: list[DataSet] = []
    for data in sorted(place.glob("test_data_set_*")):
        graph = model.graph
        sets.append(
            DataSet(
                [
                    _read(data / f"input_{index}.pb", value)
                    for index, value in enumerate(graph.input)
                    if _there(data, index)
                ],
                [_read(data / f"output_{index}.pb", value) for index, value in enumerate(graph.output)],
            )
        )
    return model, sets


def _there(data: Path, index: int) -> bool:
    """Whether the input has a value; graph inputs that are initializers too have none."""
    return (data / f"input_{index}.pb").exists()


def _read(path: Path, value: onnx.ValueInfoProto) -> Any:
    data = path.read_bytes()
    match value.type.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        case "map_type":
            return numpy_helper.to_dict(onnx.MapProto.FromString(data))
        case _:
            return numpy_helper.to_array(TensorProto.FromString(data))


def _write_suite(folder: Path) -> None:
    from onnx.backend.test.loader import load_model_tests

    folder.mkdir()
    index: list[OnnxCase] = []
    family = ""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for case in sorted(load_model_tests(kind=kind), key=lambda case: "" if kind == "node" else case.name):
                if kind != "node":
                    family, place = kind, str(case.model_dir)
                    # As the simple cases are files of the installed package, they are copied: the index stays whole.
                    shutil.copytree(place, folder / case.name)
                else:
                    # ONNX adds the expanded twins right after the case that they are made from.
                    family = family if "_expanded" in case.name else _operator(case.model)
                    _write_case(folder / case.name, case)
                index.append(OnnxCase(case.name, kind, family, case.name, case.rtol, case.atol))
    (folder / _INDEX).write_bytes(msgspec.json.encode(index))


def _operator(model: ModelProto | None) -> str:
    assert model is not None, "a node case has a model"
    node = model.graph.node[0]
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _write_case(folder: Path, case: Any) -> None:
    folder.mkdir()
    onnx.save(case.model, folder / "model.onnx")
    graph = case.model.graph
    for number, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / f"test_data_set_{number}"
        data.mkdir()
        for name, values, declared in (("input", inputs, graph.input), ("output", outputs, graph.output)):
            for index, (value, info) in enumerate(zip(values, declared, strict=False)):
                (data / f"{name}_{index}.pb").write_bytes(_encode(value, info))


def _encode(value: Any, info: onnx.ValueInfoProto) -> bytes:
    if isinstance(value, TensorProto):
        return value.SerializeToString()
    match info.type.WhichOneof("value"):
        case "sequence_type":
            proto: Any = numpy_helper.from_list(value, info.name)
        case "optional_type":
            proto = numpy_helper.from_optional(value, info.name)
        case "map_type":
            proto = numpy_helper.from_dict(value, info.name)
        case _:
            proto = numpy_helper.from_array(np.asarray(value), info.name)
    return proto.SerializeToString()
