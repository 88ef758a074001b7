"""Ops that are spelled out at capture, by PyTorch's own decompositions or by those below.

The torch dialect has names for the ops of :data:`SPELLED_OUT`, but neither our passes nor torch-mlir's conversions
lower them (or lower them wrongly, or never end). Everything else stays whole: a decomposition hides from passes what an
op is.
"""

# torch tells ops apart and registers decompositions under private names; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._decomp import global_decomposition_table
from torch.export import default_decompositions

from lowerkit.capture.torch_export.decompositions.own_table import OWN_BY_NAME, OWN_DECOMPOSITIONS

SPELLED_OUT = frozenset(
    {
        # Functions.
        *(
            "aten.clamp_max.Tensor",
            "aten.clamp_min.Tensor",
            "aten.conj_physical.default",
            "aten.special_xlog1py.default",
        ),
        # Gradients: torch-mlir has sqrt(2 / pi) to four digits, and other limits than PyTorch.
        *(
            "aten.gelu_backward.default",
            "aten.leaky_relu_backward.default",
            "aten.log_sigmoid_backward.default",
            "aten.softplus_backward.default",
        ),
        *("aten._weight_norm_interface.default", "aten._safe_softmax.default"),
        # Moves.
        *("aten.alias_copy.default", "aten.as_strided_copy.default", "aten.atleast_3d.default"),
        *("aten.cartesian_prod.default", "aten.diagonal_copy.default", "aten.expand_copy.default"),
        *("aten.im2col.default", "aten.col2im.default", "aten.take.default"),
        *("aten.grid_sampler.default", "aten.index_add.default", "aten.index_copy.default"),
        *("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor", "aten.max_unpool2d.default"),
        *("aten.max_unpool3d.default", "aten.permute_copy.default"),
        *("aten.split_with_sizes_copy.default", "aten.squeeze_copy.default", "aten.squeeze_copy.dim"),
        *("aten.squeeze_copy.dims", "aten.t_copy.default", "aten.transpose_copy.int", "aten.unbind_copy.int"),
        *("aten.unfold_copy.default", "aten.unsqueeze_copy.default", "aten.view_copy.default", "aten.xlogy.Tensor"),
        # Losses.
        *("aten.cross_entropy_loss.default", "aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"),
        *("aten.binary_cross_entropy.default", "aten.cosine_embedding_loss.default"),
        *("aten.nll_loss.default", "aten.nll_loss2d.default", "aten.nll_loss_nd.default"),
        # torch-mlir divides the product by that of the norms, which leaves the type.
        "aten.cosine_similarity.default",
        # Sums and orders.
        *("aten.addmv.default", "aten.aminmax.default", "aten.dist.default", "aten.linalg_norm.default"),
        *("aten.renorm.default", "aten.__lshift__.Tensor", "aten.__rshift__.Tensor"),
        *("aten.adaptive_max_pool1d.default", "aten.poisson_nll_loss.default", "aten.max_pool1d_with_indices.default"),
        *("aten.native_dropout_backward.default", "aten.max_pool2d_with_indices_backward.default"),
        "aten.special_log_ndtr.default",
        *(str(op) for op in OWN_DECOMPOSITIONS),
    }
)
"""By the text of the overload."""


def decomposition_of(target: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """Returns a function that computes ``target`` out of other ops; None where there is none."""
    own = OWN_DECOMPOSITIONS.get(target) or OWN_BY_NAME.get(str(target))
    if own is not None:
        return own
    default = _default_table()
    if target in default:
        return default[target]
    further = global_decomposition_table["post_autograd"].get(target)
    # PyTorch's references end in ops of their own (prims), which say less to a user than the name of the op.
    if further is not None and (str(target) in SPELLED_OUT or not further.__module__.startswith("torch._refs")):
        return further
    return target.decompose if target._can_decompose() else None


@contextmanager
def left_to(table: Mapping[Any, Callable[..., Any]]) -> Generator[None]:
    """While it lasts, PyTorch decomposes the ops of ``table`` by it alone.

    For a few it has a decomposition in the place of the gradient's kernel, which tracing calls before it asks any
    table: that of ``multi_margin_loss`` has another shape than eager, and counts NaN.
    """
    keys = torch._C.DispatchKey
    first = {op for op in table if isinstance(op, torch._ops.OpOverload) and keys.Autograd in op.py_kernels}
    kernels = {op: dict(op.py_kernels) for op in first}
    for op in first:
        del op.py_kernels[keys.Autograd]
        if keys.CompositeImplicitAutograd in op.py_kernels:
            # torch.export keeps an op that has a decomposition in Python alone, whatever the table says of it.
            for key in (keys.AutogradCPU, keys.AutogradMeta):
                op.py_kernels[key] = table[op]
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, own in kernels.items():
            op.py_kernels.clear()
            op.py_kernels.update(own)
            op._dispatch_cache.clear()


@cache
def _default_table() -> Any:
    """PyTorch's table, once: the first look-up in a fresh one goes through its whole registry."""
    return default_decompositions()
