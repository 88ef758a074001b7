"""raise-scatter: index_put by slices, by masks and by several tensors; scatter by element; what stays."""

from __future__ import annotations

from tests.support.torch_text import Check, function

INDEX_PUT = """
  %l = torch.prim.ListConstruct ITEMS : (TYPES) -> !torch.list<optional<vtensor>>
  %r = torch.aten.index_put %x, %l, %u, ACCUMULATE
      : @[5,7], !torch.list<optional<vtensor>>, @[UPDATES], !torch.bool -> @[5,7]
  return %r : @[5,7]"""


def index_put(items: str, types: str, updates: str, accumulate: str = "%true") -> str:
    body = INDEX_PUT.replace("ITEMS", items).replace("TYPES", types)
    body = body.replace("UPDATES", updates).replace("ACCUMULATE", accumulate)
    return function(f"%x: @[5,7], %i: @[2:si64], %m: @[5:i1], %u: @[{updates}]", "@[5,7]", body)


def test_whole_slices(check: Check) -> None:
    text = index_put("%i", "@[2:si64]", "2,7")
    check(text, "raise-scatter", '// CHECK: "lk.scatter"({{.*}}) {axis = 0 : i64, kind = "add"}')
    text = index_put("%i", "@[2:si64]", "2,7", "%false")
    check(text, "raise-scatter", '// CHECK: "lk.scatter"({{.*}}) {axis = 0 : i64, kind = "set"}')


def test_updates_are_broadcast(check: Check) -> None:
    text = index_put("%none, %i", "!torch.none, @[2:si64]", "5,1")
    check(
        text,
        "raise-scatter",
        """
        // CHECK: torch.aten.broadcast_to {{.*}} -> !torch.vtensor<[5,2],f32>
        // CHECK: "lk.scatter"({{.*}}) {axis = 1 : i64, kind = "add"}
        """,
    )


def test_wrong_coordinates_have_no_position(check: Check) -> None:
    check(
        index_put("%i, %i", "@[2:si64], @[2:si64]", "2"),
        "raise-scatter",
        """
        // CHECK: torch.aten.view {{.*}} -> !torch.vtensor<[35],f32>
        // CHECK: arith.andi
        // CHECK: %[[TOTAL:.*]] = arith.constant 35 : index
        // CHECK: arith.select %{{.*}}, %{{.*}}, %[[TOTAL]]
        // CHECK: "lk.scatter"({{.*}}) {axis = 0 : i64, kind = "add"} : (tensor<35xf32>
        """,
    )


def test_mask_is_a_selection(check: Check) -> None:
    text = index_put("%m", "@[5:i1]", "7", "%false")
    check(text, "raise-scatter", "// CHECK: torch.aten.where.self\n// CHECK-NOT: torch.aten.index_put")


SCATTER = """
  %r = torch.aten.scatter.src %x, %i1, INDEX, %s : @[5,7], !torch.int, @[5,2:si64], @[5,3] -> @[5,7]
  return %r : @[5,7]"""


def test_scatter_by_element_is_flat_and_by_slice_is_not(check: Check) -> None:
    arguments = "%x: @[5,7], %j: @[5,2:si64], %k: @[1,2:si64], %s: @[5,3]"
    text = function(arguments, "@[5,7]", SCATTER.replace("INDEX", "%j"))
    check(text, "raise-scatter", '// CHECK: "lk.scatter"({{.*}}) {axis = 0 : i64, kind = "set"} : (tensor<35xf32>')
    expanded = """
  %i5 = torch.constant.int 5
  %z = torch.prim.ListConstruct %i5, %i2 : (!torch.int, !torch.int) -> !torch.list<int>
  %e = torch.aten.expand %k, %z, %false : @[1,2:si64], !torch.list<int>, !torch.bool -> @[5,2:si64]"""
    text = function(arguments, "@[5,7]", expanded + SCATTER.replace("INDEX", "%e"))
    check(text, "raise-scatter", '// CHECK: "lk.scatter"({{.*}}) {axis = 1 : i64, kind = "set"} : (tensor<5x7xf32>')


def test_scatter_of_open_extents_writes_where_its_coordinates_say(check: Check) -> None:
    text = function(
        "%x: @[?,7], %i: @[?,2:si64], %s: @[?,3]",
        "@[?,7]",
        """
  %r = torch.aten.scatter.src %x, %i1, %i, %s : @[?,7], !torch.int, @[?,2:si64], @[?,3] -> @[?,7]
  return %r : @[?,7]""",
    )
    check(
        text,
        "raise-scatter",
        """
        // CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<?x2xi64>)
        // CHECK: linalg.index 0
        // CHECK: torch.aten.slice.Tensor
        // CHECK: torch.aten.slice.Tensor
        // CHECK: "lk.scatter"({{.*}}) {axis = 0 : i64, kind = "set"} : (tensor<?xf32>, tensor<?xi64>, tensor<?xf32>)
        """,
    )


def test_bytes_are_combined_with_a_sign_and_bools_by_or(check: Check) -> None:
    text = function(
        "%x: @[5:DTYPE], %i: @[2:si64], %u: @[2:DTYPE]",
        "@[5:DTYPE]",
        """
  %r = torch.aten.scatter_add %x, %i0, %i, %u : @[5:DTYPE], !torch.int, @[2:si64], @[2:DTYPE] -> @[5:DTYPE]
  return %r : @[5:DTYPE]""",
    )
    wide = "(tensor<5xi16>, tensor<2xi64>, tensor<2xi16>)"
    check(text.replace("DTYPE", "i1"), "raise-scatter", f'// CHECK: "lk.scatter"({{{{.*}}}}kind = "max"}} : {wide}')
    check(text.replace("DTYPE", "ui8"), "raise-scatter", f'// CHECK: "lk.scatter"({{{{.*}}}}kind = "add"}} : {wide}')


def test_reduction_by_an_unknown_word_stays_and_says_so(check: Check) -> None:
    text = function(
        "%x: @[5], %i: @[2:si64], %u: @[2]",
        "@[5]",
        """
  %w = torch.constant.str "median"
  %r = torch.aten.scatter_reduce.two %x, %i0, %i, %u, %w, %true
      : @[5], !torch.int, @[2:si64], @[2], !torch.str, !torch.bool -> @[5]
  return %r : @[5]""",
    )
    context = check(text, "raise-scatter", "// CHECK: torch.aten.scatter_reduce.two")
    assert "reduction 'median'" in context.remarks[0]
