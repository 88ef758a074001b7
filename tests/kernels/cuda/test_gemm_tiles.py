"""What the model says of a product's kernel before it is compiled, against what the compilers make of it."""

from __future__ import annotations

import pytest

from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.families.gemm_tiles import choose_tile
from lowerkit.targets.cuda.model.arithmetic import arithmetic_of
from lowerkit.targets.cuda.model.cards import card_of
from lowerkit.targets.cuda.model.products import Product, product_work, registers
from lowerkit.targets.cuda.ptx.link import find_assembler_for
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, tensor
from tests.support.targets.cuda_kernels import compile_cuda
