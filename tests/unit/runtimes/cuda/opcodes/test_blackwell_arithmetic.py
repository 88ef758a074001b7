"""What sm_100 has beside tensor memory: pairs of f32, sums of a narrow value and f32, extremes of the f32 of a warp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import instruction_text, kernel, run_instructions, run_on_words

Array = np.ndarray[Any, Any]
GENERATOR = np.random.default_rng(11)
COUNT = 200


def floats(seed: int) -> Array:
    """Random f32, zeros, subnormal values, infinities and NaN among them."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(2 * COUNT).astype(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38]
    places = generator.choice(values.size, 40, replace=False)
    values[places] = np.array(special, np.float32)[np.arange(40) % 8]
    return values


@pytest.mark.parametrize(("mode", "ftz"), [("", ""), (".rz", ".ftz"), (".rm", ""), (".rp", "")])
@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "fma"])
def test_pairs_are_two_of_the_scalar(opcode: str, mode: str, ftz: str) -> None:
    mode = mode or (".rn" if opcode == "fma" else "")
    count = 3 if opcode == "fma" else 2
    values = [floats(seed) for seed in range(count)]
    operands = ", ".join(f"%a{number}" for number in range(count))
    (pairs,) = run_instructions(
        f"{opcode}{mode}{ftz}.f32x2 %d0, {operands};", [("f32x2", each.view(np.uint64)) for each in values], ["f32x2"],
        "sm_100a",
    )  # fmt: skip
    (single,) = run_instructions(
        f"{opcode}{mode}{ftz}.f32 %d0, {operands};", [("f32", each.view(np.uint32)) for each in values], ["f32"]
    )
    assert np.array_equal(pairs.view(np.uint32), single)


@pytest.mark.parametrize(("kind", "mode"), [("bf16", ""), ("bf16", ".rp"), ("f16", ".rm"), ("f16", ".rz")])
@pytest.mark.parametrize("opcode", ["add", "sub", "fma"])
def test_narrow_values_are_widened(opcode: str, mode: str, kind: str) -> None:
    """As if a cvt stood before the instruction."""
    mode = mode or (".rn" if opcode == "fma" else "")
    with np.errstate(all="ignore"):
        narrow = [floats(seed).astype(bfloat16 if kind == "bf16" else np.float16) for seed in (1, 2)]
    last = floats(3)
    few = narrow if opcode == "fma" else narrow[:1]
    inputs = [*((kind, each.view(np.uint16)) for each in few), ("f32", last.view(np.uint32))]
    operands = ", ".join(f"%a{number}" for number in range(len(inputs)))
    (found,) = run_instructions(f"{opcode}{mode}.f32.{kind} %d0, {operands};", inputs, ["f32"], "sm_100a")
    wide = [each.astype(np.float32).view(np.uint32) for each in few] + [last.view(np.uint32)]
    (wanted,) = run_instructions(f"{opcode}{mode}.f32 %d0, {operands};", [("f32", each) for each in wide], ["f32"])
    assert np.array_equal(found, wanted)
    (found,) = run_instructions(f"{opcode}{mode}.sat.f32.{kind} %d0, {operands};", inputs, ["f32"], "sm_100a")
    assert ((found.view(np.float32) >= 0) & (found.view(np.float32) <= 1)).all()


@pytest.mark.parametrize("modifiers", ["", ".NaN", ".ftz", ".abs", ".ftz.NaN.abs"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_extremes_of_three(name: str, modifiers: str) -> None:
    """As of two and then of the third."""
    inputs = [("f32", floats(seed).view(np.uint32)) for seed in (4, 5, 6)]
    (found,) = run_instructions(f"{name}{modifiers}.f32 %d0, %a0, %a1, %a2;", inputs, ["f32"], "sm_100a")
    pair = modifiers.replace(".abs", "")
    sizes = "".join(f"abs.f32 %a{number}, %a{number}; " for number in range(3)) if "abs" in modifiers else ""
    text = f"{sizes}{name}{pair}.f32 %d0, %a0, %a1; {name}{pair}.f32 %d0, %d0, %a2;"
    (wanted,) = run_instructions(text, inputs, ["f32"])
    assert np.array_equal(found, wanted)


def reduced(name: str, values: Array, mask: int) -> Array:
    """Returns what each named lane of a warp gets, f32."""
    words = "{" + ", ".join(f"0x{word:08x}" for word in values.view(np.uint32).tolist()) + "}"
    body = f"""
      .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %x<4>;
      mov.u32 %r0, %tid.x; ld.param.u64 %x0, [out]; mul.wide.u32 %x1, %r0, 4; add.u64 %x2, %x0, %x1;
      mov.u64 %x3, values; add.u64 %x3, %x3, %x1; ld.global.b32 %r1, [%x3];
      shr.u32 %r2, {mask}, %r0; and.b32 %r2, %r2, 1; setp.ne.u32 %p, %r2, 0;
      @%p redux.sync.{name}.f32 %r3, %r1, {mask};
      @%p st.global.b32 [%x2], %r3; ret;"""
    text = kernel(body, ".param .u64 out", target="sm_100a")
    text = text.replace(".visible", f".global .align 4 .b32 values[32] = {words};\n.visible")
    return run_on_words(text, 32).view(np.float32)


@pytest.mark.parametrize(("mask", "nans"), [(0xFFFFFFFF, 3), (0x0000FF0F, 0), (0x0000FF0F, 32)])
@pytest.mark.parametrize("modifiers", ["", ".abs", ".NaN", ".abs.NaN"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_extremes_of_a_warp(name: str, modifiers: str, mask: int, nans: int) -> None:
    values = GENERATOR.standard_normal(32).astype(np.float32)
    values[:nans] = np.nan
    named = (mask >> np.arange(32)) & 1 == 1
    mine = np.abs(values[named]) if "abs" in modifiers else values[named]
    function = {"min": (np.fmin, np.minimum), "max": (np.fmax, np.maximum)}[name]["NaN" in modifiers]
    found = reduced(name + modifiers, values, mask)
    np.testing.assert_array_equal(found[named], np.full(named.sum(), function.reduce(mine)))
    assert not np.isnan(found[named]).any() or (found[named].view(np.uint32) == 0x7FFFFFFF).all()


def test_zeros_have_an_order() -> None:
    values = np.array([0.0, -0.0] * 16, np.float32)
    assert not np.signbit(reduced("max", values, 0xFFFFFFFF)).any()
    assert np.signbit(reduced("min", values, 0xFFFFFFFF)).all()


@pytest.mark.parametrize(
    ("instruction", "inputs"),
    [
        ("add.sat.f32x2 %d0, %a0, %a1;", ["f32x2"] * 2),
        ("min.f32x2 %d0, %a0, %a1;", ["f32x2"] * 2),
        ("mul.rn.f32.bf16 %d0, %a0, %a1;", ["bf16", "f32"]),
        ("add.ftz.f32.bf16 %d0, %a0, %a1;", ["bf16", "f32"]),
        ("add.f32.bf16 %d0, %a1, %a0;", ["bf16", "f32"]),
        ("max.xorsign.abs.f32 %d0, %a0, %a1, %a0;", ["f32", "f32"]),
        ("max.f16 %d0, %a0, %a1, %a0;", ["f16", "f16"]),
        ("redux.sync.add.f32 %d0, %a0, %a1;", ["f32", "f32"]),
        ("redux.sync.max.abs.s32 %d0, %a0, %a1;", ["s32", "s32"]),
    ],
)
def test_forms_that_are_not_known(instruction: str, inputs: list[str]) -> None:
    with pytest.raises(UnknownPtx):
        SimulatedGpu().load(instruction_text(instruction, inputs, ["f32x2" if "x2" in instruction else "f32"]))
