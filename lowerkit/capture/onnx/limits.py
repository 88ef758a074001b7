"""Limits of an ONNX model that hold before anything walks it, and constants that no quantization can mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from lowerkit.capture.onnx.skeleton import OnnxGraph
from lowerkit.errors import CaptureError

MAXIMUM_NODES = 250_000
"""Of a graph. The largest models that are known have some tens of thousands; what walks graphs takes time for each."""
MAXIMUM_NAME = 1 << 14
MAXIMUM_RANK = 64

# Where the scales are among the operands.
_SCALES: dict[str, tuple[int, ...]] = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearMatMul": (1, 4, 6),
    "QLinearConv": (1, 4, 6),
    "QGemm": (1, 4, 7),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), (1, 4, 6)),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean"), (1, 3)),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), (1, 3)),
}
_DOMAINS = ("", "ai.onnx", "com.microsoft")


def require_bounds(model: ModelProto, what: str) -> None:
    """Checks the number of nodes, and the names and ranks of the values of the main graph.

    Raises:
        CaptureError: LK2003, with every problem.
    """
    problems = list(_problems(model.graph))
    problems += _expansion_problems(model)
    problems += [
        f"function {function.name[:80]!r} has {len(function.node)} nodes, {MAXIMUM_NODES} are read"
        for function in model.functions
        if len(function.node) > MAXIMUM_NODES
    ]
    if problems:
        raise CaptureError(
            "LK2003",
            f"{what} is beyond what an ONNX model may be",
            details=problems[:16],
            hint="export it again; onnx.checker.check_model does not look for this",
        )


def _problems(graph: GraphProto) -> Iterator[str]:
    if len(graph.node) > MAXIMUM_NODES:
        yield f"the graph has {len(graph.node)} nodes, {MAXIMUM_NODES} are read"
        return
    for value in [*graph.input, *graph.output, *graph.value_info]:
        rank = len(value.type.tensor_type.shape.dim)
        if rank > MAXIMUM_RANK:
            yield f"value {value.name[:80]!r} has rank {rank}, more than {MAXIMUM_RANK}"
    for name in _names(graph):
        if not isinstance(name, str):  # protobuf gives bytes for what is no UTF-8
            yield f"the name {bytes(name)[:80]!r} is no UTF-8"
        elif len(name) > MAXIMUM_NAME:
            yield f"the name {name[:80]!r}... has {len(name)} characters, more than {MAXIMUM_NAME}"
        elif not name.isprintable():
            yield f"the name {name[:80]!r} has characters that cannot be printed"


def _expansion_problems(model: ModelProto) -> Iterator[str]:
    """Counts the nodes that the graph has once its functions are inlined: calls of calls double at each level."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}
    waiting = list(functions)
    entered: set[tuple[str, str, str]] = set()
    while waiting:
        key = waiting[-1]
        called = [call for call in _calls(functions[key].node) if call in functions]
        missing = [call for call in dict.fromkeys(called) if call not in sizes]
        if missing and key not in sizes:
            if key in entered:
                yield f"function {key[1][:80]!r} calls itself"
                return
            entered.add(key)
            waiting += missing
            continue
        waiting.pop()
        sizes[key] = min(1 + len(functions[key].node) + sum(sizes[call] for call in called), 1 << 60)
    total = sum(sizes.get(call, 1) for call in _calls(model.graph.node))
    if total > MAXIMUM_NODES:
        yield f"the graph has {total} nodes once its functions are inlined, {MAXIMUM_NODES} are read"


def _calls(nodes: Iterable[NodeProto]) -> Iterator[tuple[str, str, str]]:
    """Yields what each node calls, those of branches and loops among them."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node.domain, node.op_type, node.overload
        for attribute in node.attribute:
            for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                stack += graph.node


def _names(graph: GraphProto) -> Iterable[str | bytes]:
    yield from (value.name for value in graph.input)
    yield from (value.name for value in graph.output)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield node.name
        yield from node.output


def require_sound_scales(ready: OnnxGraph) -> None:
    """Checks that constant scales of quantization are numbers above zero, and no denormal f32: those overflow.

    Raises:
        CaptureError: LK2003, with every scale that is not.
    """
    literals = {tensor.name: tensor for tensor in ready.graph.initializer}
    problems: dict[str, None] = {}
    for node in ready.graph.node:
        for place in _SCALES.get(node.op_type, ()) if node.domain in _DOMAINS else ():
            name = node.input[place] if place < len(node.input) else ""
            problem = _scale_problem(name, literals, ready)
            if problem:
                problems[f"{node.op_type} {node.name or node.output[0]}: scale {name!r} {problem}"] = None
    if problems:
        raise CaptureError(
            "LK2003",
            f"{len(problems)} scales of the ONNX model are no scales",
            details=list(problems)[:16],
            hint="a scale is a finite number above zero; calibrate and quantize the model again",
        )


def _scale_problem(name: str, literals: dict[str, TensorProto], ready: OnnxGraph) -> str:
    if name in literals:
        array = numpy_helper.to_array(literals[name])
    elif name in ready.weights:
        array = ready.weights[name].read()
    else:
        return ""
    wide = np.asarray(array).astype(np.float64)
    if not np.isfinite(wide).all():
        return f"holds {float(wide[~np.isfinite(wide)].ravel()[0])}"
    least = float(np.abs(wide).min()) if wide.size else math.inf
    if least == 0:
        return "holds 0"
    smallest = float(np.finfo(np.float32).tiny)
    return f"holds {least:.3g}, less than the smallest normal f32" if least < smallest else ""
