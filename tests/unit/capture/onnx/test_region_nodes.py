"""RoiAlign computes what ONNX's own evaluator does; nodes whose result depends on data are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.errors import UnsupportedError
from tests.unit.capture.onnx.one_node_models import assert_close, by_reference, normal, one_node, ours

BOXES = np.array([[0, 0, 4, 3], [1.5, -2, 9, 3.5], [2, 2, 2.1, 2.1], [-3, 1, 2, 12]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
def test_regions_partly_outside(mode: str, transformation: str) -> None:
    inputs = {"x": normal(2, 3, 6, 8), "rois": BOXES, "rows": np.array([0, 1, 1, 0])}
    attributes: dict[str, Any] = {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.8}
    model = one_node(
        "RoiAlign", inputs, opset=22, mode=mode, coordinate_transformation_mode=transformation, **attributes
    )
    assert_close(ours(model, list(inputs.values())), by_reference(model, list(inputs.values())), 1e-5)


def test_places_that_depend_on_the_regions_are_refused() -> None:
    inputs = {"x": normal(2, 3, 6, 8), "rois": BOXES, "rows": np.array([0, 1, 1, 0])}
    with pytest.raises(UnsupportedError, match=r"LK4001(.|\n)*the number of places depends on data"):
        capture_onnx(one_node("RoiAlign", inputs, opset=22))


@pytest.mark.parametrize("op_type", ["NonZero", "Unique", "Compress"])
def test_sizes_that_depend_on_data_are_refused(op_type: str) -> None:
    inputs = {"x": normal(4)} | ({"condition": np.array([True, False, True, True])} if op_type == "Compress" else {})
    with pytest.raises(UnsupportedError, match=rf"LK4001(.|\n)*{op_type}(.|\n)*the size of the result depends on data"):
        capture_onnx(one_node(op_type, inputs))


def test_a_constant_condition_is_a_look_up() -> None:
    x = normal(3, 5)
    model = one_node("Compress", {"x": x}, {"condition": np.array([True, False, True])}, axis=0)
    np.testing.assert_array_equal(ours(model, [x])[0], x[[0, 2]])


@pytest.mark.parametrize(("shape", "target"), [((0, 3, 4), (3, 4, 0)), ((2, 0), (0, 7, 5))])
def test_a_reshape_may_take_zero_for_zero(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    x = np.empty(shape, np.float32)
    model = one_node("Reshape", {"x": x}, {"shape": np.array(target)}, allowzero=1)
    assert ours(model, [x])[0].shape == target
