"""Kernels that move data: gather, scatter, copies and slices; and elementwise ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from lowerkit.dialect import GatherOp, ScatterOp
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.cuda.proofs.case import Array, Case
from tests.support.region_kernels import DTYPES, random

Shape = Sequence[int | None]


def _places(size: Sequence[int], element: str, count: int, seed: int) -> Array:
    """Positions in a table from both ends, some of them twice, some outside of it."""
    found = np.random.default_rng(seed).integers(-count, count, size).astype(DTYPES[element])
    found.reshape(-1)[: min(1, found.size)] = found.reshape(-1)[-1:]
    return found


def _gather(name: str, table: Shape, element: str, index: str, sizes: Sequence[tuple[int, int]], width: int) -> Case:
    def sweep() -> Iterator[Sequence[Array]]:
        for seed, (rows, lookups) in enumerate(sizes):
            yield random((rows, width), element, seed), _places((lookups,), index, rows, seed)

    def view() -> RegionView:
        return region([(table, element), ((None,), index)], lambda x, i: GatherOp.build(x, i, axis=0))

    return Case("gather", f"{element}, {name}", view, sweep)


def _scatter(name: str, element: str, kind: str, width: int) -> Case:
    def sweep() -> Iterator[Sequence[Array]]:
        for seed, (rows, updates) in enumerate(((9, 7), (1, 1), (40, 3), (5, 33), (7, 1100), (3, 0))):
            given = random((updates, width), element, seed + 50)
            yield random((rows, width), element, seed), _places((updates,), "i64", rows, seed), given

    def view() -> RegionView:
        operands: Sequence[tuple[Shape, str]] = [((None, width), element), ((None,), "i64"), ((None, width), element)]
        return region(operands, lambda x, i, u: ScatterOp.build(x, i, u, axis=0, kind=kind))

    return Case("scatter", f"{element}, {name}", view, sweep)


def _copy(
    name: str, operands: Sequence[str], body: str, result: str, sizes: Sequence[Sequence[tuple[int, ...]]], element: str
) -> Case:
    given = ", ".join(f"%a{number}: {type_}" for number, type_ in enumerate(operands))
    text = f"func.func @region({given}) -> {result} {{\n{body}\nreturn %r : {result}\n}}"

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, shapes in enumerate(sizes):
            yield [random(shape, element, 5 * seed + number) for number, shape in enumerate(shapes)]

    return Case("copy", f"{element}, {name}", lambda: RegionView.from_text(text, "copy"), sweep)


def _elementwise(name: str, element: str, maps: tuple[str, str, str],
                 shape: Sequence[int | str], other: Sequence[int | str],
                 body: str, sizes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Case:  # fmt: skip
    """An elementwise op of two tensors; the result has the shape that ``maps`` give it, that of the first one."""
    first, second = (f"tensor<{'x'.join(map(str, each))}x{element}>" for each in (shape, other))
    opened = [number for number, size in enumerate(shape) if size == "?"]
    dims = "\n".join(f"%c{n} = arith.constant {n} : index\n%d{n} = tensor.dim %a, %c{n} : {first}" for n in opened)
    parallel = ", ".join(['"parallel"'] * len(shape))
    text = f"""func.func @region(%a: {first}, %b: {second}) -> {first} {{
{dims}
  %e = tensor.empty({", ".join(f"%d{n}" for n in opened)}) : {first}
  %r = linalg.generic {{indexing_maps = [{", ".join(f"affine_map<{each}>" for each in maps)}],
    iterator_types = [{parallel}]}} ins(%a, %b : {first}, {second}) outs(%e : {first}) {{
  ^bb0(%x: {element}, %y: {element}, %o: {element}):
    {body}
    linalg.yield %z : {element}
  }} -> {first}
  return %r : {first}
}}"""

    def sweep() -> Iterator[Sequence[Array]]:
        for seed, (left, right) in enumerate(sizes):
            yield random(left, element, seed), random(right, element, seed + 50)

    return Case("elementwise", f"{element}, {name}", lambda: RegionView.from_text(text, "elementwise"), sweep)


SAME, ROW, TURNED = "(i, j) -> (i, j)", "(i, j) -> (j)", "(i, j) -> (j, i)"
GELU = """%t = math.tanh %x : f32
    %u = arith.mulf %t, %y : f32
    %z = arith.addf %u, %x : f32"""
TABLE = [(9, 7), (1, 1), (40, 300), (5, 2)]
CASES = [
    _elementwise("tanh and a row", "f32", (SAME, ROW, SAME), ["?", 33], [33], GELU,
                 [((m, 33), (33,)) for m in (1, 5, 31, 62, 100)]),
    _elementwise("whole vectors and a row", "bf16", (SAME, ROW, SAME), ["?", 64], [64], "%z = arith.addf %x, %y : bf16",
                 [((m, 64), (64,)) for m in (1, 5, 16, 33)]),
    _elementwise("turned over", "bf16", (SAME, TURNED, SAME), ["?", 40], [40, "?"], "%z = arith.mulf %x, %y : bf16",
                 [((m, 40), (40, m)) for m in (33, 1, 8, 32, 65)]),
    _elementwise("all open", "f16", (SAME, ROW, SAME), ["?", "?"], ["?"], "%z = arith.mulf %x, %y : f16",
                 [((m, n), (n,)) for m, n in ((33, 40), (1, 1), (3, 341), (2, 1025), (32, 32))]),
    _gather("an embedding", (None, 40), "bf16", "i64", TABLE, 40),
    _gather("short slices", (None, 5), "f32", "i32", TABLE, 5),
    _gather("long slices", (None, 1100), "i8", "i64", TABLE, 1100),
    _scatter("set", "bf16", "set", 40),
    _scatter("add", "f32", "add", 24),
    _copy("two behind one another", ["tensor<?x5xbf16>", "tensor<?x16xbf16>"],
          "%r = tensor.concat dim(1) %a0, %a1 : (tensor<?x5xbf16>, tensor<?x16xbf16>) -> tensor<?x21xbf16>",
          "tensor<?x21xbf16>", [((m, 5), (m, 16)) for m in (3, 1, 50, 130, 1000)], "bf16"),
    _copy("open parts", ["tensor<?x40xf32>", "tensor<?x40xf32>"],
          "%r = tensor.concat dim(0) %a0, %a1 : (tensor<?x40xf32>, tensor<?x40xf32>) -> tensor<?x40xf32>",
          "tensor<?x40xf32>", [((m, 40), (n, 40)) for m, n in ((2, 3), (1, 60), (33, 1), (0, 5))], "f32"),
    _copy("a slice with steps of a concatenation", ["tensor<?x20xf16>", "tensor<?x20xf16>"],
          """%c = tensor.concat dim(0) %a0, %a1 : (tensor<?x20xf16>, tensor<?x20xf16>) -> tensor<?x20xf16>
          %r = tensor.extract_slice %c[1, 2] [4, 9] [2, 2] : tensor<?x20xf16> to tensor<4x9xf16>""",
          "tensor<4x9xf16>", [((m, 20), (9 - m, 20)) for m in (3, 1, 8, 9)], "f16"),
    _copy("padding", ["tensor<?x20xf32>"], """%z = arith.constant 2.5 : f32
          %r = tensor.pad %a0 low[1, 0] high[2, 3] {
          ^bb0(%i: index, %j: index):
            tensor.yield %z : f32
          } : tensor<?x20xf32> to tensor<?x23xf32>""", "tensor<?x23xf32>",
          [((m, 20),) for m in (3, 1, 60, 130)], "f32"),
]  # fmt: skip
