"""Rules that write an ONNX node as simpler ONNX nodes, where no conversion takes it, or none takes it right.

A rule is a function of a :class:`~lowerkit.capture.onnx.rewrites.rewriter.Rewriter`. ``ALWAYS`` holds for every node of
the type, as far as the rule takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from onnx import NodeProto, helper, numpy_helper

from lowerkit.capture.onnx.functions import opset_versions
from lowerkit.capture.onnx.rewrites import (
    collectives,
    com_microsoft,
    data_movement,
    deform_conv,
    elementwise,
    fourier,
    grid_sample,
    integer_products,
    optimizers,
    quantized,
    recurrent,
)
from lowerkit.capture.onnx.rewrites.rewriter import KeptError, NoRewriteError, Rewriter

if TYPE_CHECKING:
    from lowerkit.capture.onnx.skeleton import OnnxGraph

Rule = Callable[[Rewriter], None]


def first_of(*rules: Rule) -> Rule:
    """Returns a rule that applies the first of ``rules`` that takes the node."""

    def rule(b: Rewriter) -> None:
        for one in rules:
            try:
                one(b)
            except KeptError:
                raise
            except NoRewriteError:
                b.nodes.clear()
            else:
                return
        raise NoRewriteError("no rule takes it")

    return rule


ALWAYS: dict[str, Rule] = {
    "Col2Im": data_movement.col2im,
    "ConvInteger": first_of(integer_products.conv_integer, quantized.conv_integer),
    "DFT": fourier.dft,
    "DeformConv": deform_conv.deform_conv,
    "DequantizeLinear": quantized.dequantize_linear,
    "Det": elementwise.determinant,
    "Dropout": elementwise.dropout,
    "DynamicQuantizeLinear": integer_products.dynamic_quantize_linear,
    "Einsum": elementwise.einsum_with_scalars,
    "GRU": recurrent.gru,
    "GridSample": grid_sample.grid_sample,
    "LSTM": recurrent.lstm,
    "LpNormalization": elementwise.lp_normalization,
    "MatMulInteger": integer_products.matmul_integer,
    "MaxUnpool": data_movement.max_unpool,
    "QLinearConv": first_of(integer_products.qlinear_conv, quantized.qlinear_conv),
    "QLinearMatMul": first_of(integer_products.qlinear_matmul, quantized.qlinear_matmul),
    "QuantizeLinear": quantized.quantize_linear,
    "RNN": recurrent.rnn,
    "STFT": fourier.stft,
    "TensorScatter": data_movement.tensor_scatter,
    "ai.onnx.preview.training.Adagrad": optimizers.adagrad,
    "ai.onnx.preview.training.Adam": optimizers.adam,
    "ai.onnx.preview.training.Momentum": optimizers.momentum,
    "com.microsoft.AllGather": collectives.all_gather,
    "com.microsoft.QLinearConv": integer_products.qlinear_conv,
    **{f"com.microsoft.{op_type}": rule for op_type, rule in com_microsoft.RULES.items()},
}


def rewrite_nodes(ready: OnnxGraph, rules: Mapping[str, Rule]) -> bool:
    """Applies rules to each node of the graph once; returns whether one was rewritten."""
    graph = ready.graph
    if not any(_name_of(node) in rules for node in graph.node):
        return False
    version = opset_versions(ready.model).get("", 1)
    types = {value.name: value.type.tensor_type for value in [*graph.input, *graph.value_info, *graph.output]}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for tensor in graph.initializer:
        types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims).tensor_type
    nodes: list[NodeProto] = []
    changed = False
    for node in list(graph.node):
        rule = rules.get(_name_of(node))
        if rule is None:
            nodes.append(node)
            continue
        rewriter = Rewriter(ready, node, version, types, values)
        try:
            rule(rewriter)
        except NoRewriteError:
            nodes.append(node)
            continue
        nodes.extend(rewriter.nodes)
        changed = True
    if changed:
        del graph.node[:]
        graph.node.extend(nodes)
    return changed


def _name_of(node: NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
