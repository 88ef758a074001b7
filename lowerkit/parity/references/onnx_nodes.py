"""Reference values of an ONNX model: of every node by ONNX Runtime, and of every value in float64.

ONNX Runtime computes in the model's own element types (all node outputs are made outputs of the graph). Its CPU kernels
know float64 for few ops, so the float64 reference is ONNX's own evaluator on a widened copy of the model: weights,
constants and the targets of casts become float64.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import numpy_helper

from lowerkit.capture.onnx.eager import float32_outputs, holds_bfloat16, load_with_data, node_outputs
from lowerkit.parity.gates import GATES
from lowerkit.parity.metrics import compare
from lowerkit.parity.references.perturbed_inputs import perturbed_inputs
from lowerkit.program.program import Program

Array = np.ndarray[Any, Any]

_STILL = 0.75
"""Share of the weights that stay: a weight that moves by a unit in the last place errs more than one rounding."""
_NARROW = frozenset({"float32", "float16", "bfloat16"})


def onnx_node_values(
    program: Program, inputs: Sequence[Array], nodes: Collection[str], seed: int | None = None
) -> dict[str, dict[str, Array]]:
    """Returns node name -> value name -> value, of all outputs of the named nodes of the captured ONNX model.

    With ``seed`` of a perturbed run, see :func:`onnx_perturbed_values`.
    """
    model = load_with_data(program.onnx_model)
    wanted = {
        output: _name_of(node)
        for node in model.graph.node
        if node.output and _name_of(node) in nodes
        for output in node.output
        if output
    }
    found: dict[str, dict[str, Array]] = {}
    values = (
        node_outputs(model, inputs, list(wanted))
        if seed is None
        else onnx_perturbed_values(program, inputs, list(wanted), seed)
    )
    for name, value in values.items():
        found.setdefault(wanted[name], {})[name] = value
    return found


def onnx_perturbed_values(
    program: Program, inputs: Sequence[Array], names: Sequence[str], seed: int
) -> dict[str, Array]:
    """Returns value name -> value of a run by ONNX Runtime, its optimizations off, on inputs and weights moved by one
    unit in the last place at most: as right a run as that of the model itself."""
    generator = np.random.default_rng(seed)
    model = load_with_data(program.onnx_model)
    for tensor in model.graph.initializer:
        if tensor.data_type in _narrow_types():
            array = numpy_helper.to_array(tensor)
            kept = generator.random(array.shape) < _STILL
            moved = np.where(kept, array, perturbed_inputs([array], generator)[0]).astype(array.dtype)
            tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    return node_outputs(model, perturbed_inputs(inputs, generator), names)


def onnx_float64_values(program: Program, inputs: Sequence[Array]) -> dict[str, Array]:
    """Returns value name -> value of every value of the captured ONNX model, computed in float64.

    The value of a node is also under the node's name, where no value has that name. In a model that holds bf16 those
    values are left out that ONNX Runtime, computing all of it in float32, does not confirm.

    Raises:
        ValueError: an op of the evaluator fell back to a narrower type, so this is no float64 reference.
        Exception: whatever the evaluator raises for an op it does not implement.
    """
    model = load_with_data(program.onnx_model)
    unrounded = float32_outputs(model, inputs) if holds_bfloat16(model) else None
    names = _input_names(model)
    _widen_graph(model.graph)
    for function in model.functions:
        for node in function.node:
            _widen_node(node)
    feeds = dict(zip(names, [_widen(np.asarray(array)) for array in inputs], strict=False))
    found = _evaluator()(model).run(None, feeds, intermediate=True)
    values = {name: value for name, value in found.items() if name and isinstance(value, np.ndarray)}
    narrow = [name for name, value in values.items() if value.dtype.name in _NARROW]
    if narrow:
        raise ValueError(f"ONNX's evaluator computed {narrow[0]!r} in {values[narrow[0]].dtype.name}")
    if unrounded is not None:
        values = {name: value for name, value in values.items() if _confirms(unrounded.get(name), value)}
    for node in model.graph.node:
        if node.output and node.output[0] in values:
            values.setdefault(_name_of(node), values[node.output[0]])
    return values


def _confirms(unrounded: Array | None, float64: Array) -> bool:
    if unrounded is None or unrounded.shape != float64.shape:
        return False
    return compare(unrounded, float64).sqnr_db >= GATES["f32"].model_sqnr_db / 2


def _name_of(node: Any) -> str:
    """Returns the name that capture gives to a node's ops: its output's, where the node has none."""
    return node.name or node.output[0]


def _input_names(model: Any) -> list[str]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in constants]


def _widen(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.name in _NARROW else array


def _widen_graph(graph: Any) -> None:
    """Widens a graph in place, subgraphs included."""
    _widen_tensors(graph.initializer)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        tensor_type = value.type.tensor_type
        if tensor_type.elem_type in _narrow_types():
            tensor_type.elem_type = _double()
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: Any) -> None:
    import onnx

    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen_tensors([attribute.t])
        if attribute.HasField("g"):
            _widen_graph(attribute.g)
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            single = attribute.name == "value_float"
            numbers = np.asarray(attribute.f if single else attribute.floats, np.float64)
            attribute.CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(numbers)))
        # Cast and EyeLike say their element type as a number.
        if attribute.name in ("to", "dtype") and attribute.i in _narrow_types():
            attribute.i = _double()


def _widen_tensors(tensors: Iterable[Any]) -> None:
    for tensor in tensors:
        if tensor.data_type in _narrow_types():
            tensor.CopyFrom(numpy_helper.from_array(_widen(numpy_helper.to_array(tensor)), tensor.name))


@cache
def _narrow_types() -> frozenset[int]:
    from onnx import TensorProto

    return frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})


def _double() -> int:
    from onnx import TensorProto

    return TensorProto.DOUBLE


def _gathered(x: Array, indices: Array, axis: int) -> Array:
    """Takes x[..., indices[position], ...] for each position; other axes of ``indices`` may be shorter than x's."""
    positions = list(np.indices(indices.shape))
    positions[axis] = indices
    return x[tuple(positions)]


@cache
def _evaluator() -> Any:
    """Returns ONNX's evaluator with four ops replaced.

    Its Erf rounds to float32 whatever it is given, its batch norms before opset 14 normalize with the statistics of
    the batch, as in training, its LRN covers as many channels as there are images, and its GatherElements fails where
    an axis has more than 64 elements.
    """
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class Erf(OpRun):
        op_domain = ""

        def _run(self, x: Array) -> tuple[Array]:
            return (np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x)).astype(x.dtype),)

    class BatchNormalization(OpRun):
        op_domain = ""

        def _run(
            self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float = 0.0, **_: Any
        ) -> tuple[Array]:
            if len([name for name in self.onnx_node.output if name]) > 1:
                raise NotImplementedError("a batch norm in training mode")
            shape = (-1, *[1] * (x.ndim - 2))
            factor = scale / np.sqrt(variance + epsilon)
            return (x * factor.reshape(shape) + (bias - mean * factor).reshape(shape),)

    class LRN(OpRun):
        op_domain = ""

        def _run(self, x: Array, alpha: float, beta: float, bias: float, size: int) -> tuple[Array]:
            low, channels = (size - 1) // 2, x.shape[1]
            padding = [(0, 0), (low, size - 1 - low), *[(0, 0)] * (x.ndim - 2)]
            squares = np.pad(x * x, padding)
            window = sum(squares[:, shift : shift + channels] for shift in range(size))
            return (x / (bias + float(alpha) / size * window) ** beta,)

    class GatherElements(OpRun):
        op_domain = ""

        def _run(self, x: Array, indices: Array, axis: int = 0) -> tuple[Array]:
            size = x.shape[axis]
            return (_gathered(x, np.where(indices < 0, indices + size, indices), axis),)

    class Float64Evaluator(ReferenceEvaluator):
        """Also evaluates the bodies of functions (Gelu and others), so the replacement holds there too."""

        def __init__(self, proto: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(
                proto,
                *arguments,
                **{**options, "new_ops": options.get("new_ops") or [Erf, BatchNormalization, LRN, GatherElements]},
            )

    return Float64Evaluator
