"""The peers, each prepared as its own documentation says, all with equal threads and the precision asked for.

A peer gives a function that runs the model once on fixed inputs. Set-up time (compilation) is measured apart.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import UnsupportedError, UsageError

Array = np.ndarray[Any, Any]
Run = Callable[[], list[Array]]


class OnnxExport:
    """A module in an ONNX file, in float32. The file goes with this object.

    Attributes:
        path: the file.
        seconds: how long the export took.
    """

    def __init__(self, module: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        import copy

        import torch
        from torch.utils._pytree import tree_map_only

        started = time.perf_counter()
        module = copy.deepcopy(module).float()
        positional, named = tree_map_only(
            torch.Tensor, lambda value: value.float() if value.is_floating_point() else value, arguments
        )
        folder = tempfile.mkdtemp(prefix="lowerkit-bench-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = Path(folder) / "model.onnx"
        torch.onnx.export(module, positional, str(self.path), kwargs=named, dynamo=True, verbose=False)
        self.seconds = time.perf_counter() - started


@dataclass(frozen=True)
class BenchModel:
    """What the peers are given.

    Attributes:
        module: the ``nn.Module``, in its element type; None for a model that came as ONNX.
        onnx_path: the ONNX file; None for a model that came as a module (peers that need one export it).
        inputs: numpy inputs in order, in the model's element types.
        input_names: their names.
        arguments: the inputs as the module takes them: by position, by keyword, nested.
        dtype: ``f32`` or ``bf16``.
        threads: threads for every peer.
    """

    module: Any
    onnx_path: Path | None
    inputs: Sequence[Array]
    input_names: Sequence[str]
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    dtype: str
    threads: int

    @cached_property
    def onnx_export(self) -> OnnxExport:
        """The module as ONNX. It takes seconds, so the peers that read ONNX share it."""
        return OnnxExport(self.module, self.arguments)

    def onnx_file(self) -> Path:
        """Returns the path of the model as ONNX, exported where it did not come as ONNX."""
        return self.onnx_path if self.onnx_path is not None else self.onnx_export.path

    def in_order_of(self, names: Sequence[str]) -> list[Array]:
        """Returns the inputs in the order in which a peer names them; one that has other names has our order.

        Raises:
            UnsupportedError: LK4004, the peer takes another number of inputs, or only some by our names.
        """
        known = dict(zip(self.input_names, self.inputs, strict=True))
        if set(names) == set(known):
            return [known[name] for name in names]
        if len(names) != len(known) or set(names) & set(known):
            taken, given = ", ".join(names), ", ".join(known)
            raise UnsupportedError("LK4004", f"the exported model takes the inputs {taken}; the model has {given}")
        return list(self.inputs)


def prepare_peer(name: str, model: BenchModel) -> Run:
    """Sets up one peer.

    Raises:
        UsageError: LK1008, there is no such peer.
        UnsupportedError: LK4004, the peer cannot run this model (named, never skipped silently).
    """
    prepare = PEERS.get(name)
    if prepare is None:
        raise UsageError("LK1008", f"there is no peer {name!r}", hint="the peers are: " + ", ".join(PEERS))
    try:
        with warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            return prepare(model)
    except UnsupportedError:
        raise
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "LK4004",
            f"the peer {name} needs the package {error.name}, which is not installed",
            hint="pip install 'lowerkit[bench]', or leave the peer out of --peers",
        ) from error
    except Exception as error:
        text = str(error).strip().splitlines()
        raise UnsupportedError("LK4004", f"{name} cannot run this model: {text[0] if text else error!r}") from error


def prepare_timed(name: str, model: BenchModel) -> tuple[Run, float]:
    """Sets up one peer and returns it with the seconds that this takes.

    The export to ONNX counts for each peer that reads ONNX, also where another one has already done it.

    Raises:
        LowerkitError: as :func:`prepare_peer`.
    """
    reused = name in READS_ONNX and "onnx_export" in vars(model)
    started = time.perf_counter()
    run = prepare_peer(name, model)
    seconds = time.perf_counter() - started
    return run, seconds + (model.onnx_export.seconds if reused else 0.0)


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Keeps the exporters' chatter off the terminal."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(previous)


def _prepare_eager(model: BenchModel) -> Run:
    return _torch_run(_module_of(model, "eager"), model)


def _prepare_inductor(model: BenchModel) -> Run:
    import torch
    import torch._inductor.config as inductor_config

    module = _module_of(model, "inductor")
    inductor_config.freezing = True
    torch.compiler.reset()
    return _torch_run(torch.compile(module), model)


def _torch_run(function: Any, model: BenchModel) -> Run:
    import torch
    from torch.utils._pytree import tree_leaves

    from lowerkit.program.dtypes import to_numpy

    torch.set_num_threads(model.threads)
    positional, named = model.arguments

    def run() -> list[Array]:
        with torch.inference_mode():
            return [to_numpy(value) for value in tree_leaves(function(*positional, **named)) if value is not None]

    run()
    return run


def _prepare_onnxruntime(model: BenchModel) -> Run:
    import onnxruntime

    if model.dtype != "f32":
        raise UnsupportedError("LK4004", f"onnxruntime's CPU provider has no {model.dtype}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = model.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model.onnx_file()), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    feeds = dict(zip(names, model.in_order_of(names), strict=True))
    # asarray copies nothing: it says that the outputs are tensors, not ONNX's sequences or maps.
    return lambda: [np.asarray(value) for value in session.run(None, feeds)]


def openvino_settings(dtype: str, threads: int) -> dict[str, str | int]:
    """Returns OpenVINO's configuration for one inference at a time.

    Without the hint of the precision it runs f32 models in bf16 by itself where the CPU can.
    """
    return {
        "INFERENCE_PRECISION_HINT": dtype,
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }


def _prepare_openvino(model: BenchModel) -> Run:
    import openvino

    core = openvino.Core()
    config = openvino_settings(model.dtype, model.threads)
    compiled = core.compile_model(core.read_model(str(model.onnx_file())), "CPU", config)
    request = compiled.create_infer_request()
    arrays = model.in_order_of([port.any_name for port in compiled.inputs])
    inputs = [array.astype(np.float32) if array.dtype.name == "bfloat16" else array for array in arrays]

    def run() -> list[Array]:
        request.infer(inputs, share_inputs=True)
        return [request.get_output_tensor(index).data for index in range(len(compiled.outputs))]

    return run


def _module_of(model: BenchModel, peer: str) -> Any:
    if model.module is None:
        raise UnsupportedError("LK4004", f"{peer} cannot run a model that came as ONNX")
    return model.module


PEERS: dict[str, Callable[[BenchModel], Run]] = {
    "eager": _prepare_eager,
    "inductor": _prepare_inductor,
    "onnxruntime": _prepare_onnxruntime,
    "openvino": _prepare_openvino,
}

READS_ONNX = frozenset({"onnxruntime", "openvino"})
