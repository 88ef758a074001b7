"""Elementwise kernels on the simulated device over all element types and their special values, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import DTYPES, tensor
from tests.support.suite.randomness import RANDOM
from tests.support.targets.cuda_kernels import compile_cuda, run_cuda

Array = np.ndarray[Any, Any]
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e-8, -6e-8, 3e4, -3e4)
FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8")


def elementwise(source: str, result: str, body: str, count: int = 2) -> RegionView:
    """A region of ``count`` vectors: ``body`` makes ``%y`` of ``%x0``, ``%x1``."""
    arguments = ", ".join(f"%a{n}: {tensor(['?'], source)}" for n in range(count))
    names = ", ".join(f"%a{n}" for n in range(count))
    types = ", ".join([tensor(["?"], source)] * count)
    block = ", ".join(f"%x{n}: {source}" for n in range(count))
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * (count + 1))
    out = tensor(["?"], result)
    return RegionView.from_text(
        f"""func.func @region({arguments}) -> {out} {{
  %c0 = arith.constant 0 : index
  %d = tensor.dim %a0, %c0 : {tensor(["?"], source)}
  %e = tensor.empty(%d) : {out}
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
    ins({names} : {types}) outs(%e : {out}) {{
  ^bb0({block}, %o: {result}):
    {body}
    linalg.yield %y : {result}
  }} -> {out}
  return %r : {out}
}}""",
        "elementwise",
    )


def run(view: RegionView, *inputs: Array) -> Array:
    (found,) = run_cuda(compile_cuda(view), inputs)
    return found


def pairs(element: str) -> tuple[Array, Array]:
    """Every special value with every other one, and random ones."""
    dtype = DTYPES[element]
    if element in INTEGERS:
        info = np.iinfo(dtype)
        values = np.array([info.min, info.min + 1, -1, 0, 1, 2, info.max - 1, info.max], dtype)
        other = RANDOM.integers(info.min, info.max, (2, 100), dtype, endpoint=True)
    else:
        values = np.array(SPECIAL).astype(dtype)
        other = RANDOM.standard_normal((2, 100)).astype(dtype)
    x, y = np.meshgrid(values, values)
    return np.concatenate([x.ravel(), other[0]]), np.concatenate([y.ravel(), other[1]])


FLOAT_OPS: dict[str, Callable[[Array, Array], Array]] = {
    "addf": np.add,
    "subf": np.subtract,
    "mulf": np.multiply,
    "divf": np.divide,
    "maximumf": np.maximum,
    "minimumf": np.minimum,
}


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_float_arithmetic_is_exact(op: str, element: str) -> None:
    x, y = pairs(element)
    found = run(elementwise(element, element, f"%y = arith.{op} %x0, %x1 : {element}"), x, y)
    wide = np.float64 if element == "f64" else np.float32
    with np.errstate(all="ignore"):
        expected = FLOAT_OPS[op](x.astype(wide), y.astype(wide)).astype(DTYPES[element])
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    zeros = expected == 0
    if op not in ("maximumf", "minimumf"):  # numpy takes either zero
        assert (np.signbit(found.astype(np.float64)) == np.signbit(expected.astype(np.float64)))[zeros].all()


INTEGER_OPS: dict[str, Callable[[Array, Array], Array]] = {
    "addi": np.add,
    "subi": np.subtract,
    "muli": np.multiply,
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "maxsi": np.maximum,
    "minsi": np.minimum,
}


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("op", INTEGER_OPS)
def test_integer_arithmetic_wraps_around(op: str, element: str) -> None:
    x, y = pairs(element)
    found = run(elementwise(element, element, f"%y = arith.{op} %x0, %x1 : {element}"), x, y)
    with np.errstate(over="ignore"):
        assert (found == INTEGER_OPS[op](x, y)).all()


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("op", ["divsi", "remsi", "floordivsi"])
def test_integer_division_is_that_of_the_cpu(op: str, element: str) -> None:
    """By 0 the quotient is 0 and the remainder x; the smallest by -1 is itself, wrapped around, and leaves 0."""
    x, y = pairs(element)
    found = run(elementwise(element, element, f"%y = arith.{op} %x0, %x1 : {element}"), x, y)
    width = 8 * np.dtype(DTYPES[element]).itemsize
    for a, b, c in zip(x.tolist(), y.tolist(), found.tolist(), strict=True):
        quotient = 0 if b == 0 else a // b if op == "floordivsi" else abs(a) // abs(b) * (1 if a * b > 0 else -1)
        value = a - b * quotient if op == "remsi" else quotient
        assert c == (value + (1 << width - 1)) % (1 << width) - (1 << width - 1), (a, b)


@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS])
def test_comparisons_and_bits(element: str) -> None:
    x, y = pairs(element)
    for predicate, compare in {"lt": np.less, "ge": np.greater_equal, "eq": np.equal}.items():
        if element in FLOATS:
            text = f"%y = arith.cmpf o{predicate}, %x0, %x1 : {element}"
        else:
            text = f"%y = arith.cmpi {'' if predicate == 'eq' else 's'}{predicate}, %x0, %x1 : {element}"
        assert (run(elementwise(element, "i1", text), x, y) == compare(x, y)).all()


def test_bits_are_bytes_of_0_and_1() -> None:
    x, y = (RANDOM.random(301) < 0.5 for _ in range(2))
    found = run(elementwise("i1", "i1", "%y = arith.xori %x0, %x1 : i1"), x, y)
    assert (found.view(np.uint8) == (x ^ y)).all()


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("integer", INTEGERS)
def test_floats_become_integers_as_on_the_cpu(element: str, integer: str) -> None:
    """Beyond the type: the smallest integer of 32 or 64 bits, of which a narrow type keeps the low bits."""
    x, _ = pairs(element)
    x = np.concatenate([x, np.array([1e9, -1e9, 1e20, -1e20, 300.7, -300.7]).astype(DTYPES[element])])
    found = run(elementwise(element, integer, f"%y = arith.fptosi %x0 : {element} to {integer}", 1), x)
    bits = 64 if integer == "i64" else 32
    for value, number in zip(x.astype(np.float64).tolist(), found.tolist(), strict=True):
        inside = abs(value) < 2.0 ** (bits - 1)  # false for NaN
        whole = int(value) if inside else -(1 << bits - 1)
        width = 8 * np.dtype(DTYPES[integer]).itemsize
        assert number == (whole + (1 << width - 1)) % (1 << width) - (1 << width - 1), value


@pytest.mark.parametrize("target", FLOATS)
@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS])
def test_conversions_to_floats_round_once(source: str, target: str) -> None:
    x, _ = pairs(source)
    narrow, wide = (np.dtype(DTYPES[each]).itemsize for each in (source, target))
    if source in INTEGERS:
        text = f"%y = arith.sitofp %x0 : {source} to {target}"
    elif narrow == wide:
        pytest.skip("16-bit floats become each other through f32")
    else:
        text = f"%y = arith.{'extf' if narrow < wide else 'truncf'} %x0 : {source} to {target}"
    found = run(elementwise(source, target, text, 1), x)
    with np.errstate(all="ignore"):
        expected = x.astype(DTYPES[target])
    if source in ("i64", "i32") and target in ("f16", "bf16"):  # numpy and ours go through f32 or f64
        np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=2**-7)
    else:
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "roundeven": np.rint,
}


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: str, element: str) -> None:
    x, _ = pairs(element)
    found = run(elementwise(element, element, f"%y = math.{function} %x0 : {element}", 1), x).astype(np.float64)
    with np.errstate(all="ignore"):
        expected = FUNCTIONS[function](x.astype(np.float64)).astype(DTYPES[element]).astype(np.float64)
    unit = {"f32": 2.0**-22, "f16": 2.0**-10, "bf16": 2.0**-7}[element]
    np.testing.assert_allclose(found, expected, rtol=unit, atol=1e-30 if element != "f16" else 6e-8)


@pytest.mark.parametrize("function", ["sqrt", "floor", "ceil", "roundeven", "absf", "rsqrt"])
def test_functions_of_f64(function: str) -> None:
    x, _ = pairs("f64")
    found = run(elementwise("f64", "f64", f"%y = math.{function} %x0 : f64", 1), x)
    reference = {"absf": np.abs, "roundeven": np.rint, "rsqrt": lambda x: 1 / np.sqrt(x)}  # type: ignore[var-annotated]
    with np.errstate(all="ignore"):
        expected = reference.get(function, getattr(np, function, None))(x)  # type: ignore[misc]
    np.testing.assert_allclose(found, expected, rtol=2.0**-51)


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
def test_powers(element: str) -> None:
    x, y = pairs(element)
    found = run(elementwise(element, element, f"%y = math.powf %x0, %x1 : {element}"), x, y).astype(np.float64)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(DTYPES[element]).astype(np.float64)
    unit = {"f32": 2.0**-22, "f16": 2.0**-10, "bf16": 2.0**-7}[element]
    np.testing.assert_allclose(found, expected, rtol=unit, atol=1e-30 if element != "f16" else 6e-8)


@pytest.mark.parametrize("exponent", [-3, 0, 1, 5])
def test_whole_powers(exponent: int) -> None:
    x, _ = pairs("f32")
    body = f"%n = arith.constant {exponent} : i64\n%y = math.fpowi %x0, %n : f32, i64"
    found = run(elementwise("f32", "f32", body, 1), x)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(found, np.power(x.astype(np.float64), exponent).astype(np.float32), rtol=2.0**-22)
