"""What is fuzzed: each target makes sound files, and takes a mutated one as a user's would be taken.

A target returns a word for the statistics. ``LowerkitError`` is what it should raise; anything else is a bug.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import UsageError
from untrusted.handshakes import handshakes, mutated_handshake, take_handshake
from untrusted.model_texts import mutated_texts, nothing_ran
from untrusted.mutations import mutate, mutate_manifest
from untrusted.rank_files import flight_records, mutated_document, trace_records, tuning_tables, use_table

Array = np.ndarray[Any, Any]
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


@dataclass(frozen=True)
class Target:
    """Something that reads files.

    Attributes:
        corpus: makes the sound files.
        mutated: makes a case of the generator and the corpus.
        take: reads a mutated file.
        suffix: of the file.
    """

    corpus: Callable[[], list[bytes]]
    mutated: Callable[[np.random.Generator, list[bytes]], bytes]
    take: Callable[[Path], str]
    suffix: str


def _module(bias: bool = True) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4, bias=bias), torch.nn.Tanh()).eval()


def _artifacts() -> list[bytes]:
    """Artifacts with static and symbolic shapes, with golden values and without."""
    import torch

    import lowerkit

    found: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        for dynamic in (None, ({0: torch.export.Dim("rows", min=1, max=8)},)):
            path = Path(folder) / "model.lk"
            lowerkit.compile(_module(), (torch.from_numpy(X),), dynamic_shapes=dynamic).save(path)
            found.append(path.read_bytes())
    return found


def _bytes_of(rng: np.random.Generator, corpus: list[bytes]) -> bytes:
    return mutate(rng, corpus[int(rng.integers(len(corpus)))], corpus)


def _manifest_of(rng: np.random.Generator, corpus: list[bytes]) -> bytes:
    return mutate_manifest(rng, corpus[int(rng.integers(len(corpus)))], _sealed)


def _sealed(text: bytes) -> bytes:
    """Fills in the content id, as the writer does."""
    empty = re.sub(rb'"content_id":"[^"]*"', b'"content_id":""', text)
    digest = hashlib.sha256(empty).hexdigest().encode()
    return empty.replace(b'"content_id":""', b'"content_id":"' + digest + b'"')


_expected: list[Array] = []


def run_artifact(path: Path) -> str:
    """Loads and runs: what loads must compute what the sound artifact does."""
    from lowerkit.runtimes.session import load

    session = load(path, threads=1)
    (y,) = session.run(X)
    if not _expected:
        _expected.append(y)
    if not np.array_equal(y, _expected[0]):
        raise AssertionError("an artifact that loads computes something else")
    return "the same"


def bind_artifact(path: Path) -> str:
    """Loads and binds: no step may be given bytes outside of the memory that it will have. Nothing is run."""
    from lowerkit.runtimes.arguments import bind_dims, collect
    from lowerkit.runtimes.binding import bind_model
    from lowerkit.runtimes.dtypes import numpy_dtype
    from lowerkit.runtimes.session import load
    from lowerkit.runtimes.stepwise import bind_steps

    session = load(path, threads=1)
    signature, program = session.signature, session.program
    # The inputs of the corpus where a case lets them be; more than a few bytes are no use and no test.
    arrays = [np.zeros(_shape(spec), numpy_dtype(spec.dtype)) for spec in signature.inputs]
    dims = bind_dims(signature, collect(signature, arrays, {}))
    arguments = (program, dims, session._weights.places, session._kernel_address)  # pyright: ignore[reportPrivateUsage]
    bound, stepped = bind_model(*arguments), bind_steps(*arguments)
    file_size = path.stat().st_size
    states = [_bytes(spec.shape, spec.dtype) for spec in signature.states]
    inputs = [array.nbytes for array in arrays]
    outputs = [_bytes(shape, spec.dtype) for shape, spec in zip(bound.output_shapes, signature.outputs, strict=True)]
    room = [bound.arena_size, file_size, *states, *inputs, *outputs]
    for step in program.steps:
        for buffer in step.buffers:
            (base, offset), size = stepped.places[buffer], stepped.sizes[buffer]
            if not (offset >= 0 and size >= 0 and offset + size <= room[base]):
                raise AssertionError(f"buffer {buffer} takes {offset} to {offset + size} of {room[base]} bytes")
    return "bound"


def _shape(spec: Any) -> tuple[int, ...]:
    extents = [extent if isinstance(extent, int) else 3 for extent in spec.shape]
    if int(np.prod(extents, dtype=object)) > 1 << 20:
        raise UsageError("LK1003", f"inputs of shape {extents} are not made")
    return tuple(extents)


def _bytes(shape: Any, dtype: str) -> int:
    from lowerkit.runtimes.manifest import ITEM_SIZES

    return int(np.prod([int(extent) for extent in shape], dtype=object)) * ITEM_SIZES[dtype]


def _archives() -> list[bytes]:
    import torch

    exported, scripted, saved = io.BytesIO(), io.BytesIO(), io.BytesIO()
    example = torch.from_numpy(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(_module(), (example,)), exported)
        torch.jit.save(torch.jit.trace(_module(), example), scripted)
        torch.save(_module().state_dict(), saved)
    return [exported.getvalue(), scripted.getvalue(), saved.getvalue()]


def tell_archive(path: Path) -> str:
    """The zip reader: what kind of file is it, and is it harmless?"""
    from lowerkit.capture.file_kind import file_kind

    return file_kind(path)


def capture_archive(path: Path) -> str:
    """Captures an export or a TorchScript file."""
    from lowerkit.capture.file_kind import file_kind
    from lowerkit.capture.load_model import capture_path

    name = "input" if file_kind(path) == "exported" else "input_1"
    return capture_path(path, [f"{name}:3x8:f32"]).stage


def _programs() -> list[bytes]:
    """Exports with guards, branches and symbolic sizes, and a script with control flow."""
    import torch

    class Guarded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] % 3 == 0:
                return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).reshape(x.shape[0] * 2, 4)
            return x

    class Looped(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = torch.tanh(x) + 1
            if bool(x.sum() > 0):
                x = x * 2
            return x

    exported, scripted = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = ({0: torch.export.Dim.AUTO},)
        torch.export.save(torch.export.export(Guarded(), (torch.from_numpy(X),), dynamic_shapes=shapes), exported)
        torch.jit.save(torch.jit.script(Looped()), scripted)
    return [exported.getvalue(), scripted.getvalue()]


def capture_program(path: Path) -> str:
    """Captures an export or a TorchScript file, and looks whether anything in it was run."""
    from lowerkit.capture.load_model import capture_path

    try:
        return capture_path(path, ["x:3x8:f32"]).stage
    finally:
        nothing_ran()


def _onnx_files() -> list[bytes]:
    import onnx
    from onnx import parser

    texts = (
        """g (float[3,8] x) => (float[3,4] y) <float[8,4] w = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,
        22,23,24,25,26,27,28,29,30,31}, float[4] b = {1,2,3,4}> { a = MatMul(x, w)  s = Add(a, b)  y = Tanh(s) }""",
        """g (float[1,2,8,8] x) => (float[1,4] y) <float[4,2,1,1] w = {1,2,3,4,5,6,7,8}, int64[2] shape = {1, 4}>
        { c = Conv<kernel_shape = [1,1]>(x, w)  r = Relu(c)  p = GlobalAveragePool(r)  y = Reshape(p, shape) }""",
        """g (float[n,8] x) => (float[n,8] y) <float s = {0.5}, int8 z = {1}>
        { q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Softmax<axis = 1>(d) }""",
    )
    return [
        onnx.helper.make_model(
            parser.parse_graph(text), opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10
        ).SerializeToString()
        for text in texts
    ]


def capture_onnx_file(path: Path) -> str:
    """Captures an ONNX file."""
    from lowerkit.capture.load_model import capture_path

    return capture_path(path, []).stage


TARGETS: dict[str, Target] = {
    "artifact": Target(_artifacts, _bytes_of, run_artifact, ".lk"),
    "manifest": Target(_artifacts, _manifest_of, bind_artifact, ".lk"),
    "zip": Target(_archives, _bytes_of, tell_archive, ".pt2"),
    "archive": Target(_archives, _bytes_of, capture_archive, ".pt2"),
    "model-text": Target(_programs, mutated_texts, capture_program, ".pt2"),
    "onnx": Target(_onnx_files, _bytes_of, capture_onnx_file, ".onnx"),
    "handshake": Target(handshakes, mutated_handshake, take_handshake, ".bytes"),
    "flight-record": Target(flight_records, mutated_document, trace_records, ".json"),
    "tuning-table": Target(tuning_tables, mutated_document, use_table, ".json"),
}


def prepare(name: str) -> list[bytes]:
    """Makes the corpus, and takes each of it once: sound files must be taken, and everything is imported then."""
    target = TARGETS[name]
    corpus = target.corpus()
    with tempfile.TemporaryDirectory() as folder:
        for data in corpus:
            path = Path(folder) / f"sound{target.suffix}"
            path.write_bytes(data)
            try:
                target.take(path)
            except Exception as error:
                if name not in ("zip", "archive", "handshake"):  # a checkpoint is refused, and so are strangers
                    raise
                sys.stderr.write(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}\n")
    return corpus
