"""Statements on elements: elementwise, comparisons, masks, conversions, reductions, scans, sorts, products."""

from __future__ import annotations

from graph.builder import Builder, Statement
from graph.function import FLOATS, INTEGERS

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "relu",
    "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
    "logical_not",
    "isnan", "isinf", "isfinite", "signbit", "frac", "log2", "log10", "exp2", "positive", "deg2rad", "sgn",
)  # fmt: skip
_ACTIVATIONS = (
    "F.gelu({})", "F.gelu({}, approximate='tanh')", "F.silu({})", "F.elu({}, 0.7)", "F.leaky_relu({}, 0.2)",
    "F.relu6({})",
    "F.hardtanh({}, -0.5, 0.75)", "F.softplus({}, 2.0, 3.0)", "F.mish({})", "F.hardswish({})", "F.hardsigmoid({})",
    "F.selu({})", "F.celu({}, 1.3)", "F.softshrink({}, 0.3)", "F.hardshrink({}, 0.4)", "F.tanhshrink({})",
    "F.logsigmoid({})",
    "F.threshold({}, 0.1, -2.0)", "F.softsign({})",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "fmod", "remainder", "atan2",
"floor_divide", "hypot",
           "copysign", "fmax", "fmin", "logaddexp", "xlogy", "nextafter", "true_divide")  # fmt: skip
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "isclose")
_NUMBERS = ("2", "-1", "0.5", "3", "-0.25", "1", "7", "0", "1e-3")


def unary(b: Builder) -> None:
    b.emit(f"torch.{b.pick(*_UNARY)}({b.any()})")


def activation(b: Builder) -> None:
    b.emit(b.pick(*_ACTIVATIONS).format(b.floating()))


def _partner(b: Builder, name: str) -> str:
    """A tensor that broadcasts with ``name``, mostly of its dtype, or a number."""
    value = b.of(name)
    roll = b.rng.random()
    if roll < 0.2:
        return b.pick(*_NUMBERS)
    shape = list(value.shape)
    if roll < 0.5:
        shape = [extent if b.rng.random() < 0.6 else 1 for extent in shape]
        while shape and b.rng.random() < 0.3:
            shape = shape[1:]
    kind = b.dtype_of(name) if b.rng.random() < 0.8 else b.dtype()
    return b.tensor(tuple(shape), kind)


def binary(b: Builder) -> None:
    left = b.any()
    right = _partner(b, left)
    if b.rng.random() < 0.3 and not right[0].isdigit() and right[0] != "-":
        left, right = right, left
    operation = b.pick(*_BINARY, "add", "sub", "mul", "mul", "add")
    if operation == "div" and b.rng.random() < 0.4:
        b.emit(f"torch.div({left}, {right}, rounding_mode={b.pick('floor', 'trunc')!r})")
    elif b.rng.random() < 0.3:
        b.emit(f"{left} {b.pick('+', '-', '*', '/', '//', '%')} {right}")
    else:
        b.emit(f"torch.{operation}({left}, {right})")


def bits(b: Builder) -> None:
    left = b.any(lambda value: not value.is_floating_point())
    right = b.tensor(tuple(b.of(left).shape), b.dtype_of(left))
    b.emit(f"{left} {b.pick('&', '|', '^')} {right}")


def compare(b: Builder) -> None:
    left = b.any()
    b.emit(f"torch.{b.pick(*_COMPARE)}({left}, {_partner(b, left)})")


def select(b: Builder) -> None:
    value = b.any()
    mask = b.tensor(tuple(b.of(value).shape), "bool")
    match b.rng.randrange(4):
        case 0:
            b.emit(f"torch.where({mask}, {value}, {_partner(b, value)})")
        case 1:
            b.emit(f"{value}.masked_fill({mask}, {b.pick(*_NUMBERS)})")
        case 2:
            b.emit(f"torch.where({value} > 0, {value}, {b.tensor(tuple(b.of(value).shape), b.dtype_of(value))})")
        case _:
            b.emit(f"torch.where({mask}, {b.pick(*_NUMBERS)}, {value})")


def clamp(b: Builder) -> None:
    value = b.any()
    b.emit(f"torch.clamp({value}, {b.pick('-1', 'None', '-0.5', '0')}, {b.pick('1', '0.75', '2')})")


def ternary(b: Builder) -> None:
    value = b.floating()
    others = [b.tensor(tuple(b.of(value).shape), b.dtype_of(value)) for _ in range(2)]
    operation = b.pick("addcmul", "addcdiv", "lerp")
    extra = "" if operation == "lerp" else f", value={b.pick('0.5', '2', '-1')}"
    b.emit(f"torch.{operation}({value}, {others[0]}, {others[1]}{extra})")


def convert(b: Builder) -> None:
    value = b.any()
    kind = b.pick(*FLOATS, *INTEGERS, "bool")
    b.emit(f"{value}.to(torch.{kind})")


def reduce(b: Builder) -> None:
    value = b.any()
    axis, keep = b.axis(value), b.pick("True", "False")
    operation = b.pick(
        "sum",
        "mean",
        "amax",
        "amin",
        "prod",
        "any",
        "all",
        "argmax",
        "argmin",
        "logsumexp",
        "var",
        "std",
        "max",
        "min",
        "norm",
        "median",
    )
    if operation == "median":  # which of two equal values its place is of, nothing says
        b.emit(f"torch.median({value}, {axis}, {keep})[0]")
    elif operation in ("max", "min"):
        b.emit(f"torch.{operation}({value}, {axis}, {keep})", parts=2)
    elif operation in ("var", "std"):
        b.emit(f"torch.{operation}({value}, dim={axis}, correction={b.pick(0, 1, 2)}, keepdim={keep})")
    elif operation == "norm":
        b.emit(f"torch.linalg.vector_norm({value}, {b.pick('1', '2', '3.0')}, dim={axis}, keepdim={keep})")
    elif operation in ("sum", "mean", "amax") and b.of(value).dim() > 2 and b.rng.random() < 0.4:
        b.emit(f"torch.{operation}({value}, dim=[{b.pick(0, 1)}, -1], keepdim={keep})")
    elif b.rng.random() < 0.15 and operation not in ("logsumexp",):
        b.emit(f"torch.{operation}({value})")
    else:
        b.emit(f"torch.{operation}({value}, dim={axis}, keepdim={keep})")


def running(b: Builder) -> None:
    value = b.any(lambda v: v.dim() > 0)
    operation = b.pick("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "cumsum")
    b.emit(f"torch.{operation}({value}, {b.axis(value)})", parts=2 if operation in ("cummax", "cummin") else 1)


def order(b: Builder) -> None:
    value = b.any(lambda v: v.dim() > 0)
    axis = b.axis(value)
    match b.rng.randrange(3):
        case 0:
            b.emit(f"torch.sort({value}, dim={axis}, stable=True, descending={b.pick('True', 'False')})", parts=2)
        case 1:
            count = b.rng.randint(1, max(1, b.of(value).shape[axis]))
            b.emit(f"torch.topk({value}, {count}, dim={axis}, largest={b.pick('True', 'False')})[0]")
        case _:
            b.emit(f"torch.argsort({value}, dim={axis}, stable=True)")


def normalize(b: Builder) -> None:
    value = b.floating(least_rank=1)
    b.emit(f"torch.{b.pick('softmax', 'log_softmax')}({value}, dim={b.axis(value)})")


def product(b: Builder) -> None:
    left = b.floating(least_rank=1)
    shape, kind = tuple(b.of(left).shape), b.dtype_of(left)
    wide = b.pick(1, 3, 8, 17, 33, 64)
    match b.rng.randrange(7):
        case 0 | 1:
            b.emit(f"torch.matmul({left}, {b.tensor((*shape[:-2], shape[-1], wide), kind)})")
        case 2:
            b.emit(f"torch.matmul({left}, {b.tensor((shape[-1], wide), kind)})")
        case 3:
            b.emit(f"{left} @ {b.tensor(shape, kind)}.transpose(-1, -2)")
        case 4:
            bias = b.pick("None", b.tensor((wide,), kind, role="weight"))
            b.emit(f"F.linear({left}, {b.tensor((wide, shape[-1]), kind, role='weight')}, {bias})")
        case 5:
            b.emit(f"torch.matmul({left}, {b.tensor((shape[-1],), kind)})")
        case _:
            b.emit(f"torch.einsum('...i,ij->...j', {left}, {b.tensor((shape[-1], wide), kind)})")


def batched_product(b: Builder) -> None:
    left = b.floating(3)
    (batch, rows, inner), kind = tuple(b.of(left).shape), b.dtype_of(left)
    right = b.tensor((batch, inner, b.pick(1, 5, 16)), kind)
    if b.rng.random() < 0.5:
        b.emit(f"torch.bmm({left}, {right})")
    else:
        width = b.of(right).shape[-1]
        added = b.tensor(b.pick((batch, rows, width), (rows, width), (1, 1, width)), kind)
        b.emit(f"torch.baddbmm({added}, {left}, {right}, beta={b.pick(1, 0.5, 0)}, alpha={b.pick(1, 2)})")


STATEMENTS: list[tuple[float, Statement]] = [
    (10, unary), (7, activation), (16, binary), (2, bits), (4, compare), (5, select), (2, clamp), (2, ternary),
    (5, convert), (9, reduce), (4, running), (3, order), (4, normalize), (8, product), (2, batched_product),
]  # fmt: skip
