"""raise-normalization: norms become lk ops, batch norm two small vectors; what reads statistics or trains stays."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_native_layer_norm(check: Check) -> None:
    text = function(
        "%x: @[2,3,4], %w: @[3,4]",
        "@[2,3,4]",
        """
  %eps = torch.constant.float 1.0e-05
  %i4 = torch.constant.int 4
  %shape = torch.prim.ListConstruct %i3, %i4 : (!torch.int, !torch.int) -> !torch.list<int>
  %r, %mean, %rstd = torch.aten.native_layer_norm %x, %shape, %w, %none, %eps
      : @[2,3,4], !torch.list<int>, @[3,4], !torch.none, !torch.float -> @[2,3,4], @[2,1,1], @[2,1,1]
  return %r : @[2,3,4]""",
    )
    check(
        text, "raise-normalization", '// CHECK: "lk.layer_norm"({{.*}}epsilon = 1.000000e-05 : f64, normalized_rank = 2'
    )


def test_statistics_that_are_read_stay_and_say_so(check: Check) -> None:
    text = function(
        "%x: @[2,4]",
        "@[2,4], @[2,1]",
        """
  %eps = torch.constant.float 1.0e-05
  %i4 = torch.constant.int 4
  %shape = torch.prim.ListConstruct %i4 : (!torch.int) -> !torch.list<int>
  %r, %mean, %rstd = torch.aten.native_layer_norm %x, %shape, %none, %none, %eps
      : @[2,4], !torch.list<int>, !torch.none, !torch.none, !torch.float -> @[2,4], @[2,1], @[2,1]
  return %r, %mean : @[2,4], @[2,1]""",
    )
    context = check(text, "raise-normalization", '// CHECK-NOT: "lk.layer_norm"')
    assert "mean or reciprocal deviation of the norm is read" in context.remarks[0]


BATCH_NORM = function(
    "%x: @[2,3,5], %w: @[3], %b: @[3], %m: @[3], %v: @[3]",
    "@[2,3,5]",
    """
  %eps = torch.constant.float 1.0e-05
  %r = torch.aten.batch_norm %x, %w, %b, %m, %v, TRAINING, %eps, %eps, %false
      : @[2,3,5], @[3], @[3], @[3], @[3], !torch.bool, !torch.float, !torch.float, !torch.bool -> @[2,3,5]
  return %r : @[2,3,5]""",
)


def test_batch_norm_is_a_scale_and_a_shift_of_weights_alone(check: Check) -> None:
    check(
        BATCH_NORM.replace("TRAINING", "%false"),
        "raise-normalization",
        """
        // CHECK: %[[X:.*]]: !{{.*}}, %[[W:.*]]: !{{.*}}, %[[B:.*]]: !{{.*}}, %[[M:.*]]: !{{.*}}, %[[V:.*]]: !torch
        // CHECK: %[[E:.*]] = torch.aten.add.Scalar %[[V]]
        // CHECK: %[[R:.*]] = torch.aten.rsqrt %[[E]]
        // CHECK: %[[SCALE:.*]] = torch.aten.mul.Tensor %[[W]], %[[R]]
        // CHECK: %[[MS:.*]] = torch.aten.mul.Tensor %[[M]], %[[SCALE]]
        // CHECK: %[[SHIFT:.*]] = torch.aten.sub.Tensor %[[B]], %[[MS]]
        // CHECK: torch.aten.mul.Tensor %[[X]]
        // CHECK: torch.aten.add.Tensor
        """,
    )


def test_batch_norm_in_training_stays_and_says_so(check: Check) -> None:
    context = check(BATCH_NORM.replace("TRAINING", "%true"), "raise-normalization", "// CHECK: torch.aten.batch_norm")
    assert "model.eval()" in context.remarks[0]
