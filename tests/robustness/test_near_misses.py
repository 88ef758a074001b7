"""Near misses of what passes recognise: a short run, what was wrong once, and that the judge sees what is too generous.

The long run is ``python tools/fuzz/near_misses.py --count 5000``.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from lowerkit.passes.raising.recognize import recognize_gelu
from tests.support.fuzz_tools import fuzz_tool

HALVES = {"q": "f16[B,4,M,8]", "k": "f16[B,4,T,8]", "v": "f16[B,4,T,8]"}
FOLDING = {"fixed": "f h mean var w b"}
ONCE: list[tuple[str, dict[str, str]]] = [
    # A factor, or factors one after the other, that leave the range of the scores' type.
    ("attention", {"scale": "s / 1e-39"}),
    ("attention", {"scale": "(s * 1e30) * 1e-30"}),
    ("attention", {"masked": "torch.where(m.bool(), s, 65504.0)", **HALVES}),
    ("attention", {"masked": "s + m", "m": "f32[M,T]:above", "after": "torch.where(p.isnan(), 0.0, p)"}),
    # Eager's kernel fills with -inf before it scales, and has NaN; PyTorch's formula scales first.
    ("sdpa", {"mask": "is_causal=True", "scale": ", scale=-0.3"}),
    ("sdpa", {"mask": "is_causal=True", "scale": ", scale=0.0"}),
    ("sdpa", {"mask": "attn_mask=m", "m": "f32[M,T]:nan"}),
    ("sdpa", {"heads": "q, k[:, :, :0], v[:, :, :0]"}),
    ("sdpa", {"q": "f32[B,4,M,0]", "k": "f32[B,4,T,0]", "scale": ", scale=1.0"}),
    # An epsilon that broadcasts, or widens.
    ("norm", {"root": "torch.rsqrt(t + e)", "e": "f32[8]:positive", "fixed": "e"}),
    ("norm", {"root": "torch.rsqrt(t + e)", "e": "f32[3,1]:positive", "fixed": "e"}),
    ("norm", {"root": "torch.rsqrt(t + e)", "e": "f64[1]:positive", "fixed": "e"}),
    ("norm", {"root": "torch.rsqrt(t + torch.full((1, 1, 1, 1), 1e-5))"}),
    # Constants of GELU that are right to the digits of f32 only; scalars rounded to the type they are cast to.
    ("gelu", {"x": "f64[B,3,8]", "inner": "x * 0.70710678"}),
    ("gelu", {"x": "f64[B,3,8]", "inner": "torch.tensor(0.7978845608) * (x + 0.044715 * x.pow(3))"}),
    ("gelu", {"x": "bf16[B,3,8]", "inner": "x * 0.7109375"}),
    ("gelu", {"x": "f16[B,3,8]", "half": "x * torch.tensor(0.50000001).to(x.dtype)"}),
    # Batch norms behind layers without a batch; with a scale that is infinite.
    ("convolution_norm", {"x": "f32[4,6]", "f": "f32[4,4,3]", "source": "F.conv1d(x, f)", **FOLDING}),
    ("convolution_norm", {"var": "f32[4]:zero", "norm": "F.batch_norm(z, mean, var, w, b, eps=0.0)", **FOLDING}),
    # A summed dim of one tensor that is broadcast along the other's.
    ("batched_attention", {"product": "torch.einsum('bmd,btd->bmt', q, k)", "k": "f32[B,T,1]"}),
]


@pytest.fixture(scope="module")
def judge() -> Any:
    return fuzz_tool("near_miss.judge")


@pytest.fixture(scope="module")
def patterns(judge: Any) -> Any:
    return sys.modules["near_miss.pattern"]


def failures(outcomes: list[Any]) -> str:
    return "\n\n".join(
        f"{outcome.verdict}: {outcome.detail}\n{outcome.near_miss.body()}\n{outcome.near_miss.inputs}"
        for outcome in outcomes
        if outcome.verdict in ("wrong", "internal")
    )


@pytest.mark.parametrize(("seeds", "symbolic"), [(range(8), ()), (range(500, 505), ("B", "T"))])
def test_near_misses_are_recognised_rightly_or_not_at_all(
    judge: Any, patterns: Any, seeds: range, symbolic: tuple[str, ...]
) -> None:
    outcomes = judge.judge([patterns.make(seed) for seed in seeds], judge.Way("export", symbolic))
    assert not failures(outcomes)
    assert sum(outcome.verdict == "ok" for outcome in outcomes) >= len(seeds) // 2
    assert not symbolic or any(outcome.sizes == 3 for outcome in outcomes)


def test_what_was_wrong_once(judge: Any, patterns: Any) -> None:
    near_misses: list[Any] = []
    for number, (name, changes) in enumerate(ONCE):
        pattern = patterns.PATTERNS[name]
        slots = {slot: changes.get(slot, options[0]) for slot, options in pattern.slots.items()}
        inputs = {each: changes.get(each, options[0]) for each, options in pattern.inputs.items()}
        assert set(changes) <= {*slots, *inputs, "fixed"}
        fixed = tuple(changes.get("fixed", "").split())
        near_misses.append(patterns.NearMiss(name, number, slots, inputs, fixed))
    outcomes = judge.judge(near_misses)
    assert not failures(outcomes)
    assert [one.detail for one in outcomes if one.verdict != "ok" and "einsum" not in one.near_miss.body()] == []


def test_every_choice_comes_up(patterns: Any) -> None:
    made = [patterns.make(seed) for seed in range(10000)]
    seen = {(one.pattern, slot, choice) for one in made for slot, choice in {**one.choices, **one.inputs}.items()}
    wanted = {
        (name, slot, choice)
        for name, pattern in patterns.PATTERNS.items()
        for slot, choices in {**pattern.slots, **pattern.inputs}.items()
        for choice in choices
    }
    assert len(wanted - seen) <= len(wanted) // 50


def test_the_judge_sees_a_constant_that_is_not_the_one_of_gelu(
    judge: Any, patterns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = {slot: options[0] for slot, options in patterns.PATTERNS["gelu"].slots.items()} | {"inner": "h"}
    near_miss = patterns.NearMiss("gelu", 1, choices, {"x": "f32[B,3,8]"}, ())
    assert near_miss.changed() == ["inner"]
    assert judge.judge([near_miss])[0].verdict == "ok"
    monkeypatch.setattr(recognize_gelu, "close", lambda *_: True)
    assert judge.judge([near_miss])[0].verdict == "wrong"


def test_without_recognition_numbers_are_the_same(judge: Any, patterns: Any) -> None:
    program = sys.modules["near_miss.program"]
    base = [
        patterns.NearMiss(
            name,
            number,
            {slot: options[0] for slot, options in patterns.PATTERNS[name].slots.items()},
            {each: options[0] for each, options in patterns.PATTERNS[name].inputs.items()},
            (),
        )
        for number, name in enumerate(("attention", "norm", "gelu", "rope"))
    ]
    outcomes = judge.judge(base, judge.Way(left_out=program.RECOGNITION))
    assert [outcome.verdict for outcome in outcomes] == ["ok"] * 4
