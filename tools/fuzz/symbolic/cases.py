"""The cases of ``tools/fuzz/symbolic_sizes.py``: ops and modules whose result depends on sizes, one line each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from symbolic.case import Case


def _made(function: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    function.is_maker = True  # type: ignore[attr-defined]
    return function


SIGNAL, IMAGE, VOLUME = [(2, 4, 9)], [(2, 4, 9, 8)], [(2, 3, 6, 5, 7)]
CASES: dict[str, Case] = {}


def _contracted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    pairs: Any = ([1, 2], [0, 1])  # torch's types know a number alone
    return torch.tensordot(x, y, pairs)


def _add(name: str, make: Callable[..., Any], shapes: Sequence[tuple[int, ...]], *fixed: int, **options: Any) -> None:
    CASES[name] = Case(make, shapes, fixed, **options)


def _pools() -> None:
    pools: list[tuple[str, Callable[..., Any], Any]] = [
        ("avg_pool1d", functional.avg_pool1d, SIGNAL),
        ("avg_pool2d", functional.avg_pool2d, IMAGE),
        ("avg_pool2d of rank 3", functional.avg_pool2d, [(4, 9, 8)]),
        ("avg_pool3d", functional.avg_pool3d, VOLUME),
        ("max_pool1d", functional.max_pool1d, SIGNAL),
        ("max_pool2d", functional.max_pool2d, IMAGE),
        ("max_pool2d of rank 3", functional.max_pool2d, [(4, 9, 8)]),
        ("max_pool3d", functional.max_pool3d, VOLUME),
    ]
    for name, pool, shapes in pools:
        for window, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0)):
            for ceil in (False, True):
                _add(
                    f"{name} {window}/{stride}/{padding}{' ceil' if ceil else ''}",
                    lambda x, p=pool, w=window, s=stride, q=padding, c=ceil: p(x, w, s, q, ceil_mode=c),
                    shapes,
                )
    _add("avg_pool2d uncounted", lambda x: functional.avg_pool2d(x, 3, 2, 1, True, False), IMAGE)
    _add("lp_pool2d", lambda x: functional.lp_pool2d(x.abs() + 1, 2, 2), IMAGE)
    for size in (1, 2, 3, 7):
        _add(f"adaptive_avg_pool1d {size}", lambda x, n=size: functional.adaptive_avg_pool1d(x, n), SIGNAL)
        _add(f"adaptive_avg_pool2d {size}", lambda x, n=size: functional.adaptive_avg_pool2d(x, (n, n + 1)), IMAGE)
        _add(f"adaptive_max_pool1d {size}", lambda x, n=size: functional.adaptive_max_pool1d(x, n), SIGNAL)
        _add(f"adaptive_max_pool2d {size}", lambda x, n=size: functional.adaptive_max_pool2d(x, n), IMAGE)
    _add("adaptive_avg_pool2d none", lambda x: functional.adaptive_avg_pool2d(x, (None, 3)), IMAGE)  # type: ignore[arg-type]
    _add("adaptive_avg_pool3d 2", lambda x: functional.adaptive_avg_pool3d(x, 2), VOLUME)


def _resizes() -> None:
    modes = {
        "nearest": (SIGNAL, IMAGE, VOLUME),
        "nearest-exact": (SIGNAL, IMAGE, VOLUME),
        "linear": (SIGNAL,),
        "bilinear": (IMAGE,),
        "bicubic": (IMAGE,),
        "trilinear": (VOLUME,),
        "area": (SIGNAL, IMAGE),
    }
    for mode, kinds in modes.items():
        for shapes in kinds:
            for aligned in (None, True) if "linear" in mode or mode == "bicubic" else (None,):
                stem = f"interpolate {mode}{' aligned' if aligned else ''} {len(shapes[0])}d"
                options: dict[str, Any] = {"mode": mode, "align_corners": aligned}
                _add(f"{stem} to 7", lambda x, o=options: functional.interpolate(x, size=7, **o), shapes)
                for scale in (2, 0.5, 3, 1.5):
                    _add(
                        f"{stem} by {scale}",
                        lambda x, s=scale, o=options: functional.interpolate(x, scale_factor=s, **o),
                        shapes,
                    )
    _add("interpolate like", lambda x, y: functional.interpolate(x, size=y.shape[2:]), [(2, 4, 9, 8), (2, 4, 7, 11)])
    _add("Upsample", _made(lambda: nn.Upsample(scale_factor=2)), IMAGE)


def _convolutions() -> None:
    for stride, padding, dilation in ((1, 0, 1), (2, 1, 1), (3, 2, 1), (1, 2, 2)):
        text = f"{stride}/{padding}/{dilation}"
        for kind, shapes, transposed in (
            ("1d", SIGNAL, nn.ConvTranspose1d),
            ("2d", IMAGE, nn.ConvTranspose2d),
        ):
            plain = nn.Conv1d if kind == "1d" else nn.Conv2d
            _add(
                f"conv{kind} {text}",
                _made(lambda c=plain, s=stride, p=padding, d=dilation: c(4, 3, 3, s, p, d)),
                shapes,
                1,
            )
            _add(
                f"conv_transpose{kind} {text}",
                _made(lambda c=transposed, s=stride, p=padding, d=dilation: c(4, 3, 3, s, p, s - 1, dilation=d)),
                shapes,
                1,
            )
    _add("conv3d", _made(lambda: nn.Conv3d(3, 2, 2, 2, 1)), VOLUME, 1)
    _add("conv2d grouped", _made(lambda: nn.Conv2d(4, 8, 3, padding=1, groups=2)), IMAGE, 1)
    _add("conv2d depthwise", _made(lambda: nn.Conv2d(4, 4, 3, 2, 1, groups=4)), IMAGE, 1)
    for kernel in (2, 3, 4):
        _add(f"conv1d same {kernel}", _made(lambda k=kernel: nn.Conv1d(4, 3, k, padding="same")), SIGNAL, 1)
        _add(f"conv2d same {kernel}", _made(lambda k=kernel: nn.Conv2d(4, 3, k, padding="same")), IMAGE, 1)
    for mode in ("reflect", "replicate", "circular"):
        _add(f"conv1d {mode}", _made(lambda m=mode: nn.Conv1d(4, 3, 3, padding=2, padding_mode=m)), SIGNAL, 1)


def _moves() -> None:
    x, y, z = [(6, 4)], [(6, 4, 10)], [(2, 4, 6, 8)]
    for mode in ("constant", "reflect", "replicate", "circular"):
        _add(f"pad {mode} 1d", lambda x, m=mode: functional.pad(x, (1, 2), mode=m), SIGNAL)
        _add(f"pad {mode} 2d", lambda x, m=mode: functional.pad(x, (1, 2, 2, 1), mode=m), IMAGE)
        _add(f"pad {mode} negative", lambda x, m=mode: functional.pad(x, (-1, 2), mode=m), SIGNAL)
        _add(f"pad {mode} both negative", lambda x, m=mode: functional.pad(x, (-1, -2), mode=m), SIGNAL)
    _add("pixel_shuffle", lambda x: functional.pixel_shuffle(x, 2), IMAGE, 1)
    _add("pixel_shuffle of any channels", lambda x: functional.pixel_shuffle(x, 2), [(2, 8, 5, 6)], multiple=4)
    _add("pixel_unshuffle", lambda x: functional.pixel_unshuffle(x, 2), [(2, 3, 6, 10)], multiple=2)
    _add("channel_shuffle", lambda x: functional.channel_shuffle(x, 2), [(2, 4, 5, 6)], multiple=2)
    _add("view flat", lambda x: x.view(-1), y)
    _add("view first", lambda x: x.view(x.shape[0], -1), y)
    _add("view three", lambda x: x.view(x.shape[0] * x.shape[1], x.shape[2]), y)
    _add("view regrouped", lambda x: x.view(x.shape[0], x.shape[2], x.shape[1]), y)
    _add("view heads", lambda x: x.view(x.shape[0], x.shape[1], 2, -1).transpose(1, 2), y, multiple=2)
    _add("view windows", lambda x: x.view(x.shape[0], x.shape[1], x.shape[2] // 2, 2, -1), z, multiple=2)
    _add("view to one", lambda x: x.view(3, -1), x, multiple=3)
    _add("view to four", lambda x: x.view(-1, 4), x, multiple=4)
    _add("view product", lambda x: x.view(x.shape[1], x.shape[0] * x.shape[2]), y)
    _add("view of all", lambda x: x.view(x.shape[2], x.shape[0], x.shape[1]), y)
    _add("reshape transposed", lambda x: x.transpose(0, 1).reshape(-1, x.shape[2]), y)
    _add("reshape batch", lambda x: x.permute(0, 2, 1).reshape(x.shape[0], -1), y)
    _add("flatten", lambda x: x.flatten(1), z)
    _add("flatten middle", lambda x: x.flatten(1, 2), z)
    _add("unflatten", lambda x: x.unflatten(1, (2, -1)), z, multiple=2)
    _add("unfold of a tensor", lambda x: x.unfold(0, 3, 2), x)
    _add("unfold whole", lambda x: x.unfold(1, 2, 1), x)
    _add("im2col", lambda x: functional.unfold(x, 3, padding=1, stride=2), IMAGE)
    _add(
        "col2im",
        lambda x: functional.fold(functional.unfold(x, 2, stride=2), (8, 6), 2, stride=2),
        [(2, 4, 8, 6)],
        2,
        3,
    )
    _add("split", lambda x: [part + 1 for part in x.split(4, 0)], [(10, 3)])
    _add("chunk", lambda x: [part + 1 for part in x.chunk(3, 0)], [(10, 3)])
    _add("tensor_split", lambda x: [part + 1 for part in x.tensor_split(3, 0)], [(10, 3)])
    _add("narrow", lambda x: x.narrow(0, 1, 3) + 1, x)
    _add("narrow by size", lambda x: x.narrow(0, 1, x.shape[0] - 1) + 1, x)
    _add("select last", lambda x: x[-1] + 1, x)
    _add("select third last", lambda x: x[-3] + 1, x)
    _add("slice last", lambda x: x[-3:] + 1, x)
    _add("slice beyond", lambda x: x[2:5] + 1, x)
    _add("slice stepped", lambda x: x[1::3] + 1, x)
    _add("slice but last", lambda x: x[:-1] * x[1:], x)
    _add("slice half", lambda x: x[: x.shape[0] // 2] + 1, x)
    _add("rotate half", lambda x: torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1), x)
    _add("roll", lambda x: x.roll((2, -3), (0, 1)), x)
    _add("roll flat", lambda x: x.roll(3), x)
    _add("flip", lambda x: x.flip(0, 1), x)
    _add("rot90", lambda x: x.rot90(), x)
    _add("repeat", lambda x: x.repeat(2, 3), x)
    _add("repeat more", lambda x: x.repeat(2, 1, 3), x)
    _add("repeat by size", lambda x: x.repeat(x.shape[1], 1), x)
    _add("repeat_interleave", lambda x: x.repeat_interleave(3, 1), x)
    _add("tile", lambda x: x.tile(2), x)
    _add("expand", lambda x: x[:, None].expand(-1, 3, -1) + 1, x)
    _add("expand as", lambda x, y: x[:, None].expand(x.shape[0], y.shape[0], x.shape[1]) * y[:, :1], [(6, 4), (5, 3)])
    _add("cat", lambda x, y: torch.cat([x, y, x], 0), [(6, 4), (5, 4)])
    _add("stack", lambda x, y: torch.stack([x, y], 1), [(6, 4), (6, 4)])
    _add("diagonal", lambda x: x.diagonal() + 1, [(6, 9)])
    _add("tril", lambda x: x.tril(-1) + x.triu(2), [(6, 9)])
    _add("arange", lambda x: x * torch.arange(x.shape[0])[:, None], x)
    _add("linspace", lambda x: x * torch.linspace(0, 1, x.shape[0])[:, None], x)
    _add("meshgrid", lambda x, y: torch.meshgrid(x[:, 0], y[:, 0], indexing="ij")[0] * 2, [(6, 4), (5, 3)])
    _add("eye", lambda x: x + torch.eye(x.shape[0], x.shape[1]), x)


def _sums() -> None:
    x, z = [(6, 4)], [(2, 4, 6, 8)]
    for correction in (0, 1, 2, 5):
        _add(f"var {correction}", lambda x, c=correction: x.var(0, correction=c), x)
        _add(f"std {correction}", lambda x, c=correction: x.std((0, 1), correction=c), x)
        _add(f"var_mean {correction}", lambda x, c=correction: torch.var_mean(x, (1, 2), correction=c), z)
    for name in ("sum", "mean", "amax", "amin", "prod", "logsumexp", "argmax", "argmin"):
        _add(name, lambda x, n=name: getattr(x, n)(1) * 1, x)
        _add(f"{name} kept", lambda x, n=name: getattr(x, n)(0, keepdim=True) * 1, x)
    _add("median", lambda x: x.median(0)[0], x)
    _add("cumsum", lambda x: x.cumsum(0), x)
    _add("cumprod", lambda x: x.cumprod(1), x)
    _add("cummax", lambda x: x.cummax(0)[0], x)
    _add("logcumsumexp", lambda x: x.logcumsumexp(0), x)
    _add("diff", lambda x: x.diff(dim=0), x)
    _add("norm", lambda x: x.norm(dim=1), x)
    _add("normalize", lambda x: functional.normalize(x, dim=0), x)
    _add("softmax", lambda x: x.softmax(0) + x.log_softmax(1), x)
    _add("sort", lambda x: x.sort(0)[0], x)
    _add("topk", lambda x: x.topk(3, 0)[0], x)
    _add("topk by size", lambda x: x.topk(x.shape[0] // 2, 0)[0], x)
    for text, shapes in {
        "ij,jk->ik": [(6, 4), (4, 5)],
        "bij,bjk->bik": [(2, 6, 4), (2, 4, 5)],
        "bhqd,bhkd->bhqk": [(2, 3, 6, 4), (2, 3, 5, 4)],
        "ij,kj->": [(6, 4), (5, 4)],
        "ii->i": [(6, 6)],
        "ij->j": [(6, 4)],
        "bi,bj->bij": [(2, 4), (2, 5)],
        "bij,bij->b": [(2, 6, 4), (2, 6, 4)],
        "ij,jk,kl->il": [(6, 4), (4, 5), (5, 3)],
    }.items():
        _add(f"einsum {text}", lambda *tensors, t=text: torch.einsum(t, *tensors), shapes)
    for text, shapes in {
        "bij,bjk->bik": [(2, 6, 4), (2, 1, 5)],
        "bi,bj->b": [(2, 1), (2, 5)],
        "bij,bjk->bk": [(2, 6, 4), (2, 1, 5)],
    }.items():
        _add(f"einsum broadcast {text}", lambda *tensors, t=text: torch.einsum(t, *tensors), shapes, 1)
    _add("matmul", lambda x, y: x @ y, [(6, 4), (4, 5)])
    _add("matmul batched", lambda x, y: x @ y, [(2, 3, 6, 4), (3, 4, 5)])
    _add("matmul vector", lambda x, y: x @ y, [(6, 4), (4,)])
    _add("bmm", torch.bmm, [(3, 6, 4), (3, 4, 5)])
    _add("addmm", torch.addmm, [(5,), (6, 4), (4, 5)])
    _add("outer", torch.outer, [(6,), (5,)])
    _add("cdist", torch.cdist, [(6, 4), (5, 4)])
    _add("cosine_similarity", functional.cosine_similarity, [(6, 4), (6, 4)])
    _add("tensordot", _contracted, [(6, 4, 3), (4, 3, 5)])
    _add("kron", torch.kron, [(3, 4), (2, 5)])
    _add("broadcast", lambda x, y: x[:, None] + y[None], [(6, 4), (5, 4)])
    _add("broadcast one", lambda x, y: x * y, [(6, 4), (6, 1)], 1)


def _layers() -> None:
    _add("linear", _made(lambda: nn.Linear(4, 3)), [(2, 6, 4)], 2)
    _add("layer_norm", _made(lambda: nn.LayerNorm(4)), [(2, 6, 4)], 2)
    _add("layer_norm of any size", lambda x: functional.layer_norm(x, x.shape[1:]), [(2, 6, 4)])
    _add("rms_norm", _made(lambda: nn.RMSNorm(4, eps=1e-6)), [(2, 6, 4)], 2)
    _add("batch_norm", _made(lambda: nn.BatchNorm2d(4)), IMAGE, 1)
    _add("group_norm", _made(lambda: nn.GroupNorm(2, 4)), IMAGE, 1)
    _add("instance_norm", _made(lambda: nn.InstanceNorm2d(4)), IMAGE, 1)
    _add("local_response_norm", lambda x: functional.local_response_norm(x, 3), IMAGE)
    _add("glu", lambda x: functional.glu(x, 1), IMAGE, multiple=2)
    heads = [(2, 3, 6, 8), (2, 3, 5, 8), (2, 3, 5, 8)]
    _add("attention", functional.scaled_dot_product_attention, heads)
    _add("attention causal", lambda q: functional.scaled_dot_product_attention(q, q, q, is_causal=True), heads[:1])
    _add("attention written out", lambda q, k, v: (q @ k.mT * 0.3).softmax(-1) @ v, heads)
    _add("MultiheadAttention", lambda x: _ATTENTION.to(x.dtype)(x, x, x)[0], [(2, 6, 8)], 2)
    _add("encoder layer", _made(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)), [(2, 6, 8)], 2)
    _add("LSTM batch", _made(lambda: nn.LSTM(4, 5, batch_first=True)), [(2, 6, 4)], 1, 2)
    _add("GRU batch", _made(lambda: nn.GRU(4, 5)), [(6, 2, 4)], 0, 2)
    _add("embedding", lambda x, i: functional.embedding(i, torch.ones(7, 3)) + x[0, 0], [(2, 3), (6, 4)], below=7)
    _add("index", lambda x, i: x[i] + 1, [(6, 4), (5,)], below=1)
    _add("index two", lambda x, i, j: x[i, j] + 1, [(6, 4), (5,), (5,)], below=1)
    _add("index_select", lambda x, i: x.index_select(1, i), [(6, 4), (5,)], below=1)
    _add("gather", lambda x, i: x.gather(0, i), [(6, 4), (5, 4)], below=1)
    _add("scatter", lambda x, i: x.scatter(0, i, 2.0), [(6, 4), (5, 4)], below=1)
    _add("scatter_add", lambda x, i: x.scatter_add(0, i, x), [(6, 4), (6, 4)], below=1)
    _add("index_add", lambda x, i: x.index_add(0, i, x), [(6, 4), (6,)], below=1)
    _add("take_along_dim", lambda x, i: x.take_along_dim(i, 1), [(6, 4), (6, 3)], below=1)
    _add("masked_fill", lambda x: x.masked_fill(x > x.mean(0), 0.5), [(6, 4)])
    _add("assign slice", lambda x: x.clone().index_fill(0, torch.tensor([0]), 3.0), [(6, 4)])
    _add("slice_scatter", lambda x: torch.slice_scatter(x, x[:-1] * 2, 0, 1), [(6, 4)])
    _add("select_scatter", lambda x: torch.select_scatter(x, x[0] * 2, 0, -1), [(6, 4)])
    _add("grid_sample", lambda x, g: functional.grid_sample(x, g, align_corners=False), [(2, 3, 9, 8), (2, 5, 6, 2)])
    _add("affine_grid", lambda x: functional.affine_grid(x[:, :2, :3], [x.shape[0], 1, 5, 6], False), [(2, 2, 3)], 1, 2)
    _add("one_hot", lambda x, i: functional.one_hot(i, 5) * x[0], [(1,), (6,)], below=5)
    _add("bucketize", lambda x, y: torch.bucketize(x, y.sort(0)[0]), [(6,), (5,)])
    layers = (nn.Conv1d(4, 6, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(18, 2))
    _add("conv then linear", _made(lambda: copy.deepcopy(nn.Sequential(*layers))), SIGNAL, 1)


_ATTENTION = nn.MultiheadAttention(8, 2, batch_first=True).eval()

_pools()
_resizes()
_convolutions()
_moves()
_sums()
_layers()
