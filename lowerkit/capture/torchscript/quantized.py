"""TorchScript programs that PyTorch's eager mode quantized (``torch.ao.quantization.convert``), in integers.

Vocabulary
    quantized tensor  integers with one scale and zero point, which here travel beside them.
    packed weight     an object of TorchScript's that holds a quantized weight, a bias and a convolution's geometry.

An operator of the namespace ``quantized`` is what PT2E graphs spell out: its operands dequantized, the operator in
floats, its result quantized to the scale and zero point that it names. Passes make integer products of that. An
operator of PyTorch on a quantized tensor keeps its scale and zero point, to which averages are rounded.
"""

# PyTorch's stubs know neither its decomposed operators nor its packed weights.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from lowerkit.capture.torchscript.values import python_constant

_STORED = {torch.qint8: torch.int8, torch.quint8: torch.uint8}


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized tensor: ``stored`` is int8 or uint8, ``real = (stored - zero_point) * scale``."""

    stored: torch.Tensor
    scale: float
    zero_point: int

    @staticmethod
    def of(real: torch.Tensor, scale: float, zero_point: int, stored: torch.dtype) -> Quantized:
        """Rounds half to even, and saturates."""
        low, high = _range(stored)
        found = _operators().quantize_per_tensor.default(real, scale, zero_point, low, high, stored)
        return Quantized(found, scale, zero_point)

    def real(self) -> torch.Tensor:
        """Returns its values in f32."""
        low, high = _range(self.stored.dtype)
        return _operators().dequantize_per_tensor.default(
            self.stored, self.scale, self.zero_point, low, high, self.stored.dtype
        )


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A packed weight of which the tensors are part of the trace.

    Attributes:
        tensors: ``weight`` (int8), ``scales`` and ``zero_points`` for each channel, and maybe ``bias``.
        axis: of the channels.
        geometry: stride, padding, dilation, groups of a convolution.
    """

    tensors: dict[str, torch.Tensor]
    axis: int
    geometry: tuple[Any, ...]

    def weight(self) -> torch.Tensor:
        """Returns the weight in f32."""
        stored = self.tensors["weight"]
        return _operators().dequantize_per_channel.default(
            stored, self.tensors["scales"], self.tensors["zero_points"], self.axis, *_range(stored.dtype), stored.dtype
        )


def is_packed(value: Any) -> bool:
    """Whether an attribute of a script is a packed weight."""
    return isinstance(value, torch.ScriptObject) and "PackedParamsBase" in str(value._type())


def is_quantization_parameter(script: Any, value: torch.Tensor) -> bool:
    """Whether a tensor of a module is its scale or zero point: no data, the quantization is made for it."""
    return value.numel() == 1 and ".torch.ao.nn.quantized." in script._c._type().qualified_name()


def unpacked(packed: Any) -> PackedWeight:
    """Returns what a packed weight holds; weights of one scale have it once for each channel."""
    with _disable_current_modes():
        weight, bias = packed.unpack()
        axis = 0
        if weight.qscheme() == torch.per_tensor_affine:
            scales = torch.full((weight.shape[0],), weight.q_scale(), dtype=torch.float64)
            zero_points = torch.full((weight.shape[0],), weight.q_zero_point())
        else:
            scales, zero_points = weight.q_per_channel_scales(), weight.q_per_channel_zero_points()
            axis = weight.q_per_channel_axis()
        tensors = {"weight": weight.int_repr(), "scales": scales.float(), "zero_points": zero_points.long()}
        if bias is not None:
            tensors["bias"] = bias.detach()
        convolves = hasattr(packed, "stride")
        geometry = (packed.stride(), packed.padding(), packed.dilation(), packed.groups()) if convolves else ()
        return PackedWeight(tensors, axis, geometry)


def computes_quantized(kind: str, inputs: list[Any]) -> bool:
    """Whether a node of this kind is of this module: it makes or takes quantized tensors."""
    return kind in _OPERATORS or any(isinstance(leaf, Quantized) for leaf in pytree.tree_leaves(inputs))


def compute_quantized(kind: str, inputs: list[Any], call: Callable[[list[Any]], Any]) -> Any:
    """Returns the output of a node; None where it cannot be captured.

    Args:
        kind: of the node.
        inputs: of the node.
        call: computes the node on tensors in floats.
    """
    if kind in _OPERATORS:
        return _OPERATORS[kind](*inputs)
    quantized = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Quantized)]
    if kind not in _PASSING or len(quantized) != 1:
        return None
    found = call(_reals(inputs))
    if not isinstance(found, torch.Tensor):
        return found
    (given,) = quantized
    return Quantized.of(found, given.scale, given.zero_point, given.stored.dtype)


def _reals(values: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.real() if isinstance(leaf, Quantized) else leaf, values)


def _range(stored: torch.dtype) -> tuple[int, int]:
    return (-128, 127) if stored == torch.int8 else (0, 255)


@cache
def _operators() -> Any:
    importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers them
    return torch.ops.quantized_decomposed


def _quantize(real: torch.Tensor, scale: float, zero_point: int, dtype: int) -> Quantized | None:
    stored = _STORED.get(python_constant(dtype, "ScalarType"))
    return Quantized.of(real, scale, zero_point, stored) if stored is not None else None


def _product(relu: bool) -> Callable[..., Any]:
    def product(given: Quantized, packed: PackedWeight, scale: float, zero_point: int) -> Quantized:
        real, weight, bias = given.real(), packed.weight(), packed.tensors.get("bias")
        if not packed.geometry:
            found = torch.nn.functional.linear(real, weight, bias)
        elif real.ndim == 3:  # packed with an axis of height
            stride, padding, dilation, groups = packed.geometry
            found = torch.conv1d(real, weight.squeeze(2), bias, stride[-1:], padding[-1:], dilation[-1:], groups)
        else:
            found = torch.conv2d(real, weight, bias, *packed.geometry)
        return Quantized.of(found.relu() if relu else found, scale, zero_point, given.stored.dtype)

    return product


def _pointwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Operands, then the scale and zero point of the result."""

    def compute(*inputs: Any) -> Quantized:
        *given, scale, zero_point = inputs
        first = next(leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Quantized))
        return Quantized.of(function(*_reals(given)), scale, zero_point, first.stored.dtype)

    return compute


_OPERATORS: dict[str, Callable[..., Any]] = {
    "aten::quantize_per_tensor": _quantize,
    "aten::dequantize": lambda given: given.real() if isinstance(given, Quantized) else given,
    "quantized::linear": _product(relu=False),
    "quantized::linear_relu": _product(relu=True),
    "quantized::conv1d": _product(relu=False),
    "quantized::conv1d_relu": _product(relu=True),
    "quantized::conv2d": _product(relu=False),
    "quantized::conv2d_relu": _product(relu=True),
    "quantized::add": _pointwise(torch.add),
    "quantized::add_relu": _pointwise(lambda one, other: torch.add(one, other).relu()),
    "quantized::mul": _pointwise(torch.mul),
    "quantized::mul_relu": _pointwise(lambda one, other: torch.mul(one, other).relu()),
    "quantized::cat": _pointwise(torch.cat),
    "quantized::hardswish": _pointwise(torch.nn.functional.hardswish),
}

_PASSING = {
    *("aten::relu", "aten::relu_", "aten::hardtanh", "aten::hardtanh_", "aten::clamp", "aten::dropout", "aten::clone"),
    *("aten::max_pool1d", "aten::max_pool2d", "aten::avg_pool2d", "aten::adaptive_avg_pool2d", "aten::mean"),
    *("aten::flatten", "aten::reshape", "aten::view", "aten::permute", "aten::transpose", "aten::contiguous"),
    *("aten::squeeze", "aten::unsqueeze", "aten::slice", "aten::select", "aten::size", "aten::dim"),
}
"""Operators of PyTorch whose result has the scale and zero point of their operand."""
