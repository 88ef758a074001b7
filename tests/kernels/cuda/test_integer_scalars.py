"""Every integer op and conversion in Triton, on edge values and random ones, against exact integers.

One kernel for each element type computes all rows as results of one elementwise op; each row is a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from tests.support.region_kernels import DTYPES
from tests.support.targets.scalar_rows import FLOATS, INTEGERS, pairs, run_rows, wrapped

Array = np.ndarray[Any, Any]


def divide(a: int, b: int) -> int:
    """A quotient, cut off; 0 by 0."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


SIGNED: dict[str, Callable[[int, int], int]] = {
    "divsi": divide,
    "floordivsi": lambda a, b: 0 if b == 0 else a // b,
    "ceildivsi": lambda a, b: 0 if b == 0 else -(-a // b),
    "remsi": lambda a, b: a - b * divide(a, b),
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "maxsi": max,
    "minsi": min,
}
UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "divui": divide,
    "remui": lambda a, b: a - b * divide(a, b),
    "ceildivui": lambda a, b: 0 if b == 0 else -(-a // b),
    "maxui": max,
    "minui": min,
}
SHIFTS: dict[str, Callable[[int, int, int], int]] = {
    "shli": lambda a, b, width: a << b,
    "shrsi": lambda a, b, width: a >> b,
    "shrui": lambda a, b, width: (a % (1 << width)) >> b,
}
BITS: dict[str, Callable[[int, int], int]] = {
    "absi": lambda a, width: abs(a),
    "ctlz": lambda a, width: width - (a % (1 << width)).bit_length(),
    "cttz": lambda a, width: width if a == 0 else (a & -a).bit_length() - 1,
    "ctpop": lambda a, width: (a % (1 << width)).bit_count(),
}
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


@lru_cache(maxsize=8)
def integer_results(element: str) -> tuple[Array, Array, dict[str, Array]]:
    x, y = pairs(element)
    width = int(element[1:])
    rows = {f"arith.{op}": (f"%y = arith.{op} %x0, %x1 : {element}", element) for op in (*SIGNED, *UNSIGNED)}
    rows |= {
        f"arith.{op}": (
            f"%c = arith.constant {width - 1} : {element}\n    %cm = arith.andi %x1, %c : {element}\n"
            f"    %y = arith.{op} %x0, %cm : {element}",
            element,
        )
        for op in SHIFTS
    }
    rows |= {f"math.{op}": (f"%y = math.{op} %x0 : {element}", element) for op in BITS}
    rows |= {f"cmpi {each}": (f"%y = arith.cmpi {each}, %x0, %x1 : {element}", "i1") for each in PREDICATES}
    found = run_rows(element, list(rows.values()), [x, y])
    return x, y, dict(zip(rows, found, strict=True))


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("op", [*SIGNED, *UNSIGNED, *SHIFTS, *BITS])
def test_integer_rows(op: str, element: str) -> None:
    x, y, results = integer_results(element)
    width = int(element[1:])
    found = results[f"math.{op}" if op in BITS else f"arith.{op}"]
    for a, b, c in zip(x.tolist(), y.tolist(), found.tolist(), strict=True):
        if op in SIGNED:
            wanted = SIGNED[op](a, b)
        elif op in UNSIGNED:
            wanted = UNSIGNED[op](a % (1 << width), b % (1 << width))
        elif op in SHIFTS:
            wanted = SHIFTS[op](a, b & width - 1, width)
        else:
            wanted = BITS[op](a, width)
        assert c == wrapped(wanted, width), (op, a, b)


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("predicate", PREDICATES)
def test_integer_comparisons(predicate: str, element: str) -> None:
    x, y, results = integer_results(element)
    if predicate.startswith("u"):
        x, y = (each.view(f"u{each.itemsize}") for each in (x, y))
    compare = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater}
    function = (compare | {"ge": np.greater_equal})[predicate[-2:]]
    assert (results[f"cmpi {predicate}"] == function(x, y)).all()


def test_booleans() -> None:
    """As a number with a sign a boolean is 0 or -1."""
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    a, b = -x.astype(np.int8), -y.astype(np.int8)
    ops: dict[str, Array] = {
        "addi": x ^ y, "subi": x ^ y, "muli": x & y, "andi": x & y, "ori": x | y, "xori": x ^ y, "maxsi": x & y,
        "minsi": x | y, "maxui": x | y, "minui": x & y,
    }  # fmt: skip
    compared = {
        "eq": x == y, "ne": x != y, "slt": a < b, "sle": a <= b, "sgt": a > b, "sge": a >= b, "ult": x < y,
        "ule": x <= y, "ugt": x > y, "uge": x >= y,
    }  # fmt: skip
    converted = {
        ("extsi", "i32"): a, ("extui", "i32"): x, ("sitofp", "f32"): a, ("uitofp", "bf16"): x, ("extsi", "i8"): a,
        ("uitofp", "f64"): x,
    }  # fmt: skip
    rows = [(f"%y = arith.{op} %x0, %x1 : i1", "i1") for op in ops]
    rows += [(f"%y = arith.cmpi {each}, %x0, %x1 : i1", "i1") for each in compared]
    rows += [(f"%y = arith.{op} %x0 : i1 to {type_}", type_) for op, type_ in converted]
    rows += [("%y = arith.select %x0, %x1, %x0 : i1", "i1")]
    wanted = [*ops.values(), *compared.values(), *converted.values(), x & y]
    for (text, _), found, each in zip(rows, run_rows("i1", rows, [x, y]), wanted, strict=True):
        np.testing.assert_array_equal(found.astype(np.float64), each.astype(np.float64), text)


@pytest.mark.parametrize("element", FLOATS)
def test_floats_become_integers(element: str) -> None:
    """Beyond the type: the smallest integer of 32 or 64 bits, of which a narrow type keeps the low bits."""
    x = np.concatenate([pairs(element)[0], np.array([1e9, -1e9, 1e20, -1e20, 300.7, -300.7, 2**31, -(2.0**31)])])
    with np.errstate(over="ignore"):
        x = x.astype(DTYPES[element])
    rows = [(f"%y = arith.fptosi %x0 : {element} to {integer}", integer) for integer in INTEGERS]
    for integer, found in zip(INTEGERS, run_rows(element, rows, [x]), strict=True):
        bits = 64 if integer == "i64" else 32
        for value, number in zip(x.astype(np.float64).tolist(), found.tolist(), strict=True):
            whole = int(value) if abs(value) < 2.0 ** (bits - 1) else -(2 ** (bits - 1))
            assert number == wrapped(whole, int(integer[1:])), value


@pytest.mark.parametrize("element", FLOATS)
def test_floats_become_unsigned_integers(element: str) -> None:
    most = 60000.0 if element == "f16" else 4e9
    x = np.array([0.0, 0.9, 1.5, 200.7, 255.0, most]).astype(DTYPES[element])
    rows = [(f"%y = arith.fptoui %x0 : {element} to {integer}", integer) for integer in INTEGERS]
    for integer, found in zip(INTEGERS, run_rows(element, rows, [x]), strict=True):
        for value, number in zip(x.astype(np.float64).tolist(), found.tolist(), strict=True):
            if value < 2.0 ** int(integer[1:]):
                assert number == wrapped(int(value), int(integer[1:])), value


@pytest.mark.parametrize("element", INTEGERS)
def test_integers_become_other_numbers(element: str) -> None:
    x, _ = pairs(element)
    width, plain = int(element[1:]), x.view(f"u{x.itemsize}")
    rows: dict[str, tuple[str, Array]] = {}
    for other in FLOATS:
        through = DTYPES[other] if other in ("f64", "f32") else np.float32
        with np.errstate(over="ignore"):
            for name, values in (("sitofp", x), ("uitofp", plain)):
                wanted = values.astype(through).astype(DTYPES[other])
                rows[f"%y = arith.{name} %x0 : {element} to {other}"] = other, wanted
    for other in INTEGERS:
        if int(other[1:]) > width:
            rows[f"%y = arith.extsi %x0 : {element} to {other}"] = other, x.astype(DTYPES[other])
            rows[f"%y = arith.extui %x0 : {element} to {other}"] = other, plain.astype(DTYPES[other])
        elif int(other[1:]) < width:
            rows[f"%y = arith.trunci %x0 : {element} to {other}"] = other, x.astype(DTYPES[other])
    rows[f"%y = arith.trunci %x0 : {element} to i1"] = "i1", x & 1 != 0
    same = {"i16": "f16", "i32": "f32", "i64": "f64"}.get(element)
    if same is not None:
        rows[f"%y = arith.bitcast %x0 : {element} to {same}"] = same, x.view(DTYPES[same])
    results = run_rows(element, [(text, type_) for text, (type_, _) in rows.items()], [x])
    for (text, (type_, wanted)), found in zip(rows.items(), results, strict=True):
        if "bitcast" in text:
            assert found.tobytes() == wanted.tobytes(), text
        else:
            np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64), f"{text} {type_}")
