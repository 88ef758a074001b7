"""Products: tensor cores with small tiles, so that every tail of rows, columns and K is a small product."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.gemm_problem import read_gemm
from lowerkit.targets.cuda.families.gemm_tiles import GemmTile
from lowerkit.targets.cuda.families.matmul import plan_gemm
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.tensors import Frame
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.cuda.proofs.case import Array, Case
from tests.support.region_kernels import DTYPES, anchored, tensor

Shape = Sequence[int | str]


def sizes(depth: int) -> Iterator[tuple[int, int, int]]:
    """Yields rows, columns and K: every tail of tiles and vectors, 0 to 7 steps of K, nine tiles of rows."""
    yield from ((33, 40, 2 * depth + 8), (32, 32, depth), (1, 1, 1), (32, 32, 0), (5, 20, 7 * depth), (270, 70, 17))
    for tail in range(16):
        yield 2 * tail + 1, 33 + 3 * tail, tail + depth * (tail % 4)
        yield 32 - 2 * tail, 32 + 5 * tail, tail + depth * (3 - tail % 4)


def integers(shape: Sequence[int], element: str, seed: int) -> Array:
    """Small whole numbers, never 0, whose sums of products are exact in f32: one that is missed shows."""
    generator = np.random.default_rng(seed)
    if element == "i8":
        return generator.integers(-128, 128, shape).astype(np.int8)
    return (generator.integers(1, 8, shape) * generator.choice([-1, 1], shape)).astype(DTYPES[element])


def product(left: Shape, right: Shape, result: Shape, element: str, **options: bool) -> RegionView:
    """A product of matrices."""
    flip = {name: str(options.get(name, False)).lower() for name in ("lhs", "rhs", "unsigned")}
    if element == "i8":
        attributes = f"transpose_rhs = {flip['rhs']}, unsigned = {flip['unsigned']}"
        types = [tensor(left, element), tensor(right, element)]
        return RegionView.from_text(anchored("integer_matmul", types, tensor(result, "i32"), attributes), "matmul")
    accumulate = "f64" if element == "f64" else "f32"
    attributes = f"accumulate = {accumulate}, transpose_lhs = {flip['lhs']}, transpose_rhs = {flip['rhs']}"
    types = [tensor(left, element), tensor(right, element)]
    return RegionView.from_text(anchored("matmul", types, tensor(result, element), attributes), "matmul")


def tiled(tile: GemmTile) -> Any:
    """Plans a product with a tile."""

    def plan(view: RegionView, level: str) -> PlannedRegion:
        assert view.anchor is not None
        frame, anchor = Frame(view), view.anchor.operation
        problem, epilogue = read_gemm(frame, anchor), read_epilogue(view, frame, anchor)
        assert not isinstance(problem, Refusal)
        assert not isinstance(epilogue, Refusal)
        element = str(ir.RankedTensorType(anchor.results[0].type).element_type)
        return plan_gemm("gemm", frame, problem, epilogue, tile, element)

    return plan


def _all_open(element: str, tile: GemmTile) -> Case:
    def sweep() -> Iterator[Sequence[Array]]:
        for seed, (m, n, k) in enumerate(sizes(tile.k)):
            yield integers((m, k), element, seed), integers((k, n), element, seed + 100)

    name = f"{element}, {tile.m} x {tile.n} x {tile.k}, all open"
    return Case(
        "gemm", name, lambda: product(["?", "?"], ["?", "?"], ["?", "?"], element), sweep, tiled(tile), cancels=0.1
    )


def _open_rows(element: str, n: int, k: int, tile: GemmTile, rows: Sequence[int], **options: bool) -> Case:
    """Columns and K of a weight are known, as in a model: loads are vectors, and copied asynchronously."""
    right = [n, k] if options.get("rhs") else [k, n]

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, m in enumerate(rows):
            yield integers((m, k), element, seed), integers(right, element, seed + 100)

    words = "".join(f", {name}" for name in options)
    name = f"{element}, {tile.m} x {tile.n} x {tile.k}, open rows, N {n}, K {k}{words}"
    return Case(
        "gemm", name, lambda: product(["?", k], right, ["?", n], element, **options), sweep, tiled(tile), cancels=0.1
    )


def _split(n: int, k: int, parts: int) -> Case:
    """K in parts, which a second launch adds up, with a row added."""
    text = f"""#map = affine_map<(i, j) -> (i, j)>
    #column = affine_map<(i, j) -> (j)>
    module {{
      func.func @region(%a: tensor<?x{k}xbf16>, %b: tensor<{k}x{n}xbf16>, %c: tensor<{n}xbf16>)
          -> tensor<?x{n}xbf16> {{
        %zero = arith.constant 0 : index
        %0 = "lk.matmul"(%a, %b) {{accumulate = f32, transpose_lhs = false, transpose_rhs = false}}
          : (tensor<?x{k}xbf16>, tensor<{k}x{n}xbf16>) -> tensor<?x{n}xbf16>
        %m = tensor.dim %0, %zero : tensor<?x{n}xbf16>
        %e = tensor.empty(%m) : tensor<?x{n}xbf16>
        %1 = linalg.generic {{indexing_maps = [#map, #column, #map], iterator_types = ["parallel", "parallel"]}}
            ins(%0, %c : tensor<?x{n}xbf16>, tensor<{n}xbf16>) outs(%e : tensor<?x{n}xbf16>) {{
        ^bb0(%x: bf16, %y: bf16, %o: bf16):
          %z = arith.addf %x, %y : bf16
          linalg.yield %z : bf16
        }} -> tensor<?x{n}xbf16>
        return %1 : tensor<?x{n}xbf16>
      }}
    }}"""

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, m in enumerate((33, 1, 16, 17)):
            shapes = ((m, k), (k, n), (n,))
            yield [integers(shape, "bf16", 3 * seed + number) for number, shape in enumerate(shapes)]

    return Case(
        "gemm",
        f"bf16, K of {k} in {parts} parts, a row added",
        lambda: RegionView.from_text(text, "matmul"),
        sweep,
        tiled(GemmTile(16, 16, 16, 4, 3, parts)),
    )


SMALL = GemmTile(32, 32, 32, 4, 3)
CASES = [
    _all_open("bf16", SMALL),
    _all_open("f32", GemmTile(32, 32, 16, 4, 3)),
    _all_open("f64", GemmTile(32, 32, 16, 4, 3)),
    _open_rows("bf16", 40, 152, SMALL, (33, 1, 31, 32, 8, 270)),
    _open_rows("f16", 64, 160, GemmTile(64, 64, 32, 4, 3), (65, 1, 64, 520)),
    _open_rows("f32", 36, 76, GemmTile(32, 32, 16, 4, 3), (33, 1, 31, 32, 270)),
    _open_rows("i8", 48, 208, SMALL, (33, 1, 31, 32, 270), rhs=True, unsigned=True),
    _split(40, 232, 3),
]
