"""The arithmetic of a kernel, read from its instructions."""

from __future__ import annotations

import pytest

from lowerkit.targets.cuda.model.arithmetic import arithmetic_of


@pytest.mark.parametrize(
    ("instruction", "kind", "old"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1}, {%r2};", "matrix bf16", True),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r1};", "matrix bf16", True),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1};", "matrix tf32", True),
        ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%r1};", "matrix int8", True),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%r1};", "matrix f64", True),
        ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%r1};", "matrix bf16", False),
        ("wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%r1};", "matrix fp8", False),
        ("wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%r1};", "matrix int8", False),
        ("@%p1 tcgen05.mma.cta_group::1.kind::f16 [ %r1 + 0 ], %rd1;", "matrix bf16", False),
        ("@%p1 tcgen05.mma.cta_group::1.kind::i8 [ %r1 + 0 ], %rd1;", "matrix int8", False),
        ("fma.rn.f32 %r1, %r2, %r3, %r4;", "f32", False),
        ("add.f64 %rd1, %rd2, %rd3;", "f64", False),
        ("fma.rn.f64 %rd1, %rd2, %rd3, %rd4;", "f64", False),
        ("cvt.f64.f32 %rd1, %r1;\nadd.s32 %r1, %r2, %r3;", "f32", False),
    ],
)
def test_arithmetic(instruction: str, kind: str, old: bool) -> None:
    ptx = f".visible .entry k()\n{{\n\t{instruction}\n\tret;\n}}\n"
    assert arithmetic_of(ptx) == (kind, old)
