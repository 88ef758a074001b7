"""Atomics of vectors, as cards from sm_90 on have them: each element on its own, in the order of the threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import assemble, kernel

Array = np.ndarray[Any, Any]
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": bfloat16}
FORMS = [
    ("f32", 2, 1), ("f32", 4, 1), ("f16", 2, 1), ("f16", 4, 1), ("f16", 8, 1), ("bf16", 8, 1), ("f16", 2, 2),
    ("f16", 4, 2), ("bf16", 4, 2),
]  # fmt: skip


def text(kind: str, count: int, packed: int, name: str, returns: bool) -> str:
    size = 4 if packed == 2 or kind == "f32" else 2
    whole = f"{kind}x2" if packed == 2 else kind
    registers = [f"%v{number}" for number in range(count)]
    names = ", ".join(registers)
    vector = f"{{{names}}}"
    noftz = "" if kind == "f32" else ".noftz"
    loads = " ".join(f"ld.global.b{8 * size} {each}, [%of+{size * n}];" for n, each in enumerate(registers))
    stores = " ".join(f"st.global.b{8 * size} [%of+{size * n}], {each};" for n, each in enumerate(registers))
    head = f"atom.global.relaxed.gpu.{name}{noftz}" if returns else f"red.global.relaxed.gpu.{name}{noftz}"
    operation = f"{head}.v{count}.{whole} {f'{vector}, ' if returns else ''}[%to], {vector};"
    return kernel(
        f""".reg .b32 %i<2>; .reg .b64 %of; .reg .b64 %to; .reg .b{8 * size} %v<{count}>;
        mov.u32 %i0, %tid.x; ld.param.u64 %of, [in]; mad.wide.u32 %of, %i0, {size * count}, %of;
        ld.param.u64 %to, [out]; and.b32 %i1, %i0, 1; mad.wide.u32 %to, %i1, {size * count}, %to;
        {loads} {operation} {stores if returns else ""} ret;""",
        ".param .u64 in, .param .u64 out",
    )


def run(ptx: str, x: Array, start: Array) -> tuple[Array, Array]:
    assemble(ptx)
    gpu = SimulatedGpu()
    given, out = gpu.allocate(x.nbytes), gpu.allocate(start.nbytes)
    gpu.write(given, x)
    gpu.write(out, start)
    gpu.launch(gpu.load(ptx).kernels["k"], [1], [32], [given, out])
    old = gpu.read(given, x.nbytes).view(x.dtype).reshape(x.shape)
    return old, gpu.read(out, start.nbytes).view(x.dtype).reshape(start.shape)


@pytest.mark.parametrize(("kind", "count", "packed"), FORMS)
def test_sums(kind: str, count: int, packed: int) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(-3, 4, (32, count * packed)).astype(DTYPES[kind])
    start = generator.integers(-3, 4, (2, count * packed)).astype(DTYPES[kind])
    _, total = run(text(kind, count, packed, "add", False), x, start)
    assert (total == np.stack([start[n] + x[n::2].astype(np.float32).sum(0).astype(x.dtype) for n in (0, 1)])).all()
    old, total = run(text(kind, count, packed, "add", True), x, start)
    running = start.astype(np.float32)
    for thread in range(32):
        assert (old[thread] == running[thread % 2].astype(x.dtype)).all()
        running[thread % 2] += x[thread].astype(np.float32)
    assert (total == running.astype(x.dtype)).all()


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize(("kind", "count", "packed"), [form for form in FORMS if form[0] != "f32"])
def test_extremes(kind: str, count: int, packed: int, name: str) -> None:
    x = np.random.default_rng(1).standard_normal((32, count * packed)).astype(DTYPES[kind])
    start = np.zeros((2, count * packed), x.dtype)
    start[1, 0] = np.nan
    _, found = run(text(kind, count, packed, name, False), x, start)
    pick = np.fmin if name == "min" else np.fmax
    for half in (0, 1):
        expected = pick.reduce(np.concatenate([start[half : half + 1], x[half::2]]).astype(np.float32), axis=0)
        assert (found[half].astype(np.float32) == expected).all()


def test_a_vector_lies_at_a_multiple_of_its_size() -> None:
    ptx = text("f32", 4, 1, "add", False).replace("[%to], {", "[%to+8], {")
    with pytest.raises(KernelFault, match="not a multiple of 16"):
        run(ptx, np.zeros((32, 4), np.float32), np.zeros((4, 4), np.float32))


@pytest.mark.parametrize("form", ["add.v4.f64", "add.v8.f32", "min.v2.f32", "exch.v2.b32", "add.v2.u32"])
def test_forms_that_are_refused(form: str) -> None:
    count = int(form.split(".v")[1][0])
    vector = "{" + ", ".join(["%r0"] * count) + "}"
    with pytest.raises(UnknownPtx):
        SimulatedGpu().load(kernel(f".reg .b32 %r<2>; .reg .b64 %d; red.global.{form} [%d], {vector}; ret;"))
