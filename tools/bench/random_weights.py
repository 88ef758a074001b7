"""Random weights under which an ONNX model still depends on its input: a data-dependent initialization.

With plain random weights a deep network maps all images to nearly one output: the mean of each layer's values outgrows
what differs between images, and a softmax at the end is uniform or saturated. So the weights are fitted layer by layer
to a few images, as in "All you need is a good init" (Mishkin, Matas, arXiv 1511.06422) and "Data-dependent
Initializations of Convolutional Neural Networks" (Kraehenbuehl et al., arXiv 1511.06856).

Steps, over the nodes in order, each run by itself in ONNX Runtime on all calibration images:
    convolution, Gemm    the filter is divided by the standard deviation of the layer's values; the bias takes away
                         half of the mean of each channel (plus noise), in the last layer all of it. To take away
                         all of it in each of 19 layers costs 40 dB: what is left of a sum after its mean is gone has
                         the sum's rounding error.
    LRN                  alpha becomes 1: the usual 0.0001 is meant for values up to 255 and would change nothing here.
    batch norm           mean and variance become those of its input (times noise). One that feeds a residual sum gets a
                         small scale (Goyal et al., arXiv 1706.02677): with branches as large as what they are added
                         to, rounding grows by a decibel a block, and ONNX Runtime itself ends 90 dB from float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, numpy_helper

from lowerkit.capture.onnx.constant_folding import replace_constants_of_shape

Array = np.ndarray[Any, Any]

_NOISE = 0.1
_BRANCH_SCALE = 0.1
_CENTRING = 0.5


def random_image(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    """Returns an image of ``shape`` [N, C, H, W], f32: a colour, patches of a random size, fine noise.

    Noise alone would not do: pooled over the image, all noise is the same.
    """
    batch, channels, height, width = shape
    cells = int(generator.integers(2, 24))
    patches = generator.uniform(0.2, 1.5) * generator.standard_normal((batch, channels, cells, cells))
    patches += generator.standard_normal((batch, channels, 1, 1))
    image = np.kron(patches, np.ones((-(-height // cells), -(-width // cells))))[..., :height, :width]
    return (image + generator.uniform(0.05, 1.0) * generator.standard_normal(tuple(shape))).astype(np.float32)


def with_random_weights(model: ModelProto, generator: np.random.Generator, images: Sequence[Array]) -> ModelProto:
    """Returns a copy of ``model`` (one input) with every ConstantOfShape replaced by a weight fitted to ``images``."""

    def start(name: str, shape: tuple[int, ...]) -> Array:
        if len(shape) < 2:
            return np.ones(shape, np.float32)
        return (generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    filled = replace_constants_of_shape(model, start)
    for node in filled.graph.node:
        for attribute in node.attribute:
            if node.op_type == "LRN" and attribute.name == "alpha":
                attribute.f = 1.0
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in filled.graph.initializer}
    _Fitting(filled, weights, generator).run(images)
    for tensor in filled.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(weights[tensor.name]), tensor.name))
    return filled


class _Fitting:
    """Walks over the nodes and holds, for every image, the values that later nodes still read."""

    def __init__(self, model: ModelProto, weights: dict[str, Array], generator: np.random.Generator) -> None:
        self.model, self.weights, self.generator = model, weights, generator
        # The first operand of a residual sum is the branch, the second what it is added to.
        self.branches = {node.input[0] for node in model.graph.node if node.op_type == "Sum"}
        self.last_layer = [node.output[0] for node in model.graph.node if node.op_type in ("Conv", "Gemm")][-1]
        self.reshaped = {
            node.output[0]: node.input[0]
            for node in model.graph.node
            if node.op_type == "Reshape" and node.input[0] in weights
        }
        self.last_use = {name: index for index, node in enumerate(model.graph.node) for name in node.input}

    def run(self, images: Sequence[Array]) -> None:
        """Fits all layers."""
        name = next(value.name for value in self.model.graph.input if value.name not in self.weights)
        values: list[dict[str, Array]] = [{name: image} for image in images]
        for index, node in enumerate(self.model.graph.node):
            if node.op_type in ("Conv", "Gemm"):
                self._fit_layer(node, values)
            elif node.op_type == "BatchNormalization":
                self._fit_batch_norm(node, [held[node.input[0]] for held in values])
            for held, result in zip(values, self._evaluate(node, values), strict=True):
                held[node.output[0]] = result
                for read in node.input:
                    if self.last_use[read] == index:
                        held.pop(read, None)

    def _fit_layer(self, node: NodeProto, values: Sequence[dict[str, Array]]) -> None:
        mean, deviation = _statistics(self._evaluate(node, values))
        matrix = self.reshaped.get(node.input[1], node.input[1])
        self.weights[matrix] = (self.weights[matrix] / deviation).astype(np.float32)
        for held in values:  # of a reshaped weight: it is reshaped again with its new values
            if matrix != node.input[1]:
                held[node.input[1]] = self.weights[matrix].reshape(held[node.input[1]].shape)
        if len(node.input) > 2:
            bias = self.weights[node.input[2]]
            centring = 1.0 if node.output[0] == self.last_layer else _CENTRING
            centred = (bias - centring * mean.reshape(bias.shape)) / deviation
            self.weights[node.input[2]] = (centred + self._noise(bias.shape)).astype(np.float32)

    def _fit_batch_norm(self, node: NodeProto, inputs: Sequence[Array]) -> None:
        mean, _ = _statistics(inputs)
        variance = np.mean([(value - mean.reshape(1, -1, 1, 1)) ** 2 for value in inputs], axis=(0, 1, 3, 4))
        shape = variance.shape
        scale = _BRANCH_SCALE if node.output[0] in self.branches else 1.0
        fitted = (
            scale * (1 + self._noise(shape)),
            self._noise(shape),
            mean,
            variance * (1 + self._noise(shape)) + 1e-3,
        )
        for name, array in zip(node.input[1:], fitted, strict=True):
            self.weights[name] = array.astype(np.float32)

    def _noise(self, shape: tuple[int, ...]) -> Array:
        return self.generator.uniform(-_NOISE, _NOISE, shape)

    def _evaluate(self, node: NodeProto, values: Sequence[dict[str, Array]]) -> list[Array]:
        """Runs one node for every image."""
        names = [name for name in node.input if name]
        types = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in ((name, self._value(name, values[0])) for name in names)
        ]
        graph = onnx.helper.make_graph([node], "node", types, [onnx.ValueInfoProto(name=node.output[0])])
        single = onnx.helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=4)
        session = onnxruntime.InferenceSession(single.SerializeToString(), providers=["CPUExecutionProvider"])
        feeds = [{name: self._value(name, held) for name in names} for held in values]
        return [np.asarray(session.run(None, feed)[0]) for feed in feeds]

    def _value(self, name: str, held: dict[str, Array]) -> Array:
        return held[name] if name in held else self.weights[name]


def _statistics(results: Sequence[Array]) -> tuple[Array, float]:
    """Returns the mean of each channel (axis 1) and the deviation of all values from it, over all images."""
    flat = np.concatenate([np.moveaxis(result, 1, 0).reshape(result.shape[1], -1) for result in results], axis=1)
    mean = flat.mean(axis=1, dtype=np.float64)
    return mean, float(np.sqrt(np.mean((flat - mean[:, None]) ** 2))) + 1e-6
