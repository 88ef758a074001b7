"""shard-program: each rank runs its part, and what it needs of the others comes by collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.dialect.interpreter.mesh import interpret_mesh
from lowerkit.errors import UnsupportedError
from lowerkit.passes.base import PassContext
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.program.weights import WeightStore
from tests.filecheck.conftest import match_checks

Plan = Mapping[str, Any]
MATMUL = "accumulate = f32, transpose_lhs = false, transpose_rhs = false"
_WEIGHT = re.compile(r'"lk.weight"\(\) \{symbol = "([\w.]+)"\} : \(\) -> tensor<((?:\d+x)*)(\w+)>')
_ARGUMENT = re.compile(r"%\w+: tensor<((?:\d+x)*)(\w+)>")
MAPS = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#last = affine_map<(d0, d1) -> (d1)>
#swap = affine_map<(d0, d1) -> (d1, d0)>
#row = affine_map<(d0, d1) -> (d0, 0)>
"""


def random(shape: str, dtype: str) -> np.ndarray[Any, Any]:
    sizes = [int(size) for size in shape.split("x") if size]
    if dtype in ("i64", "i8"):
        return np.random.default_rng().integers(-12, 12, sizes, {"i64": np.int64, "i8": np.int8}[dtype])
    if dtype == "i32":
        return np.random.default_rng().integers(1, 9, sizes, np.int32)
    return np.random.default_rng().standard_normal(sizes).astype(np.float32)


def stored_weights(text: str) -> WeightStore:
    store = WeightStore()
    for name, shape, dtype in _WEIGHT.findall(text):
        if name not in store:
            store.add(name, random(shape, dtype))
    return store


def sharded(text: str, plan: Plan, ranks: int = 2, inputs: Sequence[str] = ()) -> tuple[str, ShardingPlan]:
    """Shards a program, runs all ranks in numpy on fresh values, and compares each with the program as it was."""
    module = parse_module(MAPS + text, new_context())
    store = stored_weights(text)
    values = [random(*found) for found in _ARGUMENT.findall(text.partition("->")[0])]
    wanted = interpret(module, values, store.get)
    entries = tuple(PlanEntry(pattern, choice) for pattern, choice in plan.items())
    sharding = ShardingPlan("tp", ranks, entries)
    assert ShardProgram().run(module, PassContext(store, sharding=sharding, input_names=inputs))
    assert module.operation.verify()

    def part(name: str, rank: int) -> Any:
        data = store.get(name)
        return data if store.shard(name) is None else data[rank]

    for found in interpret_mesh(module, values, part, ranks):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    return str(module), sharding


def kinds(plan: ShardingPlan) -> list[str]:
    return [each.kind for each in plan.report.collectives]


def weight(name: str, shape: str) -> str:
    return f'%{name} = "lk.weight"() {{symbol = "{name}"}} : () -> tensor<{shape}>'


def product(result: str, left: str, left_shape: str, name: str, shape: str, out: str) -> str:
    return (
        f'{weight(name, shape)}\n%{result} = "lk.matmul"(%{left}, %{name}) {{{MATMUL}}} : '
        f'(tensor<{left_shape}>, tensor<{shape}>) -> tensor<{out}> loc("mm@{name}")'
    )


def elementwise(
    result: str, maps: str, inputs: str, types: str, out: str, body: str = "arith.addf %a, %b : f32"
) -> str:
    count = inputs.count("%")
    arguments = ", ".join(f"%{name}: f32" for name in ("a", "b")[:count])
    return f"""
      %{result}_e = tensor.empty() : tensor<{out}>
      %{result} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel"]}}
          ins({inputs} : {types}) outs(%{result}_e : tensor<{out}>) {{
        ^bb0({arguments}, %o: f32):
          %r = {body}
          linalg.yield %r : f32
      }} -> tensor<{out}>"""


def main(arguments: str, results: str, body: str) -> str:
    return f"func.func @main({arguments}) -> {results} {{\n{body}\n}}"


MLP = main(
    "%x: tensor<4x6xf32>",
    "tensor<4x6xf32>",
    "\n".join(
        [
            product("h", "x", "4x6xf32", "up", "6x8xf32", "4x8xf32"),
            weight("bias", "8xf32"),
            elementwise("b", "#id, #last, #id", "%h, %bias", "tensor<4x8xf32>, tensor<8xf32>", "4x8xf32"),
            elementwise("g", "#id, #id", "%b", "tensor<4x8xf32>", "4x8xf32", "math.tanh %a : f32"),
            product("y", "g", "4x8xf32", "down", "8x6xf32", "4x6xf32"),
            "return %y : tensor<4x6xf32>",
        ]
    ),
)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_columns_then_rows_take_one_sum(ranks: int) -> None:
    text, plan = sharded(MLP, {"up": "column", "*.down": "row"}, ranks)
    assert kinds(plan) == (["all_reduce"] if ranks > 1 else [])
    if ranks == 2:
        match_checks(
            text,
            """
            // CHECK: symbol = "up@tp.1"
            // CHECK: lk.matmul{{.*}}tensor<4x4xf32>
            // CHECK: symbol = "bias@tp.0"
            // CHECK: linalg.generic
            // CHECK: math.tanh
            // CHECK: symbol = "down@tp.0"
            // CHECK: %[[TERM:.*]] = "lk.matmul"{{.*}}(tensor<4x4xf32>, tensor<4x6xf32>)
            // CHECK-NEXT: %[[PENDING:.*]] = "lk.collective_start"(%[[TERM]]) {axis = "tp", kind = "all_reduce"
            // CHECK-NEXT: %[[SUM:.*]] = "lk.collective_done"(%[[PENDING]])
            // CHECK-NEXT: return %[[SUM]]
            """,
        )


def test_columns_alone_are_gathered() -> None:
    text, plan = sharded(MLP, {"up": "column"})
    assert kinds(plan) == ["all_gather"]
    assert plan.report.whole == ["down"]
    match_checks(
        text,
        """
        // CHECK: lk.collective_start{{.*}}kind = "all_gather"{{.*}}(tensor<4x4xf32>) -> tensor<2x4x4xf32>
        // CHECK: linalg.transpose
        // CHECK: tensor.collapse_shape{{.*}}into tensor<4x8xf32>
        """,
    )


def test_a_sum_that_is_read_in_parts_is_scattered() -> None:
    body = [
        product("h", "x", "4x6xf32", "first", "6x8xf32", "4x8xf32"),
        product("y", "h", "4x8xf32", "second", "8x6xf32", "4x6xf32"),
        "return %y : tensor<4x6xf32>",
    ]
    text = main("%x: tensor<4x6xf32>", "tensor<4x6xf32>", "\n".join(body))
    module, plan = sharded(text, {"first": "row", "second": "row"})
    assert kinds(plan) == ["reduce_scatter", "all_reduce"]
    match_checks(module, '// CHECK: kind = "reduce_scatter"{{.*}}(tensor<2x4x4xf32>) -> tensor<4x4xf32>')


def test_what_stands_between_start_and_done_runs_meanwhile() -> None:
    body = [
        product("y", "x", "4x6xf32", "down", "6x6xf32", "4x6xf32"),
        elementwise("t", "#id, #id", "%x", "tensor<4x6xf32>", "4x6xf32", "math.exp %a : f32"),
        elementwise("z", "#id, #id, #id", "%y, %t", "tensor<4x6xf32>, tensor<4x6xf32>", "4x6xf32"),
        "return %z : tensor<4x6xf32>",
    ]
    text, _ = sharded(main("%x: tensor<4x6xf32>", "tensor<4x6xf32>", "\n".join(body)), {"down": "row"})
    match_checks(text, "// CHECK: lk.collective_start\n// CHECK: math.exp\n// CHECK: lk.collective_done\n")


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_look_up_the_rows_that_they_have(ranks: int) -> None:
    look_up = f"""{weight("table", "12x3xf32")}
      %r = "lk.gather"(%table, %i) {{axis = 0 : i64}}
          : (tensor<12x3xf32>, tensor<4x5xi64>) -> tensor<4x5x3xf32> loc("e@embed")
      return %r : tensor<4x5x3xf32>"""
    text, plan = sharded(main("%i: tensor<4x5xi64>", "tensor<4x5x3xf32>", look_up), {"embed": "vocabulary"}, ranks)
    assert kinds(plan) == ["all_reduce"]
    match_checks(text, '// CHECK: symbol = "table@tp.0"\n// CHECK: symbol = "first_row@tp"\n// CHECK: arith.cmpi ult')


@pytest.mark.parametrize("ranks", [3, 5, 8])
def test_a_vocabulary_that_does_not_divide_is_padded(ranks: int) -> None:
    body = f"""{weight("t", "13x4xf32")}
      %r = "lk.gather"(%t, %i) {{axis = 0 : i64}} : (tensor<13x4xf32>, tensor<5xi64>) -> tensor<5x4xf32> loc("e@embed")
      {multiplied("%r, %t", "5x4xf32 13x4xf32", "5x13xf32", right="true")} loc("m@head")
      return %y : tensor<5x13xf32>"""
    plan = {"embed": "vocabulary", "head": "vocabulary"}
    text, sharding = sharded(main("%i: tensor<5xi64>", "tensor<5x13xf32>", body), plan, ranks)
    assert kinds(sharding) == ["all_reduce", "all_gather"]
    match_checks(text, '// CHECK: kind = "all_gather"\n// CHECK: tensor.extract_slice{{.*}}[5, 13] [1, 1]')


ATTENTION = 'causal = true, empty_rows = "zero", fill = 0.0 : f64, masking = "add", scale = 0.5 : f64'


@pytest.mark.parametrize(
    ("key_heads", "mask", "collectives"),
    [
        (4, "", ["all_gather"]),
        (2, "", ["all_gather"] * 3),  # several ranks share a key head
        (1, "", ["all_gather"] * 3),
        (4, "1x1x5x5", ["all_gather"]),
        (4, "2x4x5x5", ["all_gather"]),
        (2, "5x5", ["all_gather"] * 3),
    ],
)
def test_heads_run_apart(key_heads: int, mask: str, collectives: list[str]) -> None:
    width = key_heads * 4
    key = f"2x5x{width}xf32"
    body = [product("q", "x", "2x5x6xf32", "q_proj", "6x16xf32", "2x5x16xf32")]
    for name in ("k", "v"):
        body.append(product(name, "x", "2x5x6xf32", f"{name}_proj", f"6x{width}xf32", key))
    for name, heads in (("q", 4), ("k", key_heads), ("v", key_heads)):
        flat, cut, moved = f"2x5x{heads * 4}xf32", f"2x5x{heads}x4xf32", f"2x{heads}x5x4xf32"
        body.append(f"""
          %{name}1 = tensor.expand_shape %{name} [[0], [1], [2, 3]] output_shape [2, 5, {heads}, 4]
              : tensor<{flat}> into tensor<{cut}>
          %{name}2 = tensor.empty() : tensor<{moved}>
          %{name}3 = linalg.transpose ins(%{name}1 : tensor<{cut}>) outs(%{name}2 : tensor<{moved}>)
              permutation = [0, 2, 1, 3]""")
    types = ["2x4x5x4xf32", *([f"2x{key_heads}x5x4xf32"] * 2), *([f"{mask}xf32"] if mask else [])]
    operands = ["%q3", "%k3", "%v3", *(["%m"] if mask else [])]
    body.append(
        f'%a = "lk.attention"({", ".join(operands)}) {{{ATTENTION}}} : '
        f"({', '.join(f'tensor<{kind}>' for kind in types)}) -> tensor<2x4x5x4xf32>"
    )
    body.append("return %a : tensor<2x4x5x4xf32>")
    arguments = "%x: tensor<2x5x6xf32>" + (f", %m: tensor<{mask}xf32>" if mask else "")
    _, plan = sharded(main(arguments, "tensor<2x4x5x4xf32>", "\n".join(body)), {"*_proj": "column"}, 4)
    assert kinds(plan) == collectives


COLUMN = product("h", "x", "4x6xf32", "up", "6x8xf32", "4x8xf32")
RMS = "epsilon = 1.0e-6 : f64, normalized_rank = 1 : i64"
H = "4x8xf32"


def lk(name: str, operands: str, attributes: str, types: str, result: str) -> str:
    """Writes ``%y = lk.name(operands)``; types are separated by spaces."""
    kinds_of_operands = ", ".join(f"tensor<{kind}>" for kind in types.split())
    return f'%y = "lk.{name}"({operands}) {{{attributes}}} : ({kinds_of_operands}) -> tensor<{result}>'


def reduced(axis: int, kind: str, result: str, *, keep: str = "false") -> str:
    attributes = f'axes = array<i64: {axis}>, keep_dims = {keep}, kind = "{kind}"'
    return lk("reduce", "%h", attributes, H, result)


def viewed(view: str, result: str) -> str:
    return f"%y = tensor.{view} : tensor<{H}> {'to' if 'slice' in view else 'into'} tensor<{result}>"


def added(maps: str, other: str, kind: str) -> str:
    return elementwise("y", maps, f"%h, {other}", f"tensor<{H}>, tensor<{kind}>", H)


def multiplied(operands: str, types: str, result: str, *, left: str = "false", right: str = "false") -> str:
    attributes = f"accumulate = f32, transpose_lhs = {left}, transpose_rhs = {right}"
    return lk("matmul", operands, attributes, types, result)


READERS = [
    # (ops on the split %h, type of their result, collectives): what keeps the slices apart, and what needs them whole
    (lk("softmax", "%h", "axis = 0 : i64, log = false", H, H), H, "g"),
    (lk("softmax", "%h", "axis = 1 : i64, log = false", H, H), H, "g"),
    (reduced(0, "max", "8xf32"), "8xf32", "g"),
    (reduced(0, "mean", "1x8xf32", keep="true"), "1x8xf32", "g"),
    (reduced(1, "sum", "4xf32"), "4xf32", "r"),
    (reduced(1, "max", "4xf32"), "4xf32", "r"),
    (reduced(1, "mean", "4xf32"), "4xf32", "g"),
    (f"%y = tensor.concat dim(0) %h, %h : (tensor<{H}>, tensor<{H}>) -> tensor<8x8xf32>", "8x8xf32", "g"),
    (f"%y = tensor.concat dim(1) %h, %h : (tensor<{H}>, tensor<{H}>) -> tensor<4x16xf32>", "4x16xf32", "g"),
    (viewed("extract_slice %h[1, 0] [2, 8] [1, 1]", "2x8xf32"), "2x8xf32", "g"),
    (viewed("extract_slice %h[0, 2] [4, 4] [1, 1]", "4x4xf32"), "4x4xf32", "g"),
    (viewed("expand_shape %h [[0], [1, 2]] output_shape [4, 4, 2]", "4x4x2xf32"), "4x4x2xf32", "g"),
    (viewed("expand_shape %h [[0], [1, 2, 3]] output_shape [4, 1, 4, 2]", "4x1x4x2xf32"), "4x1x4x2xf32", "g"),
    (viewed("collapse_shape %h [[0, 1]]", "32xf32"), "32xf32", "g"),
    (f"{weight('s', '8xf32')}\n{lk('rms_norm', '%h, %s', RMS, f'{H} 8xf32', H)}", H, "g"),
    (
        "%e = tensor.empty() : tensor<8x4xf32>\n"
        f"%y = linalg.transpose ins(%h : tensor<{H}>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]",
        "8x4xf32",
        "g",
    ),
    (added("#id, #row, #id", "%z", "4x1xf32"), H, "g"),
    (added("#id, #swap, #id", "%w", "8x4xf32"), H, "g"),
    (added("#id, #id, #id", "%v", H), H, "g"),
    (added("#id, #id, #id", "%c", H), H, "g"),
    (added("#id, #id, #id", "%f", H), H, "g"),
    (elementwise("y", "#id, #id", "%h", f"tensor<{H}>", H, "arith.mulf %a, %n : f32"), H, "g"),
    (
        elementwise("y", "#id, #id", "%h", f"tensor<{H}>", H, "arith.addf %a, %j : f32").replace(
            "%r = arith",
            "%l = linalg.index 1 : index\n%k = arith.index_cast %l : index to i64\n"
            "%j = arith.sitofp %k : i64 to f32\n%r = arith",
        ),
        H,
        "g",
    ),
    (multiplied("%h, %v", f"{H} {H}", "4x4xf32", right="true"), "4x4xf32", "r"),
    (multiplied("%w, %h", f"8x4xf32 {H}", "8x8xf32"), "8x8xf32", "g"),
    (multiplied("%h, %h", f"{H} {H}", "4x4xf32", right="true"), "4x4xf32", "r"),
    (multiplied("%h, %h", f"{H} {H}", "8x8xf32", left="true"), "8x8xf32", "gg"),
    (
        f"%d0 = arith.constant 1 : index\n%d1 = tensor.dim %h, %d0 : tensor<{H}>\n"
        "%d2 = arith.index_cast %d1 : index to i64\n%d3 = arith.sitofp %d2 : i64 to f32\n"
        "%d4 = tensor.empty() : tensor<f32>\n"
        "%y = linalg.fill ins(%d3 : f32) outs(%d4 : tensor<f32>) -> tensor<f32>",
        "f32",
        "",
    ),
]


@pytest.mark.parametrize(("ops", "kind", "collectives"), READERS)
def test_readers_of_a_split_tensor(ops: str, kind: str, collectives: str) -> None:
    constants = """%n = arith.constant 3.0 : f32
      %c = arith.constant dense<2.0> : tensor<4x8xf32>
      %f_e = tensor.empty() : tensor<4x8xf32>
      %f = linalg.fill ins(%n : f32) outs(%f_e : tensor<4x8xf32>) -> tensor<4x8xf32>"""
    arguments = "%x: tensor<4x6xf32>, %v: tensor<4x8xf32>, %w: tensor<8x4xf32>, %z: tensor<4x1xf32>"
    text = main(arguments, f"tensor<{kind}>", f"{constants}\n{COLUMN}\n{ops}\nreturn %y : tensor<{kind}>")
    _, plan = sharded(text, {"up": "column"})
    names = {"g": "all_gather", "r": "all_reduce"}
    assert kinds(plan) == [names[letter] for letter in collectives]


def test_batches_of_products_run_apart() -> None:
    body = f"""{product("h", "x", "2x5x6xf32", "up", "6x8xf32", "2x5x8xf32")}
      %s = tensor.expand_shape %h [[0], [1], [2, 3]] output_shape [2, 5, 4, 2]
          : tensor<2x5x8xf32> into tensor<2x5x4x2xf32>
      %e = tensor.empty() : tensor<2x4x5x2xf32>
      %t = linalg.transpose ins(%s : tensor<2x5x4x2xf32>) outs(%e : tensor<2x4x5x2xf32>) permutation = [0, 2, 1, 3]
      {multiplied("%t, %t", "2x4x5x2xf32 2x4x5x2xf32", "2x4x5x5xf32", right="true").replace("%y", "%k")}
      %m = "lk.matmul"(%k, %v) {{{MATMUL}}} : (tensor<2x4x5x5xf32>, tensor<1x5x3xf32>) -> tensor<2x4x5x3xf32>
      return %m : tensor<2x4x5x3xf32>"""
    arguments = "%x: tensor<2x5x6xf32>, %v: tensor<1x5x3xf32>"
    text, plan = sharded(main(arguments, "tensor<2x4x5x3xf32>", body), {"up": "column"}, 4)
    assert kinds(plan) == ["all_gather"]
    match_checks(text, "// CHECK: (tensor<2x1x5x2xf32>, tensor<2x1x5x2xf32>) -> tensor<2x1x5x5xf32>")


@pytest.mark.parametrize(
    ("plan", "ranks", "parts"),
    [
        ({"up": "column"}, 3, ["up", "8 does not divide by 3", "'up': column"]),
        ({"*": "row"}, 4, ["1 ops", "6 does not divide by 4", "in up"]),
        ({"*": "vocabulary"}, 9, ["2 ops", "8 does not divide by 9", "6 does not divide by 9"]),
        ({"*": "row"}, 5, ["2 ops", "6 does not divide by 5", "8 does not divide by 5"]),
    ],
)
def test_refuses_what_does_not_divide(plan: Plan, ranks: int, parts: Sequence[str]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        sharded(MLP, plan, ranks)
    assert caught.value.code == "LK4007"
    shown = " ".join([caught.value.message, *caught.value.details])
    for part in parts:
        assert part in shown, shown


@pytest.mark.parametrize(
    ("body", "plan", "part"),
    [
        (
            f"""{weight("table", "12x3xf32")}
            %y = "lk.gather"(%table, %i) {{axis = 0 : i64}}
                : (tensor<12x3xf32>, tensor<4xi64>) -> tensor<4x3xf32> loc("e@embed")""",
            {"embed": "column"},
            "a table is split along its vocabulary",
        ),
        (
            f"""{weight("table", "12x3xf32")}
            %y = "lk.gather"(%table, %i) {{axis = 1 : i64}}
                : (tensor<12x3xf32>, tensor<4xi64>) -> tensor<12x4xf32> loc("e@embed")""",
            {"embed": "vocabulary"},
            "only the rows of a table of floats",
        ),
        (
            f"""{weight("w", "3x6xf32")}
            %y = "lk.matmul"(%x, %w) {{{MATMUL}}}
                : (tensor<4x3xf32>, tensor<3x6xf32>) -> tensor<4x6xf32> loc("m@experts")""",
            {"experts": "expert"},
            "its weight of 3x6 has no dimension that expert splits",
        ),
    ],
)
def test_refuses_what_cannot_be_split(body: str, plan: Plan, part: str) -> None:
    kind = body.rpartition("-> tensor<")[2].partition(">")[0]
    text = main("%x: tensor<4x3xf32>, %i: tensor<4xi64>", f"tensor<{kind}>", f"{body}\nreturn %y : tensor<{kind}>")
    module = parse_module(text, new_context())
    store = stored_weights(text)
    sharding = ShardingPlan("tp", 2, tuple(PlanEntry(pattern, choice) for pattern, choice in plan.items()))
    with pytest.raises(UnsupportedError, match=part) as caught:
        ShardProgram().run(module, PassContext(store, sharding=sharding))
    assert caught.value.code == "LK4007"


def test_replicate_ahead_of_a_pattern_leaves_a_module_whole() -> None:
    _, plan = sharded(MLP, {"down": "replicate", "*": "column"})
    assert plan.report.whole == ["down"]
    assert plan.report.split == [("up", "column")]


def test_a_table_that_a_product_shares_is_that_of_whoever_reads_it() -> None:
    body = f"""{weight("head_weight", "12x3xf32").replace("head_weight", "head.weight").replace("%head.weight", "%t")}
      %r = "lk.gather"(%t, %i) {{axis = 0 : i64}} : (tensor<12x3xf32>, tensor<4xi64>) -> tensor<4x3xf32> loc("e@embed")
      {multiplied("%r, %t", "4x3xf32 12x3xf32", "4x12xf32", right="true")} loc("m@head")
      return %y : tensor<4x12xf32>"""
    _, plan = sharded(main("%i: tensor<4xi64>", "tensor<4x12xf32>", body), {"head": "column"})
    assert plan.report.split == [("head", "column")]


@pytest.mark.parametrize("path", ["", "block"])
def test_a_weight_names_its_module_where_the_op_does_not(path: str) -> None:
    body = f"""%t = "lk.weight"() {{symbol = "block.up.weight"}} : () -> tensor<6x8xf32>
      {multiplied("%x, %t", "4x6xf32 6x8xf32", "4x8xf32")} loc("m@{path}")
      return %y : tensor<4x8xf32>"""
    _, plan = sharded(main("%x: tensor<4x6xf32>", "tensor<4x8xf32>", body), {"*.up": "column"})
    assert plan.report.split == [(path, "column")]


def test_nothing_without_a_plan() -> None:
    module = parse_module(MAPS + MLP, new_context())
    assert not ShardProgram().run(module, PassContext(WeightStore()))
