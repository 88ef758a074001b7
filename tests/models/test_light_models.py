"""Two of onnx's own `light` models (opset 9), shipped and with fitted random weights, against ONNX Runtime."""

from __future__ import annotations

import pytest

from tests.support.models import light_models


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_light_model(name: str) -> None:
    module = light_models()
    row = module.check_model(name, seed=1)
    assert row["shipped"]["passed"], row["shipped"]
    assert row["dependence"] >= module.LEAST_DEPENDENCE, "the outputs hardly depend on the input: a weak comparison"
    assert row["passed"], row["random"]
    assert len(row["random"]) == 4, "two images, and both the softmax and what goes into it"
