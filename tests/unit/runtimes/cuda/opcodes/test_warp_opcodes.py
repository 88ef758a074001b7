"""redux, match and activemask against what each lane of a warp holds; shfl and vote are in test_control_flow."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from tests.unit.runtimes.cuda.number_reference import as_array, random_bits, signed
from tests.unit.runtimes.cuda.ptx_programs import run_instructions

WARPS = 4
REDUCTIONS: dict[str, tuple[Callable[[int, int], int], str]] = {
    "add.u32": (lambda a, b: a + b, "u"),
    "add.s32": (lambda a, b: a + b, "s"),
    "min.u32": (min, "u"),
    "min.s32": (min, "s"),
    "max.u32": (max, "u"),
    "max.s32": (max, "s"),
    "and.b32": (lambda a, b: a & b, "u"),
    "or.b32": (lambda a, b: a | b, "u"),
    "xor.b32": (lambda a, b: a ^ b, "u"),
}


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0x80F0000F])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, mask: int) -> None:
    function, sign = REDUCTIONS[name]
    words = random_bits("u32", 32 * WARPS)
    if "and" in name or "or" in name:
        words = [word | 0xF0F0F0F0 if name[0] == "a" else word & 0x0F0F for word in words]
    text = f"""{{ .reg .pred %in; .reg .b32 %l; mov.u32 %l, %laneid; shr.u32 %l, {mask}, %l; and.b32 %l, %l, 1;
    setp.ne.u32 %in, %l, 0; mov.b32 %d0, 0; @%in redux.sync.{name} %d0, %a0, {mask}; }}"""
    (found,) = run_instructions(text, [("b32", as_array(words, "u32"))], ["b32"])
    for warp in range(WARPS):
        lanes = [32 * warp + lane for lane in range(32) if mask >> lane & 1]
        values = [signed(words[lane], 32) if sign == "s" else words[lane] for lane in lanes]
        expected = reduce(function, values) & 0xFFFFFFFF
        for lane in range(32):
            assert found[32 * warp + lane] == (expected if mask >> lane & 1 else 0)


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_matches(kind: str) -> None:
    words = [random.randrange(5) << (40 if kind == "b64" else 0) for _ in range(32 * WARPS)]
    words[32:64] = [7] * 32
    inputs = [(kind, as_array(words, f"u{kind[1:]}"))]
    text = f"""match.any.sync.{kind} %d0, %a0, -1; match.all.sync.{kind} %d1|%d2, %a0, -1;
    match.all.sync.{kind} %d3, %a0, -1;"""
    same, all_same, agree, alone = run_instructions(text, inputs, ["b32", "b32", "pred", "b32"])
    for thread, word in enumerate(words):
        warp = words[thread // 32 * 32 : thread // 32 * 32 + 32]
        assert same[thread] == sum(1 << lane for lane, other in enumerate(warp) if other == word)
        every = all(other == word for other in warp)
        assert all_same[thread] == alone[thread] == (0xFFFFFFFF if every else 0)
        assert bool(agree[thread]) == every


def test_a_mask_names_only_lanes_that_are_there() -> None:
    text = """{ .reg .pred %p; .reg .b32 %l; mov.u32 %l, %laneid; setp.lt.u32 %p, %l, 4; mov.b32 %d0, 0;
    @%p redux.sync.add.u32 %d0, %a0, 31; }"""
    with pytest.raises(KernelFault, match="names lanes in its member mask"):
        run_instructions(text, [("b32", np.zeros(32, np.uint32))], ["b32"])


def test_the_active_lanes() -> None:
    text = """{ .reg .pred %p; .reg .b32 %l; mov.u32 %l, %laneid; and.b32 %l, %l, 3; setp.eq.u32 %p, %l, 1;
    mov.b32 %d0, 0; @%p activemask.b32 %d0; }"""
    (found,) = run_instructions(text, [("b32", np.zeros(64, np.uint32))], ["b32"])
    assert found.tolist() == [0x22222222 if thread % 4 == 1 else 0 for thread in range(64)]
