"""ONNX layers: products, convolutions, pools, normalizations, resizing, losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_node.draft import Case, Draft


def _matmul(d: Draft) -> None:
    n, m, k = d.shape(3)
    dtype = d.pick(np.float32, np.float64, np.float32, np.int32)
    batch = d.shape(d.pick(0, 1, 2))
    left: tuple[int, ...] = (*batch, n, k)
    right: tuple[int, ...] = (*d.broadcastable(batch), k, m) if batch else (k, m)
    if d.rng.random() < 0.15:
        left = (k,)
    elif d.rng.random() < 0.15:
        right = (k,)
    d.take(d.numbers(left, dtype), constant=False)
    d.take(d.numbers(right, dtype))


def _gemm(d: Draft) -> None:
    n, m, k = d.shape(3)
    dtype, a, b = d.pick(np.float32, np.float64), d.pick(0, 1), d.pick(0, 1)
    d.take(d.numbers((k, n) if a else (n, k), dtype), constant=False)
    d.take(d.numbers((m, k) if b else (k, m), dtype))
    if d.opset < 11 or d.rng.random() < 0.7:
        d.take(d.numbers(d.pick((n, m), (1, m), (n, 1), (m,), (1,), ()), dtype))
    d.set(transA=a or None, transB=b or None)
    d.maybe(alpha=d.pick(0.5, 1.0, 2.0), beta=d.pick(0.5, 0.0, 2.0))


def _windows(d: Draft, rank: int, image: Sequence[int], kernel: Sequence[int], *, dilated: bool = True) -> None:
    """Strides, dilations and padding that leave every window something to see."""
    d.maybe(strides=[d.pick(1, 2, 3) for _ in range(rank)])
    dilations = [d.pick(1, 1, 2) for _ in range(rank)] if dilated else [1] * rank
    spans = [(k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations, strict=True)]
    if any(span > extent for span, extent in zip(spans, image, strict=True)):
        dilations, spans = [1] * rank, list(kernel)
    if dilations != [1] * rank:
        d.set(dilations=dilations)
    roll = d.rng.random()
    if roll < 0.25:
        d.set(auto_pad=d.pick("SAME_UPPER", "SAME_LOWER", "VALID"))
        if dilations != [1] * rank:
            d.attributes.pop("dilations")
    elif roll < 0.8:
        most = [(span - 1) // 2 if d.op_type.endswith("Pool") else span - 1 for span in spans]
        d.set(pads=[d.rng.randrange(limit + 1) for limit in (*most, *most)])


def _conv(d: Draft) -> None:
    rank = d.pick(1, 2, 2, 3)
    groups = d.pick(1, 1, 2, 3)
    channels, filters = groups * d.pick(1, 2), groups * d.pick(1, 2, 3)
    image = d.shape(rank, (3, 4, 5, 7, 8))
    kernel = [d.rng.randrange(1, 4) for _ in range(rank)]
    dtype = d.pick(np.float32, np.float32, np.float64)
    d.take(d.numbers((d.pick(1, 2), channels, *image), dtype), constant=False)
    if d.op_type == "Conv":
        d.take(d.numbers((filters, channels // groups, *kernel), dtype))
    else:
        d.take(d.numbers((channels, filters // groups, *kernel), dtype))
    if d.rng.random() < 0.6:
        d.take(d.numbers((filters,), dtype))
    d.maybe(kernel_shape=kernel)
    d.set(group=groups if groups > 1 else None)
    _windows(d, rank, image, kernel)
    if d.op_type == "ConvTranspose":
        strides = d.attributes.get("strides", [1] * rank)
        if "auto_pad" not in d.attributes:
            d.maybe(output_padding=[d.rng.randrange(stride) for stride in strides])
        elif d.attributes["auto_pad"] != "VALID" and d.opset < 11:
            d.attributes.pop("auto_pad")


def _pool(d: Draft) -> None:
    rank = d.pick(1, 2, 2, 3)
    image = d.shape(rank, (3, 4, 5, 7, 8))
    dtype = d.pick(np.float32, np.float32, np.float64)
    value = d.numbers((d.pick(1, 2), d.pick(1, 3), *image), dtype)
    # Whether a maximum takes a NaN depends on where it stands.
    d.take(np.nan_to_num(value, posinf=np.inf, neginf=-np.inf) if "Max" in d.op_type else value, constant=False)
    if d.op_type.startswith("Global"):
        return
    kernel = [d.rng.randrange(1, 4) for _ in range(rank)]
    d.set(kernel_shape=kernel)
    since = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[d.op_type]
    _windows(d, rank, image, kernel, dilated=d.opset >= since)
    if d.opset >= (18 if d.op_type == "LpPool" else 10) and "auto_pad" not in d.attributes:
        d.maybe(ceil_mode=d.pick(0, 1))
    if d.op_type == "AveragePool":
        d.maybe(count_include_pad=d.pick(0, 1))
    if d.op_type == "LpPool":
        d.maybe(p=d.pick(1, 2, 3))
    if d.op_type == "MaxPool" and d.opset >= 8 and d.rng.random() < 0.4:
        d.outputs = 2
        d.values["x0"] = np.random.default_rng(d.rng.randrange(1 << 31)).permutation(d.values["x0"].size).reshape(
            d.values["x0"].shape).astype(dtype)  # fmt: skip
        d.maybe(storage_order=d.pick(0, 0, 1))


def _norm(d: Draft) -> None:
    shape, dtype = d.shape(d.pick(2, 3, 4)), d.pick(np.float32, np.float32, np.float64)
    channels = shape[1]
    if d.op_type == "InstanceNormalization":
        shape = d.shape(d.pick(3, 4))
        channels = shape[1]
    if d.op_type == "GroupNormalization":
        d.opset = 21
        groups = d.pick(1, 2, 3)
        channels = groups * d.pick(1, 2)
        shape = (shape[0], channels, 3, *d.shape(d.pick(0, 1)))
        d.set(num_groups=groups)
    d.take(d.numbers(shape, dtype), constant=False)
    if d.op_type in ("LayerNormalization", "RMSNormalization"):
        axis = d.axis(len(shape))
        d.take(d.numbers(shape[axis:], dtype))
        if d.op_type == "LayerNormalization" and d.rng.random() < 0.6:
            d.take(d.numbers(shape[axis:], dtype))
        d.set(axis=axis)
        d.outputs = d.pick(1, 1, 3) if d.op_type == "LayerNormalization" else 1
    else:
        d.take(d.numbers((channels,), dtype))
        d.take(d.numbers((channels,), dtype))
    if d.op_type == "BatchNormalization":
        d.take(d.numbers((channels,), dtype))
        d.take(np.abs(d.numbers((channels,), dtype)) + np.asarray(0.1, dtype))
        if d.opset >= 14:
            d.maybe(training_mode=0)
    d.maybe(epsilon=d.pick(1e-3, 1e-5, 1e-2))


def _lrn(d: Draft) -> None:
    # ONNX Runtime adds a channel to the window and takes another away: a NaN stays.
    d.take(np.nan_to_num(d.numbers(d.shape(4), np.float32), posinf=1, neginf=1), constant=False)
    d.set(size=d.pick(1, 3, 5))  # of even ones ONNX Runtime has none, and ONNX's evaluator other windows
    d.maybe(alpha=d.pick(0.01, 0.5), beta=d.pick(0.5, 0.75), bias=d.pick(1.0, 2.0))


def _lp_normalization(d: Draft) -> None:
    rank = d.pick(1, 2, 3)
    d.take(d.numbers(d.shape(rank), d.pick(np.float32, np.float64)), constant=False)
    d.maybe(axis=d.axis(rank), p=d.pick(1, 2))


def _mean_variance(d: Draft) -> None:
    d.take(d.numbers(d.shape(4), np.float32), constant=False)
    d.maybe(axes=d.pick([0, 2, 3], [2, 3], [0], [1, 2, 3]))


def _resize(d: Draft) -> None:
    d.opset = max(d.opset, 11)
    shape = (1, d.pick(1, 2), *d.shape(d.pick(1, 2, 2), (2, 3, 4, 6)))
    mode = d.pick("nearest", "linear", "cubic") if len(shape) == 4 else d.pick("nearest", "linear")
    d.take(np.nan_to_num(d.numbers(shape, np.float32), posinf=9, neginf=-9), constant=False)
    d.take(None if d.opset >= 13 else np.array([], np.float32), constant=True)
    scales = [1.0, 1.0, *(d.pick(0.5, 1.0, 1.5, 2.0, 2.6, 0.7) for _ in shape[2:])]
    if d.rng.random() < 0.5:
        d.take(np.array(scales, np.float32), constant=True)
    else:
        d.take(None if d.opset >= 13 else np.array([], np.float32), constant=True)
        sizes = [*shape[:2], *(max(int(n * s), 1) for n, s in zip(shape[2:], scales[2:], strict=True))]
        d.take(np.array(sizes, np.int64), constant=True)
    d.set(mode=mode)
    d.maybe(coordinate_transformation_mode=d.pick("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"))
    if mode == "nearest":
        d.maybe(nearest_mode=d.pick("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"))
    if mode == "cubic":
        d.maybe(cubic_coeff_a=d.pick(-0.75, -0.5), exclude_outside=d.pick(0, 1))


def _upsample(d: Draft) -> None:
    d.opset = 9
    shape = d.shape(4, (1, 2, 3, 4))
    # Nothing says whether a neighbour that has no weight is read: infinity times 0.
    d.take(np.nan_to_num(d.numbers(shape, np.float32), posinf=9, neginf=-9), constant=False)
    d.take(np.array([1.0, 1.0, d.pick(1.0, 2.0, 3.0), d.pick(1.0, 2.0, 1.5)], np.float32), constant=True)
    d.maybe(mode=d.pick("nearest", "linear"))


def _grid_sample(d: Draft) -> None:
    n, c, h, w = d.shape(4, (1, 2, 3, 4))
    d.take(d.numbers((n, c, h, w), np.float32), constant=False)
    d.take(np.clip(np.nan_to_num(d.numbers((n, 3, 2, 2), np.float32)), -2, 2))
    old = d.opset < 20
    d.maybe(mode=d.pick("bilinear", "nearest", "bicubic") if old else d.pick("linear", "nearest", "cubic"),
            padding_mode=d.pick("zeros", "border", "reflection"), align_corners=d.pick(0, 1))  # fmt: skip


def _einsum(d: Draft) -> None:
    sizes = dict(zip("ijklb", d.shape(5, (1, 2, 3, 4)), strict=True))
    equation = d.pick("ij,jk->ik", "bij,bjk->bik", "ij->ji", "ij->", "ii->i", "bij->bj", "i,j->ij", "bij,bkj->bki",
                      "...ij,...jk->...ik", "ij,jk", "bijk->bkji", "ij,ij->i", "b...,b...->...")  # fmt: skip
    for term in equation.split("->")[0].split(","):
        shape = [sizes[letter] for letter in term.replace("...", "b" if "b" not in term else "")]
        d.take(d.numbers(shape, np.float32), constant=False)
    d.set(equation=equation)


def _losses(d: Draft) -> None:
    n, c = d.shape(2, (2, 3, 4))
    more = d.shape(d.pick(0, 1, 2))
    dtype = d.pick(np.float32, np.float64)
    d.take(d.numbers((n, c, *more), dtype), constant=False)
    d.take(d.indices((n, *more), c, negative=False, dtype=np.int64), constant=False)
    if d.rng.random() < 0.5:
        d.take(np.abs(d.numbers((c,), dtype)) + np.asarray(0.1, dtype))
    d.maybe(reduction=d.pick("mean", "sum", "none"), ignore_index=d.pick(0, 1, -1))
    if d.op_type == "SoftmaxCrossEntropyLoss" and d.rng.random() < 0.3:
        d.outputs = 2


_OPS: dict[Case, tuple[str, ...]] = {
    _conv: ("Conv", "ConvTranspose"),
    _pool: ("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"),
    _norm: ("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"),
    _matmul: ("MatMul",),
    _gemm: ("Gemm",),
    _lrn: ("LRN",),
    _lp_normalization: ("LpNormalization",),
    _mean_variance: ("MeanVarianceNormalization",),
    _resize: ("Resize",),
    _upsample: ("Upsample",),
    _grid_sample: ("GridSample",),
    _einsum: ("Einsum",),
    _losses: ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"),
}
CASES = {op_type: case for case, op_types in _OPS.items() for op_type in op_types}
