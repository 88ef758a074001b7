"""Smoothing: what makes an activation hard to round is moved into the weight, channel by channel.

    x W  =  (x / s) (s W),    s[k] = max |x[k]|^alpha / max |W[k]|^(1 - alpha)      (Xiao et al. 2023, SmoothQuant)

One scale serves all channels of an activation, so a few channels with large values leave few steps to the others.
Weights have a scale for each output and take large rows well. It applies between a norm and the matrix products that
read it, where trained transformers have such channels; the division runs in the kernel that rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.quantize.parameters import as_weight
from lowerkit.passes.rewriting import defining_op
from lowerkit.program.program import Program
from lowerkit.quantization.sites import Sites, products_of

Array = np.ndarray[Any, Any]

_NORMS = ("lk.layer_norm", "lk.rms_norm")
_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")
_LEAST = 1e-5
"""Magnitudes below count as this: a channel that is always zero says nothing."""


def smoothing_factors(magnitudes: Array, weights: Sequence[Array], alpha: float) -> Array:
    """Returns what each channel is divided by, f32 ``[K]``, with a geometric mean of 1.

    Args:
        magnitudes: the largest magnitude of each channel of the activation, ``[K]``.
        weights: of all products that read it, ``[K, N]``.
        alpha: 0 to 1, how much of the difference between channels moves into the weights.
    """
    rows = np.max([np.abs(weight).max(1, initial=0.0) for weight in weights], axis=0)
    logarithm = alpha * np.log(np.maximum(magnitudes.astype(np.float64), _LEAST))
    logarithm -= (1 - alpha) * np.log(np.maximum(rows.astype(np.float64), _LEAST))
    return np.exp(logarithm - logarithm.mean()).astype(np.float32)


def smoothed_weights(program: Program, sites: Sites) -> dict[int, list[Array]]:
    """Returns for each activation that can be smoothed the weights, ``[K, N]``, of all products that read it.

    It can where a norm computes it, its channels come last, and matrix products alone read it among the products.
    """
    context = PassContext(weights=program.weights)
    products = products_of(program.module)
    found: dict[int, list[Array]] = {}
    for value in range(sites.values):
        ops = [products[site.index] for site in sites.sites if site.value == value]
        if _from_norm(ops[0].operands[0]) and all(_plain(op) for op in ops):
            found[value] = [_matrix(op, context) for op in ops]
    return found


def _from_norm(value: ir.Value) -> bool:
    op = defining_op(value)
    while op is not None and op.name in _VIEWS:
        op = defining_op(op.operands[0])
    return op is not None and op.name in _NORMS


def _plain(op: ir.Operation) -> bool:
    return op.name == "lk.matmul" and not ir.BoolAttr(op.attributes["transpose_lhs"]).value


def _matrix(op: ir.Operation, context: PassContext) -> Array:
    symbol = as_weight(op.operands[1], context)
    assert symbol is not None, "find_sites took it"
    weight = context.weights.get(symbol)
    return weight.T if ir.BoolAttr(op.attributes["transpose_rhs"]).value else weight
