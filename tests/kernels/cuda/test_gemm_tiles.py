"""What the model says of a product's kernel before it is compiled, against what the compilers make of it."""

from __future__ import annotations

import pytest

from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.gemm_tiles import asked_product, choose_tile
from lowerkit.targets.cuda.model.arithmetic import arithmetic_of
from lowerkit.targets.cuda.model.cards import card_of
from lowerkit.targets.cuda.model.products import Product, product_work
from lowerkit.targets.cuda.model.tma_tiles import PIECE_BYTES
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, tensor
from tests.support.targets.cuda_kernels import compile_cuda

SHAPES = ((8192, 8192, 8192), (1024, 1024, 1024), (16, 4096, 14336), (128, 768, 3072), (4096, 4096, 4096))
ATTRIBUTES = "accumulate = f32, transpose_lhs = false, transpose_rhs = {}"


@pytest.mark.parametrize(
    ("element", "level"), [(element, level) for element in ("bf16", "f32") for level in ("sm_80", "sm_90", "sm_100")]
)
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_estimates_are_what_the_compilers_say(number: int, element: str, level: str) -> None:
    """Each type at each level: their kernels are of different kinds."""
    card = card_of(level)
    rows, columns, depth = SHAPES[number]
    turned = number % 2 == 0
    right = [columns, depth] if turned else [depth, columns]
    operands = [tensor([rows, depth], element), tensor(right, element)]
    text = anchored("matmul", operands, tensor([rows, columns], element), ATTRIBUTES.format(str(turned).lower()))
    code = unpack(compile_cuda(RegionView.from_text(text, "test"), level, fast=True).code, {})
    (variant,) = code.variants
    launch = variant.function.launches[0]
    kernel = variant.kernels[launch.kernel].kernel
    described = level == "sm_90" and element == "bf16"
    tile = choose_tile(asked_product(element, rows, columns, depth, 1, described=described), level)
    work = product_work(Product(rows, columns, depth, 1, element), tile, card)
    assert tile.tma == (described and rows > 16)
    assert launch.product is not None
    assert (launch.product.tile, launch.product.stages) == ((tile.m, tile.n, tile.k), tile.stages)
    blocks = min(work.blocks, card.sms) if tile.persistent else work.blocks
    assert (launch.blocks, launch.block) == (blocks, work.threads)
    assert len(variant.function.launches) == 1 + (tile.split > 1)
    assert (kernel.spills, kernel.registers) == (0, pytest.approx(work.registers, rel=0.45)), tile
    # What is exchanged at the end may need more than the loop of a small tile.
    least = work.shared - (PIECE_BYTES if tile.persistent else 16)
    assert least <= kernel.shared + launch.shared <= max(work.shared, tile.m * tile.n * 4 + 1024), tile
    ptx = code.compiled(variant, launch.kernel).ptx.decode()
    assert arithmetic_of(ptx) == (work.kind, work.old_matrix), tile
