"""The set of ops is closed: what capture lets through, and what rules build, has a rule or is refused by its name."""

from __future__ import annotations

import re
from pathlib import Path

from lowerkit.capture.torch_export.decompositions.table import decomposition_of, is_spelled_out
from lowerkit.dialect.context import new_context
from lowerkit.passes.registry import ops_with_rules
from tests.support.truth_table.registry import functional_overloads

ROOT = Path(__file__).resolve().parents[3]
_BUILT = re.compile(r'\bbuild\(\s*f?"torch\.(aten\.[\w.]+)"')
_HELPERS = {"binary": ".Tensor", "binary_scalar": ".Scalar", "unary": ""}
_HELPED = re.compile(r'\b(binary|binary_scalar|unary)\(\s*"(\w+)"')
_WITHOUT_OVERLOAD = {"maximum", "minimum"}

REFUSED = {
    "random": """bernoulli bernoulli.Tensor bernoulli.p exponential multinomial normal_functional rand rand_like randint
        randint.low randn randn.generator randn_like random random.from rrelu_with_noise_functional uniform""",
    "its shape is that of data": """bincount masked_select nonzero nonzero_static repeat_interleave.Tensor
        unique_consecutive unique_dim""",
    "of complex numbers": """complex fft_fft fft_ifft fft_rfft imag polar real stft stft.center view_as_complex
        view_as_real""",
    "of quantized or scaled types": """_make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor _scaled_mm
        _scaled_mm_v2 dequantize.self int_repr quantize_per_channel quantize_per_tensor""",
    "a gradient": """_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward avg_pool2d_backward avg_pool3d_backward
        convolution_backward max_pool3d_with_indices_backward upsample_nearest2d_backward""",
    "an assertion, or about memory": """_assert_scalar _assert_tensor_metadata sym_constrain_range
        sym_constrain_range_for_size as_strided _reshape_alias_copy""",
    "nothing gives it": "_trilinear",
}
"""Ops that the torch dialect has, that no rule takes and that are not spelled out, by the reason."""


def test_what_capture_lets_through_has_a_rule_or_is_known_to_be_refused() -> None:
    context = new_context()
    left = {
        name.removesuffix(".default")
        for name, op in functional_overloads().items()
        if context.is_registered_operation(f"torch.aten.{name.removesuffix('.default')}")
        and is_spelled_out(op)
        and decomposition_of(op) is None
    }
    assert left - {word for words in REFUSED.values() for word in words.split()} == set()


def test_what_rules_build_has_a_rule() -> None:
    """An op that a rule of raising leaves is taken by another one."""
    built: dict[str, str] = {}
    for path in (ROOT / "passes/raising").rglob("*.py"):
        text = path.read_text()
        built |= dict.fromkeys(_BUILT.findall(text), path.name)
        for helper, name in _HELPED.findall(text):
            overload = "" if name in _WITHOUT_OVERLOAD else _HELPERS[helper]
            spelled = "pow.Tensor_Scalar" if (helper, name) == ("binary_scalar", "pow") else name + overload
            built[f"aten.{spelled}"] = path.name
    missing = {name: file for name, file in built.items() if f"torch.{name}" not in ops_with_rules()}
    assert missing == {}
    assert len(built) > 20
