"""mma, ldmatrix and stmatrix: which element lies where, by small integers whose products no rule cuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from tests.unit.runtimes.cuda.ptx_programs import instruction_text, kernel, run_instructions

Array = np.ndarray[Any, Any]
WARPS = 4
DTYPES: dict[str, Any] = {
    "bf16": bfloat16, "f16": np.float16, "tf32": np.float32, "e4m3": float8_e4m3fn, "e5m2": float8_e5m2,
    "s8": np.int8, "u8": np.uint8, "f32": np.float32, "s32": np.int32, "f64": np.float64,
}  # fmt: skip
# Shape, types of D (and C), A and B.
PRODUCTS = [
    ("m16n8k16", "f32", "bf16", "bf16"), ("m16n8k8", "f32", "bf16", "bf16"), ("m16n8k16", "f32", "f16", "f16"),
    ("m16n8k8", "f32", "f16", "f16"), ("m16n8k16", "f16", "f16", "f16"), ("m16n8k8", "f16", "f16", "f16"),
    ("m16n8k8", "f32", "tf32", "tf32"), ("m16n8k4", "f32", "tf32", "tf32"), ("m16n8k32", "s32", "s8", "s8"),
    ("m16n8k16", "s32", "s8", "s8"), ("m16n8k32", "s32", "u8", "s8"), ("m16n8k32", "s32", "s8", "u8"),
    ("m16n8k32", "s32", "u8", "u8"), ("m16n8k32", "f32", "e4m3", "e4m3"), ("m16n8k32", "f32", "e5m2", "e4m3"),
    ("m16n8k32", "f32", "e4m3", "e5m2"), ("m16n8k32", "f16", "e5m2", "e5m2"),
]  # fmt: skip


def small(shape: tuple[int, ...], kind: str, seed: int) -> Array:
    low = 0 if kind[0] == "u" else -4
    return np.random.default_rng(seed).integers(low, 5, shape).astype(DTYPES[kind])


def words(matrix: Array, places: list[list[tuple[int, int]]]) -> Array:
    """The register of every lane and warp: ``places`` has for each lane the elements of the register, lowest first."""
    found = np.stack([np.stack([matrix[:, i, j] for i, j in lane], -1) for lane in places], 1)
    return np.ascontiguousarray(found).view(np.uint32).reshape(-1)


def of_a(register: int, per: int) -> list[list[tuple[int, int]]]:
    """The manual's fragments: rows g and g + 8, then the next columns."""
    return [
        [(lane // 4 + 8 * (register % 2), 4 * per * (register // 2) + lane % 4 * per + n) for n in range(per)]
        for lane in range(32)
    ]


def of_b(register: int, per: int) -> list[list[tuple[int, int]]]:
    return [[(4 * per * register + lane % 4 * per + n, lane // 4) for n in range(per)] for lane in range(32)]


def of_c(register: int, packed: bool) -> list[list[tuple[int, int]]]:
    if packed:
        return [[(lane // 4 + 8 * register, lane % 4 * 2 + n) for n in range(2)] for lane in range(32)]
    return [[(lane // 4 + 8 * (register // 2), lane % 4 * 2 + register % 2)] for lane in range(32)]


def fragments(shape: str, types: tuple[str, str, str], matrices: list[Array]) -> tuple[str, list[tuple[str, Array]]]:
    """The operands of an instruction behind its result, and the registers that they name."""
    result, a, _ = types
    per = 4 // np.dtype(DTYPES[a]).itemsize
    length = int(shape.split("k")[1])
    counts = [length // (2 * per), length // (4 * per), 2 if result == "f16" else 4]
    places = (
        lambda register: of_a(register, per),
        lambda register: of_b(register, per),
        lambda register: of_c(register, result == "f16"),
    )
    inputs: list[tuple[str, Array]] = []
    operands: list[str] = []
    for matrix, count, place in zip(matrices, counts, places, strict=True):
        first = len(inputs)
        inputs += [("b32", words(matrix, place(register))) for register in range(count)]
        operands.append("{" + ", ".join(f"%a{first + number}" for number in range(count)) + "}")
    return ", ".join(operands), inputs


def multiply(shape: str, types: tuple[str, str, str], matrices: list[Array], modifiers: str = "") -> list[Array]:
    operands, inputs = fragments(shape, types, matrices)
    result, a, b = types
    count = 2 if result == "f16" else 4
    targets = ", ".join(f"%d{number}" for number in range(count))
    text = f"mma.sync.aligned.{shape}.row.col{modifiers}.{result}.{a}.{b}.{result} {{{targets}}}, {operands};"
    return run_instructions(text, inputs, ["b32"] * count)


@pytest.mark.parametrize(("shape", "result", "a_kind", "b_kind"), PRODUCTS)
def test_products(shape: str, result: str, a_kind: str, b_kind: str) -> None:
    length = int(shape.split("k")[1])
    a, b = small((WARPS, 16, length), a_kind, 1), small((WARPS, length, 8), b_kind, 2)
    c = small((WARPS, 16, 8), result, 3)
    found = multiply(shape, (result, a_kind, b_kind), [a, b, c])
    exact = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    for register, part in enumerate(found):
        assert (part == words(exact.astype(DTYPES[result]), of_c(register, result == "f16"))).all()


@pytest.mark.parametrize("saturates", [False, True])
def test_integers_wrap_or_stop(saturates: bool) -> None:
    a, b = np.full((1, 16, 32), 100, np.int8), np.full((1, 32, 8), 100, np.int8)
    c = np.full((1, 16, 8), (1 << 31) - 1000, np.int32)
    found = multiply("m16n8k32", ("s32", "s8", "s8"), [a, b, c], ".satfinite" if saturates else "")
    expected = (1 << 31) - 1 if saturates else (1 << 31) - 1000 + 320000
    assert (found[0] == expected & 0xFFFFFFFF).all()


def test_products_of_f64() -> None:
    a, b = small((WARPS, 8, 4), "f64", 1) / 3, small((WARPS, 4, 8), "f64", 2) / 7
    c = small((WARPS, 8, 8), "f64", 3) / 11
    inputs = [
        ("b64", np.ascontiguousarray(a).view(np.uint64).reshape(-1)),
        ("b64", np.ascontiguousarray(b.transpose(0, 2, 1)).view(np.uint64).reshape(-1)),
        ("b64", np.ascontiguousarray(c.reshape(-1, 2)[:, 0]).view(np.uint64)),
        ("b64", np.ascontiguousarray(c.reshape(-1, 2)[:, 1]).view(np.uint64)),
    ]
    text = "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d0, %d1}, {%a0}, {%a1}, {%a2, %a3};"
    found = np.stack(run_instructions(text, inputs, ["b64", "b64"]), -1).view(np.float64).reshape(c.shape)
    np.testing.assert_allclose(found, a @ b + c, rtol=1e-14, atol=1e-15)


def test_a_result_may_lie_where_the_accumulator_was() -> None:
    a, b, c = small((WARPS, 16, 16), "f16", 1), small((WARPS, 16, 8), "f16", 2), small((WARPS, 16, 8), "f32", 3)
    operands, inputs = fragments("m16n8k16", ("f32", "f16", "f16"), [a, b, c])
    head = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    old = ", ".join(f"%a{number}" for number in range(6, 10))
    text = f"{head} {{{old}}}, {operands}; " + " ".join(f"mov.b32 %d{n}, %a{6 + n};" for n in range(4))
    found = run_instructions(text, inputs, ["b32"] * 4)
    exact = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32)
    for register, part in enumerate(found):
        assert (part == words(exact, of_c(register, False))).all()


def test_warps_that_skip_a_product_keep_their_registers() -> None:
    a, b, c = small((WARPS, 16, 8), "tf32", 1), small((WARPS, 8, 8), "tf32", 2), small((WARPS, 16, 8), "f32", 3)
    operands, inputs = fragments("m16n8k8", ("f32", "tf32", "tf32"), [a, b, c])
    old = ", ".join(f"%a{number}" for number in range(6, 10))
    text = f"""{{ .reg .pred %odd; .reg .b32 %w; mov.u32 %w, %tid.x; and.b32 %w, %w, 32; setp.ne.u32 %odd, %w, 0;
    @%odd bra over; mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {{{old}}}, {operands}; over: }}"""
    text += " ".join(f"mov.b32 %d{n}, %a{6 + n};" for n in range(4))
    found = run_instructions(text, inputs, ["b32"] * 4)
    exact = (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32)
    exact[1::2] = c[1::2]
    for register, part in enumerate(found):
        assert (part == words(exact, of_c(register, False))).all()


def test_some_lanes_alone_are_a_fault() -> None:
    text = """.reg .pred %p; .reg .b32 %t; .reg .b32 %r<4>; mov.u32 %t, %tid.x; setp.lt.u32 %p, %t, 7;
    @%p bra out; mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r0,%r1,%r2,%r3}, {%r0,%r1,%r2,%r3}, {%r0,%r1},
    {%r0,%r1,%r2,%r3}; bra out; out: bra out2; out2: ret;"""
    gpu = SimulatedGpu()
    with pytest.raises(KernelFault, match="without all lanes of its warp"):
        gpu.launch(gpu.load(kernel(text)).kernels["k"], [1], [32], [])


def test_a_generation_that_is_not_known_multiplies_nothing() -> None:
    text = kernel(".reg .b32 %r<4>; mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r0,%r1,%r2,%r3}, "
                  "{%r0,%r1,%r2,%r3}, {%r0,%r1}, {%r0,%r1,%r2,%r3}; ret;")  # fmt: skip
    gpu = SimulatedGpu()
    with pytest.raises(KernelFault, match="how tensor cores of this target add products of tf32 is not known"):
        gpu.launch(gpu.load(text.replace("sm_90a", "sm_75")).kernels["k"], [1], [32], [])
    gpu = SimulatedGpu(generation="ampere")
    gpu.launch(gpu.load(text.replace("sm_90a", "sm_75")).kernels["k"], [1], [32], [])


@pytest.mark.parametrize(
    "modifiers",
    [
        "m16n8k16.row.col.f32.bf16.f16.f32", "m16n8k16.row.row.f32.bf16.bf16.f32", "m16n8k32.row.col.f32.bf16.bf16.f32",
        "m16n8k16.row.col.f16.bf16.bf16.f16", "m16n8k16.row.col.f32.bf16.bf16", "m16n8k32.row.col.s32.s4.s4.s32",
        "m16n8k16.row.col.f32.bf16.bf16.f32.sparse", "m16n8k16.row.col.satfinite.f32.bf16.bf16.f32",
        "m8n8k4.row.col.f32.f16.f16.f32",
    ],
)  # fmt: skip
def test_forms_that_are_refused(modifiers: str) -> None:
    body = f".reg .b32 %r<9>; mma.sync.aligned.{modifiers} {{%r0,%r1,%r2,%r3}}, {{%r0,%r1,%r2,%r3}}, {{%r0,%r1}}, "
    with pytest.raises(UnknownPtx):
        SimulatedGpu().load(kernel(body + "{%r0,%r1,%r2,%r3}; ret;"))


PLACE = "mov.u32 %to, %tid.x; mad.lo.u32 %to, %to, 16, 0; mov.u32 %base, s; add.u32 %to, %to, %base;"


def shared_text(instructions: str) -> str:
    return f"{{ .shared .align 16 .b8 s[1024]; .reg .b32 %to; .reg .b32 %base; {PLACE} {instructions} }}"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_loads_of_matrices(count: int, transposed: bool) -> None:
    """Thread t stores row t of four matrices, and gives its address."""
    rows = np.arange(2 * 32 * 8, dtype=np.uint16).reshape(64, 8)
    inputs = [("b32", np.ascontiguousarray(rows.view(np.uint32)[:, number])) for number in range(4)]
    names = ", ".join(f"%d{number}" for number in range(count))
    trans = ".trans" if transposed else ""
    text = shared_text(
        "st.shared.v4.b32 [%to], {%a0, %a1, %a2, %a3}; bar.sync 0; "
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{names}}}, [%to];"
    )
    found = run_instructions(text, inputs, ["b32"] * count)
    matrices = rows.reshape(2, 4, 8, 8)
    matrices = matrices.transpose(0, 1, 3, 2) if transposed else matrices
    for number in range(count):
        expected = np.ascontiguousarray(matrices[:, number]).view(np.uint32).reshape(-1)
        assert (found[number] == expected).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stores_of_matrices(count: int, transposed: bool) -> None:
    matrices = np.arange(2 * 4 * 64, dtype=np.uint16).reshape(2, 4, 8, 8)
    inputs = [("b32", np.ascontiguousarray(matrices[:, number]).view(np.uint32).reshape(-1)) for number in range(4)]
    names = ", ".join(f"%a{number}" for number in range(count))
    trans = ".trans" if transposed else ""
    text = shared_text(
        "mov.b32 %d0, -1; st.shared.v4.b32 [%to], {%d0, %d0, %d0, %d0}; bar.sync 0; "
        f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%to], {{{names}}}; bar.sync 0; "
        "ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%to];"
    )
    found = np.stack(run_instructions(text, inputs, ["b32"] * 4), -1)
    rows = np.ascontiguousarray(found).view(np.uint16).reshape(2, 4, 8, 8)
    expected = matrices.transpose(0, 1, 3, 2) if transposed else matrices
    assert (rows[:, :count] == expected[:, :count]).all()
    assert (rows[:, count:] == 0xFFFF).all()


def test_rows_of_matrices_are_checked() -> None:
    inputs = [("b32", np.zeros(32, np.uint32))]
    text = instruction_text(
        shared_text("add.u32 %to, %to, 4; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%d0, %d1, %d2, %d3}, [%to];"),
        [kind for kind, _ in inputs], ["b32"] * 4,
    )  # fmt: skip
    gpu = SimulatedGpu()
    arguments = [gpu.allocate(128) for _ in range(5)]
    gpu.write(arguments[0], bytes(128))
    with pytest.raises(KernelFault, match="not a multiple of 16"):
        gpu.launch(gpu.load(text).kernels["k"], [1], [32], [*arguments, 32])
