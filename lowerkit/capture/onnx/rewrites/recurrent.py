"""LSTM, GRU and RNN, step by step.

The products with the inputs are one matrix product for the whole sequence; each step adds the product with the state.
Equations: the ONNX operator pages of LSTM, GRU and RNN. A sequence shorter than the longest keeps its state from its
end on, and its outputs are zero there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter

MOST_STEPS = 512
"""Steps that are written out at most."""

Activation = Callable[[str], str]


@dataclass
class _Layer:
    """The operands of one direction, each without its axis of directions."""

    inputs: str
    recurrent: str
    recurrent_bias: str
    state: str
    cell: str
    peepholes: str


class _Recurrence:
    """What the three ops share: layout, directions, the loop over time."""

    def __init__(self, rewriter: Rewriter, gates: int, activations: Sequence[str]) -> None:
        self.b = rewriter
        self.gates = gates
        self.hidden = rewriter.shape(rewriter.input(2))[2]
        self.layout = rewriter.attribute("layout", 0)
        self.direction = rewriter.attribute("direction", "forward")
        self.sequence = rewriter.input(0)
        if self.layout:
            self.sequence = rewriter.transpose(self.sequence, (1, 0, 2))
        shape = rewriter.shape(rewriter.input(0))
        self.steps, self.batch = (shape[1], shape[0]) if self.layout else (shape[0], shape[1])
        if not 0 < self.steps <= MOST_STEPS:
            raise NoRewriteError(f"{self.steps} steps")
        self.directions = 2 if self.direction == "bidirectional" else 1
        self.activations = self._activations(activations)
        self.lengths = rewriter.input(4)

    def _activations(self, defaults: Sequence[str]) -> list[list[Activation]]:
        names: list[str] = self.b.attribute("activations", list(defaults) * self.directions)
        alphas, betas = list(self.b.attribute("activation_alpha", [])), list(self.b.attribute("activation_beta", []))
        made = [self._activation(name, alphas, betas) for name in names]
        count = len(defaults)
        return [made[index * count : (index + 1) * count] for index in range(self.directions)]

    def _activation(self, name: str, alphas: list[float], betas: list[float]) -> Activation:
        b, lower = self.b, name.lower()
        plain = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "softsign": "Softsign", "softplus": "Softplus"}
        if lower in plain:
            return lambda x: b.op(plain[lower], x)
        default = {"leakyrelu": 0.01, "thresholdedrelu": 1.0, "elu": 1.0, "hardsigmoid": 0.2}.get(lower, 1.0)
        alpha = alphas.pop(0) if alphas else default
        with_alpha = {"leakyrelu": "LeakyRelu", "thresholdedrelu": "ThresholdedRelu", "elu": "Elu"}
        if lower in with_alpha:
            return lambda x: b.op(with_alpha[lower], x, alpha=alpha)
        beta = betas.pop(0) if betas else {"hardsigmoid": 0.5}.get(lower, 1.0)
        if lower == "hardsigmoid":
            return lambda x: b.op("HardSigmoid", x, alpha=alpha, beta=beta)
        if lower == "affine":
            return lambda x: b.op("Add", b.op("Mul", x, self.number(alpha)), self.number(beta))
        if lower == "scaledtanh":
            return lambda x: b.op("Mul", b.op("Tanh", b.op("Mul", x, self.number(beta))), self.number(alpha))
        raise NoRewriteError(f"activation {name}")

    def number(self, value: float) -> str:
        """Adds a constant of the op's element type."""
        return self.b.scalar(value, self.b.input(0))

    def clip(self, name: str) -> str:
        """Clips the input of an activation, where the node says so."""
        bound = self.b.attribute("clip", 0.0)
        return self.b.op("Clip", name, self.number(-bound), self.number(bound)) if bound else name

    def layer(self, direction: int, states: Sequence[int], peepholes: int = -1) -> _Layer:
        """Returns the operands of a direction; ``states`` are the places of the initial states in the node."""
        b = self.b
        weights, recurrent = (b.gather(b.input(index), direction, 0) for index in (1, 2))
        inputs = b.op("MatMul", self.sequence, b.transpose(weights, (1, 0)))
        recurrent_bias = ""
        if b.input(3):
            width = self.gates * self.hidden
            bias = b.gather(b.input(3), direction, 0)
            inputs = b.op("Add", inputs, b.slice(bias, 0, 0, width))
            recurrent_bias = b.slice(bias, 0, width, 2 * width)
        found = [self._state(index, direction) for index in states]
        peephole = b.gather(b.input(peepholes), direction, 0) if peepholes >= 0 and b.input(peepholes) else ""
        cell = found[1] if len(found) > 1 else ""
        return _Layer(inputs, b.transpose(recurrent, (1, 0)), recurrent_bias, found[0], cell, peephole)

    def _state(self, index: int, direction: int) -> str:
        if not self.b.input(index):
            zeros = np.zeros((self.batch, self.hidden), self.b.numpy_dtype(self.b.input(0)))
            return self.b.constant(zeros, zeros.dtype)
        return self.b.gather(self.b.input(index), direction, 1 if self.layout else 0)

    def parts(self, name: str, count: int, axis: int = 1) -> list[str]:
        """Splits into the parts of the gates."""
        width = self.hidden
        return [self.b.slice(name, axis, index * width, (index + 1) * width) for index in range(count)]

    def run(
        self, direction: int, states: list[str], inputs: str, step: Callable[[str, list[str]], list[str]]
    ) -> tuple[list[str], list[str]]:
        """Runs the steps of a direction; returns the outputs in the order of time and the last states.

        Args:
            direction: 0 or 1.
            states: the initial ones; the first is what the op gives out.
            inputs: the products with the inputs, [steps, batch, gates * hidden].
            step: (products of the step, states) -> new states.
        """
        b = self.b
        backward = self.direction == "reverse" or direction == 1
        outputs = [""] * self.steps
        for time in reversed(range(self.steps)) if backward else range(self.steps):
            found = step(b.gather(inputs, time, 0), states)
            outputs[time] = found[0]
            if self.lengths:
                inside = b.unsqueeze(b.op("Greater", self.lengths, b.constant(time, b.numpy_dtype(self.lengths))), [1])
                found = [b.op("Where", inside, new, old) for new, old in zip(found, states, strict=True)]
                outputs[time] = b.op("Where", inside, outputs[time], self.number(0.0))
            states = found
        return outputs, states

    def give(self, directions: Callable[[int], tuple[list[str], list[str]]]) -> None:
        """Runs the directions and stacks their outputs and last states into the node's results."""
        b = self.b
        outputs, states = zip(*[directions(index) for index in range(self.directions)], strict=True)
        if b.output(0):
            axis = 2 if self.layout else 1
            rows = [b.op("Concat", *[b.unsqueeze(item, [0]) for item in sequence], axis=0) for sequence in outputs]
            rows = [b.unsqueeze(b.transpose(row, (1, 0, 2)) if self.layout else row, [axis]) for row in rows]
            b.give(b.op("Concat", *rows, axis=axis), 0)
        for index in range(len(states[0])):
            if b.output(1 + index):
                axis = 1 if self.layout else 0
                last = [b.unsqueeze(direction[index], [axis]) for direction in states]
                b.give(b.op("Concat", *last, axis=axis), 1 + index)


def lstm(b: Rewriter) -> None:
    """Writes an LSTM; gates in the order i, o, f, c."""
    op = _Recurrence(b, 4, ("Sigmoid", "Tanh", "Tanh"))
    coupled = b.attribute("input_forget", 0)

    def run(direction: int) -> tuple[list[str], list[str]]:
        layer = op.layer(direction, (5, 6), peepholes=7)
        f, g, h = op.activations[direction]
        peepholes = op.parts(layer.peepholes, 3, axis=0) if layer.peepholes else []

        def step(products: str, state: list[str]) -> list[str]:
            total = b.op("Add", products, b.op("MatMul", state[0], layer.recurrent))
            if layer.recurrent_bias:
                total = b.op("Add", total, layer.recurrent_bias)
            i, o, forget, c = op.parts(total, 4)
            if peepholes:
                i = b.op("Add", i, b.op("Mul", peepholes[0], state[1]))
                forget = b.op("Add", forget, b.op("Mul", peepholes[2], state[1]))
            i = f(op.clip(i))
            forget = b.op("Sub", op.number(1.0), i) if coupled else f(op.clip(forget))
            cell = b.op("Add", b.op("Mul", forget, state[1]), b.op("Mul", i, g(op.clip(c))))
            if peepholes:
                o = b.op("Add", o, b.op("Mul", peepholes[1], cell))
            return [b.op("Mul", f(op.clip(o)), h(cell)), cell]

        return op.run(direction, [layer.state, layer.cell], layer.inputs, step)

    op.give(run)


def gru(b: Rewriter) -> None:
    """Writes a GRU; gates in the order z, r, h."""
    op = _Recurrence(b, 3, ("Sigmoid", "Tanh"))

    def run(direction: int) -> tuple[list[str], list[str]]:
        layer = op.layer(direction, (5,))
        f, g = op.activations[direction]
        recurrent = op.parts(layer.recurrent, 3)
        bias = op.parts(layer.recurrent_bias, 3, axis=0) if layer.recurrent_bias else []

        def product(gate: int, state: str) -> str:
            found = b.op("MatMul", state, recurrent[gate])
            return b.op("Add", found, bias[gate]) if bias else found

        def step(products: str, state: list[str]) -> list[str]:
            z, r, h = op.parts(products, 3)
            z = f(op.clip(b.op("Add", z, product(0, state[0]))))
            r = f(op.clip(b.op("Add", r, product(1, state[0]))))
            if b.attribute("linear_before_reset", 0):
                hidden = b.op("Mul", r, product(2, state[0]))
            else:
                hidden = product(2, b.op("Mul", r, state[0]))
            hidden = g(op.clip(b.op("Add", h, hidden)))
            kept = b.op("Mul", z, state[0])
            return [b.op("Add", b.op("Mul", b.op("Sub", op.number(1.0), z), hidden), kept)]

        return op.run(direction, [layer.state], layer.inputs, step)

    op.give(run)


def rnn(b: Rewriter) -> None:
    """Writes an RNN."""
    op = _Recurrence(b, 1, ("Tanh",))

    def run(direction: int) -> tuple[list[str], list[str]]:
        layer = op.layer(direction, (5,))
        (f,) = op.activations[direction]

        def step(products: str, state: list[str]) -> list[str]:
            total = b.op("Add", products, b.op("MatMul", state[0], layer.recurrent))
            if layer.recurrent_bias:
                total = b.op("Add", total, layer.recurrent_bias)
            return [f(op.clip(total))]

        return op.run(direction, [layer.state], layer.inputs, step)

    op.give(run)
