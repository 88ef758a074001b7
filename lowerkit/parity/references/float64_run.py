"""Runs a PyTorch model of any kind in float64: the user's own code by its own framework, not what was captured of it.

Parameters, buffers and floating inputs are float64 for the time of the run. What the code itself makes in a narrower
type (``torch.arange(..., dtype=torch.float32)``, ``x.float()``, constants of a script) is made in float64 instead,
below PyTorch's dispatcher, so that it holds for modules, scripts and exported programs alike.
"""

# torch names operators in private modules only.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from lowerkit.capture.torch_export.eager import EagerCall
from lowerkit.capture.torch_export.states import StatefulEager
from lowerkit.parity.references.higher_order import run_higher_order

Array = np.ndarray[Any, Any]

NARROW = (torch.float32, torch.float16, torch.bfloat16)
_NARROW_NAMES = frozenset({"float32", "float16", "bfloat16"})
_TYPE_CHECKS = frozenset({"aten._assert_tensor_metadata.default"})
_READS_BITS = frozenset({"aten.view.dtype"})


class NoFloat64RunError(Exception):
    """The model cannot be run in float64; the text says why."""


class Widening(TorchDispatchMode):
    """Computes every op in float64 whatever narrower floating type it was asked for.

    Raises (from the op):
        NoFloat64RunError: the model writes into a narrow tensor that is neither parameter nor buffer, or reads bits.
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one op."""
        name = str(func)
        if name in _TYPE_CHECKS:
            return None
        given = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):
            return tree_map(widened, run_higher_order(self, func, tree_map(widened, args), tree_map(widened, given)))
        if name in _READS_BITS and any(_is_narrow(value) for value in args):
            raise NoFloat64RunError("it reads the bits of a floating tensor")
        if isinstance(func, OpOverload) and func._schema.is_mutable:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write and _is_narrow(value):
                    raise NoFloat64RunError("it writes into a tensor that is neither a parameter nor a buffer")
        return tree_map(widened, func(*tree_map(widened, args), **tree_map(widened, given)))


class _FixedEpsilons(TorchFunctionMode):
    """Gives RMS norms that leave their epsilon open the one that they have in every narrower type: float32's."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in (torch.rms_norm, torch.nn.functional.rms_norm) and len(args) < 4 and named.get("eps") is None:
            named["eps"] = torch.finfo(torch.float32).eps
        elif func in (torch.rms_norm, torch.nn.functional.rms_norm) and len(args) == 4 and args[3] is None:
            args = (*args[:3], torch.finfo(torch.float32).eps)
        return func(*args, **named)


def widened(value: Any) -> Any:
    """Returns float64 for a narrower floating type, a tensor in it for a tensor in one; everything else as it is."""
    if isinstance(value, torch.dtype):
        return torch.float64 if value in NARROW else value
    return value.double() if _is_narrow(value) else value


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in NARROW


def torch_float64_outputs(eager: Any, inputs: Sequence[Array]) -> list[Array]:
    """Returns a model's outputs, then its final states, computed in float64.

    Args:
        eager: :attr:`Program.eager` of a PyTorch model. Its parameters, buffers and states are afterwards as before.
        inputs: in the order of the signature.

    Raises:
        NoFloat64RunError: it cannot be run so.
        Exception: what PyTorch or the model raises in float64.
    """
    call = eager.call if isinstance(eager, StatefulEager) else eager
    if not isinstance(call, EagerCall):
        raise NoFloat64RunError("it is no PyTorch model")
    live = eager.live if isinstance(eager, StatefulEager) else ()
    module = call.module
    owned = (
        [*module.parameters(), *module.buffers()]
        if isinstance(module, (torch.nn.Module, torch.jit.ScriptModule))
        else []
    )
    wide = [array.astype(np.float64) if array.dtype.name in _NARROW_NAMES else array for array in inputs]
    with _in_float64([*owned, *live]), _FixedEpsilons(), Widening():
        outputs = eager(*wide)
    narrow = next((array.dtype.name for array in outputs if array.dtype.name in _NARROW_NAMES), None)
    if narrow is not None:
        raise NoFloat64RunError(f"it returns {narrow} in float64 too")
    return outputs


@contextmanager
def _in_float64(tensors: Iterable[torch.Tensor]) -> Generator[None]:
    """Gives floating tensors float64 data for a while; the same data, not a copy, is theirs again afterwards."""
    kept = {id(tensor): (tensor, tensor.data) for tensor in tensors if tensor.dtype in NARROW}
    default = torch.get_default_dtype()
    try:
        for tensor, data in kept.values():
            tensor.data = data.double()
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data in kept.values():
            tensor.data = data
