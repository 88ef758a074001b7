"""The verifiers reject what does not fit together, name both sides, and point at the user's line."""

from __future__ import annotations

from typing import Any

import pytest

from lowerkit.dialect import LkOperation, MatmulOp, RegionOp, SoftmaxOp, WeightOp, YieldOp
from lowerkit.dialect.examples import EXAMPLES
from lowerkit.errors import VerifyError
from lowerkit.mlir import func, ir, run_pipeline

WINDOW = "padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>, dilation = array<i64: 1, 1>"
CONV = f"accumulate = f32, channels_last = false, {WINDOW}"
POOL = f"channels_last = false, kernel = array<i64: 2, 2>, {WINDOW}"
ATTENTION = 'scale = 1.0, causal = false, masking = "add", fill = 0.0, empty_rows = "zero"'
CHECK = 'exempt = array<i64>, operator = "take", wraps = false'
COLLECTIVE = 'kind = "all_reduce", axis = "tp", ranks = 2, reduction = "sum"'
SCATTERED = COLLECTIVE.replace("all_reduce", "reduce_scatter")
ROOTED = COLLECTIVE.replace("all_reduce", "broadcast")
MESSAGE = COLLECTIVE.replace("all_reduce", "send")
MATMUL = "accumulate = f32, transpose_lhs = false, transpose_rhs = false"
QUANTIZE = 'axis = 1, formula = "divide", minimum = -128, maximum = 127, unsigned = false, storage = i8'
REQUANT = (
    'axis = 1, rounding = "half_even", mult_bits = 32, minimum = 0, maximum = 255, unsigned_input = false, '
    "unsigned = true, storage = i8"
)
RESIZE = 'channels_last = false, mode = "linear", nearest_rounding = "floor", coordinates = "half_pixel"'

REJECTED = [
    # (op, attributes, operand types, result types, parts of the message)
    ("weight", 'symbol = ""', [], ["4xf32"], ["must name a weight"]),
    ("weight", 'symbol = "w"', [], ["?xf32"], ["static shape", "tensor<?xf32>"]),
    ("state_read", 'symbol = ""', [], ["4xf32"], ["must name a state"]),
    ("state_write", 'symbol = ""', ["4xf32"], [], ["must name a state"]),
    ("collective_start", COLLECTIVE, ["4xf32"], ["4xf32"], ["read by one lk.collective_done", "no reader"]),
    ("collective_start", COLLECTIVE.replace("all_reduce", "all"), ["4xf32"], ["4xf32"], ["all_reduce, all_gather"]),
    ("collective_start", COLLECTIVE.replace("sum", "avg"), ["4xf32"], ["4xf32"], ["sum, product, min, max"]),
    ("collective_start", COLLECTIVE.replace('"tp"', '""'), ["4xf32"], ["4xf32"], ["must name an axis"]),
    ("collective_start", COLLECTIVE.replace("2", "0"), ["4xf32"], ["4xf32"], ["count its ranks", "of 0"]),
    ("collective_start", COLLECTIVE, ["4xi1"], ["4xi1"], ["needs numbers", "i1"]),
    ("collective_start", COLLECTIVE.replace("reduce", "gather"), ["4xf32"], ["8xf32"], ["8xf32", "2x4xf32"]),
    ("collective_start", SCATTERED, ["4x3xf32"], ["3xf32"], ["first dimension", "4x3xf32", "2 ranks of 'tp'"]),
    ("collective_start", SCATTERED, ["f32"], ["f32"], ["first dimension", "2 ranks of 'tp'"]),
    ("collective_start", SCATTERED.replace("reduce_scatter", "all_to_all"), ["4x3xf32"], ["4x3xf32"], ["4x3xf32"]),
    ("collective_start", ROOTED, ["4xf32"], ["4xf32"], ["root of broadcast", "one of the 2 ranks of 'tp'", "-1"]),
    ("collective_start", ROOTED + ", root = 2", ["4xf32"], ["4xf32"], ["root of broadcast", "found 2"]),
    ("collective_start", ROOTED + ', root = "a"', ["4xf32"], ["4xf32"], ["attribute root must be an i64"]),
    ("collective_start", ROOTED + ", root = 1, peer = 1", ["4xf32"], ["4xf32"], ["broadcast has no peer"]),
    ("collective_start", COLLECTIVE + ", root = 1", ["4xf32"], ["4xf32"], ["all_reduce has no root", "found 1"]),
    ("collective_start", MESSAGE, ["4xf32"], ["0xi8"], ["peer of send", "found -1"]),
    ("collective_start", MESSAGE + ", peer = 1", ["4xf32"], ["4xf32"], ["tensor<0xi8>", "tensor<4xf32>"]),
    ("collective_start", ROOTED.replace("broadcast", "reduce"), ["4xi1"], ["4xi1"], ["root of reduce"]),
    ("collective_done", "", ["4xf32"], ["4xf32"], ["must be the result of an lk.collective_start"]),
    ("check_indices", CHECK, ["4xi1"], [], ["indices", "8 bits or more", "i1"]),
    ("check_indices", CHECK, ["4xi64"], [], ["extents", "one index value or more"]),
    ("check_indices", CHECK, ["4xi64", "4xi64"], [], ["extents", "index value", "tensor<4xi64>"]),
    ("matmul", MATMUL, ["3x4xf32", "5x6xf32"], ["3x6xf32"], ["K = 4", "K = 5"]),
    ("matmul", MATMUL, ["3x4xf32", "4x6xf32"], ["3x7xf32"], ["tensor<3x7xf32>", "tensor<3x6xf32>"]),
    ("matmul", MATMUL, ["3x4xf32", "4x6xf16"], ["3x6xf32"], ["lhs", "f32", "rhs", "f16"]),
    ("matmul", MATMUL, ["4xf32", "4x6xf32"], ["6xf32"], ["rank 2 or more", "rank 1"]),
    ("matmul", MATMUL, ["2x3x4xf32", "5x4x6xf32"], ["2x3x6xf32"], ["do not broadcast", "2 against 5"]),
    ("matmul", MATMUL.replace("f32", "f16"), ["3x4xf32", "4x6xf32"], ["3x6xf32"], ["f16", "narrower", "f32"]),
    ("matmul", MATMUL.replace("f32", "i32"), ["3x4xf32", "4x6xf32"], ["3x6xf32"], ["i32", "cannot sum"]),
    ("matmul", MATMUL, ["3x4xi1", "4x6xi1"], ["3x6xi1"], ["8 bits or more", "i1"]),
    ("matmul", MATMUL.replace("false", "1 : i64"), ["3x4xf32", "4x6xf32"], ["3x6xf32"], ["must be a bool"]),
    ("conv", CONV + ", groups = 1", ["1x3x8x8xf32", "4x2x3x3xf32"], ["1x4x6x6xf32"], ["Cin = 3", "2 channels"]),
    ("conv", CONV + ", groups = 2", ["1x4x8x8xf32", "3x2x3x3xf32"], ["1x3x6x6xf32"], ["Cout = 3", "2 groups"]),
    ("conv", CONV + ", groups = 0", ["1x4x8x8xf32", "4x4x3x3xf32"], ["1x4x6x6xf32"], ["groups", "found 0"]),
    ("conv", CONV + ", groups = 1", ["1x4x8xf32", "4x4x3xf32"], ["1x4x6xf32"], ["strides must have 1 values"]),
    ("conv", CONV + ", groups = 1", ["1x4x2x8xf32", "4x4x3x3xf32"], ["1x4x1x6xf32"], ["spans 3", "only 2"]),
    ("conv", CONV + ", groups = 1", ["1x4x8x8xf32", "4x4x3xf32"], ["1x4x6x6xf32"], ["rank 4", "rank 3"]),
    ("conv", CONV + ", groups = 1", ["4x8xf32", "4x4xf32"], ["4x8xf32"], ["rank 3 or 4 or 5"]),
    ("conv", CONV + ", groups = 1", ["1x4x8x8xf32", "4x4x?x3xf32"], ["1x4x?x6xf32"], ["kernel sizes", "static"]),
    (
        "conv",
        CONV.replace("strides = array<i64: 1, 1>", "strides = array<i64: 0, 1>") + ", groups = 1",
        ["1x4x8x8xf32", "4x4x3x3xf32"],
        ["1x4x6x6xf32"],
        ["strides must be positive"],
    ),
    (
        "conv",
        CONV.replace("0, 0, 0, 0", "0, -1, 0, 0") + ", groups = 1",
        ["1x4x8x8xf32", "4x4x3x3xf32"],
        ["1x4x6x6xf32"],
        ["padding must not be negative"],
    ),
    (
        "conv_transpose",
        CONV + ", groups = 1, output_padding = array<i64: 0, 0>",
        ["1x3x8x8xf32", "4x2x3x3xf32"],
        ["1x2x10x10xf32"],
        ["Cin = 3", "filter 4"],
    ),
    (
        "conv_transpose",
        CONV + ", groups = 1, output_padding = array<i64: 0, -1>",
        ["1x4x8x8xf32", "4x2x3x3xf32"],
        ["1x2x10x10xf32"],
        ["output_padding", "0 or more"],
    ),
    ("max_pool", POOL, ["1x4x1x8xf32"], ["1x4x1x7xf32"], ["spans 2", "only 1"]),
    ("max_pool", POOL, ["1x4x8x8xi1"], ["1x4x7x7xi1"], ["i1"]),
    (
        "avg_pool",
        POOL + ", count_include_pad = true, divisor = 0, ceil_extra = array<i64: 0, 1>",
        ["1x4x8x8xf32"],
        ["1x4x7x7xf32"],
        ["ceil_extra", "[0, 1]"],
    ),
    (
        "avg_pool",
        POOL + ", count_include_pad = true, divisor = 0, ceil_extra = array<i64: 0, 0>",
        ["1x4x8x8xi32"],
        ["1x4x7x7xi32"],
        ["floating point", "i32"],
    ),
    ("softmax", "axis = 2, log = false", ["4x8xf32"], ["4x8xf32"], ["axis is 2", "rank 2"]),
    ("softmax", "axis = -1, log = false", ["4x8xf32"], ["4x8xf32"], ["axis is -1"]),
    ("softmax", "axis = 1, log = false", ["4x8xi32"], ["4x8xi32"], ["floating point", "i32"]),
    ("softmax", "axis = 1, log = 3", ["4x8xf32"], ["4x8xf32"], ["log must be a bool"]),
    (
        "layer_norm",
        "normalized_rank = 1, epsilon = 1.0e-5, operandSegmentSizes = array<i32: 1, 1, 0>",
        ["4x8xf32", "7xf32"],
        ["4x8xf32"],
        ["scale has shape 7", "are 8"],
    ),
    (
        "layer_norm",
        "normalized_rank = 3, epsilon = 1.0e-5, operandSegmentSizes = array<i32: 1, 0, 0>",
        ["4x8xf32"],
        ["4x8xf32"],
        ["normalized_rank is 3", "rank 2"],
    ),
    ("rms_norm", "normalized_rank = 1, epsilon = -1.0", ["4x8xf32"], ["4x8xf32"], ["epsilon", "-1.0"]),
    (
        "group_norm",
        "groups = 3, epsilon = 1.0e-5, channels_last = false, operandSegmentSizes = array<i32: 1, 0, 0>",
        ["4x8x5xf32"],
        ["4x8x5xf32"],
        ["groups is 3", "C = 8"],
    ),
    (
        "attention",
        ATTENTION,
        ["1x3x4x8xf32", "1x2x4x8xf32", "1x2x4x8xf32"],
        ["1x3x4x8xf32"],
        ["3 heads", "value 2"],
    ),
    (
        "attention",
        ATTENTION,
        ["1x2x4x8xf32", "1x2x4x6xf32", "1x2x4x8xf32"],
        ["1x2x4x8xf32"],
        ["feature dimension of query is 8", "key 6"],
    ),
    (
        "attention",
        ATTENTION,
        ["1x2x4x8xf32", "1x2x5x8xf32", "1x2x5x8xf32", "3x5xf32"],
        ["1x2x4x8xf32"],
        ["mask has shape 3x5", "1x2x4x5"],
    ),
    ("reduce", 'kind = "median", axes = array<i64: 0>, keep_dims = false', ["4xf32"], ["f32"], ["one of", "median"]),
    ("reduce", 'kind = "sum", axes = array<i64: 1, 0>, keep_dims = false', ["4x4xf32"], ["f32"], ["rising"]),
    ("reduce", 'kind = "sum", axes = array<i64: 2>, keep_dims = false', ["4x4xf32"], ["f32"], ["rising", "[2]"]),
    ("reduce", 'kind = "argmax", axes = array<i64: 0, 1>, keep_dims = false', ["4x4xf32"], ["i64"], ["exactly one"]),
    ("reduce", 'kind = "mean", axes = array<i64: 0>, keep_dims = false', ["4xi32"], ["i32"], ["floating point"]),
    ("reduce", 'kind = "any", axes = array<i64: 0>, keep_dims = false', ["4xf32"], ["f32"], ["tensor<i1>"]),
    ("reduce", 'kind = "max", axes = array<i64: 0>, keep_dims = false', ["0xf32"], ["f32"], ["empty dimension"]),
    ("gather", "axis = 0", ["4x8xf32", "3xf32"], ["3x8xf32"], ["integer", "f32"]),
    ("gather", "axis = 0", ["4x8xf32", "3xi64"], ["3x7xf32"], ["3x7", "3x8"]),
    ("scatter", 'axis = 0, kind = "set"', ["4x8xf32", "3xf32", "3x8xf32"], ["4x8xf32"], ["integer", "f32"]),
    ("scatter", 'axis = 0, kind = "set"', ["4x8xf32", "3xi64", "2x8xf32"], ["4x8xf32"], ["2x8", "3x8"]),
    ("scatter", 'axis = 0, kind = "mean"', ["4x8xf32", "3xi64", "3x8xf32"], ["4x8xf32"], ["one of", "mean"]),
    ("scatter", 'axis = 2, kind = "add"', ["4x8xf32", "3xi64", "3x8xf32"], ["4x8xf32"], ["axis"]),
    ("scatter", 'axis = 0, kind = "add"', ["4xi1", "3xi64", "3xi1"], ["4xi1"], ["bools"]),
    ("resize", RESIZE + ", size = array<i64: 4>, scales = array<f64>", ["1x1x8x8xf32"], ["1x1x4x8xf32"], ["size"]),
    (
        "resize",
        RESIZE.replace("linear", "area") + ", size = array<i64: 4>, scales = array<f64>",
        ["1x1x8xf32"],
        ["1x1x4xf32"],
        ["mode must be one of nearest, linear, cubic", "area"],
    ),
    ("topk", "k = 9, axis = 1, largest = true, sorted = true", ["2x8xf32"], ["2x9xf32", "2x9xi64"], ["k is 9", "8"]),
    ("sort", "axis = 1, descending = true, stable = true", ["2x8xf32"], ["2x8xf32", "2x8xi32"], ["result 1", "i64"]),
    ("rope", "interleaved = false", ["1x1x4x7xf32", "4x7xf32", "4x7xf32"], ["1x1x4x7xf32"], ["even"]),
    ("rope", "interleaved = false", ["1x1x4x8xf32", "4x6xf32", "4x6xf32"], ["1x1x4x8xf32"], ["cos is 6", "8 or 4"]),
    ("rope", "interleaved = false", ["1x1x4x8xf32", "4x8xf32", "4x4xf32"], ["1x1x4x8xf32"], ["one type"]),
    (
        "cumulative",
        'kind = "mean", axis = 0, exclusive = false, reverse = false',
        ["4xf32"],
        ["4xf32"],
        ["one of sum", "mean"],
    ),
    ("quantize", QUANTIZE, ["2x4xf32", "4xf32", "3xi32"], ["2x4xi8"], ["scale", "zero_point", "must be equal"]),
    ("quantize", QUANTIZE, ["2x4xi32", "4xf32", "4xi32"], ["2x4xi8"], ["floating point", "i32"]),
    ("quantize", QUANTIZE, ["2x4xf32", "4xf16", "4xi32"], ["2x4xi8"], ["scale", "f32 or f64", "f16"]),
    ("dequantize", "axis = 0, unsigned = false", ["2x4xi8", "4xf32", "4xi32"], ["2x4xf32"], ["dimension 0"]),
    ("dequantize", "axis = 0, unsigned = false", ["2x4xf32", "f32", "i32"], ["2x4xf32"], ["8 to 32 bits", "f32"]),
    ("requant", REQUANT, ["2x4xi32", "4xi32", "4xi32", "i32"], ["2x4xi8"], ["multiplier", "zero_point", "equal"]),
    ("requant", REQUANT.replace("255", "256"), ["2x4xi32", "4xi32", "4xi32", "4xi32"], ["2x4xi8"], ["0 to 256"]),
    ("requant", REQUANT.replace("= 32", "= 24"), ["2x4xi32", "4xi32", "4xi32", "4xi32"], ["2x4xi8"], ["found 24"]),
    ("integer_matmul", "transpose_rhs = true, unsigned = true", ["2x4xi8", "4x3xi8"], ["2x4xi32"], ["K = 4", "K = 3"]),
    (
        "integer_conv",
        f"channels_last = false, {WINDOW}, groups = 1, padding_value = -1, unsigned = true",
        ["1x3x8x8xi8", "4x3x3x3xi8"],
        ["1x4x6x6xi32"],
        ["padding_value is -1", "0 to 255"],
    ),
]


def text_of(op: str, attributes: str, operands: list[str], results: list[str]) -> str:
    arguments = ", ".join(f"%a{index}: tensor<{kind}>" for index, kind in enumerate(operands))
    names = ", ".join(f"%a{index}" for index in range(len(operands)))
    kinds = ", ".join(f"tensor<{kind}>" for kind in operands)
    outputs = ", ".join(f"tensor<{kind}>" for kind in results)
    target = f"%r:{len(results)} = " if results else ""
    place = 'loc("add@encoder.layer"("model.py":12:4))'
    return (
        f"func.func @main({arguments}) {{\n"
        f'  {target}"lk.{op}"({names}) {{{attributes}}} : ({kinds}) -> ({outputs}) {place}\n  return\n}}'
    )


@pytest.mark.parametrize(("op", "attributes", "operands", "results", "parts"), REJECTED)
def test_rejects(
    op: str, attributes: str, operands: list[str], results: list[str], parts: list[str], context: ir.Context
) -> None:
    with pytest.raises(ir.MLIRError) as caught:
        ir.Module.parse(text_of(op, attributes, operands, results))
    message = str(caught.value)
    assert f"'lk.{op}' op" in message
    assert '"model.py":12:4' in message
    for part in parts:
        assert part in message, message


def test_every_checked_op_has_a_rejection() -> None:
    elsewhere = {"lk.region", "lk.yield", "lk.call", "lk.cond", "lk.while"}
    tested = {f"lk.{case[0]}" for case in REJECTED} | elsewhere
    assert {op.OPERATION_NAME for op in EXAMPLES} == tested


def test_missing_attribute_is_rejected(context: ir.Context) -> None:
    with pytest.raises(ir.MLIRError, match="log"):
        ir.Module.parse(text_of("softmax", "axis = 1 : i64", ["4x8xf32"], ["4x8xf32"]))


def test_build_names_the_op_and_the_place(context: ir.Context) -> None:
    location = ir.Location.name("mm@block", childLoc=ir.Location.file("net.py", 7, 1))
    module = ir.Module.create()
    with ir.InsertionPoint(module.body), location:
        left, right = (
            WeightOp.build(name, ir.RankedTensorType.get(shape, ir.F32Type.get()))
            for name, shape in (("a", [2, 3]), ("b", [4, 5]))
        )
        with pytest.raises(VerifyError) as caught:
            MatmulOp.build(left, right)
    error = caught.value
    assert (error.code, error.op) == ("LK3002", "lk.matmul")
    assert '"net.py":7:1' in (error.location or "")
    assert "K = 3" in error.message
    assert "K = 4" in error.message


@pytest.mark.parametrize(("name", "value"), [("axis", 1.5), ("axis", True), ("axis", "1"), ("log", 1)])
def test_build_rejects_values_of_another_type(name: str, value: Any, context: ir.Context) -> None:
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        operand = WeightOp.build("a", ir.RankedTensorType.get([2, 3], ir.F32Type.get()))
        parameters = {"axis": 1, "log": False, name: value}
        with pytest.raises(VerifyError, match=f"attribute {name}"):
            SoftmaxOp.create({"input": operand}, parameters, result_types=[operand.type])


class TestRegion:
    @pytest.fixture
    def block(self, context: ir.Context) -> Any:
        module = ir.Module.create()
        tensor = ir.RankedTensorType.get([4, 8], ir.F32Type.get())
        other = ir.RankedTensorType.get([8], ir.F32Type.get())
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", ([tensor, other], []))
            entry = function.add_entry_block()
        with ir.InsertionPoint(entry):
            func.ReturnOp([])
        # The module owns everything: it must outlive the block.
        return module, entry, ir.InsertionPoint.at_block_begin(entry)

    def test_accepts_operands_of_unlike_types(self, block: Any) -> None:
        module, entry, point = block
        first, second = entry.arguments
        region = RegionOp.build([first, second, first], "elementwise", [first.type, second.type], ip=point)
        with ir.InsertionPoint(region.block):
            YieldOp.build(list(region.block.arguments)[:2])
        assert module.operation.verify()
        assert [value.type for value in region.inputs] == [first.type, second.type, first.type]
        assert region.bytes_moved() == 4 * (32 + 8 + 32 + 32 + 8)

    def test_rejects_a_yield_of_another_type(self, block: Any) -> None:
        module, entry, point = block
        first, second = entry.arguments
        region = RegionOp.build([first, second], "elementwise", [first.type], ip=point)
        with ir.InsertionPoint(region.block):
            YieldOp.build([region.block.arguments[1]])
        with pytest.raises(ir.MLIRError, match="body yields"):
            module.operation.verify()

    def test_rejects_arguments_unlike_the_operands(self, block: Any) -> None:
        module, entry, point = block
        first, second = entry.arguments
        region = RegionOp.build([first], "elementwise", [first.type], ip=point)
        region.block.add_argument(second.type, ir.Location.unknown())
        with ir.InsertionPoint(region.block):
            YieldOp.build([region.block.arguments[0]])
        with pytest.raises(ir.MLIRError, match="the body takes"):
            module.operation.verify()

    def test_rejects_values_from_outside(self, block: Any) -> None:
        module, entry, point = block
        first = entry.arguments[0]
        region = RegionOp.build([first], "softmax", [first.type], ip=point)
        with ir.InsertionPoint(region.block):
            YieldOp.build([SoftmaxOp.build(first)])
        with pytest.raises(ir.MLIRError, match="isolation|outside"):
            module.operation.verify()

    def test_counts_the_flops_of_its_body(self, block: Any) -> None:
        _, entry, point = block
        first = entry.arguments[0]
        region = RegionOp.build([first], "softmax", [first.type], ip=point)
        with ir.InsertionPoint(region.block):
            YieldOp.build([SoftmaxOp.build(region.block.arguments[0])])
        assert region.flops() == 5 * 32

    def test_unused_region_is_removed_and_equal_ones_are_merged(self, block: Any) -> None:
        module, entry, point = block
        first = entry.arguments[0]
        for _ in range(2):
            region = RegionOp.build([first], "softmax", [first.type], ip=point)
            with ir.InsertionPoint(region.block):
                YieldOp.build([SoftmaxOp.build(region.block.arguments[0])])
        run_pipeline(module, "builtin.module(cse,canonicalize)")
        assert "lk.region" not in str(module)


def test_yield_outside_of_a_region(context: ir.Context) -> None:
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        function = func.FuncOp("main", ([], []))
        block = function.add_entry_block()
    with ir.InsertionPoint(block):
        YieldOp.build([])
    with pytest.raises(ir.MLIRError, match="must stand in lk.region"):
        module.operation.verify()


def test_call_without_a_callee(context: ir.Context) -> None:
    segments = "operandSegmentSizes = array<i32: {}>, resultSegmentSizes = array<i32: {}>".format(
        ", ".join(["0"] * 32), ", ".join(["0"] * 8)
    )
    with pytest.raises(ir.MLIRError, match="must name a kernel"):
        ir.Module.parse(text_of("call", f'callee = "", {segments}', [], []))


def test_states_keep_their_order_and_weights_are_merged(context: ir.Context) -> None:
    module = ir.Module.parse("""
      func.func @main() -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
        %0 = "lk.state_read"() {symbol = "s"} : () -> tensor<4xf32>
        %1 = "lk.weight"() {symbol = "w"} : () -> tensor<4xf32>
        "lk.state_write"(%1) {symbol = "s"} : (tensor<4xf32>) -> ()
        %2 = "lk.state_read"() {symbol = "s"} : () -> tensor<4xf32>
        %3 = "lk.weight"() {symbol = "w"} : () -> tensor<4xf32>
        return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
      }""")
    run_pipeline(module, "builtin.module(canonicalize,cse)")
    operations = module.body.operations[0].regions[0].blocks[0].operations
    names = [op.operation.name for op in operations]
    assert names == ["lk.state_read", "lk.weight", "lk.state_write", "lk.state_read", "func.return"]


def test_a_verifier_that_raises_does_not_unwind_through_the_pass_manager(
    context: ir.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ir.Module.parse(text_of("softmax", "axis = 1 : i64, log = false", ["4x8xf32"], ["4x8xf32"]))

    def broken(self: LkOperation) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(SoftmaxOp, "check", broken)
    with pytest.raises(ir.MLIRError, match="verifier failed: ZeroDivisionError: oops"):
        module.operation.verify()
