"""Regions of rows and of movements, run through the fast CUDA families and held against the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, tensor
from tests.support.targets.cuda_kernels import compile_cuda, run_cuda

Array = np.ndarray[Any, Any]

TOLERANCE = {"f64": 1e-14, "f32": 1e-6, "f16": 2.0**-10, "bf16": 2.0**-7}
"""Of a result that is rounded once, to its size; that of f32 and f64 is some units more, for sums in another order."""


def hold(
    view: RegionView, family: str, inputs: Sequence[Array], level: str = "sm_90", scale: float = 1.0
) -> PlannedRegion:
    """Runs a region by ``family`` and holds it against float64; returns its plan.

    NaN must face NaN, infinity the same infinity; what is no float must be equal. ``scale`` is how large a number may
    be that cancels out.
    """
    compiled = compile_cuda(view, level, fast=True)
    assert compiled.planned.family == family, compiled.planned.note
    expected = interpret(view.clone_module(), inputs, function="region")
    for actual, wanted, type_ in zip(run_cuda(compiled, inputs), expected, view.results, strict=True):
        assert actual.shape == wanted.shape
        limit = TOLERANCE.get(str(type_.element_type))
        if limit is None:
            np.testing.assert_array_equal(actual, wanted)
        else:
            found, exact = actual.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(found, exact, rtol=limit, atol=scale * TOLERANCE["f32"] / 4)
    return compiled.planned


def with_epilogue(
    name: str, operands: Sequence[str], shape: Sequence[int | str], element: str, attributes: str
) -> RegionView:
    """A region of an lk op whose result of ``shape`` is multiplied by a row and compared with zero.

    It has two more operands, a row and another tensor of the shape that is added, and two results.
    """
    result, row, bits = tensor(shape, element), tensor(shape[-1:], element), tensor(shape, "i1")
    text = anchored(name, operands, result, attributes)
    head, _, rest = text.partition(" {\n")
    arguments = head[head.index("(") + 1 : head.rindex(") ->")]
    op = rest.split("\n")[0]
    dims = ", ".join(f"d{n}" for n in range(len(shape)))
    every, last = f"affine_map<({dims}) -> ({dims})>", f"affine_map<({dims}) -> (d{len(shape) - 1})>"
    opened = [n for n, size in enumerate(shape) if size == "?"]
    sizes = "\n".join(
        f"  %c{n} = arith.constant {n} : index\n  %d{n} = tensor.dim %t, %c{n} : {result}" for n in opened
    )
    given = ", ".join(f"%d{n}" for n in opened)
    parallel = ", ".join(['"parallel"'] * len(shape))
    return RegionView.from_text(
        f"""func.func @region({arguments}, %row: {row}, %t: {result}) -> ({result}, {bits}) {{
{sizes}
  %zero = arith.constant 0.0 : {element}
{op}
  %e = tensor.empty({given}) : {result}
  %f = tensor.empty({given}) : {bits}
  %s:2 = linalg.generic
    {{indexing_maps = [{every}, {last}, {every}, {every}, {every}], iterator_types = [{parallel}]}}
    ins(%r, %row, %t : {result}, {row}, {result}) outs(%e, %f : {result}, {bits}) {{
  ^bb0(%x: {element}, %y: {element}, %z: {element}, %o: {element}, %p: i1):
    %a = arith.mulf %x, %y : {element}
    %b = arith.addf %a, %z : {element}
    %g = arith.cmpf ogt, %z, %zero : {element}
    linalg.yield %b, %g : {element}, i1
  }} -> ({result}, {bits})
  return %s#0, %s#1 : {result}, {bits}
}}""",
        "test",
    )


def spills(view: RegionView, level: str) -> dict[str, int]:
    """Returns the bytes that each kernel of a region spills, as ptxas says."""
    compiled = compile_cuda(view, level, fast=True)
    assert compiled.planned.family != "threads"
    (variant,) = unpack(compiled.code, {}).variants
    return {name: place.kernel.spills for name, place in variant.kernels.items()}
