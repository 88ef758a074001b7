"""Witnesses of single regions: they agree with numpy, and see what kernels must not do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.dialect import ScatterOp
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.runtimes.cuda.image import Function, Launch
from lowerkit.runtimes.expressions import Expr
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.witness.interpreted import interpreter_witness
from lowerkit.targets.cuda.witness.placed import PlacedBuffer, PlacedLaunch, PlacedRegion
from lowerkit.targets.cuda.witness.witnesses import witnesses
from lowerkit.targets.witness import Witness
from tests.kernels.cpu.test_generic import CASES, TOLERANCE, arrays_for, region

Array = np.ndarray[Any, Any]

HEAD = """import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice


{helpers}@triton.jit
def lk_kernel({parameters}):
    at = tl.arange(0, 64)
"""
HELPER = """@triton.jit
def farther(a, b):
    return tl.where(tl.abs(b) > tl.abs(a), b, a)


"""
POINTERS = {"float32": "fp32", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "float64": "fp64"}


def interpreted(
    body: str, operands: Sequence[Array], result: Array, temporaries: Sequence[int] = (), helpers: str = ""
) -> Witness:
    """Runs lines of a kernel over ``at`` (64 places) on ``p0`` to ``pN``: operands, the result, temporaries of f32."""
    kinds = [POINTERS[array.dtype.name] for array in (*operands, result)] + ["fp32"] * len(temporaries)
    head = HEAD.format(helpers=helpers, parameters=", ".join(f"p{number}" for number in range(len(kinds))))
    source = head + "".join(f"    {line}\n" for line in body.splitlines())
    kernel = TritonKernel("handmade", source, tuple(kinds), 0)
    launch = Launch("k", list(range(len(kinds))), 1, 128)
    sizes: list[Expr] = [array.nbytes for array in operands]
    function = Function(sizes, [result.nbytes], list(temporaries), 0, [launch])
    buffers = [PlacedBuffer(f"operand {n}", array.nbytes, array.tobytes(), False) for n, array in enumerate(operands)]
    buffers += [PlacedBuffer("result 0", result.nbytes, None, True)]
    buffers += [PlacedBuffer(f"temporary {n}", size, None, True) for n, size in enumerate(temporaries)]
    planned = PlannedRegion(function, {"k": FastKernel(kernel)}, "handmade")
    return interpreter_witness(
        PlacedRegion(planned, buffers, [(result.dtype, result.shape)], [], [PlacedLaunch(launch, 1)])
    )


def results(body: str, operands: Sequence[Array], result: Array, helpers: str = "") -> Array:
    witness = interpreted(body, operands, result, helpers=helpers)
    assert witness.results is not None, witness
    return witness.results[0]


def offence(body: str, operands: Sequence[Array], result: Array, temporaries: Sequence[int] = ()) -> str:
    witness = interpreted(body, operands, result, temporaries)
    assert witness.results is None and witness.offence is not None, witness
    return str(witness.offence)


F32 = np.linspace(-3, 3, 64).astype(np.float32)


ADDED: Any = (
    [((3, 9), "f32"), ((None,), "i32"), ((3, None), "f32")],
    [(3, 9), (6,), (3, 6)],
    lambda x, i, u: ScatterOp.build(x, i, u, axis=1, kind="add"),
)
"""Numbers added one by one, how many is open: that is what no fast family takes."""


@pytest.mark.parametrize(
    "name",
    ["matmul_bf16", "conv_dynamic_channels_last", "attention_causal_dynamic", "log_softmax_bf16",
     "gather", "cumulative_dynamic", "scatter_add_dynamic"],
)  # fmt: skip
def test_witnesses_agree_with_numpy(name: str) -> None:
    operands, sizes, build = ADDED if name == "scatter_add_dynamic" else CASES[name]
    view, inputs = region(operands, build), arrays_for(operands, sizes)
    expected = interpret(view.clone_module(), inputs, function="region")
    found = witnesses(view, inputs, "sm_90")
    assert [each.results is None for each in found] == [name == "scatter_add_dynamic", False]
    assert "plain loops" in found[0].missing or name != "scatter_add_dynamic"
    for each in found:
        for actual, wanted, type_ in zip(each.results or (), expected, view.results, strict=bool(each.results)):
            limit = TOLERANCE.get(str(type_.element_type), 0.0)
            assert (actual.shape, actual.dtype) == (wanted.shape, wanted.dtype)
            np.testing.assert_allclose(
                actual.astype(np.float64), wanted.astype(np.float64), rtol=limit, atol=limit * 2, err_msg=each.name
            )


def test_a_result_that_is_changed_in_place_holds_its_operand_before() -> None:
    operands: list[Any] = [((40, 16), "f32"), ((5,), "i64"), ((5, 16), "f32")]
    view = region(operands, lambda x, i, u: ScatterOp.build(x, i, u, kind="set"))
    inputs = arrays_for(operands, [(40, 16), (5,), (5, 16)])
    inputs[1] = np.array([3, 39, 0, 7, 21])
    (expected,) = interpret(view.clone_module(), inputs, function="region")
    found = witnesses(view, inputs, "sm_80")
    assert [each.name for each in found if each.results is not None]
    for each in found:
        assert not each.offence, each
        if each.results is not None:
            np.testing.assert_array_equal(each.results[0], expected)


def test_libdevice_is_rounded_once() -> None:
    names = ["tanh", "exp", "log1p", "erf", "cbrt", "rint", "round", "rsqrt"]
    body = "\n".join(
        f"tl.store(p1 + {64 * n} + at, libdevice.{name}(tl.load(p0 + at)))" for n, name in enumerate(names)
    )
    x = np.linspace(0.5, 8, 64).astype(np.float32)
    found = results(body, [x], np.empty((len(names), 64), np.float32))
    wide = x.astype(np.float64)
    erf = np.array([math.erf(value) for value in wide])
    half_away = np.floor(wide + 0.5)
    exact = [np.tanh(wide), np.exp(wide), np.log1p(wide), erf, np.cbrt(wide), np.rint(wide), half_away, wide**-0.5]
    np.testing.assert_array_equal(found, np.array(exact).astype(np.float32))


def test_bits_are_counted() -> None:
    x = np.array([0, 1, -1, 2**30, 6, *range(59)], np.int32)
    names = ("clz", "ffs", "popc")
    body = "\n".join(
        f"tl.store(p1 + {64 * n} + at, libdevice.{name}(tl.load(p0 + at)))" for n, name in enumerate(names)
    )
    found = results(body, [x], np.empty((3, 64), np.int32))
    texts = [f"{int(value) & 0xFFFFFFFF:032b}" for value in x]
    assert found[0].tolist() == [32 - len(text.lstrip("0")) for text in texts]
    assert found[1].tolist() == [text[::-1].find("1") + 1 for text in texts]
    assert found[2].tolist() == [text.count("1") for text in texts]


def test_bf16_is_rounded_to_nearest_even_and_computed_as_numbers() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F7FFFFF, 0x7F7FFFFF, 0x00000001, 0x7FC00000], np.uint32)
    x = np.concatenate([bits.view(np.float32), -np.linspace(1, 2, 58).astype(np.float32)])
    y = np.linspace(-1, 1, 64).astype(ml_dtypes.bfloat16)
    body = "a = tl.load(p0 + at).to(tl.bfloat16)\nb = tl.load(p1 + at)\ntl.store(p2 + at, a)\n"
    body += "tl.store(p2 + 64 + at, a * b)\ntl.store(p2 + 128 + at, tl.where(a < b, a, b))"
    found = results(body, [x, y], np.empty((3, 64), ml_dtypes.bfloat16))
    narrow: Any = x.astype(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        wanted = [narrow, narrow * y, np.where(narrow < y, narrow, y)]
    for actual, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(actual.astype(np.float32), np.asarray(right).astype(np.float32))


def test_folds_and_scans_with_functions_of_their_own() -> None:
    body = "x = tl.reshape(tl.load(p0 + at), (4, 16))\n"
    body += "tl.store(p1 + tl.arange(0, 4), tl.reduce(x, 1, farther))\n"
    body += "tl.store(p1 + 4 + at, tl.reshape(tl.associative_scan(x, 1, farther), (64,)))"
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    found = results(body, [x], np.empty(68, np.float32), HELPER)
    rows = x.reshape(4, 16)
    scanned = [[max(row[: n + 1], key=abs) for n in range(16)] for row in rows]
    np.testing.assert_array_equal(found, np.concatenate([[row[-1] for row in scanned], np.ravel(scanned)]))


def test_places_outside_of_buffers() -> None:
    read = offence("tl.store(p1 + at, tl.load(p0 + at + 1))", [F32], np.empty(64, np.float32))
    assert "reads 4 bytes at byte 256 of operand 0, which has 256 bytes" in read
    assert "kernel.py:9: tl.store(p1 + at, tl.load(p0 + at + 1))" in read and "kernel k" in read
    written = offence("tl.store(p1 + at - 1, tl.load(p0 + at))", [F32], np.empty(64, np.float32))
    assert "writes 4 bytes at byte -4 of result 0" in written
    masked = interpreted("tl.store(p1 + at, tl.load(p0 + at + 1, mask=at < 63, other=2.0))", [F32], F32)
    np.testing.assert_array_equal((masked.results or [])[0], np.append(F32[1:], np.float32(2)))


def test_operands_are_not_written_and_what_is_read_was() -> None:
    assert "operand 0, which is only read" in offence("tl.store(p0 + at, at.to(tl.float32))", [F32], F32)
    unwritten = offence("tl.store(p1 + at, tl.load(p2 + at))", [F32], F32, [256])
    assert "reads 4 bytes at byte 0 of temporary 0, which nothing has written" in unwritten
    partly = offence("tl.store(p1 + at, tl.load(p0 + at), mask=at < 60)", [F32], F32)
    assert "nothing writes byte 240 of result 0, which has 256 bytes" in partly


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("tl.store(p1 + at, libdevice.j0(tl.load(p0 + at)))", "libdevice.j0 has no counterpart"),
        ("tl.atomic_add(p1 + at, tl.load(p0 + at))", "atomic accesses are not interpreted"),
        ("tl.store(p1 + at, undefined)", "NameError: name 'undefined' is not defined"),
    ],
)
def test_what_cannot_be_interpreted_is_silent(body: str, reason: str) -> None:
    witness = interpreted(body, [F32], F32)
    assert witness.results is None and witness.offence is None
    assert reason in witness.missing
