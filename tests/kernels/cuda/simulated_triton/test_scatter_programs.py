"""Gathers, scatters, atomics and locks by Triton on the simulated device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.cuda.simulated_triton import scatter_programs as programs
from tests.kernels.cuda.simulated_triton.launching import (
    TARGETS,
    compile_kernel,
    run_kernel,
    unwritten,
    values,
)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "i8", "i64"])
def test_gather_of_rows(kind: str) -> None:
    table, rows = values((20, 70), kind), np.array([3, 19, 0, 3], np.int32)
    arguments = [table, rows, unwritten((4, 70), kind), 70]
    (found,) = run_kernel(programs.gather_rows, [4], arguments, [2], {"BLOCK": 128})
    assert (found == table[rows]).all()


def test_gather_along_an_axis() -> None:
    x, places = values((3, 128), "fp32"), np.random.default_rng(0).integers(0, 128, (3, 128)).astype(np.int32)
    arguments = [x, places, unwritten(x.shape, "fp32")]
    (found,) = run_kernel(programs.gather_along, [3], arguments, [2], {"COLUMNS": 128})
    assert (found == np.take_along_axis(x, places, 1)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["fp32", "fp64", "fp16", "bf16", "i32"])
def test_scatter_add(kind: str, target: int) -> None:
    """Small integers, so that no order of the sums changes them.

    bf16 on sm_80 is a loop of comparing and exchanging whole words: an odd number of values ends in half a word, which
    would be read beyond the end.
    """
    x = values(500, "i32").astype(values(1, kind).dtype)
    places = np.random.default_rng(1).integers(0, 17, 500).astype(np.int32)
    arguments = [x, places, np.zeros(18, x.dtype), 500]
    (found,) = run_kernel(programs.scatter_add, [4], arguments, [2], {"BLOCK": 128}, target=target)
    expected = np.zeros(18)
    np.add.at(expected, places, x.astype(np.float64))
    assert (found.astype(np.float64) == expected).all()


def test_atomics_of_integers() -> None:
    x = np.random.default_rng(2).integers(1, 1 << 20, 300).astype(np.int32)
    start = np.array([0, 1 << 30, -1, 0, 0, 5, 0], np.int32)
    (found,) = run_kernel(programs.atomics, [3], [x, start, 300], [1], {"BLOCK": 128})
    expected = [x.max(), x.min(), np.bitwise_and.reduce(x), np.bitwise_or.reduce(x), np.bitwise_xor.reduce(x)]
    assert found[:5].tolist() == expected
    assert found[5] == 5 + x.sum()
    assert found[6] in x


def test_extremes_of_floats_are_atomics_of_integers() -> None:
    x = values(300, "fp32")
    (found,) = run_kernel(
        programs.float_extremes, [3], [x, np.array([-np.inf, np.inf], np.float32), 300], [1], {"BLOCK": 128}
    )
    assert found.tolist() == [x.max(), x.min()]


@pytest.mark.parametrize("target", TARGETS)
def test_lock(target: int) -> None:
    x = values(700, "i32").astype(np.float32)
    arguments = [x, np.zeros(1, np.int32), np.zeros(1, np.float32), 700]
    lock, total = run_kernel(programs.locked_sum, [6], arguments, [1, 2], {"BLOCK": 128}, target=target)
    assert total[0] == x.sum()
    assert lock[0] == 0


def test_histogram() -> None:
    x = np.random.default_rng(3).integers(0, 64, 900).astype(np.int32)
    (found,) = run_kernel(programs.histogram, [2], [x, np.zeros(64, np.int32), 900], [1], {"BINS": 64, "BLOCK": 512})
    assert (found == np.bincount(x, minlength=64)).all()


@pytest.mark.parametrize("kind", ["fp32", "bf16", "i8"])
def test_transpose(kind: str) -> None:
    x = values((70, 45), kind)
    arguments = [x, unwritten((45, 70), kind), 70, 45]
    (found,) = run_kernel(programs.transposed, [3, 2], arguments, [1], {"BLOCK": 32}, aligned=False)
    assert (found == x.T).all()


def test_adding_bf16_has_two_forms() -> None:
    x, places = values(500, "bf16"), np.zeros(500, np.int32)
    texts = [
        compile_kernel(programs.scatter_add, [x, places, x, 500], {"BLOCK": 128}, target, True, {}).ptx
        for target in TARGETS
    ]
    assert ".cas.b" in texts[0] and ".add.noftz.bf16" in texts[1]
