"""Every op of the dialect as PTX on the simulated device, against the interpreter, inside its own buffers.

The regions are those of the CPU's generic family: odd and open shapes, all float types.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerkit.dialect import MatmulOp, ReduceOp, ScatterOp, SoftmaxOp
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.region_view import RegionView
from tests.kernels.cpu.test_generic import CASES, ELEMENTWISE, TOLERANCE, arrays_for, region
from tests.support.suite.randomness import RANDOM
from tests.support.targets.cuda_kernels import CudaRegion, compile_cuda, run_cuda

Array = np.ndarray[Any, Any]
F = "f32"


def check(view: RegionView, inputs: list[Array], level: str = "sm_90", *, fast: bool = False) -> CudaRegion:
    compiled = compile_cuda(view, level, fast=fast)
    expected = interpret(view.clone_module(), inputs, function="region")
    for actual, wanted, type_ in zip(run_cuda(compiled, inputs), expected, view.results, strict=True):
        assert actual.shape == wanted.shape
        limit = TOLERANCE.get(str(type_.element_type))
        if limit is None:
            np.testing.assert_array_equal(actual, wanted)
        else:
            np.testing.assert_allclose(actual.astype(np.float64), wanted.astype(np.float64), rtol=limit, atol=limit * 2)
    return compiled


@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", CASES)
def test_op_matches_the_interpreter(name: str, level: str) -> None:
    """As plain loops on the simulated device; and ptxas, where there is one, takes the same kernels."""
    operands, sizes, build = CASES[name]
    compiled = check(region(operands, build), arrays_for(operands, sizes), level)
    assembler = ptxas.find_ptxas()
    if assembler is None or not ptxas.knows(assembler, level):
        return
    read = unpack(compiled.code, {})
    (variant,) = read.variants
    for kernel, place in variant.kernels.items():
        assert read.compiled(variant, kernel).cubin, kernel
        assert place.kernel.registers > 0, kernel


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_op_matches_the_interpreter_in_the_family_that_takes_it(name: str) -> None:
    """The files beside this one hold each family to the reference, on operands that tell more of it."""
    operands, sizes, build = CASES[name]
    check(region(operands, build), arrays_for(operands, sizes), fast=True)


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("rows", [0, 1, 67])
def test_open_extents(element: str, rows: int) -> None:
    view = RegionView.from_text(ELEMENTWISE.format(n=29, t=element), "elementwise")
    check(view, arrays_for([((None, 29), element), ((29,), element)], [(rows, 29), (29,)]))


def test_each_level_computes_the_same_bits() -> None:
    operands, sizes, build = CASES["attention"]
    inputs = arrays_for(operands, sizes)
    found = [run_cuda(compile_cuda(region(operands, build), level), inputs)[0] for level in ("sm_80", "sm_90")]
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1)])
def test_loops_of_one_iteration(shape: tuple[int, int]) -> None:
    """Canonicalization takes such loops away: what is left stands at the top of the body, without a loop."""
    inputs = arrays_for([(shape, F)], [shape])
    check(region([(shape, F)], lambda x: SoftmaxOp.build(x, axis=1)), inputs)
    check(region([(shape, F)], lambda x: ReduceOp.build(x, kind="mean", axes=[0, 1])), inputs)


def test_updates_of_one_place_follow_each_other() -> None:
    """Scatter-add with equal indices: threads must not share the updates out among them."""
    operands: list[Any] = [((5, 3), F), ((40,), "i64"), ((40, 3), F)]
    inputs = arrays_for(operands, [(5, 3), (40,), (40, 3)])
    inputs[1] = RANDOM.integers(-5, 5, 40)
    check(region(operands, lambda x, i, u: ScatterOp.build(x, i, u, kind="add")), inputs)


def test_a_batch_of_products_has_a_thread_for_each_element() -> None:
    view = region([((7, 33, 5), F), ((7, 5, 65), F)], MatmulOp.build)
    compiled = check(view, arrays_for([((7, 33, 5), F), ((7, 5, 65), F)], [(7, 33, 5), (7, 5, 65)]))
    (launch,) = compiled.planned.function.launches
    assert (launch.blocks, launch.block) == (-(-7 * 33 * 65 // 128), 128)
