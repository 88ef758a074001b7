"""From the arguments of ``run`` to checked numpy arrays, without a copy.

Taken are numpy arrays and scalars, and whatever speaks DLPack on the CPU (torch tensors, jax arrays); torch itself is
never imported. An array that is not C-contiguous, or not aligned to its items, is copied once: kernels need it so.
No dtype is converted: a mismatch is an error.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes import _native
from lowerkit.runtimes.conditions import condition_symbols, condition_text, holds
from lowerkit.runtimes.dtypes import dtype_name, fits, numpy_dtype
from lowerkit.runtimes.expressions import ExpressionError, evaluate, solve, symbols, to_text
from lowerkit.runtimes.manifest import Guard, Signature, TensorSpec

Array = np.ndarray[Any, Any]

_DLPACK_CPU = 1
_DLPACK_DEVICES = {2: "CUDA", 3: "CUDA host", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}


def mismatch(problems: Sequence[str], signature: Signature) -> RuntimeFault:
    """Returns the error that lists every problem."""
    expected = ", ".join(describe(spec) for spec in signature.inputs) or "no inputs"
    return RuntimeFault(
        "LK8004",
        "the inputs do not match the model",
        details=problems,
        hint=f"the model takes {expected}",
    )


def describe(spec: TensorSpec) -> str:
    """Returns a tensor as people write it: ``x: f32[batch, 3, 224, 224]``."""
    return f"{spec.name}: {spec.dtype}[{', '.join(to_text(entry) for entry in spec.shape)}]"


def collect(signature: Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
    """Returns one array per input in the order of the signature; dtypes and ranks are checked, shapes are not.

    They are not copied yet, so that the shape of an input is checked first: :func:`ready` does it.

    Raises:
        RuntimeFault: LK8004 with all problems.
    """
    specs = signature.inputs
    problems: list[str] = []
    if len(inputs) > len(specs):
        problems.append(f"{len(inputs)} inputs were given, but the model has {len(specs)}")
    positional = {spec.name for spec in specs[: len(inputs)]}
    known = {spec.name for spec in specs}
    problems += [f"input {name!r} is given twice" for name in named if name in positional]
    problems += [f"the model has no input {name!r}" for name in named if name not in known]
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
    """Returns ``value`` as an array of the right dtype and rank, or None after noting the problem."""
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
    return array


def ready(array: Array) -> Array:
    """Returns the array as kernels read it; to be asked for once shapes are known to fit: a view may be terabytes."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return array.copy(order="C")  # not ascontiguousarray: that one makes rank 0 rank 1


def address_of(array: Array) -> int:
    """Returns where the first element of an array lies."""
    return array.__array_interface__["data"][0]


def _import(value: Any) -> Array:
    if isinstance(value, np.generic):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        raise TypeError(f"a {type(value).__name__} is not an array (numpy, torch or DLPack)")
    device = int(value.__dlpack_device__()[0])
    if device != _DLPACK_CPU:
        raise TypeError(
            f"it is on a {_DLPACK_DEVICES.get(device, f'foreign ({device})')} device; move it to the CPU first"
        )
    if _is_without_memory(value):
        raise TypeError(f"a {type(value).__name__} has a shape and no values")
    if getattr(value, "requires_grad", False) is True:
        value = value.detach()  # torch hands out no capsule of a tensor that records gradients
    for bit, resolve in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):
        if callable(getattr(value, bit, None)) and getattr(value, bit)():
            value = getattr(value, resolve)()  # torch's lazy negation: the memory holds other numbers
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):
        pass  # numpy's DLPack has no bfloat16
    return _native.bfloat16_bits(value).view(numpy_dtype("bf16"))


def _is_without_memory(value: Any) -> bool:
    """Whether it is a torch tensor of a class of its own (FakeTensor) whose memory is not its own."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) in (torch.Tensor, torch.nn.Parameter) or not isinstance(value, torch.Tensor):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns whoever asks a FakeTensor for its address
        try:
            return value.numel() > 0 and value.data_ptr() == 0
        except RuntimeError:
            return True


def bind_dims(signature: Signature, arrays: Sequence[Array]) -> dict[str, int]:
    """Returns the value of each dim for these input shapes.

    Raises:
        RuntimeFault: LK8004 with every extent that differs, contradicts another input, or leaves its dim's range, and
            with every guard that does not hold.
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
            alone = len(set(symbols(entry))) == 1  # no value of the dim gives it
            said = f"is no value of {to_text(entry)}" if alone else f"does not determine {to_text(entry)} ({error})"
            problems.append(f"{place}: {extent} {said}")
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
    if not problems:  # a guard may divide by what is out of its range
        problems = [problem for guard in signature.guards if (problem := guard_problem(guard, values, origins))]
    if problems:
        raise mismatch(problems, signature)
    return values


def guard_problem(guard: Guard, values: Mapping[str, int], origins: Mapping[str, str]) -> str | None:
    """Returns what is wrong where a guard does not hold; ``origins`` says of each dim which axis gave its value."""
    reason = ""
    try:
        if holds(guard.condition, values):
            return None
    except ExpressionError as error:
        reason = f" ({error})"
    names = sorted(set(condition_symbols(guard.condition)))
    found = ", ".join(f"{name} is {values[name]} ({origins[name]})" for name in names if name in values)
    place = f", for {guard.operator}" if guard.operator else ""
    place += f", at {guard.location}" if guard.location else ""
    return f"the model holds only where {condition_text(guard.condition)}{reason}: {found}{place}"
