"""Rows of scalar ops as results of one elementwise region on the simulated device, and the values they are tried on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.targets.cuda.families.elementwise import ElementwiseFamily
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import DTYPES, tensor
from tests.support.targets.cuda_kernels import compile_cuda, compile_with, run_cuda

Array = np.ndarray[Any, Any]
INTEGERS = ("i8", "i16", "i32", "i64")
FLOATS = ("f64", "f32", "f16", "bf16")
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 6e-8, -6e-8, 3e4, -3e4)


def run_rows(
    source: str, rows: Sequence[tuple[str, str]], inputs: Sequence[Array], *, loops: bool = False
) -> list[Array]:
    """Computes rows (text of an op that makes ``%y`` of ``%x0``, ``%x1``, ...; its type) over vectors.

    ``loops``: as plain loops instead.
    """
    count, size = len(inputs), len(inputs[0])
    vector = {element: tensor([size], element) for element in {source, *(type_ for _, type_ in rows)}}
    arguments = ", ".join(f"%a{n}: {vector[source]}" for n in range(count))
    results = ", ".join(vector[type_] for _, type_ in rows)
    empties = "\n".join(f"  %e{n} = tensor.empty() : {vector[type_]}" for n, (_, type_) in enumerate(rows))
    block = [f"%x{n}: {source}" for n in range(count)] + [f"%o{n}: {type_}" for n, (_, type_) in enumerate(rows)]
    body = "\n".join("    " + text.replace("%y", f"%y{n}").replace("%c", f"%c{n}") for n, (text, _) in enumerate(rows))
    maps = ", ".join(["affine_map<(d0) -> (d0)>"] * len(block))
    yields = ", ".join(f"%y{n}" for n in range(len(rows)))
    returned = ", ".join(f"%r#{n}" for n in range(len(rows))) if len(rows) > 1 else "%r"
    view = RegionView.from_text(
        f"""func.func @region({arguments}) -> ({results}) {{
{empties}
  %r{f":{len(rows)}" if len(rows) > 1 else ""} = linalg.generic
    {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
    ins({", ".join(f"%a{n}" for n in range(count))} : {", ".join([vector[source]] * count)})
    outs({", ".join(f"%e{n}" for n in range(len(rows)))} : {results}) {{
  ^bb0({", ".join(block)}):
{body}
    linalg.yield {yields} : {", ".join(type_ for _, type_ in rows)}
  }} -> ({results})
  return {returned} : {results}
}}""",
        "elementwise",
    )
    if loops:
        return run_cuda(compile_cuda(view), inputs)
    plan = ElementwiseFamily().plan(view, "sm_90")
    assert not isinstance(plan, Refusal), plan
    return run_cuda(compile_with(plan, view), inputs)


def pairs(element: str) -> tuple[Array, Array]:
    """Every special value with every other one, and random ones."""
    dtype, generator = DTYPES[element], np.random.default_rng(3)
    if element in INTEGERS:
        info = np.iinfo(dtype)
        values = np.array([info.min, info.min + 1, -7, -2, -1, 0, 1, 2, 7, info.max - 1, info.max], dtype)
        other = generator.integers(info.min, info.max, (2, 60), dtype, endpoint=True)
    else:
        values = np.array(SPECIAL).astype(dtype)
        other = generator.standard_normal((2, 60)).astype(dtype)
    x, y = np.meshgrid(values, values)
    return np.concatenate([x.ravel(), other[0]]), np.concatenate([y.ravel(), other[1]])


def wrapped(value: int, width: int) -> int:
    """The number with a sign that has the low bits of another."""
    return (value + (1 << width - 1)) % (1 << width) - (1 << width - 1)
