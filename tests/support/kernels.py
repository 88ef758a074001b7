"""Regions as text, and one kernel run against eager: for the tests of the GEMM families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import torch

from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.harness import LoadedKernel
from lowerkit.targets.cpu.levels import LEVELS as LEVEL_NAMES
from lowerkit.targets.cpu.levels import cpu_features, runs_on_host
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from tests.support.cpu.tile_model import modelled

Array = np.ndarray[Any, Any]
INTEGERS: dict[str, Any] = {"i8": np.int8, "i32": np.int32}
NUMPY: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TORCH = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
LEVELS = [name for name in LEVEL_NAMES if runs_on_host(name)]
FLOAT_LEVELS = list(LEVEL_NAMES) if runs_on_host("x86-64-v4") else LEVELS
"""Levels of kernels of floats: those above the machine run through a model of their instructions (``tile_model``)."""
ENDS = sorted({LEVELS[0], LEVELS[-1]})
"""The narrowest level and the widest one of this machine."""
TILE_LEVELS = [name for name in FLOAT_LEVELS if cpu_features(name).amx]
"""The levels whose products of bf16 are made of tiles."""

# Activations of the epilogue: body text from %v to the value named last.
ACTIVATIONS = {
    "relu": ("%zero = arith.constant 0.0 : {t}\n%out = arith.maximumf %v, %zero : {t}", torch.relu),
    "relu6": (
        "%zero = arith.constant 0.0 : {t}\n%six = arith.constant 6.0 : {t}\n"
        "%low = arith.maximumf %v, %zero : {t}\n%out = arith.minimumf %low, %six : {t}",
        torch.nn.functional.relu6,
    ),
    "gelu": (
        "%root = arith.constant 0.70710678118654752 : {t}\n%half = arith.constant 0.5 : {t}\n"
        "%one = arith.constant 1.0 : {t}\n%a1 = arith.mulf %v, %root : {t}\n%a2 = math.erf %a1 : {t}\n"
        "%a3 = arith.addf %a2, %one : {t}\n%a4 = arith.mulf %v, %half : {t}\n%out = arith.mulf %a4, %a3 : {t}",
        torch.nn.functional.gelu,
    ),
    "silu": (
        "%one = arith.constant 1.0 : {t}\n%a1 = arith.negf %v : {t}\n%a2 = math.exp %a1 : {t}\n"
        "%a3 = arith.addf %a2, %one : {t}\n%out = arith.divf %v, %a3 : {t}",
        torch.nn.functional.silu,
    ),
    "hardswish": (
        "%zero = arith.constant 0.0 : {t}\n%three = arith.constant 3.0 : {t}\n%six = arith.constant 6.0 : {t}\n"
        "%a1 = arith.addf %v, %three : {t}\n%a2 = arith.maximumf %a1, %zero : {t}\n"
        "%a3 = arith.minimumf %a2, %six : {t}\n%a4 = arith.mulf %v, %a3 : {t}\n%out = arith.divf %a4, %six : {t}",
        torch.nn.functional.hardswish,
    ),
}


@dataclass(frozen=True)
class Side:
    """An operand of the epilogue: combined by ``op`` with the value so far, read through ``axes`` of the result."""

    op: str
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    weight: bool = False


@dataclass(frozen=True)
class Epilogue:
    """Side operands in order, then an activation; ``both`` also yields the anchor's result."""

    sides: tuple[Side, ...] = ()
    activation: str | None = None
    both: bool = False


def at_levels(cases: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of a case's name and a level; for bf16 the narrowest and the one that multiplies pairs."""
    own = [name for name in FLOAT_LEVELS if cpu_features(name).avx512_bf16 and name not in TILE_LEVELS]
    return [
        (name, level)
        for name, case in cases.items()
        for level in (dict.fromkeys([LEVELS[0], *own]) if case.element == "bf16" else ENDS)
    ]


def on_tiles(cases: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs of a case of bf16, by its name, and a level with tiles.

    These are a list of their own, so that the default tier runs each of them: most machines have no other kernel of
    tiles, and a case of another level is not a variant of it.
    """
    return [(name, level) for name, case in cases.items() if case.element == "bf16" for level in TILE_LEVELS]


def tensor(shape: Sequence[int], element: str, dynamic: Sequence[int] = ()) -> str:
    sizes = "".join(("?" if axis in dynamic else str(size)) + "x" for axis, size in enumerate(shape))
    return f"tensor<{sizes}{element}>"


def region_text(
    anchor: str,
    operands: Sequence[str],
    result: Sequence[int],
    element: str,
    epilogue: Epilogue,
    dynamic: Sequence[int] = (),
) -> str:
    """Text of a region: ``anchor`` is the op with its attributes, reading ``%arg0``, ``%arg1`` of ``operands``."""
    type_ = tensor(result, element, dynamic)
    # An operand whose sizes along its axes are those of the result shares the result's dynamic dims.
    sides = [
        tensor(
            side.shape,
            element,
            [i for i, axis in enumerate(side.axes) if axis in dynamic and side.shape[i] == result[axis]],
        )
        for side in epilogue.sides
    ]
    arguments = ", ".join(f"%arg{i}: {t}" for i, t in enumerate([*operands, *sides]))
    outputs = f"{type_}, {type_}" if epilogue.both else type_
    lines = [f"func.func @region({arguments}) -> ({outputs}) {{"]
    lines.append(f"%0 = {anchor} : ({', '.join(operands[:2])}) -> {type_}")
    if not epilogue.sides and epilogue.activation is None:
        return "\n".join([*lines, f"return %0 : {type_}", "}"])
    sizes: list[str] = []
    for axis in dynamic:
        lines.append(f"%c{axis} = arith.constant {axis} : index")
        lines.append(f"%size{axis} = tensor.dim %0, %c{axis} : {type_}")
        sizes.append(f"%size{axis}")
    lines.append(f"%empty = tensor.empty({', '.join(sizes)}) : {type_}")
    dims = ", ".join(f"d{i}" for i in range(len(result)))
    same = f"affine_map<({dims}) -> ({dims})>"
    maps = [same]
    for side in epilogue.sides:
        pairs = zip(side.axes, side.shape, strict=True)
        axes = ", ".join("0" if size == 1 and result[axis] != 1 else f"d{axis}" for axis, size in pairs)
        maps.append(f"affine_map<({dims}) -> ({axes})>")
    maps.append(same)
    inputs = ", ".join(["%0", *(f"%arg{len(operands) + i}" for i in range(len(sides)))])
    parallel = ", ".join(['"parallel"'] * len(result))
    block = ", ".join([f"%acc: {element}", *(f"%side{i}: {element}" for i in range(len(sides))), f"%unused: {element}"])
    lines.append(
        f"%1 = linalg.generic {{indexing_maps = [{', '.join(maps)}], iterator_types = [{parallel}]}} "
        f"ins({inputs} : {', '.join([type_, *sides])}) outs(%empty : {type_}) {{"
    )
    lines.append(f"^bb0({block}):")
    value = "%acc"
    for i, side in enumerate(epilogue.sides):
        lines.append(f"%sum{i} = arith.{side.op} {value}, %side{i} : {element}")
        value = f"%sum{i}"
    if epilogue.activation is not None:
        lines.append(ACTIVATIONS[epilogue.activation][0].replace("{t}", element).replace("%v", value))
        value = "%out"
    lines.append(f"linalg.yield {value} : {element}")
    lines.append(f"}} -> {type_}")
    values = "%1, %0" if epilogue.both else "%1"
    return "\n".join([*lines, f"return {values} : {outputs}", "}"])


def random_array(generator: np.random.Generator, shape: Sequence[int], element: str) -> Array:
    return generator.standard_normal(tuple(shape)).astype(np.float32).astype(NUMPY[element])


def to_torch(array: Array) -> torch.Tensor:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def apply_epilogue(value: torch.Tensor, epilogue: Epilogue, sides: Sequence[torch.Tensor]) -> torch.Tensor:
    """The epilogue in torch, each op rounding as eager does."""
    rank = value.dim()
    for side, operand in zip(epilogue.sides, sides, strict=True):
        view = [1] * rank
        for axis, size in zip(side.axes, side.shape, strict=True):
            view[axis] = size
        spread = operand.reshape(view)
        value = value + spread if side.op == "addf" else value * spread
    return value if epilogue.activation is None else ACTIVATIONS[epilogue.activation][1](value)


def plan_region(family: KernelFamily, text: str, kind: str, weights: Sequence[str], level: str) -> DeviceCode | Refusal:
    return family.plan(RegionView.from_text(text, kind, weights), cpu_features(level))


def _garbage(shape: Sequence[int], element: str) -> Array:
    """What no kernel computes: NaN, or a number that no test expects everywhere."""
    if element in INTEGERS:
        return np.full(tuple(shape), 113, INTEGERS[element])
    return np.full(tuple(shape), np.nan, np.float32).astype(NUMPY[element])


def load_kernel(plan: DeviceCode, level: str, model: bool | None = None) -> LoadedKernel:
    """Returns the kernel compiled for its level.

    One that this machine cannot run, or any with ``model``, is compiled for x86-64-v4 with a model of the instructions
    beyond.
    """
    if model is None:
        model = not runs_on_host(level)
    if not model:
        return LoadedKernel(plan, cpu_features(level))
    return LoadedKernel(replace(plan, payload=modelled(plan.text)), cpu_features("x86-64-v4"))


def run_plan(
    plan: DeviceCode,
    arrays: Sequence[Array],
    results: Sequence[tuple[Sequence[int], str]],
    level: str,
    dims: Sequence[int] = (),
    ranges: int = 1,
) -> list[Array]:
    """Packs weights, runs all tasks in ``ranges`` contiguous ranges on fresh scratch, returns the results."""
    packed: list[Array] = []
    for number, array in enumerate(arrays):
        packing = plan.packings.get(number)
        packed.append(np.ascontiguousarray(array) if packing is None else packing.apply(array))
        if packing is not None:
            assert packed[-1].shape == packing.packed_shape(array.shape)
    outputs = [_garbage(shape, element) for shape, element in results]
    call, tasks = load_kernel(plan, level).bind([*packed, *outputs], dims)
    for part in range(ranges):
        call(tasks * part // ranges, tasks * (part + 1) // ranges)
    return outputs


def require_near(ours: Array, exact: torch.Tensor, element: str, epilogue: Epilogue, sums: Sums) -> None:
    """Fails unless our error against float64 is at most what the roundings of the sums, and of the result, allow.

    No machine's eager comes into it: how exact that happens to be differs from one to the next.
    """
    reference = exact.double().numpy()
    unit = float(np.finfo(NUMPY[element]).eps) / 2 if element != "bf16" else 2.0**-8
    scale = float(np.abs(reference).max()) + float(torch.as_tensor(sums.added).max())
    # The result of each op is a tensor of the element type.
    rounded = unit * (1 + len(epilogue.sides) + (epilogue.activation is not None))
    slope = 1.0 if epilogue.activation is None else STEEPEST
    carried = 2.0**-53 if element == "f64" else 2.0**-24
    allowed = slope * sums.bound(carried).double().numpy() + (rounded + 8 * carried) * scale
    if element == "f64":  # the reference is of the same precision, and as far off
        allowed = allowed + slope * sums.bound(carried).double().numpy()
    error = np.abs(ours.astype(np.float64) - reference)
    worst = np.unravel_index(np.argmax(error - allowed), error.shape)
    assert (error <= allowed).all(), (
        f"error {error[worst]:.3e} at {worst}, allowed {allowed[worst]:.3e} (largest value {scale:.3e})"
    )


STEEPEST = 1.5
"""The largest slope of an activation: that of hardswish at 3."""


@dataclass(frozen=True)
class Sums:
    """What the error of sums of ``length`` products ``a * b`` is derived from.

    A sum in any order rounds each partial sum once, by at most ``u`` times it. Of random terms of mean zero a partial
    sum is as large as the root of the sum of its terms' squares, so that ``length`` roundings of either sign add up to
    ``u * sqrt(length * sum((a * b)^2))``; six times that is passed by one of ten million sums (Hoeffding).

    Attributes:
        squares: for each result the sum of the squares of its products, in float64, scaled as the epilogue scales it.
        length: products of a sum, and what the epilogue adds.
        added: for each result the sum of the magnitudes of what the epilogue adds.
    """

    squares: torch.Tensor
    length: int
    added: torch.Tensor | float = 0.0

    def bound(self, unit: float) -> torch.Tensor:
        """Returns the error allowed to each result where partial sums are rounded to ``unit``."""
        return 6 * unit * torch.sqrt(self.length * self.squares) + 2 * unit * self.added


def sums_of(squares: torch.Tensor, length: int, epilogue: Epilogue, sides: Sequence[torch.Tensor]) -> Sums:
    """Returns the sums of an anchor with what the epilogue makes of them, before its activation."""
    added: torch.Tensor = torch.zeros_like(squares)
    for side, operand in zip(epilogue.sides, sides, strict=True):
        view = [1] * squares.dim()
        for axis, size in zip(side.axes, side.shape, strict=True):
            view[axis] = size
        spread = operand.double().abs().reshape(view)
        squares, added = (squares, added + spread) if side.op == "addf" else (squares * spread**2, added * spread)
    return Sums(squares, length + len(epilogue.sides), added)
