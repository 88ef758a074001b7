"""The interpreter on linalg: generic ops in any order of loops, whole or in chunks, and named ops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.dialect.interpreter import linalg as interpret_linalg
from tests.unit.dialect.interpreter.interpreter_text import floats

GENERIC = """
func.func @main(%a: tensor<{0}>, %b: tensor<{1}>, %c: tensor<{2}>) -> tensor<{2}> {{
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
    ins(%a, %b : tensor<{0}>, tensor<{1}>) outs(%c : tensor<{2}>) {{
  ^bb0(%x: {left}, %y: {right}, %z: {out}):
    {body}
  }} -> tensor<{2}>
  return %r : tensor<{2}>
}}"""


def generic(
    shapes: tuple[str, str, str], loops: str, maps: list[str], iterators: str, body: str, kinds: str = "f32 f32 f32"
) -> str:
    left, right, out = kinds.split()
    return GENERIC.format(
        *[f"{shape}{'x' if shape else ''}{kind}" for shape, kind in zip(shapes, (left, right, out), strict=True)],
        maps=", ".join(f"affine_map<({loops}) -> ({results})>" for results in maps),
        iterators=", ".join('"parallel"' if letter == "p" else '"reduction"' for letter in iterators),
        left=left,
        right=right,
        out=out,
        body=body,
    )


MULTIPLY_ADD = "%p = arith.mulf %x, %y : f32 %s = arith.addf %z, %p : f32 linalg.yield %s : f32"


@pytest.mark.parametrize("chunk", [1 << 23, 7])
class TestGeneric:
    @pytest.fixture(autouse=True)
    def small_chunks(self, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(interpret_linalg, "_CHUNK", chunk)

    def test_broadcast_and_transpose(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 5, 4), floats(random, 1, 5), floats(random, 4, 5)
        text = generic(
            ("5x4", "1x5", "4x5"),
            "i, j",
            ["j, i", "0, j", "i, j"],
            "pp",
            "%s = arith.subf %x, %y : f32 linalg.yield %s : f32",
        )
        np.testing.assert_array_equal(run(text, a, b, c)[0], a.T - b)

    def test_reads_the_output(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 6), floats(random, 6), floats(random, 6)
        text = generic(("6", "6", "6"), "i", ["i", "i", "i"], "p", MULTIPLY_ADD)
        np.testing.assert_array_equal(run(text, a, b, c)[0], c + a * b)

    def test_contraction(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 3, 4, 5), floats(random, 6, 3, 5), floats(random, 3, 6, 4)
        text = generic(
            ("3x4x5", "6x3x5", "3x6x4"), "b, m, n, k", ["b, m, k", "n, b, k", "b, n, m"], "pppr", MULTIPLY_ADD
        )
        wanted = c + np.einsum("bmk,nbk->bnm", a.astype(np.float64), b.astype(np.float64))
        np.testing.assert_allclose(run(text, a, b, c)[0], wanted, rtol=1e-6)

    def test_contraction_of_i8(self, run: Any, random: np.random.Generator) -> None:
        a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 40), (40, 2)))
        body = (
            "%u = arith.extsi %x : i8 to i32 %v = arith.extsi %y : i8 to i32 %p = arith.muli %u, %v : i32 "
            "%s = arith.addi %p, %z : i32 linalg.yield %s : i32"
        )
        text = generic(("3x40", "40x2", "3x2"), "m, n, k", ["m, k", "k, n", "m, n"], "ppr", body, "i8 i8 i32")
        wanted = a.astype(np.int32) @ b.astype(np.int32) + 5
        np.testing.assert_array_equal(run(text, a, b, np.full((3, 2), 5, np.int32))[0], wanted)

    def test_sum_over_a_loop_that_one_operand_lacks(self, run: Any, random: np.random.Generator) -> None:
        """Looks like a contraction, but the left operand alone has the second reduction loop."""
        a, b, c = floats(random, 3, 4), floats(random, 3), floats(random)
        text = generic(("3x4", "3", ""), "i, j", ["i, j", "i", ""], "rr", MULTIPLY_ADD)
        np.testing.assert_allclose(run(text, a, b, c)[0], c + (a * b[:, None]).sum(), rtol=1e-5)

    def test_window(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 11), floats(random, 3), np.zeros(4, np.float32)
        text = generic(("11", "3", "4"), "o, k", ["o * 2 + k * 2", "k", "o"], "pr", MULTIPLY_ADD)
        wanted = [sum(a[2 * o + 2 * k] * b[k] for k in range(3)) for o in range(4)]
        np.testing.assert_allclose(run(text, a, b, c)[0], wanted, rtol=1e-5, atol=1e-6)

    def test_reversed_window(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 6), floats(random, 3), np.zeros(4, np.float32)
        text = generic(("6", "3", "4"), "o, k", ["o - k + 2", "k", "o"], "pr", MULTIPLY_ADD)
        np.testing.assert_allclose(run(text, a, b, c)[0], np.convolve(a, b, "valid"), rtol=1e-5, atol=1e-6)

    def test_maps_that_are_not_linear(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 3), floats(random, 2), floats(random, 6)
        text = generic(
            ("3", "2", "6"),
            "i",
            ["i floordiv 2", "i mod 2", "i"],
            "p",
            "%s = arith.addf %x, %y : f32 linalg.yield %s : f32",
        )
        np.testing.assert_array_equal(run(text, a, b, c)[0], np.repeat(a, 2) + np.tile(b, 3))

    def test_fold_with_expression(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 4, 5), floats(random, 4), floats(random, 4)
        square = "%d = arith.subf %x, %y : f32 %q = arith.mulf %d, %d : f32"
        body = f"{square} %s = arith.addf %q, %z : f32 linalg.yield %s : f32"
        text = generic(("4x5", "4", "4"), "i, j", ["i, j", "i", "i"], "pr", body)
        np.testing.assert_allclose(run(text, a, b, c)[0], c + ((a - b[:, None]) ** 2).sum(1), rtol=1e-5)

    def test_fold_of_constants_counts_the_loop(self, run: Any, random: np.random.Generator) -> None:
        """The expression is the same everywhere: it still counts once for each point."""
        body = "%one = arith.constant 1.0 : f32 %s = arith.addf %z, %one : f32 linalg.yield %s : f32"
        text = generic(("4x5", "4", "4"), "i, j", ["i, j", "i", "i"], "pr", body)
        found = run(text, floats(random, 4, 5), floats(random, 4), np.zeros(4, np.float32))[0]
        np.testing.assert_array_equal(found, np.full(4, 5.0))

    def test_subtraction_is_no_fold(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 4, 5), floats(random, 4), floats(random, 4)
        body = "%s = arith.subf %z, %x : f32 linalg.yield %s : f32"
        text = generic(("4x5", "4", "4"), "i, j", ["i, j", "i", "i"], "pr", body)
        np.testing.assert_allclose(run(text, a, b, c)[0], c - a.sum(1), rtol=1e-5, atol=1e-6)

    def test_accumulator_used_twice_is_no_fold(self, run: Any, random: np.random.Generator) -> None:
        a, b, c = floats(random, 4, 5), floats(random, 4), floats(random, 4)
        body = "%t = arith.mulf %z, %x : f32 %s = arith.addf %z, %t : f32 linalg.yield %s : f32"
        text = generic(("4x5", "4", "4"), "i, j", ["i, j", "i", "i"], "pr", body)
        np.testing.assert_allclose(run(text, a, b, c)[0], c * np.prod(1 + a, 1), rtol=1e-5)

    def test_bf16_sum_rounds_at_every_step(self, run: Any, random: np.random.Generator) -> None:
        """300 ones in bf16 stop at 256, because 257 is not a bf16 number."""
        ones = np.ones(300, ml_dtypes.bfloat16)
        text = generic(
            ("300", "300", ""),
            "i",
            ["i", "i", ""],
            "r",
            "%s = arith.addf %z, %x : bf16 linalg.yield %s : bf16",
            "bf16 bf16 bf16",
        )
        assert float(run(text, ones, ones, np.zeros((), ml_dtypes.bfloat16))[0]) == 256.0

    def test_loop_indices(self, run: Any, random: np.random.Generator) -> None:
        body = (
            "%i = linalg.index 0 : index %j = linalg.index 1 : index %w = arith.constant 10 : index "
            "%k = arith.muli %i, %w : index %l = arith.addi %k, %j : index %m = arith.index_cast %l : index to i32 "
            "%s = arith.sitofp %m : i32 to f32 linalg.yield %s : f32"
        )
        text = generic(("3x4", "3x4", "3x4"), "i, j", ["i, j", "i, j", "i, j"], "pp", body)
        zeros = np.zeros((3, 4), np.float32)
        wanted = np.arange(3)[:, None] * 10 + np.arange(4)
        np.testing.assert_array_equal(run(text, zeros, zeros, zeros)[0], wanted)

    def test_control_flow_in_the_body(self, run: Any, random: np.random.Generator) -> None:
        body = (
            "%more = arith.cmpf ogt, %x, %y : f32 "
            "%s = scf.if %more -> f32 { %t = arith.mulf %x, %x : f32 scf.yield %t : f32 } else { scf.yield %y : f32 } "
            "linalg.yield %s : f32"
        )
        a, b = floats(random, 3, 4), floats(random, 4)
        text = generic(("3x4", "4", "3x4"), "i, j", ["i, j", "j", "i, j"], "pp", body)
        np.testing.assert_array_equal(run(text, a, b, np.zeros_like(a))[0], np.where(a > b, a * a, b))


@pytest.mark.parametrize("empty", [0, 3])
def test_empty_reductions(empty: int, run: Any, random: np.random.Generator) -> None:
    a, b, c = floats(random, 2, empty), floats(random, empty, 3), floats(random, 2, 3)
    text = generic((f"2x{empty}", f"{empty}x3", "2x3"), "m, n, k", ["m, k", "k, n", "m, n"], "ppr", MULTIPLY_ADD)
    np.testing.assert_allclose(run(text, a, b, c)[0], c + a @ b, rtol=1e-5)


def test_named_ops(run: Any, random: np.random.Generator) -> None:
    a, b = floats(random, 3, 4), floats(random, 4, 5)
    (product, turned, spread) = run(
        """
        func.func @main(%a: tensor<3x4xf32>, %b: tensor<4x5xf32>)
            -> (tensor<3x5xf32>, tensor<4x3xf32>, tensor<2x3x4xf32>) {
          %zero = arith.constant 0.0 : f32
          %e = tensor.empty() : tensor<3x5xf32>
          %f = linalg.fill ins(%zero : f32) outs(%e : tensor<3x5xf32>) -> tensor<3x5xf32>
          %m = linalg.matmul ins(%a, %b : tensor<3x4xf32>, tensor<4x5xf32>)
            outs(%f : tensor<3x5xf32>) -> tensor<3x5xf32>
          %g = tensor.empty() : tensor<4x3xf32>
          %t = linalg.transpose ins(%a : tensor<3x4xf32>) outs(%g : tensor<4x3xf32>) permutation = [1, 0]
          %h = tensor.empty() : tensor<2x3x4xf32>
          %s = linalg.broadcast ins(%a : tensor<3x4xf32>) outs(%h : tensor<2x3x4xf32>) dimensions = [0]
          return %m, %t, %s : tensor<3x5xf32>, tensor<4x3xf32>, tensor<2x3x4xf32>
        }""",
        a,
        b,
    )
    np.testing.assert_allclose(product, a @ b, rtol=1e-5)
    np.testing.assert_array_equal(turned, a.T)
    np.testing.assert_array_equal(spread, np.broadcast_to(a, (2, 3, 4)))


def test_named_convolution(run: Any, random: np.random.Generator) -> None:
    x, w = floats(random, 1, 2, 7, 6), floats(random, 3, 2, 3, 2)
    (found,) = run(
        """
        func.func @main(%x: tensor<1x2x7x6xf32>, %w: tensor<3x2x3x2xf32>) -> tensor<1x3x3x5xf32> {
          %c = arith.constant dense<0.0> : tensor<1x3x3x5xf32>
          %r = linalg.conv_2d_nchw_fchw {strides = dense<[2, 1]> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
            ins(%x, %w : tensor<1x2x7x6xf32>, tensor<3x2x3x2xf32>) outs(%c : tensor<1x3x3x5xf32>) -> tensor<1x3x3x5xf32>
          return %r : tensor<1x3x3x5xf32>
        }""",
        x,
        w,
    )
    wanted = np.zeros((1, 3, 3, 5))
    for f, i, j in np.ndindex(3, 3, 5):
        wanted[0, f, i, j] = (x[0, :, 2 * i : 2 * i + 3, j : j + 2] * w[f]).sum()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
