"""Runs one region through one kernel family, the way the pool would, with the traps that tests want set.

Operands lie at element-aligned addresses only; results lie between guard bytes that must survive; scratch starts out
as garbage; every task runs in a call of its own, last one first, so that a task can lean on no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import cpu_features, runs_on_host
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.kernels import load_kernel

Array = np.ndarray[Any, Any]

DTYPES: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i64": np.int64,
    "i32": np.int32,
    "i16": np.int16,
    "i8": np.int8,
    "i1": np.bool_,
}
_GUARD = 64


LEVELS = [name for name in ("x86-64-v3", "x86-64-v4") if runs_on_host(name)]
"""Levels beyond the machine are left out, not skipped: the cases that the default tier keeps can all run."""
BF16_LEVELS = [*LEVELS, "znver4"] if runs_on_host("x86-64-v4") else LEVELS
"""With the level that multiplies pairs of bf16; a machine below it runs a model of its instructions."""


def tensor(shape: Sequence[int | str], element: str) -> str:
    """``tensor<2x?xf32>`` of sizes and ``"?"``."""
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def anchored(name: str, operands: Sequence[str], result: str, attributes: str) -> str:
    """A region of one lk op."""
    arguments = ", ".join(f"%a{index}: {type_}" for index, type_ in enumerate(operands))
    names = ", ".join(f"%a{index}" for index in range(len(operands)))
    types = ", ".join(operands)
    return (
        f"func.func @region({arguments}) -> {result} {{\n"
        f'  %r = "lk.{name}"({names}) {{{attributes}}} : ({types}) -> {result}\n'
        f"  return %r : {result}\n}}\n"
    )


def plan_region(family: KernelFamily, text: str, level: str = "x86-64-v3") -> tuple[RegionView, DeviceCode | Refusal]:
    """The view of a region's text, and what the family answers."""
    view = RegionView.from_text(text, "test")
    return view, family.plan(view, cpu_features(level))


def run_region(
    family: KernelFamily, text: str, operands: Sequence[Array], shapes: Sequence[Sequence[int]], level: str
) -> list[Array]:
    """Plans and runs a region; returns its results of ``shapes``."""
    view, plan = plan_region(family, text, level)
    assert isinstance(plan, DeviceCode), plan
    arrays = [_unaligned(operand) for operand in operands]
    blocks = [
        _guarded(shape, DTYPES[str(type_.element_type)]) for shape, type_ in zip(shapes, view.results, strict=True)
    ]
    results = [result for _, result in blocks]
    everything = [*arrays, *results]
    dims = [
        array.shape[axis]
        for array, type_ in zip(everything, view.buffer_types, strict=True)
        for axis in range(type_.rank)
        if type_.is_dynamic_dim(axis)
    ]
    _fill_in_place(plan, operands, results)
    call, tasks = load_kernel(plan, level).bind(everything, dims)
    for task in reversed(range(tasks)):
        call(task, task + 1)
    for block, result in blocks:
        edges = np.concatenate([block[:_GUARD], block[_GUARD + result.nbytes :]])
        assert (edges == 0x5A).all(), "the kernel wrote outside of its result"
    copies = [result.copy() for result in results]
    for block, _ in blocks:
        block[_GUARD:-_GUARD] = 0
    _fill_in_place(plan, operands, results)
    call(0, tasks)
    for copy, result in zip(copies, results, strict=True):
        assert copy.tobytes() == result.tobytes(), "the results depend on how tasks are grouped"
    return copies


def _fill_in_place(plan: DeviceCode, operands: Sequence[Array], results: Sequence[Array]) -> None:
    """Gives results that a kernel changes in place the content that they start from."""
    for result, operand in plan.in_place.items():
        results[result][...] = operands[operand]


def _unaligned(array: Array) -> Array:
    """A copy at an address that is aligned to one element and no more."""
    raw = np.zeros(array.nbytes + 128, np.uint8)
    start = (-raw.ctypes.data) % 64 + max(array.itemsize, 1)
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _guarded(shape: Sequence[int], dtype: Any) -> tuple[Array, Array]:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    block = np.full(size + 2 * _GUARD, 0x5A, np.uint8)
    return block, block[_GUARD : _GUARD + size].view(dtype).reshape(tuple(shape))


def random(shape: Sequence[int], element: str, seed: int = 0, scale: float = 1.0) -> Array:
    """Seeded values of an element type: normal floats, small integers, fair bits."""
    generator = np.random.default_rng(seed)
    if element == "i1":
        return generator.random(tuple(shape)) < 0.5
    if element.startswith("i"):
        return generator.integers(-9, 10, tuple(shape)).astype(DTYPES[element])
    return (generator.standard_normal(tuple(shape)) * scale).astype(DTYPES[element])


def largest_error(actual: Array, expected: Array) -> float:
    """The largest absolute difference in f64; NaN must face NaN, and infinity the same infinity."""
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert a.shape == b.shape
    assert (np.isnan(a) == np.isnan(b)).all(), "NaN in different places"
    same = np.isnan(a) | (a == b)
    with np.errstate(invalid="ignore"):
        return float(np.where(same, 0.0, np.abs(a - b)).max(initial=0.0))
