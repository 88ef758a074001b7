"""Recurrent ONNX nodes compute what ONNX Runtime, or ONNX's own evaluator, computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.capture.onnx.one_node_models import assert_close, by_onnxruntime, by_reference, normal, one_node, ours

RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("op_type", RECURRENT)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("full", [False, True], ids=["bare", "full"])
def test_recurrent(op_type: str, direction: str, full: bool) -> None:
    steps, batch, width, hidden, gates = 5, 3, 4, 2, RECURRENT[op_type]
    directions = 2 if direction == "bidirectional" else 1
    inputs = {"x": normal(steps, batch, width)}
    constants = {
        "w": normal(directions, gates * hidden, width),
        "r": normal(directions, gates * hidden, hidden),
    }
    order = ["x", "w", "r"]
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if full:
        constants["b"] = normal(directions, 2 * gates * hidden)
        inputs["lengths"] = np.array([5, 2, 4], np.int32)
        inputs["h"] = normal(directions, batch, hidden)
        order += ["b", "lengths", "h"]
        attributes["clip"] = 1.5
        if op_type == "LSTM":
            inputs["c"] = normal(directions, batch, hidden)
            constants["p"] = normal(directions, 3 * hidden)
            order += ["c", "p"]
        if op_type == "GRU":
            attributes["linear_before_reset"] = 1
    outputs = ["y", "last", *(["cell"] if op_type == "LSTM" else [])]
    model = one_node(op_type, inputs, constants, order=order, outputs=outputs, **attributes)
    assert_close(ours(model, list(inputs.values())), by_onnxruntime(model, list(inputs.values())))


@pytest.mark.parametrize("op_type", RECURRENT)
def test_recurrent_with_the_batch_first(op_type: str) -> None:
    gates = RECURRENT[op_type]
    inputs = {"x": normal(3, 2, 4)}
    constants = {"w": normal(1, gates * 5, 4), "r": normal(1, gates * 5, 5)}
    model = one_node(op_type, inputs, constants, outputs=["y", "last"], hidden_size=5, layout=1)
    assert_close(ours(model, list(inputs.values())), by_reference(model, list(inputs.values())))


def test_activations_take_their_own_parameters() -> None:
    inputs = {"x": normal(3, 2, 4)}
    constants = {"w": normal(2, 5, 4), "r": normal(2, 5, 5)}
    for names in (["HardSigmoid", "Affine"], ["LeakyRelu", "ThresholdedRelu"], ["ScaledTanh", "Elu"]):
        fields: dict[str, Any] = {"activation_alpha": [0.3, 0.7], "activation_beta": [0.4, 0.6]}
        model = one_node(
            "RNN", inputs, constants, hidden_size=5, direction="bidirectional", activations=names, **fields
        )
        assert_close(ours(model, list(inputs.values())), by_onnxruntime(model, list(inputs.values())))
