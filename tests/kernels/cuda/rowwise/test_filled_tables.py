"""Updates of a table of one number, which is nowhere in memory, and many updates of short slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lowerkit.dialect import ScatterOp
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import region
from tests.support.region_kernels import random, tensor
from tests.support.targets.cuda_rows import hold

TEXT = """
func.func @region(%i: {indices}, %u: {updates}) -> {table} {{
  %c = arith.constant {fill} : {element}
  %e = tensor.empty() : {table}
  %t = linalg.fill ins(%c : {element}) outs(%e : {table}) -> {table}
  %r = "lk.scatter"(%t, %i, %u) {{axis = {axis} : i64, kind = "{kind}"}} : ({table}, {indices}, {updates}) -> {table}
  return %r : {table}
}}
"""


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("kind", "element", "size", "count", "axis", "fill"),
    [
        ("add", "bf16", (12, 32), 30, 0, "0.0"),
        ("add", "f32", (12, 5), 30, 0, "0.0"),
        ("set", "f32", (12, 32), 30, 0, "-1.5"),
        ("max", "f32", (3, 9, 40), 7, 1, "0xFF800000"),
        ("set", "i64", (9,), 20, 0, "7"),
        ("add", "i32", (9, 16), 20, 0, "3"),
        ("set", "f32", (5000,), 5001, 0, "0.0"),
        ("set", "bf16", (3, 700, 2), 4500, 1, "1.0"),
    ],
)
def test_a_table_of_one_number(
    kind: str, element: str, size: Sequence[int], count: int, axis: int, fill: str, level: str
) -> None:
    updates = (*size[:axis], count, *size[axis + 1 :])
    text = TEXT.format(
        indices=tensor([count], "i64"), updates=tensor(updates, element), table=tensor(size, element),
        fill=fill, element=element, axis=axis, kind=kind,
    )  # fmt: skip
    places = np.random.default_rng(3).integers(-size[axis], size[axis], count)
    hold(RegionView.from_text(text, "scatter"), "scatter", [places, random(updates, element)], level)


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_many_updates_of_short_slices(count: int) -> None:
    """The last one stands."""
    view = region(
        [((None, 3), "f32"), ((None,), "i32"), ((None, 3), "f32")], lambda x, i, u: ScatterOp.build(x, i, u, kind="set")
    )
    table, updates = random((900, 3), "f32"), random((count, 3), "f32", 1)
    places = np.random.default_rng(5).integers(-900, 900, count).astype(np.int32)
    assert len(select_kernels(view, "sm_90")[0].function.launches) == 3
    hold(view, "scatter", [table, places, updates])


@pytest.mark.parametrize(
    ("element", "fill"), [("f32", "0.0 : f32"), ("bf16", "-1.5 : bf16"), ("i64", "7 : i64"), ("i1", "true")]
)
def test_a_region_that_is_one_number_everywhere(element: str, fill: str) -> None:
    table = tensor([50, 33], element)
    text = f"""func.func @region() -> {table} {{
      %c = arith.constant {fill}
      %e = tensor.empty() : {table}
      %t = linalg.fill ins(%c : {element}) outs(%e : {table}) -> {table}
      return %t : {table}
    }}"""
    hold(RegionView.from_text(text, "elementwise"), "elementwise", [])
