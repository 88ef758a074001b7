"""Recurrent layers as loops: a program of the same size for every length of a sequence.

Vocabulary
    step     one element of the sequence. Its product with the input's weights is made for all steps at once, before.
    block    as many steps as a turn of the loop computes: what a loop carries is copied once a turn, and the results of
             all steps are carried.
    states   h, or h and c of an LSTM: [batch, features] each.

A sequence of at most ``UNROLLED`` steps is written out; of a longer one, blocks run in a loop, of the size with which
the fewest steps are written out, and the steps that are left stand behind it. PyTorch's own decomposition writes every
step out: minutes of compiling for some hundred steps. It also never drops anything between layers in training mode;
here such a layer is refused.
"""

# torch's registered decompositions serve where the number of steps is unknown.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lowerkit.capture.torch_export.decompositions.while_loops import run_turns
from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.dims import is_static

UNROLLED = 8
"""The longest sequence that is written out."""
_BLOCKS = range(4, 9)

States = tuple[Tensor, ...]
Cell = Callable[[Tensor, States, Sequence[Tensor | None]], States]
"""(a step's product with the input's weights, states, the further parameters) -> the states after the step."""


def _lstm_cell(gates: Tensor, states: States, parameters: Sequence[Tensor | None]) -> States:
    weight, bias, projection = parameters
    assert weight is not None, "a layer has weights"
    hidden, cell = states
    into, forget, new, out = (gates + functional.linear(hidden, weight, bias)).chunk(4, -1)
    cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
    hidden = out.sigmoid() * cell.tanh()
    return hidden if projection is None else functional.linear(hidden, projection), cell


def _gru_cell(gates: Tensor, states: States, parameters: Sequence[Tensor | None]) -> States:
    weight, bias, _ = parameters
    assert weight is not None, "a layer has weights"
    (hidden,) = states
    reset, update, new = gates.chunk(3, -1)
    hidden_reset, hidden_update, hidden_new = functional.linear(hidden, weight, bias).chunk(3, -1)
    candidate = (new + (reset + hidden_reset).sigmoid() * hidden_new).tanh()
    return ((hidden - candidate) * (update + hidden_update).sigmoid() + candidate,)


def _plain_cell(function: Callable[[Tensor], Tensor]) -> Cell:
    def cell(gates: Tensor, states: States, parameters: Sequence[Tensor | None]) -> States:
        weight, bias, _ = parameters
        assert weight is not None, "a layer has weights"
        return (function(gates + functional.linear(states[0], weight, bias)),)

    return cell


def _run_steps(
    cell: Cell, gates: Tensor, states: States, parameters: Sequence[Tensor | None], reverse: bool
) -> tuple[Tensor, States]:
    """Runs all steps of one direction of a layer.

    Args:
        cell: one step.
        gates: [steps, batch, gates * features].
        states: where the first step begins.
        parameters: what ``cell`` needs besides.
        reverse: from the last step to the first.

    Returns:
        The first state after each step, [steps, batch, features] in the order of ``gates``, and the last states.
    """
    steps = gates.shape[0]
    if reverse:
        gates = gates.flip(0)
    size = min(_BLOCKS, key=lambda count: count + steps % count)
    turns = 0 if steps <= UNROLLED else steps // size
    pieces: list[Tensor] = []
    if turns:
        present = [value for value in parameters if value is not None]

        def block(turn: Tensor, collected: Tensor, *carried: Tensor) -> States:
            within, all_gates = carried[: len(states)], carried[len(states)]
            rest = iter(carried[len(states) + 1 :])
            given = [None if value is None else next(rest) for value in parameters]
            places = turn * size + torch.arange(size)
            results: list[Tensor] = []
            for step in all_gates.index_select(0, places).unbind(0):
                within = cell(step, within, given)
                results.append(within[0])
            return (collected.index_copy(0, places, torch.stack(results)), *within)

        room = states[0].new_zeros([turns * size, *states[0].shape])
        collected, *rest = run_turns(turns, block, (room, *states), (gates, *present))
        states = tuple(rest)
        pieces.append(collected)
    written: list[Tensor] = []
    for step in gates[turns * size :].unbind(0):
        states = cell(step, states, parameters)
        written.append(states[0])
    if written:
        pieces.append(torch.stack(written))
    results = torch.cat(pieces)
    return results.flip(0) if reverse else results, states


def _layers(cell: Cell, state_count: int, fallback: Any) -> Callable[..., Any]:
    """Returns the decomposition of a recurrent op over its layers and directions."""

    def compute(
        value: Tensor,
        initial: Tensor | Sequence[Tensor],
        parameters: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if train and dropout > 0 and num_layers > 1:
            return NotImplemented
        starts = [initial] if isinstance(initial, Tensor) else list(initial)
        if not is_static(value.shape[1 if batch_first else 0]):
            return fallback(
                *(value, initial, parameters, has_biases, num_layers, dropout, train, bidirectional, batch_first)
            )
        projected = state_count == 2 and starts[0].shape[-1] != starts[1].shape[-1]
        per_direction = 2 + 2 * has_biases + projected
        directions = 2 if bidirectional else 1
        sequence = value.transpose(0, 1) if batch_first else value
        lasts: list[States] = []
        for layer in range(num_layers):
            results: list[Tensor] = []
            for direction in range(directions):
                place = layer * directions + direction
                own = list(parameters[place * per_direction : (place + 1) * per_direction])
                biases = own[2:4] if has_biases else [None, None]
                gates = functional.linear(sequence, own[0], biases[0])
                rest = (own[1], biases[1], own[-1] if projected else None)
                states = tuple(start[place] for start in starts)
                result, last = _run_steps(cell, gates, states, rest, reverse=direction == 1)
                results.append(result)
                lasts.append(last)
            sequence = results[0] if directions == 1 else torch.cat(results, -1)
        final = [torch.stack(values) for values in zip(*lasts, strict=True)]
        return sequence.transpose(0, 1) if batch_first else sequence, *final

    return compute


TABLE: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: _layers(_lstm_cell, 2, aten.lstm.input.decompose),
    aten.gru.input: _layers(_gru_cell, 1, aten.gru.input.decompose),
    aten.rnn_tanh.input: _layers(_plain_cell(torch.tanh), 1, aten.rnn_tanh.input.decompose),
    aten.rnn_relu.input: _layers(_plain_cell(torch.relu), 1, aten.rnn_relu.input.decompose),
}
"""By overload."""
