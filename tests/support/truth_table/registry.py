"""The rows of the table: elementwise overloads of ATen that capture accepts, with the settings they are called with.

Rows come from torch's own registry: what is tagged ``pointwise``, and :data:`UNTAGGED`.
"""

# torch tells overloads apart by private names only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from lowerkit.capture.torch_export.decompositions.table import decomposition_of
from lowerkit.passes.registry import ops_with_rules

UNTAGGED = (
    *("floor_divide.default", "floor_divide.Scalar", "isclose.default", "masked_fill.Tensor", "__and__.Tensor"),
    *("__and__.Scalar", "__or__.Tensor", "__or__.Scalar", "absolute.default", "fix.default", "hardswish.default"),
    *("log_sigmoid.default", "mse_loss.default", "l1_loss.default", "where.Scalar", "where.ScalarOther"),
    *("where.ScalarSelf", "special_expm1.default", "softplus_backward.default", "elu_backward.default"),
    *("leaky_relu_backward.default", "hardtanh_backward.default", "log_sigmoid_backward.default"),
    *("binary_cross_entropy_with_logits.default", "kl_div.default", "prelu.default", "fill.Scalar", "fill.Tensor"),
    *("_cast_Long.default", "_cast_Float.default", "true_divide.Scalar", "multiply.Tensor", "multiply.Scalar"),
    *("divide.Tensor", "divide.Tensor_mode", "subtract.Tensor", "greater.Tensor", "less_equal.Tensor"),
    *("not_equal.Tensor", "negative.default", "square.default", "special_logit.default", "float_power.Tensor_Tensor"),
)
"""Elementwise by what they compute, though torch does not tag them."""

NUMBERS: tuple[Any, ...] = (True, 0, 2, -3, 300, 2**24 + 1, 2.5, -2.5, 0.1, math.nan, math.inf, -0.0)
"""Python numbers in the place of an operand."""

HIGHEST_DEGREE = 1000
"""Of polynomials: PyTorch's recurrences take a turn for each degree, and at 2^63 they do not end."""

_MODES = [{"rounding_mode": mode} for mode in (None, "trunc", "floor")]
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "div.Tensor_mode": _MODES,
    "divide.Tensor_mode": _MODES,
    "div.Scalar_mode": [{**mode, "other": number} for mode in _MODES for number in (2, -3, 2.5, 0.1)],
    "gelu.default": [{"approximate": "none"}, {"approximate": "tanh"}],
    "gelu_backward.default": [{"approximate": "none"}, {"approximate": "tanh"}],
    "clamp.default": [
        *({"min": -2, "max": 3}, {"min": -2.5, "max": 2.5}, {"min": 0}, {"max": 0.5}, {"min": math.nan, "max": 1}),
        *({"min": 3, "max": -3}, {"min": -math.inf, "max": math.inf}),
    ],
    "clip.default": [{"min": -2, "max": 3}],
    "polygamma.default": [{"n": order} for order in (0, 1, 2, 5)],
    "special_polygamma.default": [{"n": 1}],
    "mvlgamma.default": [{"p": 1}, {"p": 3}],
    "round.decimals": [{"decimals": places} for places in (0, 2, -2)],
    "hardtanh.default": [{}, {"min_val": -2, "max_val": 3}, {"min_val": 0.1, "max_val": 2.5}],
    "hardtanh_backward.default": [{"min_val": -1.5, "max_val": 2.5}],
    "threshold.default": [{"threshold": 0.1, "value": 20.0}, {"threshold": 1, "value": -3}],
    "threshold_backward.default": [{"threshold": 0}, {"threshold": 0.5}],
    "softshrink.default": [{}, {"lambd": 1}],
    "hardshrink.default": [{}, {"lambd": 1.25}],
    "leaky_relu.default": [{}, {"negative_slope": 0.2}, {"negative_slope": -0.5}],
    "leaky_relu_backward.default": [{"negative_slope": 0.2, "self_is_result": False}],
    "elu.default": [{}, {"alpha": 0.5, "scale": 2.0, "input_scale": 1.5}],
    "elu_backward.default": [{"alpha": 0.5, "scale": 2.0, "input_scale": 1.5, "is_result": False}],
    "celu.default": [{}, {"alpha": 0.5}],
    "softplus.default": [{}, {"beta": 2, "threshold": 10}],
    "softplus_backward.default": [{"beta": 2, "threshold": 10}],
    "nan_to_num.default": [{}, {"nan": 1.5, "posinf": 7.0, "neginf": -7.0}],
    "isclose.default": [{}, {"rtol": 0.1, "atol": 0.25}, {"equal_nan": True}],
    "add.Tensor": [{}, {"alpha": 2}],
    "sub.Tensor": [{}, {"alpha": -3}],
    "add.Scalar": [{"other": number} for number in NUMBERS],
    "rsub.Scalar": [{"other": number} for number in NUMBERS],
    "addcmul.default": [{}, {"value": 2}],
    "addcdiv.default": [{}, {"value": 0.5}],
    "lerp.Scalar": [{"weight": 0.3}, {"weight": 0.5}, {"weight": 2}],
    "logit.default": [{}, {"eps": 0.1}],
    "special_logit.default": [{}, {"eps": 0.1}],
    "logit_backward.default": [{}, {"eps": 0.1}],
    "where.Scalar": [{"self": 2, "other": 0.5}, {"self": 2, "other": 3}, {"self": True, "other": 3}],
    "kl_div.default": [{"reduction": 0}, {"reduction": 0, "log_target": True}],
    "mse_loss.default": [{"reduction": 0}],
    "l1_loss.default": [{"reduction": 0}],
    "binary_cross_entropy_with_logits.default": [{"reduction": 0}],
}
"""Arguments that are no tensors, by overload; others of number type take each of :data:`NUMBERS`."""

RANDOM = frozenset({"rrelu.default", "native_dropout_backward.default"})
"""Random, or about randomness."""

WHOLE = {
    "equal.default": "compares whole tensors and gives a Python bool",
    "clone.default": "not arithmetic: capture drops it",
}
"""Tagged or known overloads that are no row, with the reason."""


@dataclass(frozen=True)
class Row:
    """An elementwise overload.

    Attributes:
        name: without namespace, such as ``add.Tensor``.
        tensors: the names of the arguments that are tensors, in order.
        settings: the arguments that are no tensors, one dict for each way to call it.
    """

    name: str
    overload: Any
    tensors: tuple[str, ...]
    settings: tuple[dict[str, Any], ...]


@cache
def functional_overloads() -> dict[str, Any]:
    """Returns ATen's overloads that change no argument, by name without namespace."""
    found: dict[str, Any] = {}
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, name = qualified.partition("::")
        packet, _, overload = name.partition(".")
        if namespace != "aten":
            continue
        try:
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
        except AttributeError:  # registered without a schema that Python can call
            continue
        if not op._schema.is_mutable and not any(argument.is_out for argument in op._schema.arguments):
            found[f"{packet}.{overload or 'default'}"] = op
    return found


@cache
def accepted_overloads() -> dict[str, Any]:
    """Returns those that capture accepts: a rule of a pass takes them, or they are spelled out."""
    return {
        name: op
        for name, op in functional_overloads().items()
        if f"torch.aten.{name.removesuffix('.default')}" in ops_with_rules() or decomposition_of(op) is not None
    }


@cache
def rows() -> dict[str, Row]:
    """Returns the rows of the table by name."""
    found: dict[str, Row] = {}
    for name, op in accepted_overloads().items():
        if (torch.Tag.pointwise in op.tags or name in UNTAGGED) and name not in RANDOM and name not in WHOLE:
            found[name] = _row(name, op)
    return found


def _row(name: str, op: Any) -> Row:
    tensors = tuple(argument.name for argument in op._schema.arguments if "Tensor" in str(argument.type))
    if name in ("binary_cross_entropy_with_logits.default",):
        tensors = tensors[:2]
    if name in SETTINGS:
        return Row(name, op, tensors, tuple(SETTINGS[name]))
    return Row(name, op, tensors, tuple(_called_with_numbers(op)))


def _called_with_numbers(op: Any) -> Iterator[dict[str, Any]]:
    """One call for each number in the place of the arguments of number type that have no default."""
    places = [
        argument
        for argument in op._schema.arguments
        if not argument.has_default_value() and "Tensor" not in str(argument.type)
    ]
    if not places:
        yield {}
        return
    for number in NUMBERS:
        yield {argument.name: _of_place(number, op, argument.name) for argument in places}


def _of_place(number: Any, op: Any, place: str) -> Any:
    is_degree = place == "n" and "_polynomial_" in str(op)
    return HIGHEST_DEGREE if is_degree and HIGHEST_DEGREE < number < math.inf else number
