"""Approximations with a seed: within the error that the manual states, not the nearest value, always the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from tests.unit.runtimes.cuda.number_reference import as_array, operands
from tests.unit.runtimes.cuda.ptx_programs import instruction_text, run_instructions

Array = np.ndarray[Any, Any]
Error = Callable[[Array, Array], Array]


def ulps(count: float) -> Error:
    return lambda x, exact: count * 2.0 ** (np.maximum(np.frexp(exact)[1] - 1, -126) - 23.0)


def relative(exponent: float) -> Error:
    return lambda x, exact: np.abs(exact) * 2.0**exponent


def of_wave(x: Array, exact: Array) -> Array:
    nearest = 2.0 ** (np.maximum(np.frexp(exact)[1] - 1, -126) - 24.0)
    size = np.abs(x)
    return np.where(size < 2 * np.pi, 2.0**-20.5, np.where(size < 100 * np.pi, 2.0**-14.7, nearest))


def of_logarithm(x: Array, exact: Array) -> Array:
    return np.where((x > 0.5) & (x < 2), 2.0**-22, np.abs(exact) * 2.0**-22)


APPROXIMATIONS: dict[str, tuple[Callable[..., Array], Error]] = {
    "ex2.approx.f32": (np.exp2, relative(-22)),
    "ex2.approx.ftz.f32": (np.exp2, relative(-22)),
    "lg2.approx.f32": (np.log2, of_logarithm),
    "sin.approx.f32": (np.sin, of_wave),
    "cos.approx.f32": (np.cos, of_wave),
    "tanh.approx.f32": (np.tanh, relative(-11)),
    "rcp.approx.f32": (lambda x: 1 / x, ulps(1)),
    "sqrt.approx.f32": (np.sqrt, relative(-23)),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), relative(-22.9)),
    "div.full.f32": (lambda x, y: x / y, ulps(2)),
    "div.approx.f32": (lambda x, y: x / y, ulps(2)),
}


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of values that are infinite or none


def run(instruction: str, columns: list[Array], kind: str, seed: int | None) -> Array:
    names = ", ".join(f"%a{number}" for number in range(len(columns)))
    ptx = instruction_text(f"{instruction} %d0, {names};", [kind] * len(columns), [kind])
    gpu = SimulatedGpu(approximate=seed)
    count = columns[0].size
    addresses = [gpu.allocate(column.nbytes) for column in columns]
    for address, column in zip(addresses, columns, strict=True):
        gpu.write(address, column)
    result = gpu.allocate(columns[0].nbytes)
    gpu.launch(gpu.load(ptx).kernels["k"], [-(-count // 64)], [64], [*addresses, result, count])
    return gpu.read(result, columns[0].nbytes).view(columns[0].dtype)


@pytest.mark.parametrize("instruction", APPROXIMATIONS)
def test_error_is_within_what_is_stated(instruction: str) -> None:
    function, error = APPROXIMATIONS[instruction]
    columns = [
        as_array(column, "f32") for column in operands(["f32", "f32"] if "div" in instruction else ["f32"], 3000)
    ]
    values = [column.view(np.float32).astype(np.float64) for column in columns]
    if "ftz" in instruction:
        values = [np.where(np.abs(value) < 2.0**-126, 0.0, value) for value in values]
    with np.errstate(all="ignore"):
        exact = function(*values)
        nearest = exact.astype(np.float32)
    keep = np.isfinite(nearest) & (exact != 0)
    for value in values:
        keep &= np.isfinite(value) & (value != 0)
    if "ftz" in instruction:
        keep &= np.abs(exact) >= 2.0**-126
    if instruction == "div.approx.f32":
        keep &= np.abs(values[1]) <= 2.0**126
    found = [run(instruction, columns, "f32", seed).view(np.float32) for seed in (1, 1, 2)]
    assert (found[0].view(np.uint32) == found[1].view(np.uint32)).all()
    if instruction != "sqrt.approx.f32":  # its error leaves hardly any other value
        assert (found[0][keep] != found[2][keep]).any()
        assert (found[0][keep] != nearest[keep]).mean() > 0.05
    for each in found[1:]:
        limit = np.maximum(error(values[0], exact), 2.0 ** (np.maximum(np.frexp(exact)[1] - 1, -126) - 24.0))
        assert (np.abs(each.astype(np.float64) - exact)[keep] <= limit[keep]).all()
    plain = run(instruction, columns, "f32", None).view(np.float32)
    stated = ~np.isfinite(exact) | (exact == 0)
    for value in values:
        stated |= ~np.isfinite(value) | (value == 0)
    both = np.stack([plain[stated], found[0][stated]])
    assert np.array_equal(both[0], both[1], equal_nan=True), "what is stated does not change"


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize(
    ("instruction", "function", "limit"),
    [
        ("ex2.approx.f16", np.exp2, lambda exact: np.abs(exact) * 2.0**-9.9),
        ("tanh.approx.f16", np.tanh, lambda exact: np.full(exact.shape, 2.0**-10.987)),
    ],
)
def test_halves(
    instruction: str, function: Callable[[Array], Array], limit: Callable[[Array], Array], seed: int | None
) -> None:
    (column,) = operands(["f16"], 1000)
    bits = as_array(column, "f16")
    pairs = bits[: bits.size // 2 * 2]
    x = pairs.view(np.float16).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = function(x)
        keep = np.isfinite(exact.astype(np.float16)) & (np.abs(exact) > 2.0**-14) & (x != 0)
    found = run(instruction, [pairs], "f16", seed).view(np.float16).astype(np.float64)
    assert (np.abs(found - exact)[keep] <= limit(exact)[keep]).all()
    packed = run(f"{instruction}x2", [pairs.view(np.uint32)], "f16x2", seed).view(np.float16).astype(np.float64)
    assert (np.abs(packed - exact)[keep] <= limit(exact)[keep]).all()


def test_bf16_by_its_own_instructions() -> None:
    (column,) = operands(["bf16"], 500)
    bits = as_array(column, "bf16")
    x = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    for instruction, function in (("ex2.approx.ftz.bf16", np.exp2), ("tanh.approx.bf16", np.tanh)):
        found = (run(instruction, [bits], "bf16", None).astype(np.uint32) << 16).view(np.float32)
        with np.errstate(all="ignore"):
            exact = function(x)
        keep = np.isfinite(exact) & (np.abs(exact) > 2.0**-120) & (np.abs(exact) < 3e38)
        np.testing.assert_allclose(found[keep], exact[keep], rtol=2.0**-8)


def test_f64_in_its_high_half() -> None:
    (column,) = operands(["f64"], 500)
    values = as_array(column, "f64")
    (reciprocal, root) = run_instructions(
        "rcp.approx.ftz.f64 %d0, %a0; rsqrt.approx.ftz.f64 %d1, %a0;", [("b64", values)], ["b64", "b64"]
    )
    x = values.view(np.float64)
    plain = np.isfinite(x) & (np.abs(x) > 1e-300) & (np.abs(x) < 1e300)
    for found, exact in ((reciprocal, 1 / x[plain]), (root, 1 / np.sqrt(np.where(x > 0, x, np.nan)[plain]))):
        positive = np.isfinite(exact)
        assert (found[plain][positive] & np.uint64(0xFFFFFFFF) == 0).all()
        np.testing.assert_allclose(found.view(np.float64)[plain][positive], exact[positive], rtol=2.0**-19)
