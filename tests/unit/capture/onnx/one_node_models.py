"""One-node ONNX models for tests, and their comparison with ONNX Runtime or ONNX's own evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.capture.onnx.eager import exact_session
from lowerkit.program.dtypes import NUMPY_DTYPES
from tests.support.suite.randomness import RANDOM
from tests.unit.capture.running import run_program

Array = np.ndarray[Any, Any]


def normal(*shape: int) -> Array:
    """Returns normally distributed f32 numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def one_node(
    op_type: str,
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    *,
    outputs: Sequence[str] = ("y",),
    order: Sequence[str] | None = None,
    opset: int = 21,
    domain: str = "",
    **attributes: Any,
) -> onnx.ModelProto:
    """Returns a model of one node; its operands are ``order`` (empty for an absent one), or inputs then constants."""
    constants = constants or {}
    node = helper.make_node(
        op_type, list(order or [*inputs, *constants]), list(outputs), name="node", domain=domain, **attributes
    )
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs if name],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model if domain else onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def by_reference(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """Returns what ONNX's own evaluator computes."""
    evaluator = ReferenceEvaluator(model)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        feeds: Any = dict(zip(evaluator.input_names, inputs, strict=False))
        results: Any = evaluator.run(None, feeds)
    return [np.asarray(result) for result in results]


def by_onnxruntime(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """Returns what ONNX Runtime computes."""
    import onnxruntime

    session = exact_session(onnxruntime.SessionOptions(), model.SerializeToString())
    feeds = {value.name: array for value, array in zip(session.get_inputs(), inputs, strict=True)}
    return [np.asarray(result) for result in session.run(None, feeds)]


def ours(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """Returns what the captured and raised program computes; no kernel is compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = capture_onnx(model)
    # In IR integers have no sign: the interpreter takes and gives signed ones of the same bits.
    results = run_program(program, [_signed(array) for array in inputs])
    wanted = [NUMPY_DTYPES[spec.dtype] for spec in program.signature.outputs]
    return [
        result.view(dtype) if result.dtype == _signed(np.empty(0, dtype)).dtype else result
        for result, dtype in zip(results, wanted, strict=True)
    ]


def _signed(array: Array) -> Array:
    return array.view(array.dtype.name.removeprefix("u")) if array.dtype.kind == "u" else array


def assert_close(found: Sequence[Array], expected: Sequence[Array], tolerance: float = 3e-6) -> None:
    """Compares types, shapes and values; ``tolerance`` is relative to the largest value, 0 asks for equality."""
    assert len(found) == len(expected)
    for have, want in zip(found, expected, strict=True):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        scale = float(np.abs(want.astype(np.float64)).max(initial=1e-30)) if tolerance else 0.0
        np.testing.assert_allclose(have, want, rtol=0, atol=tolerance * scale)
