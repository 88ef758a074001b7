"""tcgen05.mma of every type, every layout of its operands and both places of A, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated import SimulatedGpu
from lowerkit.runtimes.cuda.simulated.arithmetic import Arithmetic
from lowerkit.runtimes.cuda.simulated.faults import KernelFault, UnknownPtx
from lowerkit.runtimes.cuda.simulated.tensor_core.products import add_product
from lowerkit.runtimes.cuda.simulated.tensor_core.rules import generation_of
from tests.unit.runtimes.cuda.tensor_memory.blackwell_programs import Product


def holds(product: Product, *, blocks: int = 1) -> None:
    found, wanted = product.run(blocks=blocks)
    assert np.array_equal(found.astype(np.float64), wanted)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_sums_are_those_recorded_on_a_b200(kind: str) -> None:
    """Rows of A against rows of B: what was recorded lies on the diagonal."""
    rows = dict(np.load(Path(__file__).parents[4] / "golden" / "tensor_core_rows.npz"))
    a, b = (rows[f"H100/{kind}/{part}"].reshape(4, 125, -1) for part in "ab")
    c, d = (rows[f"B200/{kind}/{part}"].view(np.float32).reshape(4, 125) for part in "cd")
    old = np.where(np.eye(125, dtype=np.bool_), c[:, :, None], np.float32(0))
    name = {"fp16": "f16"}.get(kind, kind)
    found = add_product(Arithmetic(generation_of("sm_100a")), (name, name), (a, b), old)
    assert found is not None
    assert np.array_equal(np.diagonal(found, axis1=1, axis2=2).view(np.uint32), d.view(np.uint32))


@pytest.mark.parametrize("in_tensor_memory", [False, True])
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("f16", ("bf16", "bf16")),
        ("f16", ("f16", "f16")),
        ("tf32", ("tf32", "tf32")),
        ("f8f6f4", ("e4m3", "e5m2")),
        ("i8", ("s8", "u8")),
    ],
)
def test_types(kind: str, types: tuple[str, str], rows: int, in_tensor_memory: bool) -> None:
    holds(Product(kind, types, rows, 32, in_tensor_memory=in_tensor_memory))


@pytest.mark.parametrize("span", [16, 32, 64, 128])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True)])
def test_layouts(span: int, transposed: tuple[bool, bool]) -> None:
    holds(Product(types=("f16", "f16"), rows=64, spans=(span, 128), transposed=transposed))
    holds(Product(types=("f16", "f16"), rows=64, spans=(64, span), transposed=transposed))


@pytest.mark.parametrize("columns", [8, 24, 256])
def test_columns(columns: int) -> None:
    holds(Product(columns=columns))


def test_signs_a_new_sum_and_upper_lanes() -> None:
    holds(Product(negated=(True, False)))
    holds(Product("tf32", ("tf32", "tf32"), negated=(False, True), in_tensor_memory=True))
    holds(Product(adds=False))
    holds(Product(rows=64, lane=16))
    holds(Product(rows=64, lane=16, in_tensor_memory=True))


def test_blocks_have_tensor_memory_of_their_own() -> None:
    holds(Product(adds=False), blocks=3)


def test_sums_of_integers_stay_in_their_range() -> None:
    product = Product("i8", ("u8", "u8"), extra=1 << 3)
    holds(product)
    large = (1 << 31) - 2
    stores = [f"tcgen05.st.sync.aligned.32x32b.x1.b32 [%mine+{column}], {{%r9}};" for column in range(product.columns)]
    found, _ = product.run(product.text(store="\n".join([f"mov.b32 %r9, {large};", *stores])))
    assert found.max() == (1 << 31) - 1 and found.min() >= large


@pytest.mark.parametrize(
    ("product", "message"),
    [
        (Product(extra=1 << 2), "types that are not known"),
        (Product(extra=1 << 30), "types that are not known"),
        (Product(extra=1 << 5), "types that are not known"),
        (Product(types=("bf16", "f16")), "which has no such product"),
        (Product(extra=1 << 3), "which has no such product"),
        (Product("i8", ("s8", "s8"), negated=(True, False)), "which has no such product"),
        (Product("i8", ("s8", "s8"), columns=40), "multiplies to 128 rows and 40 columns, which i8 cannot"),
        (Product(extra=1 << 24), "multiplies to 144 rows and 64 columns"),
        (Product("tf32", ("tf32", "tf32"), transposed=(False, True)), "transposes a matrix of tf32"),
        (Product(transposed=(True, False), in_tensor_memory=True), "transposes a matrix that lies in tensor memory"),
        (Product(lane=16), "a matrix of 128 rows at lane 16, column 0: it begins at lane 0\\n"),
        (Product(rows=64, lane=8), "it begins at lane 0 or 16"),
    ],
)  # fmt: skip
def test_descriptors_that_are_not_known(product: Product, message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        product.run()


@pytest.mark.parametrize("bits", [1 << 47, 1 << 50, 1 << 52, 1 << 61])
def test_matrix_descriptors_that_are_not_known(bits: int) -> None:
    product = Product()
    text = product.text(mma=f"xor.b64 %b, %b, {bits}; {product.instruction}")
    with pytest.raises(KernelFault, match="for a matrix descriptor: a swizzle, a base offset or a mode"):
        product.run(text)


def test_a_matrix_beyond_shared_memory_and_one_that_nothing_has_written() -> None:
    product = Product()
    text = product.text(mma=f"or.b64 %b, %b, 0x3fff; {product.instruction}")
    with pytest.raises(KernelFault, match="multiplies what is at shared address 0x.*: outside of the"):
        product.run(text)
    with pytest.raises(KernelFault, match="multiplies what is at shared address 0x.*: nothing has written there"):
        product.run(product.text(fill=""))


@pytest.mark.parametrize(
    "instruction",
    [
        "tcgen05.mma.cta_group::2.kind::f16 [%base], %a, %b, 0, %p4;",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%base], %a, %b, 0, %p4;",
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%base], %a, %b, 0, %p4;",
        "tcgen05.mma.cta_group::1.kind::mxf4 [%base], %a, %b, 0, %p4;",
        "tcgen05.mma.cta_group::1.kind::f16.collector::a::fill [%base], %a, %b, 0, %p4;",
        "tcgen05.mma.cta_group::1.kind::f16 [%base], %a, %b, 0, {%v0, %v0, %v0, %v0}, %p4;",
        "tcgen05.mma.cta_group::1.kind::f16 [%base], %a, %b, 0, %p4, 2;",
        "tcgen05.cp.cta_group::1.128x256b [%base], %a;",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [done], %v0;",
        "tcgen05.ld.sync.aligned.16x64b.x1.b32 {%v0}, [%base];",
        "tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {%v0, %v1}, [%base];",
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%v0}, [%base];",
        "tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%base], {%v0};",
        "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [at], 32;",
    ],
)
def test_forms_that_are_not_known(instruction: str) -> None:
    with pytest.raises(UnknownPtx, match="tcgen05"):
        SimulatedGpu().load(Product().text(mma=instruction))
