"""lk.cond and lk.while: what their verifiers reject, and that the interpreter runs the right function."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.dialect.ragged import OPERAND_RUNS, RESULT_RUNS
from lowerkit.mlir import ir

MODULE = """
func.func @main({arguments}) -> {results} {{
  %r = {op}
  return {returned} : {results}
}}
func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %e = tensor.empty() : tensor<4xf32>
  %y = linalg.add ins(%x, %x : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}}
func.func @same(%x: tensor<4xf32>) -> tensor<4xf32> {{
  return %x : tensor<4xf32>
}}
func.func @wide(%x: tensor<4xf32>) -> tensor<8xf32> {{
  %e = tensor.empty() : tensor<8xf32>
  return %e : tensor<8xf32>
}}
func.func @small(%x: tensor<4xf32>) -> tensor<i1> {{
  %zero = arith.constant 0 : index
  %limit = arith.constant 10.0 : f32
  %first = tensor.extract %x[%zero] : tensor<4xf32>
  %less = arith.cmpf olt, %first, %limit : f32
  %r = tensor.from_elements %less : tensor<i1>
  return %r : tensor<i1>
}}
func.func @two(%x: tensor<4xf32>) -> (tensor<i1>, tensor<i1>) {{
  %t = arith.constant dense<true> : tensor<i1>
  return %t, %t : tensor<i1>, tensor<i1>
}}
"""


def segments(first: list[int], total: int) -> str:
    return "array<i32: " + ", ".join(map(str, [*first, *[0] * (total - len(first))])) + ">"


def cond(then: str, otherwise: str, predicate: str = "tensor<i1>", result: str = "tensor<4xf32>") -> str:
    sizes = f"operandSegmentSizes = {segments([1, 1], OPERAND_RUNS)}"
    sizes += f", resultSegmentSizes = {segments([1], RESULT_RUNS)}"
    op = (
        f'"lk.cond"(%p, %x) {{then_function = "{then}", else_function = "{otherwise}", {sizes}}}'
        f" : ({predicate}, tensor<4xf32>) -> {result}"
    )
    return MODULE.format(arguments=f"%p: {predicate}, %x: tensor<4xf32>", results=result, op=op, returned="%r")


def loop(condition: str, body: str, result: str = "tensor<4xf32>") -> str:
    sizes = f"operandSegmentSizes = {segments([1], OPERAND_RUNS)}"
    sizes += f", resultSegmentSizes = {segments([1], RESULT_RUNS)}"
    op = (
        f'"lk.while"(%x) {{condition_function = "{condition}", body_function = "{body}", {sizes}}}'
        f" : (tensor<4xf32>) -> {result}"
    )
    return MODULE.format(arguments="%x: tensor<4xf32>", results=result, op=op, returned="%r")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (cond("double", "same", predicate="tensor<2xi1>"), ["operand predicate", "one element", "tensor<2xi1>"]),
        (cond("double", "same", predicate="tensor<f32>"), ["operand predicate", "bool"]),
        (cond("double", "wide"), ["@wide gives (tensor<8xf32>)", "tensor<4xf32>"]),
        (cond("", "same"), ["then_function must name a function"]),
        (loop("small", "wide"), ["@wide gives (tensor<8xf32>)"]),
        (loop("two", "double"), ["gives 2 values, expected one bool"]),
        (loop("double", "double"), ["the result of the condition", "tensor<4xf32>"]),
        (
            loop("small", "double", result="tensor<8xf32>"),
            ["outputs are (tensor<8xf32>)", "inputs are (tensor<4xf32>)"],
        ),
    ],
)
def test_what_does_not_fit_is_rejected(text: str, parts: list[str], context: ir.Context) -> None:
    with pytest.raises(ir.MLIRError) as caught:
        ir.Module.parse(text)
    for part in parts:
        assert part in str(caught.value)


def test_functions_that_stand_elsewhere_are_not_compared(context: ir.Context) -> None:
    """A pass sees one function at a time, in a module of its own."""
    assert ir.Module.parse(cond("absent", "missing")).operation.verify()


@pytest.mark.parametrize("predicate", [True, False])
def test_a_branch(predicate: bool, context: ir.Context) -> None:
    x = np.arange(4, dtype=np.float32)
    (found,) = interpret(ir.Module.parse(cond("double", "same")), [np.asarray(predicate), x])
    assert found.tolist() == (x * 2 if predicate else x).tolist()


@pytest.mark.parametrize("start", [1, 3, 12])
def test_a_loop(start: int, context: ir.Context) -> None:
    x = np.full(4, start, np.float32)
    (found,) = interpret(ir.Module.parse(loop("small", "double")), [x])
    expected = start
    while expected < 10:
        expected *= 2
    assert found.tolist() == [expected] * 4
