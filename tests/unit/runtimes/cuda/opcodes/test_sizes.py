"""min.xorsign.abs and max.xorsign.abs: sizes are compared, and the result has the sign of the product."""

from __future__ import annotations

import math

import pytest

from tests.unit.runtimes.cuda.number_reference import NAN, as_array, bits_of, decode, mapped, operands
from tests.unit.runtimes.cuda.ptx_programs import run_instructions


@pytest.mark.parametrize("nan_wins", [False, True])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_extremes_of_sizes(kind: str, largest: bool, nan_wins: bool) -> None:
    columns = operands([kind] * 2)
    sign = 1 << (bits_of(kind) - 1)

    def expected(a: int, b: int) -> int:
        x, y = abs(decode(a, kind)), abs(decode(b, kind))
        if (math.isnan(x) and math.isnan(y)) or (nan_wins and (math.isnan(x) or math.isnan(y))):
            return NAN[kind]
        if math.isnan(x) or math.isnan(y):
            size = (b if math.isnan(x) else a) & ~sign
        else:
            size = (max if largest else min)(a & ~sign, b & ~sign)
        return size | (a ^ b) & sign

    name = f"{'max' if largest else 'min'}{'.NaN' if nan_wins else ''}.xorsign.abs.{kind}"
    inputs = [(kind, as_array(column, kind)) for column in columns]
    (found,) = run_instructions(f"{name} %d0, %a0, %a1;", inputs, [kind])
    assert found.tolist() == mapped(expected, columns)
    if kind != "f32":
        packed = [[low | high << 16 for low, high in zip(each, reversed(each), strict=True)] for each in columns]
        pairs = [("b32", as_array(column, "b32")) for column in packed]
        (both,) = run_instructions(f"{name}x2 %d0, %a0, %a1;", pairs, ["b32"])
        single = found.tolist()
        assert both.tolist() == [low | high << 16 for low, high in zip(single, reversed(single), strict=True)]
