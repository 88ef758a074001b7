"""Softmax, norms, reductions, scans and sorts by Triton on the simulated device."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.kernels.cuda.simulated_triton import row_programs as programs
from tests.kernels.cuda.simulated_triton.launching import TARGETS, assert_close, run_kernel, unwritten, values

TOLERANCES = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TOLERANCES)
def test_softmax(kind: str, target: int) -> None:
    x = values((5, 200), kind)
    (found,) = run_kernel(programs.softmax, [5], [x, unwritten(x.shape, kind), 200], [1], {"BLOCK": 256}, target=target)
    power = np.exp(x.astype(np.float64) - x.astype(np.float64).max(-1, keepdims=True))
    assert_close(found, power / power.sum(-1, keepdims=True), TOLERANCES[kind])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", TOLERANCES)
def test_layer_norm(kind: str, target: int) -> None:
    x, weight, bias = values((5, 272), kind, 1), values(272, kind, 2), values(272, kind, 3)
    arguments = [x, weight, bias, unwritten(x.shape, kind), 272, 1e-5]
    (found,) = run_kernel(programs.layer_norm, [5], arguments, [3], {"BLOCK": 512}, target=target)
    wide = x.astype(np.float64)
    norm = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    assert_close(found, norm * weight.astype(np.float64) + bias.astype(np.float64), TOLERANCES[kind])


@pytest.mark.parametrize("kind", TOLERANCES)
def test_gelu(kind: str) -> None:
    x = values(1000, kind)
    (found,) = run_kernel(programs.gelu, [8], [x, unwritten(1000, kind), 1000], [1], {"BLOCK": 128})
    wide = x.astype(np.float64)
    expected = wide * 0.5 * (1 + np.array([math.erf(each / math.sqrt(2)) for each in wide]))
    assert_close(found, expected, TOLERANCES[kind])


@pytest.mark.parametrize("kind", ["fp32", "i32"])
@pytest.mark.parametrize("columns", [16, 100])
def test_reductions(kind: str, columns: int) -> None:
    x = values((8, columns), kind)
    results = [unwritten(8, kind) for _ in range(3)] + [unwritten(8, "i32"), unwritten(8, "i32")]
    total, least, largest, place, ones = run_kernel(
        programs.reductions, [2], [x, *results, columns], range(1, 6), {"ROWS": 4, "BLOCK": 128}
    )
    assert_close(total, x.astype(np.float64).sum(1), 1e-6)
    assert (least == x.min(1)).all()
    assert (largest == x.max(1)).all()
    assert (place == x.argmax(1)).all()
    assert (ones == np.bitwise_xor.reduce(x.astype(np.int32), axis=1)).all()


@pytest.mark.parametrize("backwards", [False, True])
def test_scans(backwards: bool) -> None:
    x = values((3, 300), "fp32")
    results = [unwritten(x.shape, "fp32"), unwritten(x.shape, "fp32")]
    total, largest = run_kernel(programs.scans, [3], [x, *results, 300], [1, 2], {"BLOCK": 512, "REVERSED": backwards})
    wide = x.astype(np.float64)
    expected = np.cumsum(wide[:, ::-1], 1)[:, ::-1] if backwards else np.cumsum(wide, 1)
    assert_close(total, expected, 1e-5)
    assert (largest == np.maximum.accumulate(x, 1)).all()


@pytest.mark.parametrize("kind", ["fp32", "i32", "fp16"])
def test_sorts(kind: str) -> None:
    x = values((3, 128), kind)
    results = [unwritten(x.shape, kind), unwritten(x.shape, kind), unwritten((3, 8), kind)]
    ascending, descending, top = run_kernel(programs.sorts, [3], [x, *results], [1, 2, 3], {"COLUMNS": 128, "TOP": 8})
    expected = np.sort(x, 1)
    assert (ascending == expected).all()
    assert (descending == expected[:, ::-1]).all()
    assert (top == expected[:, ::-1][:, :8]).all()
