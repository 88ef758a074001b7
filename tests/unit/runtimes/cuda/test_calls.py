"""Functions that kernels call: parameters, results, branches to their end, memory of their own, nested calls."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import HEADER, assemble, kernel, run_instructions, run_on_words

CLAMP = """.func (.param .b32 result) clamp(.param .b32 value, .param .b32 limit)
{
  .reg .b32 %r<4>; .reg .pred %p<2>;
  ld.param.b32 %r0, [value]; ld.param.b32 %r1, [limit];
  setp.lt.u32 %p0, %r0, %r1;
  @%p0 bra $small;
  st.param.b32 [result], %r1;
  ret;
$small:
  st.param.b32 [result], %r0;
  ret;
}
"""
PAIR = """.func (.param .align 8 .b8 both[16]) pair(.param .b32 value);
.func (.param .align 8 .b8 both[16]) pair(.param .b32 value)
{
  .local .align 8 .b8 depot[16]; .reg .b32 %r<4>; .reg .b64 %d<3>;
  ld.param.b32 %r0, [value];
  mov.u64 %d0, depot; cvta.local.u64 %d1, %d0;
  st.b32 [%d1], %r0; st.local.b32 [%d0+8], 7;
  { .param .b32 one; .param .b32 two; .param .b32 got;
  st.param.b32 [one], %r0; st.param.b32 [two], 20;
  call.uni (got), clamp, (one, two);
  ld.param.b32 %r1, [got]; }
  ld.local.b32 %r2, [%d0]; ld.b32 %r3, [%d1+8];
  add.u32 %r1, %r1, %r3; add.u32 %r2, %r2, 1000;
  st.param.b32 [both], %r1; st.param.b32 [both+8], %r2;
  ret;
}
"""


def program(body: str) -> str:
    text = kernel(body, ".param .u64 out").replace(HEADER, f"{HEADER}{CLAMP}{PAIR}")
    assemble(text)
    return text


START = """.reg .b32 %i; .reg .b32 %v<4>; .reg .b64 %at;
    mov.u32 %i, %tid.x; ld.param.u64 %at, [out]; mad.wide.u32 %at, %i, 4, %at;"""
CALL = """{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %i; st.param.b32 [b], 9;
    call.uni (c), clamp, (a, b); ld.param.b32 %v0, [c]; }"""


def test_threads_go_their_own_ways_through_a_function() -> None:
    found = run_on_words(program(f"{START} {CALL} st.global.u32 [%at], %v0; ret;"), 32)
    assert found.tolist() == [min(thread, 9) for thread in range(32)]


def test_two_calls_are_two_bodies() -> None:
    again = CALL.replace("[b], 9", "[b], 4").replace("%v0", "%v1")
    found = run_on_words(
        program(f"{START} {CALL} {again} mad.lo.u32 %v0, %v0, 100, %v1; st.global.u32 [%at], %v0; ret;"), 32
    )
    assert found.tolist() == [100 * min(thread, 9) + min(thread, 4) for thread in range(32)]


def test_a_function_has_memory_of_its_own_and_calls_another_one() -> None:
    body = f"""{START} {{ .param .b32 x; .param .align 8 .b8 y[16]; st.param.b32 [x], %i;
    call.uni (y), pair, (x); ld.param.b32 %v0, [y]; ld.param.b32 %v1, [y+8]; }}
    add.u32 %v0, %v0, %v1; st.global.u32 [%at], %v0; ret;"""
    found = run_on_words(program(body), 32)
    assert found.tolist() == [min(thread, 20) + 7 + thread + 1000 for thread in range(32)]


def test_a_call_of_what_is_elsewhere_is_refused() -> None:
    text = f"{HEADER}.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
    body = ".visible .entry k() { { .param .b64 a; .param .b32 r; call.uni (r), vprintf, (a, a); } ret; }"
    with pytest.raises(UnknownPtx, match="'vprintf' is not in the module"):
        SimulatedGpu().load(text + body)
    wrong = f"{HEADER}{CLAMP}.visible .entry k() {{ {{ .param .b32 a; call.uni (a), clamp, (a); }} ret; }}"
    with pytest.raises(UnknownPtx, match="takes 2 of what a call gives 1"):
        SimulatedGpu().load(wrong)
    unknown = f"{HEADER}{CLAMP}.visible .entry k() {{ call.uni (a), clamp, (a, a); ret; }}"
    with pytest.raises(UnknownPtx, match="parameter 'a' is not known"):
        SimulatedGpu().load(unknown)


def test_trap_ends_a_launch() -> None:
    gpu = SimulatedGpu()
    loaded = gpu.load(kernel(".reg .pred %p; .reg .b32 %t; mov.u32 %t, %tid.x; setp.eq.u32 %p, %t, 5; @%p trap; ret;"))
    with pytest.raises(KernelFault, match=r"thread \(5, 0, 0\) of block \(0, 0, 0\) traps"):
        gpu.launch(loaded.kernels["k"], [1], [32], [])


def test_differences_of_two_words() -> None:
    a, b = np.array([5, 0, 1 << 40, 7], np.uint64), np.array([6, 1, 1, 7], np.uint64)
    inputs = [("u64", a), ("u64", b)]
    text = """{ .reg .b32 %x<4>; mov.b64 {%x0, %x1}, %a0; mov.b64 {%x2, %x3}, %a1; sub.cc.u32 %x0, %x0, %x2;
    subc.u32 %x1, %x1, %x3; mov.b64 %d0, {%x0, %x1}; }"""
    assert (run_instructions(text, inputs, ["u64"])[0] == a - b).all()
