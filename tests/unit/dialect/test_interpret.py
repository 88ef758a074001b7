"""The interpreter computes what numpy and Python say, rounds as the IR says, and rejects what it cannot run."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.dialect import interpret_linalg
from lowerkit.dialect.interpret import interpret
from lowerkit.errors import InputError, UnsupportedError, VerifyError
from lowerkit.mlir import ir


@pytest.fixture
def run(context: ir.Context) -> Any:
    def run(text: str, *inputs: Any, **options: Any) -> list[Any]:
        module = ir.Module.parse(text)
        before = str(module)
        results = interpret(module, inputs, **options)
        assert str(module) == before, "the interpreter changed the module"
        return results

    return run


def elementwise(op: str, kinds: list[str], result: str) -> str:
    names = [f"%a{index}" for index in range(len(kinds))]
    arguments = ", ".join(f"{name}: tensor<?x{kind}>" for name, kind in zip(names, kinds, strict=True))
    scalars = ", ".join(f"%s{index}: {kind}" for index, kind in enumerate(kinds))
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (len(kinds) + 1))
    body = op
    for index in range(len(kinds)):
        body = body.replace(f"${index}", f"%s{index}")
    types = ", ".join(f"tensor<?x{kind}>" for kind in kinds)
    return f"""
      func.func @main({arguments}) -> tensor<?x{result}> {{
        %c0 = arith.constant 0 : index
        %n = tensor.dim %a0, %c0 : tensor<?x{kinds[0]}>
        %e = tensor.empty(%n) : tensor<?x{result}>
        %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
          ins({", ".join(names)} : {types}) outs(%e : tensor<?x{result}>) {{
        ^bb0({scalars}, %o: {result}):
          %v = {body}
          linalg.yield %v : {result}
        }} -> tensor<?x{result}>
        return %r : tensor<?x{result}>
      }}"""


BF16 = ml_dtypes.bfloat16

VALUES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.5, 3.7, 1e-3, 100.0, np.inf, -np.inf, np.nan], np.float32)
OTHERS = np.array([1.0, 2.0, -1.0, 3.0, np.nan, 2.0, 2.5, -3.7, 7.0, np.inf, np.inf, 1.0, 0.0], np.float32)
WHOLE = np.array([0, 1, -1, 7, -7, 100, -128, 127], np.int8)
DIVISORS = np.array([1, 2, 3, -2, 2, 7, 5, -3], np.int8)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("addf", np.add),
        ("subf", np.subtract),
        ("mulf", np.multiply),
        ("divf", np.divide),
        ("remf", np.fmod),
        ("maximumf", np.maximum),
        ("minimumf", np.minimum),
        ("maxnumf", np.fmax),
        ("minnumf", np.fmin),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_float_arithmetic(op: str, function: Any, dtype: Any, run: Any) -> None:
    kind = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[np.dtype(dtype).name]
    left, right = VALUES.astype(dtype), OTHERS.astype(dtype)
    (found,) = run(elementwise(f"arith.{op} $0, $1 : {kind}", [kind, kind], kind), left, right)
    with np.errstate(all="ignore"):
        wanted = function(left.astype(np.float64), right.astype(np.float64)).astype(dtype)
    assert found.dtype == wanted.dtype
    # As float64: numpy does not know that a bf16 NaN is one.
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("acos", math.acos),
        ("acosh", math.acosh),
        ("asin", math.asin),
        ("asinh", math.asinh),
        ("atan", math.atan),
        ("atanh", math.atanh),
        ("cbrt", math.cbrt),
        ("cos", math.cos),
        ("cosh", math.cosh),
        ("erf", math.erf),
        ("erfc", math.erfc),
        ("exp", math.exp),
        ("exp2", math.exp2),
        ("expm1", math.expm1),
        ("log", math.log),
        ("log10", math.log10),
        ("log1p", math.log1p),
        ("log2", math.log2),
        ("rsqrt", lambda x: 1 / math.sqrt(x)),
        ("sin", math.sin),
        ("sinh", math.sinh),
        ("sqrt", math.sqrt),
        ("tan", math.tan),
        ("tanh", math.tanh),
    ],
)
def test_elementary_functions(op: str, function: Any, run: Any) -> None:
    points = np.array([-3.3, -0.7, 0.0, 0.25, 0.99, 1.0, 1.5, 4.0], np.float64)
    wanted: list[float] = []
    for point in points.tolist():
        try:
            wanted.append(function(point))
        except (ValueError, ZeroDivisionError):
            wanted.append(math.nan)
    defined = np.isfinite(wanted)
    (found,) = run(elementwise(f"math.{op} $0 : f64", ["f64"], "f64"), points)
    np.testing.assert_allclose(found[defined], np.array(wanted)[defined], rtol=1e-14)
    assert not np.isfinite(found[~defined]).any()
    half = points.astype(np.float16)
    (found,) = run(elementwise(f"math.{op} $0 : f16", ["f16"], "f16"), half)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found[defined], np.array(wanted)[defined], rtol=4e-3, atol=4e-3)


def test_rounding_functions(run: Any) -> None:
    points = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4, -2.6, 0.0], np.float32)
    wanted = {
        "round": [-3, -2, -1, 1, 2, 3, 2, -3, 0],
        "roundeven": [-2, -2, 0, 0, 2, 2, 2, -3, 0],
        "floor": [-3, -2, -1, 0, 1, 2, 2, -3, 0],
        "ceil": [-2, -1, 0, 1, 2, 3, 3, -2, 0],
        "trunc": [-2, -1, 0, 0, 1, 2, 2, -2, 0],
        "absf": [2.5, 1.5, 0.5, 0.5, 1.5, 2.5, 2.4, 2.6, 0],
    }
    for op, values in wanted.items():
        (found,) = run(elementwise(f"math.{op} $0 : f32", ["f32"], "f32"), points)
        np.testing.assert_array_equal(found, np.array(values, np.float32), op)


def test_bf16_rounds_at_every_op(run: Any) -> None:
    """(256 + 1) - 256: bf16 has eight bits, so 257 rounds to 256 and the answer is 0."""
    text = elementwise("arith.subf %t, $0 : bf16", ["bf16", "bf16"], "bf16").replace(
        "%v =", "%t = arith.addf %s0, %s1 : bf16\n %v ="
    )
    (found,) = run(text, np.array([256.0], ml_dtypes.bfloat16), np.array([1.0], ml_dtypes.bfloat16))
    assert float(found[0]) == 0.0


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("addi", lambda a, b: a + b),
        ("subi", lambda a, b: a - b),
        ("muli", lambda a, b: a * b),
        ("divsi", lambda a, b: int(a / b)),
        ("divui", lambda a, b: (a % 256) // (b % 256)),
        ("floordivsi", lambda a, b: a // b),
        ("ceildivsi", lambda a, b: -(-a // b)),
        ("ceildivui", lambda a, b: -(-(a % 256) // (b % 256))),
        ("remsi", lambda a, b: int(math.fmod(a, b))),
        ("remui", lambda a, b: (a % 256) % (b % 256)),
        ("andi", lambda a, b: a & b),
        ("ori", lambda a, b: a | b),
        ("xori", lambda a, b: a ^ b),
        ("maxsi", max),
        ("minsi", min),
        ("maxui", lambda a, b: max(a % 256, b % 256)),
        ("minui", lambda a, b: min(a % 256, b % 256)),
    ],
)
def test_integer_arithmetic(op: str, function: Any, run: Any) -> None:
    (found,) = run(elementwise(f"arith.{op} $0, $1 : i8", ["i8", "i8"], "i8"), WHOLE, DIVISORS)
    wanted = [function(a, b) for a, b in zip(WHOLE.tolist(), DIVISORS.tolist(), strict=True)]
    np.testing.assert_array_equal(found, np.array(wanted, np.int64).astype(np.int8))


def test_shifts_and_bit_counts(run: Any) -> None:
    amounts = np.array([0, 1, 2, 3, 1, 4, 7, 6], np.int8)
    (left,) = run(elementwise("arith.shli $0, $1 : i8", ["i8", "i8"], "i8"), WHOLE, amounts)
    (signed,) = run(elementwise("arith.shrsi $0, $1 : i8", ["i8", "i8"], "i8"), WHOLE, amounts)
    (plain,) = run(elementwise("arith.shrui $0, $1 : i8", ["i8", "i8"], "i8"), WHOLE, amounts)
    pairs = list(zip(WHOLE.tolist(), amounts.tolist(), strict=True))
    np.testing.assert_array_equal(left, np.array([a << n for a, n in pairs]).astype(np.int8))
    np.testing.assert_array_equal(signed, np.array([a >> n for a, n in pairs]).astype(np.int8))
    np.testing.assert_array_equal(plain, np.array([(a % 256) >> n for a, n in pairs]).astype(np.int8))
    (zeros,) = run(elementwise("math.ctlz $0 : i8", ["i8"], "i8"), WHOLE)
    np.testing.assert_array_equal(zeros, [8 - int(a % 256).bit_length() for a in WHOLE.tolist()])
    (ones,) = run(elementwise("math.ctpop $0 : i8", ["i8"], "i8"), WHOLE)
    np.testing.assert_array_equal(ones, [int(a % 256).bit_count() for a in WHOLE.tolist()])


@pytest.mark.parametrize(
    ("predicate", "ordered", "function"),
    [
        ("eq", True, np.equal),
        ("gt", True, np.greater),
        ("ge", True, np.greater_equal),
        ("lt", True, np.less),
        ("le", True, np.less_equal),
        ("ne", True, np.not_equal),
        ("eq", False, np.equal),
        ("gt", False, np.greater),
        ("ge", False, np.greater_equal),
        ("lt", False, np.less),
        ("le", False, np.less_equal),
        ("ne", False, np.not_equal),
    ],
)
def test_float_comparisons(predicate: str, ordered: bool, function: Any, run: Any) -> None:
    name = ("o" if ordered else "u") + predicate
    (found,) = run(elementwise(f"arith.cmpf {name}, $0, $1 : f32", ["f32", "f32"], "i1"), VALUES, OTHERS)
    unordered = np.isnan(VALUES) | np.isnan(OTHERS)
    wanted = function(VALUES, OTHERS) & ~unordered
    np.testing.assert_array_equal(found, wanted if ordered else wanted | unordered)


def test_ordered_and_unordered(run: Any) -> None:
    unordered = np.isnan(VALUES) | np.isnan(OTHERS)
    for name, wanted in (
        ("uno", unordered),
        ("ord", ~unordered),
        ("true", unordered | True),
        ("false", unordered & False),
    ):
        (found,) = run(elementwise(f"arith.cmpf {name}, $0, $1 : f32", ["f32", "f32"], "i1"), VALUES, OTHERS)
        np.testing.assert_array_equal(found, wanted)


def test_integer_comparisons(run: Any) -> None:
    left, right = WHOLE, np.roll(WHOLE, 3)
    for name, function in (("slt", np.less), ("sle", np.less_equal), ("sgt", np.greater), ("sge", np.greater_equal)):
        (found,) = run(elementwise(f"arith.cmpi {name}, $0, $1 : i8", ["i8", "i8"], "i1"), left, right)
        np.testing.assert_array_equal(found, function(left, right))
        plain = name.replace("s", "u", 1)
        (found,) = run(elementwise(f"arith.cmpi {plain}, $0, $1 : i8", ["i8", "i8"], "i1"), left, right)
        np.testing.assert_array_equal(found, function(left.view(np.uint8), right.view(np.uint8)))
    flags = np.array([False, True, False, True])
    (found,) = run(elementwise("arith.cmpi slt, $0, $1 : i1", ["i1", "i1"], "i1"), flags, ~flags)
    np.testing.assert_array_equal(found, flags)  # a signed true is -1


@pytest.mark.parametrize(
    ("op", "source", "target", "values", "wanted"),
    [
        ("extf", "f16", "f32", [1.5, -0.1], [1.5, float(np.float16(-0.1))]),
        ("truncf", "f64", "bf16", [1.0 + 2**-8, 1.0 + 3 * 2**-8], [1.0, 1.015625]),
        ("sitofp", "i8", "f32", [-3, 127], [-3.0, 127.0]),
        ("uitofp", "i8", "f32", [-1, 127], [255.0, 127.0]),
        ("uitofp", "i1", "f32", [True, False], [1.0, 0.0]),
        ("sitofp", "i1", "f32", [True, False], [-1.0, 0.0]),
        ("fptosi", "f32", "i32", [-2.9, 2.9], [-2, 2]),
        ("extsi", "i8", "i32", [-3, 5], [-3, 5]),
        ("extui", "i8", "i32", [-3, 5], [253, 5]),
        ("extsi", "i1", "i8", [True, False], [-1, 0]),
        ("extui", "i1", "i8", [True, False], [1, 0]),
        ("trunci", "i32", "i8", [300, -300], [44, -44]),
        ("trunci", "i32", "i1", [2, 3], [False, True]),
        ("bitcast", "f32", "i32", [1.0, -2.0], [0x3F800000, -0x40000000]),
        ("index_cast", "i32", "index", [-3, 5], [-3, 5]),
    ],
)
def test_conversions(op: str, source: str, target: str, values: Any, wanted: Any, run: Any) -> None:
    from lowerkit.dialect.types import numpy_dtype

    array = np.array(values, numpy_dtype(ir.Type.parse(source)))
    (found,) = run(elementwise(f"arith.{op} $0 : {source} to {target}", [source], target), array)
    assert found.dtype == numpy_dtype(ir.Type.parse(target))
    np.testing.assert_array_equal(found.astype(np.float64), np.array(wanted, np.float64))


def test_select_and_other_ops(run: Any) -> None:
    flags = VALUES > 0
    (found,) = run(elementwise("arith.select $0, $1, $2 : f32", ["i1", "f32", "f32"], "f32"), flags, VALUES, OTHERS)
    np.testing.assert_array_equal(found, np.where(flags, VALUES, OTHERS))
    (found,) = run(elementwise("math.powf $0, $1 : f32", ["f32", "f32"], "f32"), VALUES, OTHERS)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.power(VALUES, OTHERS))
    (found,) = run(elementwise("math.copysign $0, $1 : f32", ["f32", "f32"], "f32"), VALUES, OTHERS)
    np.testing.assert_array_equal(found, np.copysign(VALUES, OTHERS))
    (found,) = run(elementwise("math.fma $0, $1, $0 : f32", ["f32", "f32"], "f32"), VALUES, OTHERS)
    with np.errstate(all="ignore"):
        wanted = (VALUES.astype(np.float64) * OTHERS + VALUES).astype(np.float32)
    np.testing.assert_array_equal(found, wanted)


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


def floats(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


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


def test_tensor_ops(run: Any, random: np.random.Generator) -> None:
    a = floats(random, 4, 6)
    results = run(
        """
        func.func @main(%a: tensor<?x6xf32>, %n: index)
            -> (tensor<2x3xf32>, tensor<3xf32>, tensor<?x6xf32>, tensor<?x2x3xf32>, tensor<?xf32>, tensor<?x12xf32>,
                tensor<2x2xindex>, tensor<5xf32>, tensor<?x9xf32>, f32, tensor<?x6xf32>, tensor<?x6xf32>, index) {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %v = arith.constant 7.0 : f32
          %slice = tensor.extract_slice %a[1, 0] [2, 3] [1, 2] : tensor<?x6xf32> to tensor<2x3xf32>
          %row = tensor.extract_slice %a[%n, 3] [1, 3] [1, 1] : tensor<?x6xf32> to tensor<3xf32>
          %into = tensor.insert_slice %slice into %a[0, 1] [2, 3] [1, 2] : tensor<2x3xf32> into tensor<?x6xf32>
          %d = tensor.dim %a, %c0 : tensor<?x6xf32>
          %split = tensor.expand_shape %a [[0], [1, 2]] output_shape [%d, 2, 3] : tensor<?x6xf32> into tensor<?x2x3xf32>
          %flat = tensor.collapse_shape %a [[0, 1]] : tensor<?x6xf32> into tensor<?xf32>
          %both = tensor.concat dim(1) %a, %a : (tensor<?x6xf32>, tensor<?x6xf32>) -> tensor<?x12xf32>
          %some = tensor.from_elements %c0, %c1, %d, %n : tensor<2x2xindex>
          %all = tensor.splat %v : tensor<5xf32>
          %padded = tensor.pad %a low[1, 0] high[0, 3] {
          ^bb0(%i: index, %j: index):
            tensor.yield %v : f32
          } : tensor<?x6xf32> to tensor<?x9xf32>
          %one = tensor.extract %a[%c1, %n] : tensor<?x6xf32>
          %put = tensor.insert %v into %a[%c1, %n] : tensor<?x6xf32>
          %made = tensor.generate %d {
          ^bb0(%i: index, %j: index):
            %s = arith.muli %i, %j : index
            %t = arith.index_cast %s : index to i32
            %u = arith.sitofp %t : i32 to f32
            tensor.yield %u : f32
          } : tensor<?x6xf32>
          return %slice, %row, %into, %split, %flat, %both, %some, %all, %padded, %one, %put, %made, %d
            : tensor<2x3xf32>, tensor<3xf32>, tensor<?x6xf32>, tensor<?x2x3xf32>, tensor<?xf32>, tensor<?x12xf32>,
              tensor<2x2xindex>, tensor<5xf32>, tensor<?x9xf32>, f32, tensor<?x6xf32>, tensor<?x6xf32>, index
        }""",
        a,
        np.int64(2),
    )
    into, put = a.copy(), a.copy()
    into[0:2, 1:6:2] = a[1:3, 0:6:2]
    put[1, 2] = 7.0
    wanted = [
        a[1:3, 0:6:2],
        a[2, 3:],
        into,
        a.reshape(4, 2, 3),
        a.ravel(),
        np.concatenate([a, a], 1),
        np.array([[0, 1], [4, 2]]),
        np.full(5, 7.0),
        np.pad(a, [(1, 0), (0, 3)], constant_values=7.0),
        a[1, 2],
        put,
        np.outer(np.arange(4), np.arange(6)),
        4,
    ]
    for found, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert a[1, 2] != 7.0, "an op wrote into its operand"


@pytest.mark.parametrize(
    ("sizes", "result"), [("1, 3, 1, 4", "3x4"), ("1, 3, 1, 4", "3x1x4"), ("1, 3, 1, 4", "1x3x4"), ("1, 1, 1, 1", "1")]
)
def test_extract_slice_drops_unit_dimensions(sizes: str, result: str, run: Any, random: np.random.Generator) -> None:
    a = floats(random, 2, 3, 2, 4)
    (found,) = run(
        f"""func.func @main(%a: tensor<2x3x2x4xf32>) -> tensor<{result}xf32> {{
          %r = tensor.extract_slice %a[1, 0, 1, 0] [{sizes}] [1, 1, 1, 1] : tensor<2x3x2x4xf32> to tensor<{result}xf32>
          return %r : tensor<{result}xf32>
        }}""",
        a,
    )
    limits = [int(size) for size in sizes.split(", ")]
    wanted = a[1 : 1 + limits[0], : limits[1], 1 : 1 + limits[2], : limits[3]]
    np.testing.assert_array_equal(found, wanted.reshape([int(size) for size in result.split("x")]))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("dense<[[1.5, -2.0]]> : tensor<1x2xf32>", np.array([[1.5, -2.0]], np.float32)),
        ("dense<[1.5, -2.0]> : tensor<2xbf16>", np.array([1.5, -2.0], BF16)),
        (
            "dense<[[1.5, 0x7F80], [0xFF80, 1.0e-3]]> : tensor<2x2xbf16>",
            np.array([[1.5, np.inf], [-np.inf, 1e-3]], BF16),
        ),
        ('dense<"0x803F00C0"> : tensor<2xbf16>', np.array([1.0, -2.0], BF16)),
        ("dense<[1.5, -2.0]> : tensor<2xf16>", np.array([1.5, -2.0], np.float16)),
        ("dense<3.25> : tensor<2x2xbf16>", np.full((2, 2), 3.25, BF16)),
        ("dense<[1, -2, 3]> : tensor<3xi64>", np.array([1, -2, 3])),
        ("dense<[true, false, true]> : tensor<3xi1>", np.array([True, False, True])),
        ("dense<true> : tensor<3xi1>", np.array([True] * 3)),
        ("dense<-7> : tensor<i8>", np.array(-7, np.int8)),
        ("dense<0xFF800000> : tensor<2xf32>", np.array([-np.inf] * 2, np.float32)),
    ],
)
def test_constants(text: str, wanted: Any, run: Any) -> None:
    kind = text.split(" : ")[1]
    (found,) = run(f"func.func @main() -> {kind} {{ %r = arith.constant {text} return %r : {kind} }}")
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


def test_loops(run: Any) -> None:
    (fibonacci, steps) = run(
        """
        func.func @main(%n: index, %limit: i64) -> (i64, i64) {
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %zero = arith.constant 0 : i64
          %one = arith.constant 1 : i64
          %two = arith.constant 2 : i64
          %f:2 = scf.for %i = %c0 to %n step %c1 iter_args(%a = %zero, %b = %one) -> (i64, i64) {
            %s = arith.addi %a, %b : i64
            scf.yield %b, %s : i64, i64
          }
          %w:2 = scf.while (%x = %one, %k = %zero) : (i64, i64) -> (i64, i64) {
            %less = arith.cmpi slt, %x, %limit : i64
            scf.condition(%less) %x, %k : i64, i64
          } do {
          ^bb0(%x: i64, %k: i64):
            %y = arith.muli %x, %two : i64
            %l = arith.addi %k, %one : i64
            scf.yield %y, %l : i64, i64
          }
          return %f#0, %w#1 : i64, i64
        }""",
        np.int64(30),
        np.int64(1000),
    )
    assert (fibonacci, steps) == (832040, 10)


def test_call_weights_states_and_regions(run: Any, random: np.random.Generator) -> None:
    weight, state, x = floats(random, 4), floats(random, 4), floats(random, 4)
    states = {"s": state}
    segments = "operandSegmentSizes = array<i32: {}>, resultSegmentSizes = array<i32: {}>".format(
        ", ".join(["2"] + ["0"] * 31), ", ".join(["1"] + ["0"] * 7)
    )
    yields = "operandSegmentSizes = array<i32: {}>".format(", ".join(["1"] + ["0"] * 7))
    results = run(
        f"""
        func.func private @double(%x: tensor<4xf32>) -> tensor<4xf32> {{
          %e = tensor.empty() : tensor<4xf32>
          %r = linalg.add ins(%x, %x : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
          return %r : tensor<4xf32>
        }}
        func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
          %w = "lk.weight"() {{symbol = "w"}} : () -> tensor<4xf32>
          %old = "lk.state_read"() {{symbol = "s"}} : () -> tensor<4xf32>
          %d = func.call @double(%x) : (tensor<4xf32>) -> tensor<4xf32>
          %r = "lk.region"(%d, %w) ({{
          ^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>):
            %e = tensor.empty() : tensor<4xf32>
            %m = linalg.mul ins(%a, %b : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
            "lk.yield"(%m) {{{yields}}} : (tensor<4xf32>) -> ()
          }}) {{kind = "elementwise", {segments}}} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
          "lk.state_write"(%r) {{symbol = "s"}} : (tensor<4xf32>) -> ()
          %new = "lk.state_read"() {{symbol = "s"}} : () -> tensor<4xf32>
          return %old, %new : tensor<4xf32>, tensor<4xf32>
        }}""",
        x,
        weights={"w": weight}.__getitem__,
        states=states,
    )
    np.testing.assert_array_equal(results[0], state)
    np.testing.assert_array_equal(results[1], (x + x) * weight)
    np.testing.assert_array_equal(states["s"], results[1])


def test_a_function_alone(context: ir.Context) -> None:
    module = ir.Module.parse("func.func @f(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }")
    x = np.ones(2, np.float32)
    (found,) = interpret(module.body.operations[0], [x])
    np.testing.assert_array_equal(found, x)


IDENTITY = "func.func @main(%x: tensor<?x2xf32>) -> tensor<?x2xf32> { return %x : tensor<?x2xf32> }"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "takes 1 inputs, 0 were given"),
        ([np.ones((3, 2))], "input 0 is float64 of shape 3x2, the function takes float32 of shape [?]x2"),
        ([np.ones((3, 3), np.float32)], "shape 3x3"),
        ([np.ones(2, np.float32)], "shape 2"),
    ],
)
def test_wrong_inputs(inputs: Any, message: str, run: Any) -> None:
    with pytest.raises(InputError, match=message):
        run(IDENTITY, *inputs)


def test_missing_weight_and_state(run: Any) -> None:
    with pytest.raises(InputError, match="no weights were given"):
        run("""func.func @main() -> tensor<4xf32> {
          %w = "lk.weight"() {symbol = "w"} : () -> tensor<4xf32>
          return %w : tensor<4xf32>
        }""")
    with pytest.raises(InputError, match="state s, which has no value"):
        run('func.func @main() { %w = "lk.state_read"() {symbol = "s"} : () -> tensor<4xf32> return }')


def test_unknown_op_is_named(run: Any) -> None:
    with pytest.raises(UnsupportedError, match="does not know vector.broadcast"):
        run(
            """func.func @main(%x: f32) -> vector<4xf32> {
              %v = vector.broadcast %x : f32 to vector<4xf32>
              return %v : vector<4xf32>
            }""",
            np.float32(1),
        )


def test_reading_outside_is_an_error(run: Any) -> None:
    text = """func.func @main(%x: tensor<?xf32>, %i: index) -> f32 {
      %r = tensor.extract %x[%i] : tensor<?xf32>
      return %r : f32
    }"""
    x = np.ones(3, np.float32)
    assert run(text, x, np.int64(2)) == [1.0]
    for place in (3, -1):
        with pytest.raises(VerifyError, match="dimension of size 3"):
            run(text, x, np.int64(place))


def test_contradicting_sizes_are_an_error(run: Any) -> None:
    text = elementwise("arith.addf $0, $1 : f32", ["f32", "f32"], "f32")
    with pytest.raises(VerifyError, match="runs over 3 elements of one operand and 4 of another"):
        run(text, np.ones(3, np.float32), np.ones(4, np.float32))


def test_failing_assertion_of_the_model(run: Any) -> None:
    text = 'func.func @main(%c: i1) { cf.assert %c, "sizes differ" return }'
    assert run(text, np.bool_(True)) == []
    with pytest.raises(VerifyError, match="sizes differ"):
        run(text, np.bool_(False))
