"""Sums in chunks are proved to be the sums of one device, in one order; anything else is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.errors import ParityError, VerifyError
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.rewriting import main_block, operations
from lowerkit.passes.shard.fix_reductions import FixReductions
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import Signature
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.certificate.certificate import Certificate, prove_again
from lowerkit.spmd.certificate.facts import Chunks, Cut
from lowerkit.spmd.certificate.recorder import Recorder
from lowerkit.spmd.certificate.sums.trees import Tree
from tests.support.mesh.certified import changed

PRODUCT = """func.func @main(%x: tensor<5x{k}x{t}>) -> tensor<5x6x{t}> {{
  %w = "lk.weight"() {{symbol = "w"}} : () -> tensor<6x{k}x{t}>
  %y = "lk.matmul"(%x, %w) {{accumulate = f32, transpose_lhs = false, transpose_rhs = true}}
      : (tensor<5x{k}x{t}>, tensor<6x{k}x{t}>) -> tensor<5x6x{t}> loc("m@down")
  return %y : tensor<5x6x{t}>
}}"""
OPEN = PRODUCT.replace("5x", "?x")
CONVOLUTION = """func.func @main(%x: tensor<2x{k}x5x5x{t}>) -> tensor<2x6x3x3x{t}> {{
  %w = "lk.weight"() {{symbol = "w"}} : () -> tensor<6x{k}x3x3x{t}>
  %y = "lk.conv"(%x, %w) {{accumulate = f32, channels_last = false, dilation = array<i64: 1, 1>, groups = 1 : i64,
      padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>}}
      : (tensor<2x{k}x5x5x{t}>, tensor<6x{k}x3x3x{t}>) -> tensor<2x6x3x3x{t}> loc("m@down")
  return %y : tensor<2x6x3x3x{t}>
}}"""
TRANSPOSED = """func.func @main(%x: tensor<2x3x3x{k}x{t}>) -> tensor<2x5x5x6x{t}> {{
  %w = "lk.weight"() {{symbol = "w"}} : () -> tensor<{k}x6x3x3x{t}>
  %y = "lk.conv_transpose"(%x, %w) {{accumulate = f32, channels_last = true, dilation = array<i64: 1, 1>,
      groups = 1 : i64, output_padding = array<i64: 0, 0>, padding = array<i64: 0, 0, 0, 0>,
      strides = array<i64: 1, 1>}}
      : (tensor<2x3x3x{k}x{t}>, tensor<{k}x6x3x3x{t}>) -> tensor<2x5x5x6x{t}> loc("m@down")
  return %y : tensor<2x5x5x6x{t}>
}}"""
KINDS = {"product": PRODUCT, "open": OPEN, "convolution": CONVOLUTION, "transposed": TRANSPOSED}


def certified(kind: str, depth: int, ranks: int, element: str = "f32", *, chunks: int = 8) -> Certificate:
    text = KINDS[kind].format(k=depth, t=element)
    module, store = parse_module(text, new_context()), WeightStore()
    weight = next(op for op in operations(main_block(module)) if op.name == "lk.weight")
    store.declare("w", element, list(ir.RankedTensorType(weight.results[0].type).shape))
    recorder = Recorder(store, Signature())
    recorder.invariant()
    context = PassContext(store, sharding=ShardingPlan("tp", ranks, (PlanEntry("*.down", "row"),)))
    for one, axis, count in ((FixReductions(chunks), "", 1), (ShardProgram(), "tp", ranks)):
        recorder.before(module)
        one.run(module, context)
        recorder.after(module, axis, count)
    return recorder.certificate([MeshAxis("tp", ranks)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("depth", "element"), [(48, "f32"), (20, "f32"), (20, "bf16"), (8, "f32")])
def test_sums_are_those_of_one_device(kind: str, depth: int, element: str) -> None:
    trees: list[Tree] = []
    for ranks in (1, 2, 8):
        certificate = msgspec.json.decode(msgspec.json.encode(certified(kind, depth, ranks, element)), type=Certificate)
        prove_again(certificate)
        first = certificate.axes[0]
        assert (first.axis, certificate.invariant) == ("", True)
        assert {"chunk", "tree"} <= set(first.lemmas)
        # Chunks of input channels follow each other in the filter of a transposed convolution as they did before.
        assert [type(fact) for fact in first.facts] == [Cut if kind == "transposed" and depth % 8 == 0 else Chunks]
        trees += first.trees
    pairs = element == "bf16" and kind not in ("product", "open")
    assert {(tree.depth, tree.chunks, tree.size) for tree in trees} == {(depth, 8, 4 if pairs else -(-depth // 8))}


def numbered(certificate: Certificate, graph: int, name: str) -> list[int]:
    """The numbers of the ops of this name."""
    program = certificate.graphs[graph]
    return [number for number, op in enumerate(program.ops) if program.forms[op.form].name == name]


def refused(certificate: Certificate, path: str, value: Any, reason: str) -> None:
    with pytest.raises(ParityError, match=reason) as caught:
        prove_again(changed(certificate, path, value))
    assert caught.value.code == "LK6004"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("axes.0.facts.0.axis", 0, "no .* chunks|cannot be proved|is not"),
        ("axes.0.facts.0.size", 5, "is not"),
        ("axes.0.facts.0.source", "v", "those of no product before"),
        ("axes.0.trees.0.size", 5, "the sums in chunks say"),
        ("axes.0.trees", [], "the sums in chunks are 0, 1 were proved"),
    ],
)
def test_other_facts_and_trees_are_refused(path: str, value: Any, reason: str) -> None:
    refused(certified("product", 48, 2), path, value, reason)


def test_another_order_of_additions_is_refused() -> None:
    certificate = certified("product", 48, 1)
    program = certificate.graphs[1]
    (added,) = (
        number for number in numbered(certificate, 1, "linalg.generic") if len(program.ops[number].operands) > 2
    )
    operands = program.ops[added].operands
    swapped = [operands[1], operands[0], *operands[2:]]
    refused(certificate, f"graphs.1.ops.{added}.1", swapped, "no neighbours of one size")
    twice = [operands[0], operands[0], *operands[2:]]
    refused(certificate, f"graphs.1.ops.{added}.1", twice, "no neighbours of one size")
    form = program.ops[added].form
    chain = [list(each) for each in program.forms[form].body or []]
    # ((0 + 1) + (2 + 3)) + ...: the second addition takes the first one's result.
    results = len(operands)
    chain[1] = [*chain[1][:2], [results, 2], *chain[1][3:]]
    refused(certificate, f"graphs.1.forms.{form}.body.1", chain[1], "no neighbours of one size")
    product = ["arith.mulf", *(program.forms[form].body or [])[0][1:]]
    refused(certificate, f"graphs.1.forms.{form}.body.0", product, "computes arith.mulf of chunks")


def test_another_chunk_is_refused() -> None:
    certificate = certified("product", 48, 1)
    first = numbered(certificate, 1, "tensor.extract_slice")[0]
    form = certificate.graphs[1].ops[first].form
    offsets = list(certificate.graphs[1].forms[form].attributes["static_offsets"])
    other = [offset + (axis == 1) for axis, offset in enumerate(offsets)]
    refused(certificate, f"graphs.1.forms.{form}.attributes.static_offsets", other, "no neighbours|LK6004|terms")


def test_padding_with_something_else_than_zeros_is_refused() -> None:
    certificate = certified("product", 20, 1)
    (form,) = [
        number
        for number, form in enumerate(certificate.graphs[1].forms)
        if form.name == "arith.constant" and "0.0" in str(form.attributes["value"])
    ]
    ones = certificate.graphs[1].forms[form].attributes["value"].replace("0.0", "1.0")
    refused(certificate, f"graphs.1.forms.{form}.attributes.value", ones, "padded with more than zeros")


def test_another_number_of_chunks_is_no_order_that_other_meshes_have() -> None:
    certificate = certified("product", 48, 2, chunks=4)
    with pytest.raises(ParityError, match="no tree that other meshes have: 4 of 12"):
        prove_again(certificate)


def test_ranks_that_add_floats_are_refused() -> None:
    text = PRODUCT.format(k=48, t="f32")
    module, store = parse_module(text, new_context()), WeightStore()
    store.declare("w", "f32", [6, 48])
    recorder = Recorder(store, Signature())
    recorder.before(module)
    plan = ShardingPlan("tp", 2, (PlanEntry("*.down", "row"),))
    ShardProgram().run(module, PassContext(store, sharding=plan))
    recorder.after(module, "tp", 2)
    certificate = recorder.certificate([MeshAxis("tp", 2)])
    prove_again(certificate)
    refused(certificate, "invariant", True, "ranks add floats in an order of theirs: lk.collective_start")


def test_a_weight_in_chunks_that_is_shared_otherwise_is_refused() -> None:
    certificate = certified("product", 48, 1)
    refused(certificate, "shared", {"w@chunks": ["tp"]}, "not said to be shared as that of which it is cut")


def test_a_product_of_other_chunks_is_named() -> None:
    """What the pass would get wrong is refused when it is compiled, too."""
    module, store = parse_module(PRODUCT.format(k=48, t="f32"), new_context()), WeightStore()
    store.declare("w", "f32", [6, 48])
    recorder = Recorder(store, Signature())
    recorder.before(module)
    FixReductions().run(module, PassContext(store, sharding=ShardingPlan("tp", 1, (PlanEntry("*.down", "row"),))))
    (moved,) = (op for op in operations(main_block(module)) if op.name == "linalg.transpose")
    with module.context:
        moved.attributes["permutation"] = ir.DenseI64ArrayAttr.get([2, 1, 0, 3])
    with pytest.raises(VerifyError) as caught:
        recorder.after(module, "", 1)
    assert caught.value.code == "LK3006"
