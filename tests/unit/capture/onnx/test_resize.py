"""ONNX's Resize and Upsample, in the forms that are written as sums of taps and in those that are raised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.suite.randomness import RANDOM
from tests.unit.capture.onnx.one_node_models import Array, assert_close, by_onnxruntime, by_reference, one_node, ours


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


RESIZES: list[dict[str, Any]] = [
    {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"},
    {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
    {"mode": "cubic", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic", "antialias": 1},
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
]


@pytest.mark.parametrize("scales", [(1, 1, 0.6, 1.7), (1, 1, 2, 3)], ids=["fractions", "whole"])
@pytest.mark.parametrize("attributes", RESIZES, ids=lambda value: "-".join(map(str, value.values())))
def test_resize(attributes: dict[str, Any], scales: tuple[float, ...]) -> None:
    x = normal(1, 2, 5, 4)
    constants = {"scales": np.array(scales, np.float32)}
    model = one_node("Resize", {"x": x}, constants, order=["x", "", "scales"], opset=19, **attributes)
    assert_close(ours(model, [x]), by_reference(model, [x]), 1e-5)


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resizing_spreads_an_infinite_element_no_further_than_its_taps(mode: str, antialias: int) -> None:
    x = normal(1, 1, 3, 24)
    x[0, 0, 0, 20], x[0, 0, 2, 2] = np.inf, np.nan
    constants = {"sizes": np.array([1, 1, 5, 7])}
    model = one_node(
        "Resize", {"x": x}, constants, order=["x", "", "", "sizes"], opset=19, mode=mode, antialias=antialias
    )  # fmt: skip
    (found,) = ours(model, [x])
    (wanted,) = by_onnxruntime(model, [x])
    finite = np.isfinite(wanted)
    assert np.isfinite(found[finite]).all()
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=1e-5, atol=1e-5)


def test_resizing_beyond_the_last_element_does_not_weigh_what_is_not_there() -> None:
    """Its two taps are the last element both times: infinity, and not NaN, as in PyTorch and ONNX Runtime."""
    x = np.array([[[0.5, 2.0, 0.6], [np.inf, -1.9, 1.2]]], np.float32)[None]
    constants = {"sizes": np.array([1, 1, 8, 14])}
    model = one_node("Resize", {"x": x}, constants, order=["x", "", "", "sizes"], opset=19, mode="linear")
    np.testing.assert_allclose(ours(model, [x])[0], by_onnxruntime(model, [x])[0], rtol=1e-5, atol=1e-5)


def test_resize_of_a_region_extrapolates() -> None:
    x = normal(1, 1, 4, 4)
    constants = {"roi": np.array([0, 0, 0.4, -0.3, 1, 1, 1.2, 1.7], np.float32), "sizes": np.array([1, 1, 3, 5])}
    model = one_node(
        "Resize", {"x": x}, constants, order=["x", "roi", "", "sizes"], opset=19, mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=9.0,
    )  # fmt: skip
    assert_close(ours(model, [x]), by_reference(model, [x]), 1e-5)


@pytest.mark.parametrize("opset", [9, 10])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2.0, 1.0), (1.5, 3.0), (1.0, 1.7)])
def test_resizing_of_old_opsets(opset: int, mode: str, scales: tuple[float, float]) -> None:
    """Places are divided by the scale, without half a pixel."""
    x = normal(1, 2, 3, 4)
    constants = {"scales": np.array([1.0, 1.0, *scales], np.float32)}
    model = one_node("Upsample" if opset == 9 else "Resize", {"x": x}, constants, opset=opset, mode=mode)
    assert_close(ours(model, [x]), by_onnxruntime(model, [x]))
