"""Statements that are whole layers: convolutions, norms, pools, attention, resizing; and control flow."""

from __future__ import annotations

from graph.builder import Builder, Statement


def _image(b: Builder, spatial: int) -> str:
    """A tensor of (batch, channels, spatial dims...)."""
    fitting = [n for n, v in b.values.items() if v.dim() == spatial + 2 and v.is_floating_point() and min(v.shape) > 0]
    if fitting and b.rng.random() < 0.7:
        return b.rng.choice(fitting)
    kind = b.main if b.main.startswith(("float", "bfloat")) else "float32"
    sizes = tuple(b.pick(3, 4, 5, 7, 8, 9, 12) for _ in range(spatial))
    return b.tensor((b.pick(1, 1, 2, 3), b.pick(1, 2, 3, 4, 8, 16), *sizes), kind)


def convolution(b: Builder) -> None:
    spatial = b.pick(1, 2, 2, 2, 3)
    value = _image(b, spatial)
    channels, kind = b.of(value).shape[1], b.dtype_of(value)
    kernel = tuple(b.pick(1, 2, 3, 3, 5) for _ in range(spatial))
    groups = b.pick(1, 1, channels)
    if b.rng.random() < 0.25:
        out = b.pick(1, 2, 4)
        weight = b.tensor((channels, out, *kernel), kind, role="weight")
        bias = b.pick("None", b.tensor((out * groups,), kind, role="weight"))
        stride, padding = b.pick(1, 2, 3), b.pick(0, 1)
        more = b.pick(0, 0, stride - 1)
        b.emit(
            f"F.conv_transpose{spatial}d({value}, {weight}, {bias}, {stride}, {padding}, {more}, {groups}, "
            f"{b.pick(1, 1, 2)})"
        )
        return
    out = groups * b.pick(1, 2, 3, 8) if groups > 1 else b.pick(1, 3, 4, 8, 17)
    weight = b.tensor((out, channels // groups, *kernel), kind, role="weight")
    bias = b.pick("None", b.tensor((out,), kind, role="weight"))
    padding = b.pick("0", "1", "2", "'same'", "'valid'")
    stride = 1 if padding == "'same'" else b.pick(1, 1, 2, 3)
    (result,) = b.emit(f"F.conv{spatial}d({value}, {weight}, {bias}, {stride}, {padding}, {b.pick(1, 1, 2)}, {groups})")
    if b.rng.random() < 0.4:
        _batch_norm(b, result)


def _batch_norm(b: Builder, value: str) -> None:
    channels, kind = b.of(value).shape[1], b.dtype_of(value)
    mean, scale, shift = (b.tensor((channels,), kind, role="weight") for _ in range(3))
    variance = b.tensor((channels,), kind, holds="positive", role="weight")
    b.emit(
        f"F.batch_norm({value}, {mean}, {variance}, {b.pick(scale, 'None')}, {b.pick(shift, 'None')}, False, 0.1, 1e-3)"
    )


def norm(b: Builder) -> None:
    value = b.floating(least_rank=2)
    shape, kind = list(b.of(value).shape), b.dtype_of(value)
    last = shape[-b.pick(1, 1, 2) :]
    weight = b.pick("None", b.tensor(tuple(last), kind, role="weight"))
    bias = b.pick("None", b.tensor(tuple(last), kind, role="weight"))
    channels = b.pick("None", b.tensor((shape[1],), kind, role="weight"))
    match b.rng.randrange(7):
        case 0 | 1:
            b.emit(f"F.layer_norm({value}, {last}, {weight}, {bias}, {b.pick('1e-5', '1e-3')})")
        case 2:
            b.emit(f"F.rms_norm({value}, {last}, {weight}, {b.pick('None', '1e-6')})")
        case 3:
            groups = b.pick(1, shape[1], *(d for d in (2, 4) if shape[1] % d == 0))
            b.emit(f"F.group_norm({value}, {groups}, {channels}, {channels})")
        case 4:
            b.emit(f"F.instance_norm({value}, weight={channels}, bias={channels})")
        case 5:
            b.emit(f"F.normalize({value}, dim={b.axis(value)})")
        case _:
            _batch_norm(b, value)


def pool(b: Builder) -> None:
    spatial = b.pick(1, 2, 2, 3)
    value = _image(b, spatial)
    kernel = b.pick(1, 2, 2, 3)
    stride, padding = b.pick(1, 2, 3), b.pick(0, 0, kernel // 2)
    ceil = b.pick("True", "False")
    match b.rng.randrange(6):
        case 0 | 1:
            b.emit(f"F.max_pool{spatial}d({value}, {kernel}, {stride}, {padding}, {b.pick(1, 1, 2)}, ceil_mode={ceil})")
        case 2 | 3:
            b.emit(f"F.avg_pool{spatial}d({value}, {kernel}, {stride}, {padding}, {ceil}, {b.pick('True', 'False')})")
        case 4:
            b.emit(f"F.adaptive_avg_pool{spatial}d({value}, {b.pick(1, 2, 3)})")
        case _:
            b.emit(f"F.adaptive_max_pool{spatial}d({value}, {b.pick(1, 2, 3)})")


def resize(b: Builder) -> None:
    value = _image(b, 2)
    height, width = b.of(value).shape[2:]
    match b.rng.randrange(5):
        case 0:
            b.emit(f"F.interpolate({value}, scale_factor={b.pick(2, 1.5, 0.5)}, mode='nearest')")
        case 1:
            corners = b.pick("True", "False")
            b.emit(
                f"F.interpolate({value}, size=({height + 3}, {width * 2}), mode={b.pick('bilinear', 'bicubic')!r}, "
                f"align_corners={corners})"
            )
        case 2:
            b.emit(f"F.pixel_unshuffle(F.interpolate({value}, scale_factor=2), 2)")
        case 3:
            b.emit(f"F.unfold({value}, {b.pick(1, 2, 3)}, padding={b.pick(0, 1)}, stride={b.pick(1, 2)})")
        case _:
            b.emit(f"F.pixel_shuffle(torch.cat([{value}] * 4, 1), 2)")


def attention(b: Builder) -> None:
    query = b.floating(4)
    batch, heads, length, width = b.of(query).shape
    kind, keys = b.dtype_of(query), b.pick(1, 3, 8, 17)
    key, value = (b.tensor((batch, heads, keys, width), kind) for _ in range(2))
    mask = b.tensor(b.pick((length, keys), (batch, 1, length, keys), (1, keys)), b.pick("bool", kind))
    match b.rng.randrange(4):
        case 0:
            b.emit(f"F.scaled_dot_product_attention({query}, {key}, {value})")
        case 1:
            b.emit(f"F.scaled_dot_product_attention({query}, {key}, {value}, {mask})")
        case 2:
            b.emit(f"F.scaled_dot_product_attention({query}, {key}, {value}, is_causal=True)")
        case _:
            b.emit(f"torch.softmax({query} @ {key}.mT / {max(width, 1) ** 0.5}, -1) @ {value}")


def branch(b: Builder) -> None:
    value = b.floating()
    other = b.tensor(tuple(b.of(value).shape), b.dtype_of(value))
    test = b.pick(f"({value}.sum() > 0)", f"({other}.mean() <= 0)")
    yes = b.pick("a * 2 + c", "torch.sin(a) - c", "torch.relu(a)", "a.clone().add_(c)")
    no = b.pick("a - c", "torch.where(a > 0, a, c)", "c * 3", "torch.exp(-a.abs())")
    b.emit(f"cond({test}, lambda a, c: ({yes},), lambda a, c: ({no},), ({value}, {other}))[0]")


def loop(b: Builder) -> None:
    value = b.floating()
    step = b.pick("a * 0.5 + 1", "torch.sin(a)", "torch.roll(a, 1, -1) + a * 0.25", "a.clone().mul_(0.5)")
    b.emit(
        f"while_loop(lambda i, a: i < {b.pick(0, 1, 3, 5)}, lambda i, a: (i + 1, {step}), "
        f"(torch.zeros((), dtype=torch.int64), {value}))[1]"
    )


def scanned(b: Builder) -> None:
    value = b.any(lambda v: v.is_floating_point() and v.dim() > 1 and v.shape[0] > 0)
    b.emit(f"scan(lambda c, r: (c * 0.5 + r, c + r * 2), torch.zeros_like({value}[0]), {value})", parts=2)


STATEMENTS: list[tuple[float, Statement]] = [
    (6, convolution), (6, norm), (4, pool), (2, resize), (3, attention),
]  # fmt: skip

CONTROL: list[tuple[float, Statement]] = [(1.5, branch), (1.5, loop), (0.1, scanned)]
