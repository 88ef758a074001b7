"""Elementwise ONNX ops, reductions, scans and quantization: what their operands and attributes may be."""

from __future__ import annotations

import numpy as np

from onnx_node.draft import FLOATS, INTEGERS, Case, Draft


def _unary(d: Draft) -> None:
    x = d.take(d.numbers(d.shape()), constant=False)
    assert x is not None
    if d.op_type in ("Log", "Sqrt", "Acosh", "Reciprocal"):
        d.values["x0"] = (np.abs(x) + d.pick(0, 1)).astype(x.dtype)


def _binary(d: Draft) -> None:
    shape, dtype = d.shape(), d.pick(*FLOATS, np.int64, np.int32)
    if d.op_type in ("And", "Or", "Xor"):
        dtype = np.bool_
    if d.op_type.startswith("Bitwise"):
        dtype = d.pick(*INTEGERS)
    if d.op_type == "BitShift":
        dtype = d.pick(np.uint8, np.uint32, np.uint64)
        d.set(direction=d.pick("LEFT", "RIGHT"))
    shapes = [shape, d.broadcastable(shape)]
    d.rng.shuffle(shapes)
    left, right = (d.numbers(s, dtype) for s in shapes)
    if d.op_type == "Mod":
        if np.dtype(dtype).kind == "f":
            d.set(fmod=1)
        else:
            d.maybe(fmod=d.pick(0, 1))
    if d.op_type in ("Mod", "Div") and np.dtype(dtype).kind in "iu":
        right[right == 0] = 3
    if d.op_type == "Pow":
        left = np.abs(left) + np.asarray(1, dtype)
        right = np.clip(right, 0, 3).astype(dtype)
    d.take(left, constant=False)
    d.take(right)


def _variadic(d: Draft) -> None:
    shape, dtype = d.shape(), d.pick(*FLOATS)
    for place in range(d.pick(1, 2, 3)):
        d.take(d.numbers(d.broadcastable(shape) if place else shape, dtype), constant=False if not place else None)


def _reduce(d: Draft) -> None:
    rank = d.pick(1, 2, 3, 4)
    dtype = d.pick(*FLOATS, np.int64, np.int32) if d.op_type not in ("ReduceMean", "ReduceLogSum") else d.pick(*FLOATS)
    if d.op_type in ("ReduceL2", "ReduceLogSumExp"):
        dtype = d.pick(*FLOATS)
    x = d.numbers(d.shape(rank), dtype)
    d.take(np.abs(x) if d.op_type == "ReduceLogSum" else x, constant=False)
    if d.rng.random() < 0.8:
        d.list_of("axes", d.axes(rank), 13 if d.op_type == "ReduceSum" else 18)
    elif d.opset >= (13 if d.op_type == "ReduceSum" else 18):
        d.maybe(noop_with_empty_axes=d.pick(0, 1))
    d.maybe(keepdims=d.pick(0, 1))


def _arg(d: Draft) -> None:
    rank = d.pick(1, 2, 3)
    d.take(d.numbers(d.shape(rank), d.pick(np.float32, np.int64, np.float64)), constant=False)
    d.maybe(axis=d.axis(rank) if d.opset >= 11 else d.rng.randrange(rank), keepdims=d.pick(0, 1))
    if d.opset >= 12:
        d.maybe(select_last_index=d.pick(0, 1))


def _softmax(d: Draft) -> None:
    rank = d.pick(1, 2, 3, 4)
    d.take(d.numbers(d.shape(rank)), constant=False)
    axis = d.axis(rank) if d.opset >= 11 else d.rng.randrange(rank)
    if rank == 1 and d.opset < 13:
        d.set(axis=axis)  # the default is 1, an axis that it has not
    d.maybe(axis=axis)


def _activation(d: Draft) -> None:
    d.take(d.numbers(d.shape()), constant=False)
    names = {
        "LeakyRelu": ("alpha",), "Elu": ("alpha",), "Selu": ("alpha", "gamma"), "HardSigmoid": ("alpha", "beta"),
        "ThresholdedRelu": ("alpha",), "Celu": ("alpha",), "Shrink": ("bias", "lambd"),
    }  # fmt: skip
    d.maybe(**{name: d.pick(0.1, 0.5, 1.5, 2.0) for name in names.get(d.op_type, ())})
    if d.op_type == "Gelu":
        d.maybe(approximate=d.pick("none", "tanh"))


def _clip(d: Draft) -> None:
    dtype = d.pick(*FLOATS, np.int64) if d.opset >= 12 else d.pick(*FLOATS)
    d.take(d.numbers(d.shape(), dtype), constant=False)
    low, high = (d.pick(None, -1, 0), d.pick(None, 1, 2, -2))
    if d.opset < 11:
        d.set(min=None if low is None else float(low), max=None if high is None else float(high))
        return
    d.take(None if low is None else np.array(low, dtype))
    if high is not None:
        d.take(np.array(high, dtype))


def _prelu(d: Draft) -> None:
    shape, dtype = d.shape(d.pick(2, 3, 4)), d.pick(*FLOATS)
    d.take(d.numbers(shape, dtype), constant=False)
    slope = d.pick((1,), (shape[1], *(1 for _ in shape[2:])), shape)
    d.take(d.numbers(slope, dtype))


def _where(d: Draft) -> None:
    shape, dtype = d.shape(), d.pick(*FLOATS, np.int64, np.uint8)
    shapes = [shape, d.broadcastable(shape), d.broadcastable(shape)]
    d.rng.shuffle(shapes)
    d.take(d.numbers(shapes[0], np.bool_), constant=False)
    d.take(d.numbers(shapes[1], dtype))
    d.take(d.numbers(shapes[2], dtype))


def _cast(d: Draft) -> None:
    d.take(d.numbers(d.shape(), d.any_type()), constant=False)
    d.set(to=d.pick(1, 2, 3, 6, 7, 9, 10, 11))
    value = d.values["x0"]
    if value.dtype.kind == "f":
        value[~np.isfinite(value)] = 1
        if d.attributes["to"] == 2:
            d.values["x0"] = np.abs(value)


def _is_inf(d: Draft) -> None:
    x = d.numbers(d.shape(), d.pick(np.float32, np.float64))
    x.reshape(-1)[: d.pick(1, 2)] = d.pick(np.inf, -np.inf, np.nan)
    d.take(x, constant=False)
    if d.op_type == "IsInf":
        d.maybe(detect_negative=d.pick(0, 1), detect_positive=d.pick(0, 1))


def _cumulative(d: Draft) -> None:
    rank = d.pick(1, 2, 3)
    d.take(d.numbers(d.shape(rank), d.pick(np.float32, np.float64, np.int64, np.int32)), constant=False)
    d.take(np.array(d.axis(rank), np.int64), constant=True)
    d.maybe(exclusive=d.pick(0, 1), reverse=d.pick(0, 1))


def _quantize(d: Draft) -> None:
    shape = d.shape(d.pick(1, 2, 3))
    axis = d.rng.randrange(len(shape))
    per_axis = d.opset >= 13 and d.rng.random() < 0.5
    kind = d.pick(np.int8, np.uint8)
    extent = (shape[axis],) if per_axis else ()
    scale = (np.abs(np.nan_to_num(d.numbers(extent, np.float32), posinf=1, neginf=1)) * 0.1 + 0.01).astype(np.float32)
    if d.op_type == "QuantizeLinear":
        d.take(np.nan_to_num(d.numbers(shape, np.float32), posinf=9, neginf=-9), constant=False)
    else:
        d.take(d.numbers(shape, kind), constant=False)
    d.take(scale, constant=True)
    if d.rng.random() < 0.8 or kind == np.int8:
        zero = d.numbers(extent, kind)
        d.take(zero, constant=True)
    if per_axis:
        d.set(axis=axis)


_OPS: dict[Case, tuple[str, ...]] = {
    _unary: (
        "Abs",
        "Neg",
        "Exp",
        "Log",
        "Sqrt",
        "Reciprocal",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Asinh",
        "Acosh",
        "Tanh",
        "Sigmoid",
        "Erf",
        "Softplus",
        "Softsign",
        "Relu",
        "HardSwish",
        "Mish",
        "Identity",
    ),
    _binary: (
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Mod",
        "Equal",
        "Less",
        "Greater",
        "LessOrEqual",
        "GreaterOrEqual",
        "And",
        "Or",
        "Xor",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "BitShift",
    ),
    _variadic: ("Max", "Min", "Sum", "Mean"),
    _reduce: (
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSum",
        "ReduceLogSumExp",
    ),
    _arg: ("ArgMax", "ArgMin"),
    _softmax: ("Softmax", "LogSoftmax", "Hardmax"),
    _activation: ("LeakyRelu", "Elu", "Selu", "HardSigmoid", "ThresholdedRelu", "Celu", "Gelu", "Shrink"),
    _clip: ("Clip",),
    _prelu: ("PRelu",),
    _where: ("Where",),
    _cast: ("Cast",),
    _is_inf: ("IsInf", "IsNaN"),
    _cumulative: ("CumSum",),
    _quantize: ("QuantizeLinear", "DequantizeLinear"),
}
CASES = {op_type: case for case, op_types in _OPS.items() for op_type in op_types}
