"""Numbers with units: what is read, and what is refused by name."""

from __future__ import annotations

import pytest

from lowerkit.errors import UsageError
from lowerkit.spmd.cost.machine import LinkModel
from lowerkit.spmd.cost.quantities import parse_bytes, parse_operations, parse_rate, parse_seconds


def test_numbers_with_units_are_read() -> None:
    assert parse_bytes("80GiB", "m") == 80 << 30
    assert parse_bytes(" 1.5 kB", "m") == 1500
    assert parse_rate("450GB/s", "r") == 450e9
    assert parse_seconds("2us", "t") == 2e-6
    assert parse_operations("990T", "f") == parse_operations("990TFLOP/s", "f") == 990e12
    assert LinkModel.parse("450GB/s, 2us") == LinkModel(450e9, 2e-6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no number"),
        ("many", "no number"),
        ("-1GiB", "no number"),
        ("80", "without a unit"),
        ("80GX", "without a unit that fits, 'GX'"),
        ("80GB/s", "without a unit that fits, 'GB/s'"),
        ("0GiB", "expected a positive number"),
        ("1e400GiB", "expected a positive number"),
    ],
)
def test_what_is_no_number_of_bytes_is_named(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text, "--memory")
    assert caught.value.code == "LK1009"
    assert "--memory" in caught.value.message and reason in caught.value.message
    assert "80GiB" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("450GB/s", "1 parts"),
        ("450GB/s,2us,1", "3 parts"),
        ("450GB,2us", "the bandwidth of the link"),
        ("450GB/s,2GB", "the latency of the link"),
    ],
)
def test_a_link_that_cannot_be_read_names_the_part(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        LinkModel.parse(text)
    assert caught.value.code == "LK1009"
