"""Functions, arithmetic of all types, conversions and random numbers by Triton on the simulated device."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from tests.kernels.cuda.simulated_triton import number_programs as programs
from tests.kernels.cuda.simulated_triton.launching import (
    DTYPES,
    TARGETS,
    Array,
    assert_close,
    run_kernel,
    unwritten,
    values,
)

FUNCTIONS: dict[str, Callable[..., Array]] = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "lgamma": np.vectorize(math.lgamma, otypes=[np.float64]),
    "atan": np.arctan,
    "asin": lambda x: np.arcsin(x),
    "sinh": np.sinh,
    "cbrt": np.cbrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": np.floor,
    "round": np.rint,
    "sqrt": np.sqrt,
}
OF_TWO: dict[str, Callable[..., Array]] = {
    "pow": np.power,
    "atan2": np.arctan2,
    "fmod": np.fmod,
    "divide": np.divide,
    "fma": lambda a, b: a * b + a,
    "maximum": np.fmax,
}


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, kind: str) -> None:
    """Also of large arguments: those of sin and cos are reduced with a table, and with carries."""
    x = np.abs(values(300, kind)) + DTYPES[kind](1e-3)
    x = x / (x.max() + 1) if name == "asin" else x
    if name in ("sin", "cos", "tan"):
        x = np.concatenate([x, x * 1e6, -x * 1e9]).astype(DTYPES[kind])
    constants = {"NAME": name, "BLOCK": 128}
    arguments = [x, unwritten(x.size, kind), x.size]
    (found,) = run_kernel(programs.one_operand, [-(-x.size // 128)], arguments, [1], constants)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[name](x.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-6 if kind == "fp32" else 1e-14, atol=1e-7)


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two(name: str, kind: str) -> None:
    x, y = np.abs(values(300, kind, 1)), values(300, kind, 2)
    arguments = [x, y, unwritten(300, kind), 300]
    (found,) = run_kernel(programs.two_operands, [3], arguments, [2], {"NAME": name, "BLOCK": 128})
    expected = OF_TWO[name](x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-6 if kind == "fp32" else 1e-14, atol=1e-7)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_fast_functions_stay_near_whatever_the_card_gives(seed: int | None) -> None:
    x = np.abs(values(300, "fp32")) + np.float32(0.1)
    gpu = SimulatedGpu(approximate=seed)
    (found,) = run_kernel(programs.fast_functions, [3], [x, unwritten(300, "fp32"), 300], [1], {"BLOCK": 128}, gpu=gpu)
    wide = x.astype(np.float64)
    expected = np.exp(wide) + np.log(wide) + np.sin(wide) + np.cos(wide) + np.sqrt(wide) + 1 / np.sqrt(wide) + 1 / wide
    np.testing.assert_allclose(found, expected, rtol=4e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["fp32", "fp64", "fp16", "bf16"])
def test_arithmetic(kind: str, target: int) -> None:
    x, y = values(300, kind, 1), values(300, kind, 2)
    (found,) = run_kernel(
        programs.arithmetic, [3], [x, y, unwritten(300, kind), 300], [2], {"BLOCK": 128}, target=target
    )
    a, b = x.astype(np.float64), y.astype(np.float64)
    expected = np.where(a < b, a * b + a, np.maximum(a, b) - np.abs(a))
    assert_close(found, expected, {"fp32": 1e-6, "fp64": 1e-14, "fp16": 4e-3, "bf16": 3e-2}[kind])


def test_integers() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 1 << 31, 300).astype(np.uint32), generator.integers(1, 1 << 12, 300).astype(np.uint32)
    (found,) = run_kernel(programs.integers, [3], [x, y, unwritten(300, "u32"), 300], [2], {"BLOCK": 128})
    a, b = x.astype(object), y.astype(object)
    expected = (a // b) * 3 + a % b + (a >> (b & 7)) - (a << (b & 7)) + (a ^ b) + (a * b >> 32)
    assert found.tolist() == [each & 0xFFFFFFFF for each in expected]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("of", "to"),
    [
        ("fp32", "bf16"), ("fp32", "fp16"), ("bf16", "fp32"), ("fp16", "fp32"), ("fp64", "fp32"), ("fp32", "fp64"),
        ("bf16", "fp16"), ("fp8e5", "fp32"), ("fp8e5", "fp16"), ("fp8e5", "bf16"), ("fp32", "fp8e5"), ("fp16", "fp8e5"),
        ("i8", "fp32"), ("i32", "bf16"), ("i64", "fp32"), ("fp32", "i32"), ("fp32", "i8"), ("fp64", "i64"),
        ("i8", "bf16"), ("u8", "fp16"), ("i32", "i8"), ("i8", "i64"), ("fp8e4nv", "fp32"), ("fp32", "fp8e4nv"),
        ("fp8e4nv", "fp16"), ("fp8e4nv", "bf16"),
    ],
)  # fmt: skip
def test_conversions(of: str, to: str, target: int) -> None:
    if "fp8e4nv" in (of, to) and target == 80:
        pytest.skip("the compiler has this type from sm_89 on")
    x = values(300, of)
    (found,) = run_kernel(programs.converted, [3], [x, unwritten(300, to), 300], [1], {"BLOCK": 128}, target=target)
    middle = x.astype(np.float32) if of.startswith("fp8") or to.startswith("fp8") else x
    expected = middle.astype(DTYPES[to])
    assert (found.view(f"u{found.itemsize}") == expected.view(f"u{found.itemsize}")).all()


def test_dropout() -> None:
    """Random numbers of a counter: the same seed gives the same ones, and a tenth falls out."""
    x = np.ones(4096, np.float32)
    found = [
        run_kernel(programs.dropout, [16], [x, unwritten(4096, "fp32"), 4096, 0.1, seed], [1], {"BLOCK": 256})[0]
        for seed in (7, 7, 8)
    ]
    assert (found[0] == found[1]).all() and (found[0] != found[2]).any()
    assert 0.07 < (found[0] == 0).mean() < 0.13
    np.testing.assert_allclose(found[0][found[0] != 0], 1 / 0.9, rtol=1e-6)
