"""The regions that ``kernels_memory.py`` times, each with the torch call that does the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

Torch = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """One region with the torch call that does the same."""

    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]
    eager: Torch
    flops: int = 0


def tensor(shape: Sequence[int], element: str = "f32") -> str:
    """``tensor<2x3xf32>``."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def anchored(name: str, shapes: Sequence[Sequence[int]], result: Sequence[int], attributes: str) -> str:
    """A region of one lk op."""
    types = [tensor(shape) for shape in shapes]
    arguments = ", ".join(f"%a{index}: {type_}" for index, type_ in enumerate(types))
    names = ", ".join(f"%a{index}" for index in range(len(types)))
    return (
        f"func.func @region({arguments}) -> {tensor(result)} {{\n"
        f'  %r = "lk.{name}"({names}) {{{attributes}}} : ({", ".join(types)}) -> {tensor(result)}\n'
        f"  return %r : {tensor(result)}\n}}\n"
    )


def generic(maps: Sequence[str], shapes: Sequence[Sequence[int]], result: Sequence[int], body: str) -> str:
    """A region of one elementwise generic over ``d0, d1, ...``; ``maps`` are the operands' subscripts."""
    dims = ", ".join(f"d{axis}" for axis in range(len(result)))
    types = [tensor(shape) for shape in shapes]
    arguments = ", ".join(f"%a{index}: {type_}" for index, type_ in enumerate(types))
    names = ", ".join(f"%a{index}" for index in range(len(types)))
    block = ", ".join([*(f"%x{index}: f32" for index in range(len(types))), "%o: f32"])
    indexing = ", ".join(f"affine_map<({dims}) -> ({target})>" for target in [*maps, dims])
    kinds = ", ".join(['"parallel"'] * len(result))
    return (
        f"func.func @region({arguments}) -> {tensor(result)} {{\n  %e = tensor.empty() : {tensor(result)}\n"
        f"  %r = linalg.generic {{indexing_maps = [{indexing}], iterator_types = [{kinds}]}} "
        f"ins({names} : {', '.join(types)}) outs(%e : {tensor(result)}) {{\n^bb0({block}):\n{body}\n"
        f"  }} -> {tensor(result)}\n  return %r : {tensor(result)}\n}}\n"
    )


def attention(name: str, heads: int, key_heads: int, queries: int, keys: int, depth: int, causal: bool) -> Problem:
    """Scaled dot-product attention of one sample."""
    q, k = (1, heads, queries, depth), (1, key_heads, keys, depth)
    attributes = (
        f"scale = {depth**-0.5:.15f} : f64, causal = {str(causal).lower()}, "
        "operandSegmentSizes = array<i32: 1, 1, 1, 0>"
    )

    def eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != key_heads)

    flops = 4 * heads * queries * keys * depth // (2 if causal else 1)
    return Problem(f"attention {name}", anchored("attention", [q, k, k], q, attributes), (q, k, k), q, eager, flops)


def window(values: Sequence[int]) -> str:
    """A dense i64 array."""
    return f"array<i64: {', '.join(map(str, values))}>"


ERF_GELU = """%c = arith.constant 0.707106769 : f32
%h = arith.constant 0.5 : f32
%one = arith.constant 1.0 : f32
%m = arith.mulf %x0, %c : f32
%f = math.erf %m : f32
%p = arith.addf %f, %one : f32
%q = arith.mulf %p, %h : f32
%y = arith.mulf %q, %x0 : f32
linalg.yield %y : f32"""
ADD = "%y = arith.addf %x0, %x1 : f32\nlinalg.yield %y : f32"
COPY = "linalg.yield %x0 : f32"


def problems() -> list[Problem]:
    """The shapes of BERT, ViT, GPT-2, Llama, ResNet and a diffusion U-Net."""
    found = [
        attention("BERT 12x128x64", 12, 12, 128, 128, 64, False),
        attention("ViT 12x197x64", 12, 12, 197, 197, 64, False),
        attention("GPT-2 12x64x64 causal", 12, 12, 64, 64, 64, True),
        attention("GPT-2 12x128x64 causal", 12, 12, 128, 128, 64, True),
        attention("Llama 12/4x64x64 causal", 12, 4, 64, 64, 64, True),
        attention("8x1024x64", 8, 8, 1024, 1024, 64, False),
        attention("8x1024x64 causal", 8, 8, 1024, 1024, 64, True),
        attention("1x4096x128", 1, 1, 4096, 4096, 128, False),
        attention("decode 32/8x1x1024x128", 32, 8, 1, 1024, 128, False),
    ]
    for shape in ((1536, 128), (2364, 197), (16, 32000)):
        text = anchored("softmax", [shape], shape, "axis = 1 : i64, log = false")
        found.append(Problem(f"softmax {shape[0]}x{shape[1]}", text, (shape,), shape, lambda x: torch.softmax(x, 1)))
    for shape in ((128, 768), (197, 768), (512, 4096)):
        row = (shape[1],)
        attributes = "normalized_rank = 1 : i64, epsilon = 0.00001 : f64, operandSegmentSizes = array<i32: 1, 1, 1>"
        text = anchored("layer_norm", [shape, row, row], shape, attributes)
        name = f"layer_norm {shape[0]}x{shape[1]}"
        found.append(
            Problem(name, text, (shape, row, row), shape, lambda x, s, b: functional.layer_norm(x, s.shape, s, b))
        )
        text = anchored("rms_norm", [shape, row], shape, attributes.replace("1, 1, 1>", "1, 1>"))
        name = f"rms_norm {shape[0]}x{shape[1]}"
        found.append(Problem(name, text, (shape, row), shape, lambda x, s: functional.rms_norm(x, s.shape, s, 1e-5)))
    image, channel = (1, 320, 64, 64), (320,)
    attributes = (
        "groups = 32 : i64, epsilon = 0.00001 : f64, channels_last = false, operandSegmentSizes = array<i32: 1, 1, 1>"
    )
    text = anchored("group_norm", [image, channel, channel], image, attributes)
    found.append(
        Problem(
            "group_norm 320x64x64",
            text,
            (image, channel, channel),
            image,
            lambda x, s, b: functional.group_norm(x, 32, s, b),
        )
    )
    last = (1, 64, 64, 320)
    text = anchored("group_norm", [last, channel, channel], last, attributes.replace("last = false", "last = true"))
    found.append(
        Problem(
            "group_norm 64x64x320",
            text,
            (last, channel, channel),
            last,
            lambda x, s, b: functional.group_norm(x.permute(0, 3, 1, 2), 32, s, b).permute(0, 2, 3, 1),
        )
    )
    hidden, big, row = (1, 128, 3072), (64, 512, 1024), (3072,)
    found += [
        Problem(
            "gelu 128x3072", generic(["d0, d1, d2"], [hidden], hidden, ERF_GELU), (hidden,), hidden, functional.gelu
        ),
        Problem(
            "bias 128x3072", generic(["d0, d1, d2", "d2"], [hidden, row], hidden, ADD), (hidden, row), hidden, torch.add
        ),
        Problem("add 64x512x1024", generic(["d0, d1, d2"] * 2, [big, big], big, ADD), (big, big), big, torch.add),
    ]
    heads, moved = (1, 128, 12, 64), (1, 12, 128, 64)
    found.append(
        Problem(
            "transpose 128x12x64 heads",
            generic(["d0, d2, d1, d3"], [heads], moved, COPY),
            (heads,),
            moved,
            lambda x: x.transpose(1, 2).contiguous(),
        )
    )
    found.append(
        Problem(
            "transpose 12x128x64 inner",
            generic(["d0, d1, d3, d2"], [moved], (1, 12, 64, 128), COPY),
            (moved,),
            (1, 12, 64, 128),
            lambda x: x.transpose(2, 3).contiguous(),
        )
    )
    matrix = (2048, 2048)
    found.append(
        Problem(
            "transpose 2048x2048",
            generic(["d1, d0"], [matrix], matrix, COPY),
            (matrix,),
            matrix,
            lambda x: x.t().contiguous(),
        )
    )
    picture, pixels = (1, 3, 224, 224), (1, 224, 224, 3)
    found.append(
        Problem(
            "NCHW->NHWC 3x224x224",
            generic(["d0, d3, d1, d2"], [picture], pixels, COPY),
            (picture,),
            pixels,
            lambda x: x.permute(0, 2, 3, 1).contiguous(),
        )
    )
    wide = (1, 64, 56, 56)
    found.append(
        Problem(
            "NCHW->NHWC 64x56x56",
            generic(["d0, d3, d1, d2"], [wide], (1, 56, 56, 64), COPY),
            (wide,),
            (1, 56, 56, 64),
            lambda x: x.permute(0, 2, 3, 1).contiguous(),
        )
    )
    last = (1, 112, 112, 64)
    attributes = (
        f"channels_last = true, kernel = {window([3, 3])}, strides = {window([2, 2])}, "
        f"padding = {window([1] * 4)}, dilation = {window([1, 1])}"
    )
    found.append(
        Problem(
            "max_pool 3x3/2 112x112x64",
            anchored("max_pool", [last], (1, 56, 56, 64), attributes),
            (last,),
            (1, 56, 56, 64),
            lambda x: functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1),
        )
    )
    for name, shape, axis in (("49x2048 over pixels", (1, 49, 2048), 1), ("512x4096 rows", (512, 4096), 1)):
        kept = tuple(size for at, size in enumerate(shape) if at != axis)
        attributes = f'kind = "mean", axes = {window([axis])}, keep_dims = false'
        found.append(
            Problem(
                f"mean {name}",
                anchored("reduce", [shape], kept, attributes),
                (shape,),
                kept,
                lambda x, axis=axis: x.mean(axis),
            )
        )
    return found
