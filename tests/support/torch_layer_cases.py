"""The layers of networks, for ``tests/support/torch_cases.py``: products, convolutions, norms, pools, attention."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as fn

from tests.support.torch_cases import BRAIN, IMAGE, ROW, Case, X, integers, normal

CHANNELS = normal(2, 6, 3, 5)
QUERY, KEY, VALUE = normal(1, 4, 5, 8), normal(1, 4, 6, 8), normal(1, 4, 6, 9)
FEW = normal(1, 2, 6, 8)


def _repeat_heads(x: Tensor) -> Tensor:
    return x[:, :, None].expand(1, 2, 2, 6, 8).reshape(1, 4, 6, 8)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def _rms_norm_of_llama(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def _spelled_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / 8**0.5 + mask
    return torch.matmul(torch.softmax(scores, dim=-1), v)


_PRODUCTS = [
    Case("linear", fn.linear, (X, normal(4, 7), normal(4)), ("matmul",)),
    Case("linear-of-vector", fn.linear, (ROW, normal(4, 7)), ("matmul",)),
    Case("mm", torch.mm, (normal(3, 5), normal(5, 7)), ("matmul",)),
    Case("bmm", torch.bmm, (X, normal(3, 7, 2)), ("matmul",)),
    Case("matmul-broadcast", torch.matmul, (normal(2, 3, 5, 7), normal(3, 7, 2)), ("matmul",)),
    Case("matmul-shared-left", torch.matmul, (normal(4, 5), normal(3, 5, 7)), ("matmul",)),
    Case("matmul-transposed", lambda x, y: x.transpose(1, 2) @ y, (X, normal(3, 5, 2)), ("matmul",)),
    Case("matrix-vector", torch.matmul, (normal(3, 5), normal(5)), ("matmul",)),
    Case("vector-matrix", torch.matmul, (normal(5), normal(5, 3)), ("matmul",)),
    Case("dot", torch.matmul, (normal(5), normal(5) + 1), ("matmul",)),
    Case("matmul-int", torch.matmul, (integers(3, 4), integers(4, 5)), ("matmul",)),
    Case("matmul-bf16", torch.matmul, (BRAIN, normal(7, 4, dtype=torch.bfloat16)), ("matmul",)),
    Case("addmm", torch.addmm, (ROW, normal(3, 5), normal(5, 7)), ("matmul",)),
    Case("addmm-scaled", lambda b, x, y: torch.addmm(b, x, y, alpha=0.5, beta=2.0), (ROW, normal(3, 5), normal(5, 7))),
    Case(
        "baddbmm", lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5), (X, normal(3, 5, 2), normal(3, 2, 7)), ("matmul",)
    ),
    Case(
        "linear-in-views", lambda x, w, b: torch.addmm(b, x.view(-1, 7), w).view(3, 5, 4), (X, normal(7, 4), normal(4))
    ),
    *(
        Case(f"einsum-{equation}", lambda x, y, equation=equation: torch.einsum(equation, x, y), operands, ("matmul",))
        for equation, operands in (
            ("bik,bjk->bij", (normal(2, 3, 5), normal(2, 4, 5))),
            ("bhid,bhjd->bhij", (normal(2, 2, 3, 5), normal(2, 2, 4, 5))),
            ("bihd,bjhd->bhij", (normal(2, 3, 2, 5), normal(2, 4, 2, 5))),
            ("abc,cd->abd", (normal(2, 3, 5), normal(5, 4))),
            ("abcd,cde->abe", (normal(2, 3, 4, 5), normal(4, 5, 6))),
            ("i,j->ij", (normal(3), normal(4))),
            ("ij,ik", (normal(3, 4), normal(3, 5))),
        )
    ),
    Case("einsum-sum-and-transpose", lambda x: torch.einsum("abc->ca", x), (X,)),
    Case("bilinear", fn.bilinear, (normal(4, 3), normal(4, 5), normal(2, 3, 5), normal(2))),
]

_CONVOLUTIONS = [
    Case("conv2d", lambda x, w, b: fn.conv2d(x, w, b, 2, 1), (IMAGE, normal(8, 3, 3, 3), normal(8)), ("conv",)),
    Case("conv2d-unbatched", lambda x, w: fn.conv2d(x[0], w), (IMAGE, normal(8, 3, 3, 3)), ("conv",)),
    Case(
        "conv2d-groups",
        lambda x, w: fn.conv2d(x, w, groups=2, dilation=2),
        (normal(2, 4, 9, 7), normal(8, 2, 3, 3)),
        ("conv",),
    ),
    Case("conv2d-depthwise", lambda x, w: fn.conv2d(x, w, groups=3, padding=1), (IMAGE, normal(3, 1, 3, 3)), ("conv",)),
    Case("conv2d-same", lambda x, w: fn.conv2d(x, w, padding="same"), (IMAGE, normal(8, 3, 2, 3)), ("conv",)),
    Case(
        "conv1d",
        lambda x, w, b: fn.conv1d(x, w, b, padding=2),
        (normal(2, 3, 9), normal(8, 3, 3), normal(8)),
        ("conv",),
    ),
    Case(
        "weight-norm", lambda v, g: torch.ops.aten._weight_norm_interface(v, g)[0], (normal(4, 3, 5), normal(4, 1, 1))
    ),
    Case("conv3d", fn.conv3d, (normal(1, 2, 4, 5, 6), normal(3, 2, 2, 2, 2), normal(3)), ("conv",)),
    Case(
        "conv-transpose2d",
        lambda x, w, b: fn.conv_transpose2d(x, w, b, 2, 1, 1),
        (normal(2, 4, 5, 7), normal(4, 3, 3, 3), normal(3)),
        ("conv_transpose",),
    ),
    Case(
        "conv-transpose1d",
        lambda x, w: fn.conv_transpose1d(x, w, stride=2),
        (normal(2, 4, 5), normal(4, 3, 3)),
        ("conv_transpose",),
    ),
    Case(
        "conv-transpose-groups",
        lambda x, w: fn.conv_transpose2d(x, w, groups=2),
        (normal(2, 4, 5, 7), normal(4, 3, 3, 3)),
        ("conv_transpose",),
    ),
]

_NORMS = [
    Case("layer-norm", lambda x, w, b: fn.layer_norm(x, (7,), w, b), (X, ROW, ROW + 1), ("layer_norm",)),
    Case("layer-norm-of-two-dims", lambda x: fn.layer_norm(x, (5, 7)), (X,), ("layer_norm",)),
    Case("rms-norm", lambda x, w: fn.rms_norm(x, (7,), w, 1e-6), (X, ROW), ("rms_norm",)),
    # Numbers so small that a wrong default epsilon shows.
    Case("rms-norm-default-epsilon", lambda x: fn.rms_norm(x * 1e-3, (7,)), (X,), ("rms_norm",)),
    Case("rms-norm-default-epsilon-bf16", lambda x: fn.rms_norm(x * 1e-3, (7,)), (BRAIN,), ("rms_norm",)),
    Case("rms-norm-default-epsilon-f16", lambda x: fn.rms_norm(x * 1e-3, (7,)), (X.half(),), ("rms_norm",)),
    Case("rms-norm-of-llama", _rms_norm_of_llama, (X, ROW), ("rms_norm",)),
    Case("rms-norm-of-llama-bf16", _rms_norm_of_llama, (BRAIN, ROW.bfloat16()), ("rms_norm",)),
    Case(
        "group-norm", lambda x, w, b: fn.group_norm(x, 2, w, b), (CHANNELS, normal(6), normal(6) + 1), ("group_norm",)
    ),
    Case("instance-norm", fn.instance_norm, (CHANNELS,), ("group_norm",)),
    Case(
        "batch-norm",
        lambda x, m, v, w: fn.batch_norm(x, m, v.abs() + 0.1, w, m),
        (CHANNELS, normal(6), normal(6) + 1, normal(6)),
    ),
    Case("local-response-norm", lambda x: fn.local_response_norm(x, 3), (CHANNELS,), ("avg_pool",)),
]

_POOLS = [
    Case("max-pool", lambda x: fn.max_pool2d(x, 3, 2, 1), (IMAGE,), ("max_pool",)),
    Case("max-pool-ceil", lambda x: fn.max_pool2d(x, 2, 2, ceil_mode=True), (IMAGE,), ("max_pool",)),
    Case(
        "max-pool-ceil-padded",
        lambda x: fn.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        (normal(1, 2, 8, 6),),
        ("max_pool",),
    ),
    Case("max-pool-dilated", lambda x: fn.max_pool2d(x, 2, 1, dilation=2), (IMAGE,), ("max_pool",)),
    Case("max-pool1d", lambda x: fn.max_pool1d(x, 3, 2), (normal(2, 3, 9),), ("max_pool",)),
    Case("max-pool3d", lambda x: fn.max_pool3d(x, 2), (normal(1, 2, 4, 6, 8),), ("max_pool",)),
    Case("avg-pool", lambda x: fn.avg_pool2d(x, 3, 2, 1), (IMAGE,), ("avg_pool",)),
    Case(
        "avg-pool-without-padding",
        lambda x: fn.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        (IMAGE,),
        ("avg_pool",),
    ),
    Case("avg-pool-ceil", lambda x: fn.avg_pool2d(x, 2, 2, ceil_mode=True), (IMAGE,), ("avg_pool",)),
    Case(
        "avg-pool-ceil-padded",
        lambda x: fn.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        (normal(1, 2, 8, 6),),
        ("avg_pool",),
    ),
    Case("avg-pool-divisor", lambda x: fn.avg_pool2d(x, 2, divisor_override=3), (normal(1, 2, 8, 6),), ("avg_pool",)),
    Case("avg-pool1d", lambda x: fn.avg_pool1d(x, 3, 2), (normal(2, 3, 9),), ("avg_pool",)),
    Case("avg-pool3d", lambda x: fn.avg_pool3d(x, 2), (normal(1, 2, 4, 6, 8),), ("avg_pool",)),
    Case("global-avg-pool", lambda x: fn.adaptive_avg_pool2d(x, 1), (IMAGE,), ("reduce",)),
    Case("global-max-pool", lambda x: fn.adaptive_max_pool2d(x, 1), (IMAGE,), ("reduce",)),
    Case("adaptive-avg-pool", lambda x: fn.adaptive_avg_pool2d(x, (3, 7)), (IMAGE,), ("avg_pool",)),
    Case("adaptive-avg-pool-uneven", lambda x: fn.adaptive_avg_pool2d(x, (4, 5)), (IMAGE,), ("reduce",) * 9),
    Case("adaptive-max-pool-uneven", lambda x: fn.adaptive_max_pool2d(x, (4, 7)), (IMAGE,), ("reduce",) * 4),
    Case("adaptive-avg-pool1d", lambda x: fn.adaptive_avg_pool1d(x, 3), (normal(2, 3, 9),), ("avg_pool",)),
    *(
        Case(
            f"grid-sample-{mode}-{padding}",
            lambda x, grid, mode=mode, padding=padding: fn.grid_sample(x, grid, mode, padding, align_corners=False),
            (IMAGE, normal(2, 4, 5, 2)),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border")
    ),
    Case("nearest", lambda x: fn.interpolate(x, scale_factor=2), (IMAGE,), ("resize",)),
    Case("nearest-odd-factor", lambda x: fn.interpolate(x, scale_factor=1.7), (IMAGE,), ("resize",)),
    Case("nearest1d", lambda x: fn.interpolate(x, size=13), (normal(1, 3, 5),), ("resize",)),
    Case("nearest3d", lambda x: fn.interpolate(x, scale_factor=2), (normal(1, 2, 3, 4, 5),), ("resize",)),
    Case("nearest-exact", lambda x: fn.interpolate(x, size=(13, 9), mode="nearest-exact"), (IMAGE,), ("resize",)),
    Case("bicubic", lambda x: fn.interpolate(x, size=(13, 9), mode="bicubic"), (IMAGE,), ("resize",)),
    Case("linear1d", lambda x: fn.interpolate(x, size=9, mode="linear"), (normal(1, 3, 5),), ("resize",)),
    Case(
        "trilinear",
        lambda x: fn.interpolate(x, size=(5, 7, 9), mode="trilinear"),
        (normal(1, 2, 3, 4, 5),),
        ("resize",),
    ),
    Case("bilinear-up", lambda x: fn.interpolate(x, size=(13, 9), mode="bilinear"), (IMAGE,), ("resize",)),
    Case("bilinear-down", lambda x: fn.interpolate(x, size=(4, 5), mode="bilinear"), (IMAGE,), ("resize",)),
    Case("bilinear-odd-factor", lambda x: fn.interpolate(x, scale_factor=1.7, mode="bilinear"), (IMAGE,), ("resize",)),
    Case(
        "bilinear-corners",
        lambda x: fn.interpolate(x, size=(13, 9), mode="bilinear", align_corners=True),
        (IMAGE,),
        ("resize",),
    ),
]

_ATTENTION = [
    Case("attention", fn.scaled_dot_product_attention, (QUERY, KEY, VALUE), ("attention",)),
    Case(
        "attention-causal",
        lambda q, k: fn.scaled_dot_product_attention(q, k, k, is_causal=True),
        (QUERY, KEY),
        ("attention",),
    ),
    Case(
        "attention-mask",
        lambda q, k, v, m: fn.scaled_dot_product_attention(q, k, v, m),
        (QUERY, KEY, VALUE, normal(5, 6)),
        ("attention",),
    ),
    Case(
        "attention-bool-mask",
        lambda q, k, v, m: fn.scaled_dot_product_attention(q, k, v, m > -1),
        (QUERY, KEY, VALUE, normal(1, 1, 5, 6)),
        ("attention",),
    ),
    Case(
        "attention-scale",
        lambda q, k, v: fn.scaled_dot_product_attention(q, k, v, scale=0.3),
        (QUERY, KEY, VALUE),
        ("attention",),
    ),
    Case(
        "attention-grouped",
        lambda q, k: fn.scaled_dot_product_attention(q, k, k + 1, enable_gqa=True),
        (QUERY, FEW),
        ("attention",),
    ),
    Case(
        "attention-repeated-heads",
        lambda q, k: fn.scaled_dot_product_attention(q, _repeat_heads(k), _repeat_heads(k + 1)),
        (QUERY, FEW),
        ("attention",),
    ),
    Case(
        "attention-interleaved-heads",
        lambda q, k: fn.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), k.repeat_interleave(2, 1)),
        (QUERY, FEW),
        ("attention",),
    ),
    Case(
        "attention-tiled-heads",
        lambda q, k: fn.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), k.repeat(1, 2, 1, 1)),
        (QUERY, FEW),
        ("attention",),
    ),
    Case(
        "attention-of-unlike-ranks",
        lambda q, k, v: fn.scaled_dot_product_attention(q, k[0], v[0, 0]),
        (QUERY, KEY, VALUE),
        ("attention",),
    ),
    Case(
        "attention-of-rank-3",
        lambda q, k, v: fn.scaled_dot_product_attention(q[0], k[0], v[0]),
        (QUERY, KEY, VALUE),
        ("attention",),
    ),
    Case(
        "attention-of-rank-5",
        lambda q, k, v: fn.scaled_dot_product_attention(q[None], k[None], v[None]),
        (QUERY, KEY, VALUE),
        ("attention",),
    ),
    Case("attention-spelled-out", _spelled_attention, (QUERY, KEY, VALUE, normal(1, 1, 5, 6)), ("attention",)),
    Case("rope", _rotary, (QUERY, normal(1, 1, 5, 8), normal(1, 1, 5, 8) + 1), ("rope",)),
    Case("rope-of-rank-3", _rotary, (X[..., :6], normal(5, 6), normal(5, 6) + 1)),
]

LAYER_CASES = [*_PRODUCTS, *_CONVOLUTIONS, *_NORMS, *_POOLS, *_ATTENTION]
