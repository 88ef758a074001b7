"""Which ops AOTAutograd writes out: gradients, and ops of a forward that ``torch.export`` does not give to capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch._decomp import get_decompositions

from lowerkit.capture.torch_export.operators import MissingOperator, aten
from lowerkit.torch_backend.decompositions.attention import attention_backward, attention_forward
from lowerkit.torch_backend.decompositions.convolution import convolution_backward
from lowerkit.torch_backend.decompositions.encoder_layer import encoder_layer
from lowerkit.torch_backend.decompositions.losses import nll_loss_backward
from lowerkit.torch_backend.decompositions.separable import (
    adaptive_average_pool_backward,
    average_pool_backward,
    max_pool_backward,
    pad_backward,
    resize_backward,
)

_PYTORCHS = (
    "_fused_rms_norm",
    "_fused_rms_norm_backward",
    "_log_softmax_backward_data",
    "_native_batch_norm_legit_functional",
    "_prelu_kernel_backward",
    "_softmax_backward_data",
    "binary_cross_entropy_backward",
    "diagonal_backward",
    "elu_backward",
    "embedding_dense_backward",
    "gelu_backward",
    "glu_backward",
    "hardsigmoid_backward",
    "hardswish_backward",
    "hardtanh_backward",
    "huber_loss_backward",
    "leaky_relu_backward",
    "log_sigmoid_backward",
    "log_sigmoid_forward",
    "logit_backward",
    "mish_backward",
    "mse_loss_backward",
    "native_batch_norm_backward",
    "native_dropout_backward",
    "native_group_norm_backward",
    "native_layer_norm_backward",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "select_backward",
    "sigmoid_backward",
    "silu_backward",
    "slice_backward",
    "smooth_l1_loss_backward",
    "soft_margin_loss_backward",
    "softplus_backward",
    "tanh_backward",
    "threshold_backward",
    "unfold_backward",
)
"""Ops that PyTorch's own decompositions write out."""

_RESIZED = {
    "upsample_nearest1d": 1,
    "upsample_nearest2d": 2,
    "upsample_nearest3d": 3,
    "_upsample_nearest_exact1d": 1,
    "_upsample_nearest_exact2d": 2,
    "_upsample_nearest_exact3d": 3,
    "upsample_linear1d": 1,
    "upsample_bilinear2d": 2,
    "upsample_bicubic2d": 2,
    "upsample_trilinear3d": 3,
    "_upsample_bilinear2d_aa": 2,
    "_upsample_bicubic2d_aa": 2,
}
"""Ops that resize, and along how many axes."""


@cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Returns the table: by overloads of this version of PyTorch."""
    named = {
        "convolution": convolution_backward,
        "_scaled_dot_product_flash_attention_for_cpu": attention_backward,
        "nll_loss": nll_loss_backward,
        "nll_loss2d": nll_loss_backward,
        "max_pool2d_with_indices": max_pool_backward(2),
        "max_pool3d_with_indices": max_pool_backward(3),
        "adaptive_max_pool2d": max_pool_backward(2),
        "adaptive_max_pool3d": max_pool_backward(3),
        **{f"avg_pool{rank}d": average_pool_backward(_op(f"avg_pool{rank}d"), rank) for rank in (2, 3)},
        **{
            f"_adaptive_avg_pool{rank}d": adaptive_average_pool_backward(_op(f"_adaptive_avg_pool{rank}d"), rank)
            for rank in (2, 3)
        },
        **{name: resize_backward(_op(name), rank) for name, rank in _RESIZED.items()},
        **{f"replication_pad{rank}d": pad_backward(_op(f"replication_pad{rank}d"), rank) for rank in (1, 2, 3)},
    }
    own: dict[Any, Callable[..., Any]] = {_op(f"{name}_backward"): rule for name, rule in named.items()}
    own[_op("_scaled_dot_product_flash_attention_for_cpu")] = attention_forward
    own[_op("_transformer_encoder_layer_fwd")] = encoder_layer
    theirs = [op for op in map(_op, _PYTORCHS) if not isinstance(op, MissingOperator)]
    return {
        **get_decompositions(theirs),
        **{op: rule for op, rule in own.items() if not isinstance(op, MissingOperator)},
    }


def _op(name: str) -> Any:
    return getattr(aten, name).default
