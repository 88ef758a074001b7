"""Small PyTorch functions with odd shapes: what a captured model may hold, one op or idiom each.

``tests/operators/test_functions.py`` raises and compiles them. ``expects`` names the lk ops that must come out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as fn


@dataclass(frozen=True)
class Case:
    """A function with its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Tensor, ...]
    expects: tuple[str, ...] = ()


def _seeded(shape: tuple[int, ...]) -> torch.Generator:
    return torch.Generator().manual_seed(sum((axis + 1) * size for axis, size in enumerate(shape)))


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns normally distributed numbers, the same for the same shape."""
    return torch.randn(shape, generator=_seeded(shape)).to(dtype)


def integers(*shape: int, low: int = 0, high: int = 5) -> Tensor:
    """Returns uniform int64, the same for the same shape."""
    return torch.randint(low, high, shape, generator=_seeded(shape))


X, ROW = normal(3, 5, 7), normal(7)
POSITIVE = X.abs() + 0.1
SIGNED = integers(4, 5, low=-9, high=9)
DIVISORS = torch.tensor([1, -2, 3, -4, 5])
IMAGE = normal(2, 3, 9, 7)
HALF, BRAIN = X.half(), X.bfloat16()

_SMOOTH = (
    *("gelu", "silu", "softplus", "mish", "hardswish", "hardsigmoid", "hardtanh", "relu6", "elu", "selu", "celu"),
    *("leaky_relu", "logsigmoid", "softsign", "tanhshrink", "hardshrink", "softshrink", "relu"),
)
_FUNCTIONS = (
    *("sigmoid", "tanh", "erf", "exp", "expm1", "neg", "abs", "sin", "cos", "tan", "floor", "ceil", "round", "trunc"),
    *("sign", "square", "isnan", "isinf", "isfinite", "atan", "sinh", "cosh", "exp2", "frac", "sgn"),
)
_OF_POSITIVE = ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")


def _elementwise() -> list[Case]:
    return [
        *(Case(name, getattr(fn, name), (X,)) for name in _SMOOTH),
        *(Case(name, getattr(torch, name), (X,)) for name in _FUNCTIONS),
        *(Case(name, getattr(torch, name), (POSITIVE,)) for name in _OF_POSITIVE),
        *(Case(f"bf16-{name}", getattr(fn, name), (BRAIN,)) for name in ("gelu", "silu", "mish", "softplus", "elu")),
        Case("f16-sigmoid", torch.sigmoid, (HALF,)),
        Case("bf16-scalars", lambda x: x * 0.1 + 1.7, (BRAIN,)),
        Case("gelu-tanh", lambda x: fn.gelu(x, approximate="tanh"), (X,)),
        Case("clamp", lambda x: x.clamp(-0.5, 0.5), (X,)),
        Case("clamp-min", lambda x: x.clamp(min=0.1), (X,)),
        Case("clamp-tensors", lambda x, y: torch.clamp(x, y, y + 1), (X, ROW)),
        Case("pow-2", lambda x: x.pow(2), (X,)),
        Case("pow-3", lambda x: x**3, (X,)),
        Case("pow-half", lambda x: x.pow(0.5), (POSITIVE,)),
        Case("pow-tensor", lambda x, y: x.pow(y), (POSITIVE, ROW)),
        Case("pow-of-scalar", lambda x: 2.0**x, (X,)),
        *(Case(name, getattr(torch, name), (X, normal(5, 1))) for name in ("add", "sub", "mul", "maximum", "minimum")),
        *(Case(name, getattr(torch, name), (X, normal(5, 1) + 3)) for name in ("div", "fmod", "remainder", "atan2")),
        Case("add-alpha", lambda x, y: torch.add(x, y, alpha=2), (X, ROW)),
        Case("rsub", lambda x: 1.0 - x, (X,)),
        Case("lerp", lambda x, y: torch.lerp(x, y, 0.3), (X, ROW)),
        Case("addcmul", lambda x, y: torch.addcmul(x, y, y, value=0.5), (X, ROW)),
        Case("addcdiv", lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=0.5), (X, ROW)),
        Case("left-shift", lambda x: (x * 9).long() << torch.arange(x.shape[-1]), (X,)),
        Case("right-shift", lambda x: (x * 9).long() >> torch.arange(x.shape[-1]), (X,)),
        Case("select_copy", lambda x: torch.select_copy(x, 1, 2), (X,)),
        Case("slice_copy", lambda x: torch.slice_copy(x, 1, 1, 3), (X,)),
        Case("glu", lambda x: fn.glu(x, 1), (normal(3, 6, 7),)),
        Case("prelu", fn.prelu, (X, normal(5))),
        Case("prelu-one-slope", fn.prelu, (X, normal(1))),
        Case("prelu-scalar", fn.prelu, (normal(), normal(1))),
        Case("threshold", lambda x: fn.threshold(x, 0.1, 2.0), (X,)),
        Case("nan-to-num", torch.nan_to_num, (X,)),
        Case("logaddexp", torch.logaddexp, (X, ROW)),
        Case("where", lambda x, y: torch.where(x > 0, x, y), (X, ROW)),
        Case("where-scalar", lambda x: torch.where(x > 0, x, 0.0), (X,)),
        Case("masked-fill", lambda x: x.masked_fill(x > 0, -1e9), (X,)),
        Case("comparisons", lambda x, y: (x < y) & (x != 0) | (y >= 1) ^ (x <= 0.2), (X, ROW)),
        Case("logical", lambda x, y: torch.logical_or((x > 0).logical_and(y > 0), (x > 1).logical_not()), (X, ROW)),
        Case("not", lambda x: ~(x > 0), (X,)),
        Case("dropout-of-eval", lambda x: fn.dropout(x, 0.5, False), (X,)),
        Case("clone", lambda x: x.clone().contiguous(), (X,)),
    ]


def _integers() -> list[Case]:
    return [
        Case("int-arithmetic", lambda x, y: x + y * 2, (SIGNED, integers(5))),
        Case("int-true-divide", lambda x: x / 3, (SIGNED,)),
        Case("int-floor-divide", lambda x: x // 3, (SIGNED,)),
        Case("int-floor-divide-negative", lambda x: x // -3, (SIGNED,)),
        Case("int-floor-divide-tensor", lambda x, y: x // y, (SIGNED, DIVISORS)),
        Case("int-remainder", lambda x: x % 3, (SIGNED,)),
        Case("int-remainder-negative", lambda x: x % -3, (SIGNED,)),
        Case("int-remainder-tensor", lambda x, y: x % y, (SIGNED, DIVISORS)),
        Case("int-trunc-divide", lambda x, y: torch.div(x, y, rounding_mode="trunc"), (SIGNED, DIVISORS)),
        Case("big-int-floor-divide", lambda x: (x + (1 << 60)) // 3, (SIGNED,)),
        Case("int-bits", lambda x, y: (x & y) | (x ^ y), (SIGNED, integers(5))),
        Case("int-shifts", lambda x: (x << 2) >> 1, (SIGNED,)),
        Case("int-equal", lambda x, y: x == y, (SIGNED, integers(5))),
        Case("int32-remainder", lambda x: x.int() % 4, (SIGNED,)),
        Case("float-div-floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, ROW)),
        Case("float-div-trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X, ROW)),
        Case("to-int", lambda x: (x * 3).to(torch.int64), (X,)),
        Case("to-bool", lambda x: x.to(torch.bool), (SIGNED,)),
        Case("to-bf16", lambda x: x.to(torch.bfloat16) + 1, (X,)),
        Case("int-to-float", lambda x: x.float() * 0.5, (SIGNED,)),
        Case("to-float64", lambda x: x.double() * 2, (X,)),
        Case("to-int8", lambda x: x.to(torch.int8) + 1, (SIGNED,)),
        Case("one-hot", lambda x: fn.one_hot(x, 6), (integers(4, 3),)),
        Case("isin", lambda x: torch.isin(x, torch.tensor([1, 2])), (integers(3, 4),)),
    ]


def _moves() -> list[Case]:
    return [
        Case("arange", lambda x: torch.arange(x.shape[1]) + x[0, :, 0], (X,)),
        Case("full", lambda x: torch.full((5, 7), 2.5) + x, (X,)),
        Case("full-of-bools", lambda x: (x > 0).new_full((7,), 4) & torch.full((7,), -2, dtype=torch.bool), (X,)),
        Case("ones-like", lambda x: torch.ones_like(x) + x, (X,)),
        Case("new-ones", lambda x: x.new_ones((7,)) + x, (X,)),
        Case("tril", torch.tril, (X,)),
        Case("triu", lambda x: torch.triu(x, 1), (X,)),
        Case("causal-mask", lambda x: torch.full((7, 7), float("-inf")).triu(1) + x[:, :1], (X,)),
        Case("index-mask", lambda x: x.masked_fill(torch.arange(7)[None] > torch.arange(5)[:, None], 0.0), (X,)),
        Case("cat", lambda x, y: torch.cat([x, y], 1), (X, normal(3, 2, 7))),
        Case("stack", lambda x: torch.stack([x, x * 2], -1), (X,)),
        Case("split", lambda x: [piece * 2 for piece in torch.split(x, 2, 1)], (X,)),
        Case("split-sizes", lambda x: torch.split(x, [1, 3, 1], 1)[1], (X,)),
        Case("chunk", lambda x: torch.chunk(x, 3, 2)[2], (X,)),
        Case("unbind", lambda x: torch.unbind(x, 1)[1], (X,)),
        Case("slice", lambda x: x[:, 1:4:2, -3:], (X,)),
        Case("select", lambda x: x[:, -1], (X,)),
        Case("narrow", lambda x: x.narrow(1, 1, 2), (X,)),
        Case("roll", lambda x: torch.roll(x, (2, -1), (1, 2)), (X,), ()),
        Case("roll-flat", lambda x: torch.roll(x, 4), (X,)),
        Case("flip", lambda x: torch.flip(x, [1, 2]), (X,), ("gather", "gather")),
        Case("rot90", lambda x: torch.rot90(x, 1, [1, 2]), (X,)),
        Case("pad", lambda x: fn.pad(x, (1, 2, 0, 1), value=3.0), (X,)),
        Case("pad-negative", lambda x: fn.pad(x, (-1, 2)), (X,)),
        Case("pad-infinity", lambda x: fn.pad(x, (1, 1, 1, 1), value=float("-inf")), (X,)),
        Case("pad-reflect", lambda x: fn.pad(x, (1, 2, 2, 1), mode="reflect"), (IMAGE,), ("gather", "gather")),
        Case("pad-replicate", lambda x: fn.pad(x, (1, 2), mode="replicate"), (X,), ("gather",)),
        Case("pad-circular", lambda x: fn.pad(x, (1, 2), mode="circular"), (X,), ("gather",)),
        Case("repeat", lambda x: x.repeat(2, 1, 3), (X,)),
        Case("repeat-interleave", lambda x: x.repeat_interleave(2, 1), (X,)),
        Case("expand", lambda x: x[:, None].expand(3, 2, 5, 7), (X,)),
        Case("permute", lambda x: x.permute(2, 0, 1), (X,)),
        Case("transpose", lambda x: x.transpose(1, 2) * 1, (X,)),
        Case("reshape", lambda x: x.reshape(15, 7), (X,)),
        Case("unflatten", lambda x: x.unflatten(1, (5, 1)), (X,)),
        Case("squeeze", lambda x: x[:, :1].squeeze(1), (X,)),
        Case("pixel-shuffle", lambda x: fn.pixel_shuffle(x, 2), (normal(1, 8, 3, 5),)),
        Case("pixel-unshuffle", lambda x: fn.pixel_unshuffle(x, 2), (normal(1, 2, 6, 4),)),
        Case("channel-shuffle", lambda x: fn.channel_shuffle(x, 2), (normal(1, 8, 3, 5),)),
        Case("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), (normal(3), normal(4))),
        Case("meshgrid-xy", lambda x, y: torch.meshgrid(x, y, indexing="xy"), (normal(3), normal(4))),
        Case("unfold", lambda x: x.unfold(1, 3, 2), (X,)),
        Case("diagonal", lambda x: torch.diagonal(x, dim1=1, dim2=2), (X,)),
        Case("embedding", fn.embedding, (integers(4, 3), normal(6, 5)), ("gather",)),
        Case("index-select", lambda x, i: torch.index_select(x, 1, i), (X, integers(4)), ("gather",)),
        Case("index", lambda x, i: x[i], (X, integers(4, high=3)), ("gather",)),
        Case("index-negative", lambda x, i: x[i], (X, integers(4, low=-3, high=3)), ("gather",)),
        Case("index-middle", lambda x, i: x[:, i], (X, integers(4, 2)), ("gather",)),
        Case("index-two", lambda x, i: x[i, i], (X, integers(4, high=3))),
        Case("gather", lambda x, i: torch.gather(x, 1, i), (X, integers(3, 2, 7))),
        Case("take-along-dim", lambda x, i: torch.take_along_dim(x, i, 1), (X, integers(3, 2, 7))),
    ]


def _reductions() -> list[Case]:
    named = [
        Case(
            f"{name}-{suffix}",
            lambda x, name=name, options=options: getattr(torch, name)(x, **options),
            (X,),
            ("reduce",),
        )
        for name in ("mean", "sum", "amax", "amin")
        for suffix, options in (("1", {"dim": 1}), ("keep", {"dim": -1, "keepdim": True}), ("two", {"dim": (0, -1)}))
    ]
    return [
        *named,
        Case("prod", lambda x: x.prod(1), (X,), ("reduce",)),
        Case("sum-all", torch.sum, (X,), ("reduce",)),
        Case("mean-all", torch.mean, (X,), ("reduce",)),
        Case("max-all", torch.max, (X,), ("reduce",)),
        Case("max-position", lambda x: torch.max(x, 1), (X,), ("reduce", "reduce")),
        Case("argmax", lambda x: x.argmax(1), (X,), ("reduce",)),
        Case("argmin-keep", lambda x: x.argmin(-1, keepdim=True), (X,), ("reduce",)),
        Case("argmax-flat", torch.argmax, (X,), ("reduce",)),
        Case("any", lambda x: (x > 1).any(1), (X,), ("reduce",)),
        Case("all-keep", lambda x: (x > -1).all(-1, keepdim=True), (X,), ("reduce",)),
        Case("any-of-numbers", lambda x: (x > 2).float().any(), (X,), ("reduce",)),
        Case("sum-int", lambda x: x.sum(1), (SIGNED,), ("reduce",)),
        Case("sum-bool", lambda x: (x > 0).sum(1), (X,), ("reduce",)),
        Case("mean-bf16", lambda x: x.mean(1), (BRAIN,), ("reduce",)),
        Case("norm", lambda x: torch.linalg.vector_norm(x, 2, dim=1), (X,), ("reduce",)),
        Case("norm-1", lambda x: x.norm(p=1, dim=-1, keepdim=True), (X,), ("reduce",)),
        Case("norm-infinity", lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1), (X,), ("reduce",)),
        Case("norm-3", lambda x: torch.linalg.vector_norm(x, 3, dim=1), (X,), ("reduce",)),
        Case("normalize", lambda x: fn.normalize(x, dim=1), (X,), ("reduce",)),
        Case("var", lambda x: x.var(1), (X,), ("reduce", "reduce")),
        Case("var-of-all", lambda x: x.var(1, unbiased=False), (X,), ("reduce", "reduce")),
        Case("std-keep", lambda x: x.std(-1, keepdim=True), (X,), ("reduce", "reduce")),
        Case("var-mean", lambda x: torch.var_mean(x, dim=1), (X,), ("reduce", "reduce")),
        Case("logsumexp", lambda x: torch.logsumexp(x, 1), (X,), ("reduce", "reduce")),
        Case("cosine-similarity", lambda x, y: fn.cosine_similarity(x, y, dim=1), (X, normal(3, 5, 7) + 1)),
        Case("cumsum", lambda x: x.cumsum(1), (X,), ("cumulative",)),
        Case("cumsum-int", lambda x: x.cumsum(1), (SIGNED,), ("cumulative",)),
        Case("cumsum-bool", lambda x: (x > 0).cumsum(-1), (X,), ("cumulative",)),
        Case("cumprod", lambda x: x.cumprod(1), (X,), ("cumulative",)),
        Case("topk", lambda x: torch.topk(x, 2, dim=1), (X,), ("topk",)),
        Case("sort", lambda x: torch.sort(x, dim=-1, descending=True), (X,), ("sort",)),
        Case("argsort", lambda x: torch.argsort(x, dim=1), (X,), ("sort",)),
        Case("softmax", lambda x: x.softmax(1), (X,), ("softmax",)),
        Case("log-softmax", lambda x: x.log_softmax(-1), (X,), ("softmax",)),
        Case("softmax-in-f32", lambda x: fn.softmax(x, -1, dtype=torch.float32), (BRAIN,), ("softmax",)),
        Case("softmax-masked", lambda x: x.masked_fill(x > 1, float("-inf")).softmax(-1), (X,), ("softmax",)),
    ]


def _all() -> list[Case]:
    from tests.support.torch_index_cases import index_cases
    from tests.support.torch_layer_cases import LAYER_CASES

    return [*_elementwise(), *_integers(), *_moves(), *_reductions(), *index_cases(), *LAYER_CASES]


def cases() -> list[Case]:
    """Returns all cases; names are unique."""
    found = _all()
    assert len({case.name for case in found}) == len(found), "two cases have one name"
    return found
