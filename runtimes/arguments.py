"""From the arguments of ``run`` to checked numpy arrays, without a copy.

Taken are numpy arrays and scalars, and whatever speaks DLPack on the CPU (torch tensors, jax arrays); torch itself is
never imported. An array that is not C-contiguous, or not aligned to its items, is copied once: kernels need it so.
No dtype is converted: a mismatch is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes import _native
from lowerkit.runtimes.dtypes import dtype_name, fits, numpy_dtype
from lowerkit.runtimes.expressions import ExpressionError, evaluate, solve, symbols, to_text
from lowerkit.runtimes.manifest import Signature, TensorSpec

Array = np.ndarray[Any, Any]

_DLPACK_CPU = 1
_DLPACK_DEVICES = {2: "CUDA", 3: "CUDA host", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}


def mismatch(problems: Sequence[str], signature: Signature) -> RuntimeFault:
    """Returns the error that lists every problem."""
    expected = ", ".join(describe(spec) for spec in signature.inputs) or "no inputs"
    count = f"{len(problems)} mismatches" if len(problems) > 1 else "a mismatch"
    return RuntimeFault(
        "LK8004",
        f"the arguments do not fit the signature: {count}",
        details=problems,
        hint=f"the model takes {expected}",
    )


def describe(spec: TensorSpec) -> str:
    """Returns a tensor as people write it: ``x: f32[batch, 3, 224, 224]``."""
    return f"{spec.name}: {spec.dtype}[{', '.join(to_text(entry) for entry in spec.shape)}]"


def collect(signature: Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
    """Returns one array per input in the order of the signature; dtypes and ranks are checked, shapes are not.

    Raises:
        RuntimeFault: LK8004 with all problems.
    """
    specs = signature.inputs
    problems: list[str] = []
    if len(inputs) > len(specs):
        problems.append(f"{len(inputs)} positional arguments, the model has {len(specs)} inputs")
    positional = {spec.name for spec in specs[: len(inputs)]}
    known = {spec.name for spec in specs}
    problems += [f"input {name!r} is given twice" for name in named if name in positional]
    problems += [f"{name!r} is not an input" for name in named if name not in known]
    arrays: list[Array] = []
    for index, spec in enumerate(specs):
        if index < len(inputs):
            value = inputs[index]
        elif spec.name in named:
            value = named[spec.name]
        else:
            problems.append(f"input {spec.name!r} is missing")
            continue
        array = as_array(spec, value, problems)
        if array is not None:
            arrays.append(array)
    if problems:
        raise mismatch(problems, signature)
    return arrays


def as_array(spec: TensorSpec, value: Any, problems: list[str], role: str = "input") -> Array | None:
    """Returns ``value`` as a C-contiguous array of the right dtype and rank, or None after noting the problem."""
    try:
        array = value if isinstance(value, np.ndarray) else _import(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        problems.append(f"{role} {spec.name!r}: {error}")
        return None
    found = len(problems)
    if not fits(array.dtype, spec.dtype):
        problems.append(f"{role} {spec.name!r} has dtype {dtype_name(array.dtype)}, expected {spec.dtype}")
    if array.ndim != len(spec.shape):
        problems.append(
            f"{role} {spec.name!r} has rank {array.ndim} (shape {list(array.shape)}), expected rank {len(spec.shape)}"
        )
    if len(problems) > found:
        return None
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return array.copy(order="C")  # not ascontiguousarray: that one makes rank 0 rank 1


def _import(value: Any) -> Array:
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        raise TypeError(f"a {type(value).__name__} is no array (numpy, torch or DLPack)")
    device = int(value.__dlpack_device__()[0])
    if device != _DLPACK_CPU:
        raise TypeError(f"it lies on a {_DLPACK_DEVICES.get(device, f'foreign ({device})')} device, expected the CPU")
    if getattr(value, "requires_grad", False) is True:
        value = value.detach()  # torch hands out no capsule of a tensor that records gradients
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):
        pass  # numpy's DLPack has no bfloat16
    return _native.bfloat16_bits(value).view(numpy_dtype("bf16"))


def bind_dims(signature: Signature, arrays: Sequence[Array]) -> dict[str, int]:
    """Returns the value of each dim for these input shapes.

    Raises:
        RuntimeFault: LK8004 with every extent that differs, contradicts another input, or leaves its dim's range.
    """
    values: dict[str, int] = {}
    origins: dict[str, str] = {}
    plain_first = sorted(
        (
            (not isinstance(entry, str), index, axis, entry)
            for index, spec in enumerate(signature.inputs)
            for axis, entry in enumerate(spec.shape)
        ),
        key=lambda item: item[:3],
    )
    problems: list[str] = []
    for _, index, axis, entry in plain_first:
        extent = arrays[index].shape[axis]
        place = f"input {signature.inputs[index].name!r}, axis {axis}"
        solved = solve(entry, extent)
        if solved is not None and solved[0] not in values:
            values[solved[0]] = solved[1]
            origins[solved[0]] = place
        try:
            expected = evaluate(entry, values)
        except ExpressionError as error:
            problems.append(f"{place}: {extent} does not determine {to_text(entry)} ({error})")
            continue
        if expected != extent:
            reasons = [f"{s} is {values[s]} in {origins[s]}" for s in sorted(set(symbols(entry)))]
            because = f" ({'; '.join(reasons)})" if reasons else ""
            wanted = f"{to_text(entry)} = {expected}" if reasons else str(expected)
            problems.append(f"{place}: {extent}, expected {wanted}{because}")
    for dim in signature.dims:
        value = values.get(dim.name)
        if value is None:
            continue
        if value < dim.minimum or (dim.maximum is not None and value > dim.maximum):
            upper = "" if dim.maximum is None else str(dim.maximum)
            problems.append(f"dim {dim.name!r} is {value} ({origins[dim.name]}), its range is {dim.minimum}..{upper}")
    if problems:
        raise mismatch(problems, signature)
    return values
