"""The interpreter on tensor ops, loops, calls and states, and what it rejects."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.errors import InputError, UnsupportedError, VerifyError
from lowerkit.mlir import ir
from tests.unit.dialect.interpreter.interpreter_text import elementwise, floats

BF16 = ml_dtypes.bfloat16


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
