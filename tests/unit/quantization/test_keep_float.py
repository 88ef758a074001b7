"""Patterns of products to be kept in floats."""

from __future__ import annotations

import pytest

from lowerkit.errors import UsageError
from lowerkit.quantization.keep_float import KeepFloat, resolve
from lowerkit.quantization.sites import Site

SITES = [
    Site(number, name, path, "", number, 10, 40)
    for number, (name, path) in enumerate(
        [("linear", "encoder.0.query"), ("linear_1", "encoder.0.value"), ("linear_2", "encoder.1.query"), ("conv", "")]
    )
]


@pytest.mark.parametrize(
    ("words", "asked", "automatic"),
    [
        ([], [], False),
        (["none"], [], False),
        (["auto"], [], True),
        (["linear"], [0], False),
        (["linear*", "auto"], [0, 1, 2], True),
        (["encoder.0"], [0, 1], False),
        (["*.query"], [0, 2], False),
        (["encoder.?.value", "conv"], [1, 3], False),
        (["*"], [0, 1, 2, 3], False),
    ],
)
def test_patterns(words: list[str], asked: list[int], automatic: bool) -> None:
    assert resolve(words, SITES) == KeepFloat(asked, automatic)


def test_all_unknown_patterns_are_named() -> None:
    with pytest.raises(UsageError, match="LK1009") as caught:
        resolve(["lm_head", "linear", "Encoder.0"], SITES)
    assert list(caught.value.details) == ["pattern 'lm_head'", "pattern 'Encoder.0'"]
    assert "linear_1, encoder.0.value; " in str(caught.value.hint)


@pytest.mark.parametrize("words", [["none", "auto"], ["none", "linear"]])
def test_none_stands_alone(words: list[str]) -> None:
    with pytest.raises(UsageError, match="'none' keeps no product in floats"):
        resolve(words, SITES)
