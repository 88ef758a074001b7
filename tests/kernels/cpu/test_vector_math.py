"""ULP error of the vector functions against float64, over all exponents, dense sweeps and the special values."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lowerkit.targets.cpu.harness import LoadedKernel
from lowerkit.targets.cpu.levels import cpu_features
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.cpu.text.kernel_text import Buffer, KernelText
from lowerkit.targets.cpu.text.text_builder import Value, float_literal
from lowerkit.targets.cpu.vector import math as vector_math
from lowerkit.targets.plan import DeviceCode
from tests.support.kernels import LEVELS

Array = np.ndarray[Any, np.dtype[np.float32]]
SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2**-149, -(2**-149), 2**-126, 3.4e38, -3.4e38, 0.5, -0.5, 2, -2],
    np.float32,
)
COUNT = 1 << 17


def dense(low: float, high: float) -> Array:
    return np.linspace(low, high, COUNT).astype(np.float32)


def all_exponents() -> Array:
    bits = np.random.default_rng(0).integers(0, 2**32, COUNT, dtype=np.uint64).astype(np.uint32)
    return bits.view(np.float32)


def torch_erf(x: Any) -> Any:
    return torch.erf(torch.from_numpy(x)).numpy()


# Name: reference in float64, dense ranges, greatest error in ULP that the docstring of vector_math states.
CASES: dict[str, tuple[Callable[[Any], Any], list[tuple[float, float]], float]] = {
    "exp": (np.exp, [(-110, 90)], 1.0),
    "exp2": (np.exp2, [(-155, 130)], 0.9),
    "expm1": (np.expm1, [(-20, 90), (-1, 1)], 1.5),
    "log": (np.log, [(0.5, 2), (0, 1e-38)], 0.9),
    "log2": (np.log2, [(0.5, 2)], 1.9),
    "log10": (np.log10, [(0.5, 2)], 2.1),
    "log1p": (np.log1p, [(-1, 1), (0, 100)], 1.6),
    "erf": (torch_erf, [(-5, 5), (-1.2, 1.2)], 1.1),
    "tanh": (np.tanh, [(-10, 10), (-1, 1)], 1.4),
    "sin": (np.sin, [(-10, 10), (-1e5, 1e5), (-1e6, 1e6)], 1.6),
    "cos": (np.cos, [(-10, 10), (-1e5, 1e5), (-1e6, 1e6)], 1.6),
    "atan": (np.arctan, [(-3, 3)], 1.4),
    "rsqrt": (lambda x: 1 / np.sqrt(x), [(0, 10)], 1.5),
}


def evaluate(function: Callable[..., Value], lanes: int, level: str, *inputs: Array) -> Array:
    """Runs ``function`` over arrays whose length is a multiple of ``lanes``."""
    text = KernelText()
    for number in range(len(inputs) + 1):
        text.lines.append(abi.load_pointer(f"pointer{number}", number).rstrip("\n"))
    buffers = [Buffer(Value(f"%pointer{number}", "!llvm.ptr"), "f32") for number in range(len(inputs) + 1)]
    with text.span(Value("%task_begin", "i64"), Value("%task_end", "i64"), lanes) as loop:
        result = function(text, *(text.read(buffer, loop.index, lanes) for buffer in buffers[:-1]))
        text.write(result, buffers[-1], loop.index)
    out = np.empty_like(inputs[0])
    plan = DeviceCode("test", abi.kernel_module(text.text()))
    call, _ = LoadedKernel(plan, cpu_features(level)).bind([*inputs, out])
    call(0, len(out))
    return out


def ulp_error(ours: Array, exact: Any) -> Any:
    """Error in units of the last place of the correctly rounded result; 0 where both are NaN, infinite or zero."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
        error = np.abs(ours.astype(np.float64) - exact) / unit
        same = (np.isnan(ours) & np.isnan(rounded)) | ((ours == rounded) & (~np.isfinite(rounded) | (rounded == 0)))
    error[same] = 0
    error[np.isnan(error)] = np.inf
    return error


def require_ulp(ours: Array, exact: Any, limit: float, inputs: Array) -> None:
    error = ulp_error(ours, exact)
    worst = int(np.argmax(error))
    found = f"{error[worst]:.3f} ULP at {inputs[worst]!r}: {ours[worst]!r}, exactly {exact[worst]!r}"
    assert error[worst] <= limit, found


@pytest.mark.parametrize("level", LEVELS[:1] + LEVELS[-1:])
@pytest.mark.parametrize("name", CASES)
def test_error_is_within_the_stated_ulp(name: str, level: str) -> None:
    reference, ranges, limit = CASES[name]
    inputs = np.concatenate([SPECIAL, all_exponents(), *(dense(*bounds) for bounds in ranges)])
    lanes = cpu_features(level).lanes(32)
    ours = evaluate(getattr(vector_math, name), lanes, level, inputs)
    with np.errstate(all="ignore"):
        require_ulp(ours, reference(inputs.astype(np.float64)), limit, inputs)


@pytest.mark.parametrize("name", CASES)
def test_scalars_give_the_same_bits_as_vectors(name: str) -> None:
    inputs = np.concatenate([SPECIAL, all_exponents()[:1024]])
    function = getattr(vector_math, name)
    scalar = evaluate(function, 1, LEVELS[0], inputs)
    vector = evaluate(function, 8, LEVELS[0], inputs)
    np.testing.assert_array_equal(scalar, vector)


@pytest.mark.parametrize("name", ["expm1", "erf", "tanh", "sin", "atan", "log1p"])
def test_odd_functions_keep_the_sign_of_zero(name: str) -> None:
    zeros = np.array([0.0, -0.0] * 4, np.float32)
    ours = evaluate(getattr(vector_math, name), 8, LEVELS[0], zeros)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(zeros))


def test_exp_normal_flushes_what_would_be_denormal() -> None:
    inputs = np.concatenate([dense(-87, 88), dense(-200, -87.4), SPECIAL[SPECIAL <= 88]])
    inputs = inputs[: len(inputs) // 8 * 8]
    ours = evaluate(vector_math.exp_normal, 8, LEVELS[0], inputs)
    normal = inputs >= -87.3
    require_ulp(ours[normal], np.exp(inputs[normal].astype(np.float64)), 1.0, inputs[normal])
    assert not ours[inputs < -87.3].any()


@pytest.mark.skipif("x86-64-v4" not in LEVELS, reason="this machine is below x86-64-v4")
def test_exp_for_bf16_has_more_digits_than_bf16() -> None:
    inputs = np.concatenate(
        [dense(-87.3, 88), dense(-300, -104), SPECIAL, np.array([89, 300, 3e38, np.inf] * 4, np.float32)]
    )
    inputs = inputs[: len(inputs) // 16 * 16]
    ours = evaluate(vector_math.exp_for_bf16, 16, "x86-64-v4", inputs)
    with np.errstate(over="ignore"):
        exact = np.exp(inputs.astype(np.float64))
    normal = (inputs >= -87.3) & (inputs <= 88)
    assert (np.abs(ours[normal] / exact[normal] - 1) <= 2.0**-17).all()
    assert not ours[inputs < -104].any()
    assert np.isposinf(ours[inputs >= 89]).all()
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(inputs))


@pytest.mark.parametrize("level", LEVELS[:1] + LEVELS[-1:])
def test_power(level: str) -> None:
    generator = np.random.default_rng(1)
    x = np.concatenate([np.repeat(SPECIAL, 16), generator.uniform(0, 10, COUNT).astype(np.float32), all_exponents()])
    y = np.concatenate(
        [
            np.tile(SPECIAL, 16),
            generator.uniform(-30, 30, COUNT).astype(np.float32),
            generator.integers(-5, 6, COUNT).astype(np.float32),
        ]
    )
    ours = evaluate(vector_math.power, cpu_features(level).lanes(32), level, x, y)
    with np.errstate(all="ignore"):
        require_ulp(ours, np.power(x.astype(np.float64), y.astype(np.float64)), 0.6, x)


@pytest.mark.parametrize("value", [1.0, -0.0, 1e-40, 3.4e38, 1e300, -1e300, float("inf"), 0.1])
def test_literals_round_as_numpy_does(value: float) -> None:
    with np.errstate(over="ignore"):
        wanted = struct.unpack("<I", np.float32(value).tobytes())[0]
    assert int(float_literal(value, "f32"), 16) == wanted
