"""One step of the optimizers that ONNX has as ops. Formulas: their operator pages (ai.onnx.preview.training)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowerkit.capture.onnx.rewrites.rewriter import Rewriter

Step = Callable[[str, str, list[str]], list[str]]


def _for_each_tensor(b: Rewriter, states: int, step: Step) -> None:
    """Calls ``step(tensor, gradient, states)`` for each optimized tensor; it returns the new tensor and states."""
    count = (len(b.node.input) - 2) // (2 + states)
    results: list[list[str]] = []
    for index in range(count):
        x, gradient, *old = (b.input(2 + index + group * count) for group in range(2 + states))
        decay = b.scalar(b.attribute("norm_coefficient", 0.0), x)
        results.append(step(x, b.op("Add", b.op("Mul", decay, x), gradient), old))
    for group in range(1 + states):
        for index in range(count):
            b.give(results[index][group], group * count + index)


def _count(b: Rewriter) -> str:
    """Returns the number of updates so far as a float."""
    return b.cast(b.input(1), b.dtype(b.input(0)))


def adagrad(b: Rewriter) -> None:
    """Writes a step of Adagrad."""
    one = b.scalar(1.0, b.input(0))
    decayed = b.op("Add", one, b.op("Mul", _count(b), b.scalar(b.attribute("decay_factor", 0.0), b.input(0))))
    rate = b.op("Div", b.input(0), decayed)

    def step(x: str, gradient: str, states: list[str]) -> list[str]:
        squares = b.op("Add", states[0], b.op("Mul", gradient, gradient))
        root = b.op("Add", b.op("Sqrt", squares), b.scalar(b.attribute("epsilon", 0.0), x))
        return [b.op("Sub", x, b.op("Div", b.op("Mul", rate, gradient), root)), squares]

    _for_each_tensor(b, 1, step)


def adam(b: Rewriter) -> None:
    """Writes a step of Adam."""
    alpha, beta = b.attribute("alpha", 0.9), b.attribute("beta", 0.999)
    like = b.input(0)
    one = b.scalar(1.0, like)
    count = _count(b)
    unbiased = [b.op("Sub", one, b.op("Pow", b.scalar(factor, like), count)) for factor in (alpha, beta)]
    adjusted = b.op("Div", b.op("Mul", b.input(0), b.op("Sqrt", unbiased[1])), unbiased[0])
    rate = b.op("Where", b.op("Greater", b.input(1), b.constant(0, np.int64)), adjusted, b.input(0))

    def step(x: str, gradient: str, states: list[str]) -> list[str]:
        first = _mixed(b, states[0], gradient, alpha)
        second = _mixed(b, states[1], b.op("Mul", gradient, gradient), beta)
        root = b.op("Add", b.op("Sqrt", second), b.scalar(b.attribute("epsilon", 0.0), x))
        moved = b.op("Sub", x, b.op("Div", b.op("Mul", rate, first), root))
        kept = b.scalar(1.0 - b.attribute("norm_coefficient_post", 0.0), x)
        return [b.op("Mul", kept, moved), first, second]

    _for_each_tensor(b, 2, step)


def _mixed(b: Rewriter, old: str, new: str, factor: float) -> str:
    return b.op("Add", b.op("Mul", b.scalar(factor, old), old), b.op("Mul", b.scalar(1.0 - factor, old), new))


def momentum(b: Rewriter) -> None:
    """Writes a step with momentum, standard or Nesterov's."""
    like = b.input(0)
    alpha = b.scalar(b.attribute("alpha", 0.0), like)
    first_step = b.op("Equal", b.input(1), b.constant(0, np.int64))
    beta = b.op("Where", first_step, b.scalar(1.0, like), b.scalar(b.attribute("beta", 0.0), like))

    def step(x: str, gradient: str, states: list[str]) -> list[str]:
        velocity = b.op("Add", b.op("Mul", alpha, states[0]), b.op("Mul", beta, gradient))
        move = velocity
        if b.attribute("mode", "standard") == "nesterov":
            move = b.op("Add", gradient, b.op("Mul", alpha, velocity))
        return [b.op("Sub", x, b.op("Mul", b.input(0), move)), velocity]

    _for_each_tensor(b, 1, step)
