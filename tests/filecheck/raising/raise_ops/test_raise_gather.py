"""raise-gather: one index tensor along any axis; several index tensors as one; bool masks stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_embedding_without_the_guard_of_onnx(check: Check) -> None:
    text = function(
        "%t: @[7,4], %i: @[2,3:si64]",
        "@[2,3,4]",
        """
  %i7 = torch.constant.int 7
  %c = torch.aten.lt.Scalar %i, %i0 : @[2,3:si64], !torch.int -> @[2,3:i1]
  %w = torch.aten.add.Scalar %i, %i7, %i1 : @[2,3:si64], !torch.int, !torch.int -> @[2,3:si64]
  %s = torch.aten.where.self %c, %w, %i : @[2,3:i1], @[2,3:si64], @[2,3:si64] -> @[2,3:si64]
  %r = torch.aten.embedding %t, %s, %m1, %false, %false
      : @[7,4], @[2,3:si64], !torch.int, !torch.bool, !torch.bool -> @[2,3,4]
  return %r : @[2,3,4]""",
    )
    check(
        text,
        "raise-gather",
        """
        // CHECK: func.func @main(%{{.*}}, %[[I:.*]]: !torch.vtensor<[2,3],si64>)
        // CHECK: %[[J:.*]] = torch_c.to_builtin_tensor %[[I]]
        // CHECK: "lk.gather"(%{{.*}}, %[[J]]) {axis = 0 : i64}
        """,
    )


def test_index_in_the_middle(check: Check) -> None:
    text = function(
        "%x: @[5,7,4], %i: @[2:si64]",
        "@[5,2,4]",
        """
  %l = torch.prim.ListConstruct %none, %i : (!torch.none, @[2:si64]) -> !torch.list<optional<vtensor>>
  %r = torch.aten.index.Tensor %x, %l : @[5,7,4], !torch.list<optional<vtensor>> -> @[5,2,4]
  return %r : @[5,2,4]""",
    )
    check(text, "raise-gather", '// CHECK: "lk.gather"({{.*}}) {axis = 1 : i64}')


def test_consecutive_constant_positions_are_a_slice(check: Check) -> None:
    text = function(
        "%x: @[5,7]",
        "@[5,2]",
        """
  %i = torch.vtensor.literal(dense<[3, 4]> : tensor<2xsi64>) : @[2:si64]
  %r = torch.aten.index_select %x, %i1, %i : @[5,7], !torch.int, @[2:si64] -> @[5,2]
  return %r : @[5,2]""",
    )
    check(text, "raise-gather", "// CHECK: torch.aten.slice.Tensor\n// CHECK-NOT: lk.gather")
    check(text.replace("[3, 4]", "[4, 3]"), "raise-gather", '// CHECK: "lk.gather"')


def test_two_tensors_are_positions_in_a_merged_dim(check: Check) -> None:
    text = function(
        "%x: @[5,7], %i: @[2:si64]",
        "@[2]",
        """
  %b = torch.prim.ListConstruct %i, %i : (@[2:si64], @[2:si64]) -> !torch.list<optional<vtensor>>
  %s = torch.aten.index.Tensor %x, %b : @[5,7], !torch.list<optional<vtensor>> -> @[2]
  return %s : @[2]""",
    )
    check(
        text,
        "raise-gather",
        """
        // CHECK: torch.aten.view {{.*}} -> !torch.vtensor<[35],f32>
        // CHECK: linalg.generic {{.*}}["parallel"]} ins(%{{.*}}, %{{.*}} : tensor<2xi64>, tensor<2xi64>)
        // CHECK: arith.minsi
        // CHECK: arith.maxsi
        // CHECK-NOT: torch.aten
        // CHECK: "lk.gather"({{.*}}) {axis = 0 : i64}
        """,
    )


def test_an_index_for_each_element_is_a_loop_over_the_result(check: Check) -> None:
    text = function(
        "%x: @[5,?:ui8], %i: @[?,2:si64]",
        "@[?,2:ui8]",
        """
  %r = torch.aten.gather %x, %i0, %i, %false : @[5,?:ui8], !torch.int, @[?,2:si64], !torch.bool -> @[?,2:ui8]
  return %r : @[?,2:ui8]""",
    )
    check(
        text,
        "raise-gather",
        """
        // CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<?x2xi64>) outs(%{{.*}} : tensor<?x2xi8>)
        // CHECK: %[[J:.*]] = linalg.index 1
        // CHECK: %[[CLAMPED:.*]] = arith.maxsi
        // CHECK: tensor.extract %{{.*}}[%[[CLAMPED]], %[[J]]] : tensor<5x?xi8>
        // CHECK-NOT: torch.aten.gather
        """,
    )
    computed = text.replace("%x: ", "%n: !torch.int, %x: ").replace("%x, %i0", "%x, %n")
    context = check(computed, "raise-gather", "// CHECK: torch.aten.gather")
    assert "an int argument is not a constant" in context.remarks[0]


def test_mask_stays_and_says_so(check: Check) -> None:
    text = function(
        "%x: @[5,7], %m: @[5:i1]",
        "@[?,7]",
        """
  %a = torch.prim.ListConstruct %m : (@[5:i1]) -> !torch.list<optional<vtensor>>
  %r = torch.aten.index.Tensor %x, %a : @[5,7], !torch.list<optional<vtensor>> -> @[?,7]
  return %r : @[?,7]""",
    )
    context = check(text, "raise-gather", '// CHECK-NOT: "lk.gather"')
    assert "would depend on the data" in context.remarks[0]
