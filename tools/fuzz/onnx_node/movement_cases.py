"""ONNX ops that move elements: shapes, slices, look-ups and writes by index."""

from __future__ import annotations

import numpy as np

from onnx_node.draft import Case, Draft


def _depth(d: Draft) -> None:
    size = d.pick(1, 2, 3)
    n, c, h, w = d.shape(4, (1, 2, 3, 4))
    if d.op_type == "DepthToSpace":
        d.take(d.numbers((n, c * size * size, h, w)), constant=False)
        if d.opset >= 11:
            d.maybe(mode=d.pick("DCR", "CRD"))
    else:
        d.take(d.numbers((n, c, h * size, w * size)), constant=False)
    d.set(blocksize=size)


def _transpose(d: Draft) -> None:
    rank = d.pick(1, 2, 3, 4, 5)
    d.take(d.numbers(d.shape(rank), d.any_type()), constant=False)
    d.maybe(perm=d.rng.sample(range(rank), rank))


def _reshape(d: Draft) -> None:
    shape = d.shape()
    d.take(d.numbers(shape, d.any_type()), constant=False)
    total = int(np.prod(shape))
    target = d.pick(
        [total], [-1], [1, -1], [shape[0], -1], [0, -1], [-1, shape[-1]], list(reversed(shape)), [0] * len(shape)
    )
    d.take(np.array(target, np.int64), constant=True)
    if d.opset >= 14 and 0 not in target:
        d.maybe(allowzero=d.pick(0, 1))


def _flatten(d: Draft) -> None:
    rank = d.pick(1, 2, 3, 4)
    d.take(d.numbers(d.shape(rank), d.any_type() if d.opset >= 9 else np.float32), constant=False)
    d.maybe(axis=d.rng.randrange(-rank if d.opset >= 11 else 0, rank + 1))


def _squeeze(d: Draft) -> None:
    shape = d.shape(4, (1, 1, 3, 4))
    ones = [axis for axis, extent in enumerate(shape) if extent == 1]
    d.take(d.numbers(shape, d.any_type()), constant=False)
    if ones and d.rng.random() < 0.7:
        axes = d.rng.sample(ones, d.rng.randrange(1, len(ones) + 1))
        d.list_of("axes", [a - 4 if d.opset >= 11 and d.rng.random() < 0.4 else a for a in axes], 13)


def _unsqueeze(d: Draft) -> None:
    shape = d.shape(d.pick(1, 2, 3))
    d.take(d.numbers(shape, d.any_type()), constant=False)
    rank = len(shape) + d.pick(1, 2)
    axes = d.rng.sample(range(rank), rank - len(shape))
    d.list_of("axes", [a - rank if d.opset >= 11 and d.rng.random() < 0.4 else a for a in axes], 13)


def _expand(d: Draft) -> None:
    shape = d.shape()
    d.take(d.numbers(d.broadcastable(shape), d.any_type()), constant=False)
    d.take(np.array(d.pick(shape, (2, *shape), d.broadcastable(shape)), np.int64), constant=True)


def _tile(d: Draft) -> None:
    shape = d.shape(extents=(1, 2, 3))
    d.take(d.numbers(shape, d.any_type()), constant=False)
    d.take(np.array([d.pick(1, 2, 3) for _ in shape], np.int64), constant=True)


def _concat(d: Draft) -> None:
    shape = list(d.shape())
    axis, dtype = d.axis(len(shape)) if d.opset >= 11 else d.rng.randrange(len(shape)), d.any_type()
    for place in range(d.pick(1, 2, 3, 4)):
        shape[axis] = d.pick(1, 2, 3)
        d.take(d.numbers(shape, dtype), constant=False if not place else None)
    d.set(axis=axis)


def _split(d: Draft) -> None:
    shape = list(d.shape())
    axis = d.axis(len(shape)) if d.opset >= 11 else d.rng.randrange(len(shape))
    sizes = [d.pick(1, 2, 3) for _ in range(d.pick(1, 2, 3))]
    even = d.rng.random() < 0.4
    if even:
        sizes = [sizes[0]] * len(sizes)
    shape[axis] = sum(sizes)
    d.outputs = len(sizes)
    uneven_count = even and d.opset >= 18
    if uneven_count and len(sizes) > 1 and d.rng.random() < 0.4 and sizes[0] > 1:
        shape[axis] -= 1
    d.take(d.numbers(shape, d.any_type()), constant=False)
    d.set(axis=axis)
    if uneven_count:
        d.set(num_outputs=len(sizes))
    elif not even:
        d.list_of("split", sizes, 13)


def _slice(d: Draft) -> None:
    shape = d.shape(extents=(1, 3, 4, 5, 8))
    d.take(d.numbers(shape, d.any_type()), constant=False)
    axes = d.axes(len(shape))
    far = d.pick(1 << 62, 100, -100, -(1 << 62))
    starts = [d.rng.randrange(-shape[a] - 1, shape[a] + 2) if d.rng.random() < 0.9 else far for a in axes]
    ends = [d.rng.randrange(-shape[a] - 1, shape[a] + 2) if d.rng.random() < 0.7 else abs(far) for a in axes]
    if d.opset < 10:
        d.set(starts=starts, ends=ends, axes=[a % len(shape) for a in axes])
        return
    kind = d.pick(np.int64, np.int64, np.int32)
    clip = np.iinfo(kind)
    for numbers in (starts, ends, axes):
        d.take(np.array(numbers, np.int64).clip(clip.min, clip.max).astype(kind), constant=True)
    if d.rng.random() < 0.6:
        d.take(np.array([d.pick(1, 2, 3, -1, -2) for _ in axes], kind), constant=True)


def _pad(d: Draft) -> None:
    shape = d.shape(d.pick(1, 2, 3, 4), (2, 3, 4, 5))
    mode = d.pick("constant", "constant", "reflect", "edge", *(["wrap"] if d.opset >= 19 else []))
    dtype = d.pick(np.float32, np.float64, np.int64) if d.opset >= 11 else np.float32
    axes = d.axes(len(shape)) if d.opset >= 18 and d.rng.random() < 0.4 else list(range(len(shape)))
    least = -1 if mode == "constant" else 0
    pads = [d.rng.randrange(least, max(min(shape[a], 3), least + 1)) for a in (*axes, *axes)]
    d.take(d.numbers(shape, dtype), constant=False)
    d.maybe(mode=mode)
    if d.attributes.get("mode", "constant") == "constant" and mode != "constant":
        pads = [abs(pad) for pad in pads]
    if d.opset < 11:
        d.set(pads=pads)
        d.maybe(value=1.5)
        return
    d.take(np.array(pads, np.int64), constant=True)
    explicit = axes != list(range(len(shape)))
    if d.attributes.get("mode", "constant") == "constant" and d.rng.random() < 0.6:
        d.take(np.array(3, dtype))
    elif explicit:
        d.take(None)
    if explicit:
        d.take(np.array(axes, d.pick(np.int64, np.int32)), constant=True)


def _gather(d: Draft) -> None:
    shape = d.shape()
    axis = d.axis(len(shape))
    d.take(d.numbers(shape, d.any_type()))
    d.take(d.indices(d.shape(d.pick(0, 1, 2)), shape[axis], negative=d.opset >= 11), constant=False)
    d.maybe(axis=axis)
    if "axis" not in d.attributes:
        d.values["x1"] = (np.asarray(d.values["x1"]) % shape[0]).astype(d.values["x1"].dtype)


def _gather_elements(d: Draft) -> None:
    shape = d.shape()
    axis = d.axis(len(shape))
    wanted = [d.rng.randrange(1, extent + 1) for extent in shape]
    wanted[axis] = d.pick(1, 2, 6)
    d.take(d.numbers(shape, d.any_type()), constant=False)
    d.take(d.indices(wanted, shape[axis]))
    d.set(axis=axis)


def _gather_nd(d: Draft) -> None:
    shape = d.shape(d.pick(2, 3, 4))
    batch = d.pick(0, 1) if d.opset >= 12 else 0
    depth = d.rng.randrange(1, len(shape) - batch + 1)
    outer = d.shape(d.pick(0, 1, 2))
    rows = [d.indices((*shape[:batch], *outer, 1), shape[batch + k], dtype=np.int64) for k in range(depth)]
    d.take(d.numbers(shape, d.any_type()), constant=False)
    d.take(np.concatenate(rows, -1))
    d.set(batch_dims=batch or None)


def _scatter_elements(d: Draft) -> None:
    shape = d.shape()
    axis = d.axis(len(shape))
    wanted = [d.rng.randrange(1, extent + 1) for extent in shape]
    dtype = d.pick(np.float32, np.float64, np.int64)
    generator = np.random.default_rng(d.rng.randrange(1 << 31))
    index = np.argsort(
        generator.random((*wanted[: axis % len(shape)], shape[axis], *wanted[axis % len(shape) + 1 :])), axis
    )
    index = np.take(index, range(wanted[axis]), axis).astype(d.pick(np.int64, np.int32))
    d.take(d.numbers(shape, dtype), constant=False)
    d.take(index)
    d.take(d.numbers(wanted, dtype))
    d.set(axis=axis)
    if d.opset >= 16:
        d.maybe(reduction=d.pick("none", "add", "mul", *(["max", "min"] if d.opset >= 18 else [])))


def _scatter_nd(d: Draft) -> None:
    shape = d.shape(d.pick(1, 2, 3))
    depth = d.rng.randrange(1, len(shape) + 1)
    places = int(np.prod(shape[:depth]))
    generator = np.random.default_rng(d.rng.randrange(1 << 31))
    flat = generator.permutation(places)[: d.rng.randrange(1, places + 1)]
    index = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype(np.int64)
    dtype = d.pick(np.float32, np.float64, np.int64)
    d.take(d.numbers(shape, dtype), constant=False)
    d.take(index)
    d.take(d.numbers((len(flat), *shape[depth:]), dtype))
    if d.opset >= 16:
        d.maybe(reduction=d.pick("none", "add", "mul", *(["max", "min"] if d.opset >= 18 else [])))


def _one_hot(d: Draft) -> None:
    depth, shape = d.pick(1, 3, 5), d.shape(d.pick(1, 2))
    d.take(d.indices(shape, depth, negative=True), constant=False)
    d.take(np.array(depth, np.int64), constant=True)
    d.take(
        np.nan_to_num(d.numbers((2,), d.pick(np.float32, np.int64)), posinf=9, neginf=-9)
    )  # ONNX's evaluator subtracts
    d.maybe(axis=d.rng.randrange(-len(shape) - 1, len(shape) + 1))


def _top_k(d: Draft) -> None:
    shape = d.shape()
    axis = d.axis(len(shape)) if d.opset >= 11 else d.rng.randrange(len(shape))
    generator = np.random.default_rng(d.rng.randrange(1 << 31))
    d.take(
        generator.permutation(int(np.prod(shape))).reshape(shape).astype(d.pick(np.float32, np.float64)), constant=False
    )
    count = d.rng.randrange(1, shape[axis] + 1)
    d.set(axis=axis)
    d.outputs = 2
    if d.opset < 10:
        d.set(k=count)
        return
    d.take(np.array([count], np.int64), constant=True)
    if d.opset >= 11:
        d.maybe(largest=d.pick(0, 1), sorted=1)


def _triangle(d: Draft) -> None:
    d.take(d.numbers(d.shape(d.pick(2, 3)), d.pick(np.float32, np.int64, np.bool_)), constant=False)
    if d.rng.random() < 0.6:
        d.take(np.array(d.rng.randrange(-3, 4), np.int64), constant=True)
    d.maybe(upper=d.pick(0, 1))


def _eye(d: Draft) -> None:
    d.take(d.numbers(d.shape(2), np.float32), constant=False)
    d.maybe(k=d.pick(-1, 0, 1, 2), dtype=d.pick(1, 7, 11))


def _reverse_sequence(d: Draft) -> None:
    time, batch = d.shape(2, (2, 3, 4))
    first = d.pick(0, 1)
    shape = (batch, time) if first else (time, batch)
    d.take(d.numbers((*shape, *d.shape(d.pick(0, 1))), np.float32), constant=False)
    d.take(np.array([d.rng.randrange(1, time + 1) for _ in range(batch)], np.int64))
    d.set(batch_axis=0 if first else 1, time_axis=1 if first else 0)


def _shape(d: Draft) -> None:
    d.take(d.numbers(d.shape(), d.any_type()), constant=False)
    if d.op_type == "Shape" and d.opset >= 15:
        d.maybe(start=d.pick(0, 1, -1, -9), end=d.pick(1, 2, -1, 9))


_OPS: dict[Case, tuple[str, ...]] = {
    _depth: ("DepthToSpace", "SpaceToDepth"),
    _transpose: ("Transpose",),
    _reshape: ("Reshape",),
    _flatten: ("Flatten",),
    _squeeze: ("Squeeze",),
    _unsqueeze: ("Unsqueeze",),
    _expand: ("Expand",),
    _tile: ("Tile",),
    _concat: ("Concat",),
    _split: ("Split",),
    _slice: ("Slice",),
    _pad: ("Pad",),
    _gather: ("Gather",),
    _gather_elements: ("GatherElements",),
    _gather_nd: ("GatherND",),
    _scatter_elements: ("ScatterElements",),
    _scatter_nd: ("ScatterND",),
    _one_hot: ("OneHot",),
    _top_k: ("TopK",),
    _triangle: ("Trilu",),
    _eye: ("EyeLike",),
    _reverse_sequence: ("ReverseSequence",),
    _shape: ("Shape", "Size"),
}
CASES = {op_type: case for case, op_types in _OPS.items() for op_type in op_types}
