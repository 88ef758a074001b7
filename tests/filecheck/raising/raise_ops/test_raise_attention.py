"""raise-attention: causal, masks, grouped queries; dropout stays."""

from __future__ import annotations

from tests.support.torch_text import Check, function

SIGNATURE = "!torch.float, !torch.bool, !torch.none, !torch.bool -> @[1,4,5,8]"


def test_causal_attention_with_default_scale(check: Check) -> None:
    text = function(
        "%q: @[1,4,5,8]",
        "@[1,4,5,8]",
        f"""
  %p = torch.constant.float 0.0
  %r = torch.aten.scaled_dot_product_attention %q, %q, %q, %none, %p, %true, %none, %false
      : @[1,4,5,8], @[1,4,5,8], @[1,4,5,8], !torch.none, {SIGNATURE}
  return %r : @[1,4,5,8]""",
    )
    check(text, "raise-attention", '// CHECK: "lk.attention"({{.*}}causal = true, {{.*}}scale = 0.35355')


def test_interleaved_heads_and_a_bool_mask(check: Check) -> None:
    text = function(
        "%q: @[1,4,5,8], %k: @[1,2,6,8], %m: @[5,6:i1]",
        "@[1,4,5,8]",
        f"""
  %p = torch.constant.float 0.0
  %r4 = torch.aten.repeat_interleave.self_int %k, %i2, %i1, %none
      : @[1,2,6,8], !torch.int, !torch.int, !torch.none -> @[1,4,6,8]
  %r = torch.aten.scaled_dot_product_attention %q, %r4, %r4, %m, %p, %false, %none, %false
      : @[1,4,5,8], @[1,4,6,8], @[1,4,6,8], @[5,6:i1], {SIGNATURE}
  return %r : @[1,4,5,8]""",
    )
    check(
        text,
        "raise-attention",
        '// CHECK: "lk.attention"({{.*}}(tensor<1x4x5x8xf32>, tensor<1x2x6x8xf32>, tensor<1x2x6x8xf32>, tensor<5x6xi1>',
    )


def test_dropout_stays_and_says_so(check: Check) -> None:
    text = function(
        "%q: @[1,4,5,8]",
        "@[1,4,5,8]",
        f"""
  %p = torch.constant.float 0.1
  %r = torch.aten.scaled_dot_product_attention %q, %q, %q, %none, %p, %true, %none, %false
      : @[1,4,5,8], @[1,4,5,8], @[1,4,5,8], !torch.none, {SIGNATURE}
  return %r : @[1,4,5,8]""",
    )
    context = check(text, "raise-attention", "// CHECK: torch.aten.scaled_dot_product_attention")
    assert "model.eval()" in context.remarks[0]
