"""What an ONNX model computes, by ONNX Runtime: the eager side of parity for a model that came as a file.

ONNX Runtime's CPU kernels know no bfloat16. A model that holds any is rewritten to compute each node in float32 and to
round what the node gives to bfloat16, which is how eager PyTorch computes on a CPU: a node is rounded once, whatever it
does inside. Conversion to float32 is exact, so weights and inputs are converted, not rounded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

_NOTHING = 4
"""The severity at which ONNX Runtime logs what ends the process alone."""


def onnx_eager(model: Path | ModelProto) -> Callable[..., list[Array]]:
    """Returns the model as a function; ONNX Runtime, or ONNX's own evaluator where that is missing.

    The session is made at the first call.
    """
    made: list[Callable[[Sequence[Array]], list[Array]]] = []

    def call(*arrays: Array) -> list[Array]:
        if not made:
            made.append(_runtime(model) or onnx_evaluator(model))
        return made[0](arrays)

    return call


def load_with_data(model: Path | ModelProto) -> ModelProto:
    """Returns a copy of the model that holds its external data."""
    if isinstance(model, Path):
        return onnx.load(model)
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def node_outputs(model: ModelProto, arrays: Sequence[Array], wanted: Collection[str]) -> dict[str, Array]:
    """Returns value name -> value for the values asked for, each node computed as it stands in the file.

    Args:
        model: with its data; changed.
        arrays: one for each input that is no initializer.
        wanted: names of values; those that the model does not have must not be asked for.
    """
    rounded = with_rounded_bfloat16(model) if holds_bfloat16(model) else RoundedModel(model, frozenset())
    present = {output.name for output in rounded.model.graph.output}
    rounded.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in present)
    session = _session(rounded.model, optimize=False)
    values = session.run(list(wanted), _feeds(session, arrays))
    return {name: rounded.restored(name, np.asarray(value)) for name, value in zip(wanted, values, strict=True)}


def float32_outputs(model: ModelProto, arrays: Sequence[Array]) -> dict[str, Array]:
    """Returns value name -> value for what every node of a model that holds bfloat16 gives, all computed in float32.

    Args:
        model: with its data; left as it is.
        arrays: one for each input that is no initializer.
    """
    widened = with_rounded_bfloat16(load_with_data(model), rounded=False).model
    wanted = [name for node in widened.graph.node for name in node.output if name]
    present = {output.name for output in widened.graph.output}
    widened.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in present)
    session = _session(widened, optimize=False)
    values = session.run(wanted, _feeds(session, arrays))
    return {name: np.asarray(value) for name, value in zip(wanted, values, strict=True)}


def _runtime(model: Path | ModelProto) -> Callable[[Sequence[Array]], list[Array]] | None:
    try:
        import_module("onnxruntime")
    except ImportError:
        return None
    names: frozenset[str] = frozenset()
    proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    if holds_bfloat16(proto):
        rounded = with_rounded_bfloat16(load_with_data(model))
        session, names = _session(rounded.model, optimize=False), rounded.bfloat16
    else:
        session = _session(model, optimize=True)
    outputs = [value.name for value in session.get_outputs()]

    def run(arrays: Sequence[Array]) -> list[Array]:
        values = [np.asarray(value) for value in session.run(None, _feeds(session, arrays))]
        pairs = zip(outputs, values, strict=True)
        return [value.astype(ml_dtypes.bfloat16) if name in names else value for name, value in pairs]

    return run


def silent_session(model: ModelProto) -> Callable[[Sequence[Array]], list[Array]]:
    """Returns a model as ONNX Runtime runs it node by node; what it refuses it raises, and logs nothing of it.

    Raises:
        Exception: ONNX Runtime is missing, or has no kernel for a node.
    """
    import onnxruntime

    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = _NOTHING
    rounded = with_rounded_bfloat16(model) if holds_bfloat16(model) else RoundedModel(model, frozenset())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _NOTHING
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        rounded.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    outputs = [value.name for value in session.get_outputs()]

    def run(arrays: Sequence[Array]) -> list[Array]:
        values = session.run(None, _feeds(session, arrays), quiet)
        return [rounded.restored(name, np.asarray(value)) for name, value in zip(outputs, values, strict=True)]

    return run


def exact_session(options: Any, model: str | bytes) -> Any:
    """Returns a session of ONNX Runtime, given a path or bytes, whose products of bytes do not saturate where it can.

    Without VNNI its kernels add pairs of products of unsigned and signed bytes in 16 bits. Told to be exact it makes
    all bytes unsigned, for which it lacks some kernels: then the plain session has to do.
    """
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as MissingKernelError

    providers = ["CPUExecutionProvider"]
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return onnxruntime.InferenceSession(model, options, providers=providers)
    except MissingKernelError:
        options.add_session_config_entry("session.x64quantprecision", "0")
        return onnxruntime.InferenceSession(model, options, providers=providers)


def _session(model: Path | ModelProto, *, optimize: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if isinstance(model, Path):
        return exact_session(options, str(model))
    if model.ByteSize() < 1 << 30:
        return exact_session(options, model.SerializeToString())
    # protobuf ends at 2 GB: larger models go through a file with their weights beside it.
    with tempfile.TemporaryDirectory(prefix="lowerkit-onnx-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path, save_as_external_data=True)
        return exact_session(options, str(path))


def _feeds(session: Any, arrays: Sequence[Array]) -> Mapping[str, Array]:
    pairs = zip(session.get_inputs(), arrays, strict=False)
    return {value.name: _widened(np.asarray(array)) for value, array in pairs}


def _widened(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array


def onnx_evaluator(model: Path | ModelProto) -> Callable[[Sequence[Array]], list[Array]]:
    """Returns the model as a function by ONNX's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(model) if isinstance(model, Path) else model)
    constants = {tensor.name for tensor in evaluator.proto_.graph.initializer}
    names = [value.name for value in evaluator.proto_.graph.input if value.name not in constants]

    def run(arrays: Sequence[Array]) -> list[Array]:
        results: Any = evaluator.run(None, dict(zip(names, arrays, strict=True)))
        return list(results)

    return run


# bfloat16 as float32 that is rounded after each node.


@dataclass(frozen=True)
class RoundedModel:
    """A model without bfloat16 values, and the names of those that were."""

    model: ModelProto
    bfloat16: frozenset[str]

    def restored(self, name: str, value: Array) -> Array:
        """Returns a value of the rewritten model in the element type of the original."""
        return value.astype(ml_dtypes.bfloat16) if name in self.bfloat16 else value


def holds_bfloat16(model: ModelProto) -> bool:
    """Whether a value, a weight or a cast of the model is bfloat16."""
    graph = model.graph
    values = [*graph.input, *graph.output, *graph.value_info]
    return (
        any(value.type.tensor_type.elem_type == TensorProto.BFLOAT16 for value in values)
        or any(tensor.data_type == TensorProto.BFLOAT16 for tensor in graph.initializer)
        or any(_is_cast_to_bfloat16(node) for node in graph.node)
    )


def with_rounded_bfloat16(model: ModelProto, *, rounded: bool = True) -> RoundedModel:
    """Rewrites ``model``, which holds its data, as the module docstring says; to plain float32 unless ``rounded``."""
    from onnx.inliner import inline_local_functions
    from onnx.shape_inference import infer_shapes

    typed = infer_shapes(inline_local_functions(model) if model.functions else model)
    names: set[str] = set()
    _collect(typed.graph, names)
    _widen_graph(typed.graph, names, rounded)
    return RoundedModel(typed, frozenset(names))


def _collect(graph: GraphProto, names: set[str]) -> None:
    values = [*graph.input, *graph.output, *graph.value_info]
    names.update(value.name for value in values if value.type.tensor_type.elem_type == TensorProto.BFLOAT16)
    for node in graph.node:
        if _is_cast_to_bfloat16(node):
            names.update(node.output)
        for inner in _subgraphs(node):
            _collect(inner, names)


def _widen_graph(graph: GraphProto, names: set[str], rounded: bool) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in [*graph.input, *graph.output]:
        if value.name in names:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    del graph.value_info[:]
    nodes: list[NodeProto] = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.BFLOAT16:
                attribute.i = TensorProto.FLOAT
        for inner in _subgraphs(node):
            _widen_graph(inner, names, rounded)
        nodes.append(node)
        for number, name in enumerate(node.output if rounded else ()):
            if name in names:
                exact, narrow = f"{name}__exact", f"{name}__narrow"
                node.output[number] = exact
                nodes.append(helper.make_node("Cast", [exact], [narrow], to=TensorProto.BFLOAT16))
                nodes.append(helper.make_node("Cast", [narrow], [name], to=TensorProto.FLOAT))
    copies = [_copy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def _subgraphs(node: NodeProto) -> list[GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def _is_cast_to_bfloat16(node: NodeProto) -> bool:
    return node.op_type == "Cast" and any(
        attribute.name == "to" and attribute.i == TensorProto.BFLOAT16 for attribute in node.attribute
    )


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.BFLOAT16:
        numbers = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
