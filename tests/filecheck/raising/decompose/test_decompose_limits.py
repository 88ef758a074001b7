"""decompose-limits: NaN stays where PyTorch keeps it; limits of integers stay integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.torch_text import Check, function, raised

_X = np.array([np.nan, -np.inf, -3.0, -0.5, 0.0, 0.25, 3.0, np.inf], np.float32)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("torch.aten.clamp %x, %low, %high : @[8], !torch.float, !torch.float -> @[8]", np.clip(_X, -1, 2)),
        ("torch.aten.hardtanh %x, %low, %high : @[8], !torch.float, !torch.float -> @[8]", np.clip(_X, -1, 2)),
        ("torch.aten.clamp_min %x, %low : @[8], !torch.float -> @[8]", np.maximum(_X, -1)),
        ("torch.aten.clamp_max %x, %high : @[8], !torch.float -> @[8]", np.minimum(_X, 2)),
        ("torch.aten.relu6 %x : @[8] -> @[8]", np.clip(_X, 0, 6)),
        ("torch.aten.maximum %x, %x : @[8], @[8] -> @[8]", _X),
        ("torch.aten.minimum %x, %x : @[8], @[8] -> @[8]", _X),
        ("torch.aten.threshold %x, %low, %high : @[8], !torch.float, !torch.float -> @[8]", np.where(_X <= -1, 2, _X)),
        ("torch.aten.hardshrink %x, %high : @[8], !torch.float -> @[8]", np.where(np.abs(_X) <= 2, 0, _X)),
        ("torch.aten.clamp %x, %nan, %high : @[8], !torch.float, !torch.float -> @[8]", np.full_like(_X, np.nan)),
    ],
)
def test_nan_goes_through_limits(call: str, wanted: np.ndarray) -> None:
    text = function(
        "%x: @[8]",
        "@[8]",
        f"""
  %low = torch.constant.float -1.0
  %high = torch.constant.float 2.0
  %nan = torch.constant.float 0x7FF8000000000000
  %r = {call}
  return %r : @[8]""",
    )
    np.testing.assert_array_equal(raised(text, [_X])[0], wanted)


def test_nan_is_not_equal_to_itself() -> None:
    text = function(
        "%x: @[8]",
        "@[8:i1]",
        "\n  %r = torch.aten.eq.Tensor %x, %x : @[8], @[8] -> @[8:i1]\n  return %r : @[8:i1]",
    )
    np.testing.assert_array_equal(raised(text, [_X])[0], ~np.isnan(_X))


def test_integers_equal_themselves_and_keep_their_extremes(check: Check) -> None:
    text = function(
        "%x: @[4:si64], %y: @[4:si64]",
        "@[4:i1], @[4:si64]",
        """
  %r = torch.aten.eq.Tensor %x, %x : @[4:si64], @[4:si64] -> @[4:i1]
  %s = torch.aten.maximum %x, %y : @[4:si64], @[4:si64] -> @[4:si64]
  return %r, %s : @[4:i1], @[4:si64]""",
    )
    context = check(text, "decompose-limits", "// CHECK: torch.aten.eq.Tensor\n// CHECK: torch.aten.maximum")
    assert not context.remarks
