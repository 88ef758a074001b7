"""``run_decompositions`` without the work that PyTorch repeats in every call, which takes longer than a small graph.

In each call PyTorch asks its dispatcher for all composite ops once for every namespace, and gives each of the 500 that
stay whole 21 new kernels. Here the dispatcher is asked once in a call, and the kernels of an op are made once.
"""

# What torch.export replaces is private; the versions of torch are pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from threading import RLock
from typing import Any

import torch
from torch._export import utils
from torch._higher_order_ops.utils import autograd_not_implemented
from torch._ops import OpOverload
from torch._subclasses import fake_impls
from torch.export import ExportedProgram, exported_program

Kernel = Callable[..., Any]

_ONE_AT_A_TIME = RLock()
"""PyTorch's functions and the kernels of its ops are replaced for the whole process: two threads would restore the
replacement of each other."""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


def run_decompositions(exported: ExportedProgram, table: Mapping[Any, Kernel]) -> ExportedProgram:
    """Returns what ``exported.run_decompositions(table)`` returns."""
    with _ONE_AT_A_TIME:
        own = exported_program._override_composite_implicit_decomp, utils._materialize_cpp_cia_ops
        utils._materialize_cpp_cia_ops()
        exported_program._override_composite_implicit_decomp = overridden_composites  # pyright: ignore[reportAttributeAccessIssue]
        utils._materialize_cpp_cia_ops = _nothing
        try:
            return exported.run_decompositions(dict(table))
        finally:
            exported_program._override_composite_implicit_decomp, utils._materialize_cpp_cia_ops = own


def _nothing() -> None:
    """Stands for a question that was answered in this call."""


@contextmanager
def overridden_composites(decompositions: Mapping[Any, Kernel]) -> Generator[None]:
    """Does what ``exported_program._override_composite_implicit_decomp`` does; see there for the reasons."""
    saved: dict[OpOverload, dict[Any, Any]] = {op: op.py_kernels.copy() for op in decompositions}
    for op, own in saved.items():
        given = own.get(_COMPOSITE)
        original = _original(op) if given is None or isinstance(given, torch._C.DispatchKey) else given
        op.py_kernels.update(_kernels(op, original) | own | {_COMPOSITE: decompositions[op]})
        op._dispatch_cache.clear()
        if not fake_impls._is_op_registered_to_fake_rule(op):
            fake_impls.register_op_impl(op)(partial(_run_original, original))
    try:
        yield
    finally:
        for op, own in saved.items():
            op.py_kernels.clear()
            op.py_kernels.update(own)
            op._dispatch_cache.clear()
            fake_impls._deregister_op_impl(op)


@cache
def _original(op: OpOverload) -> Kernel:
    return utils._get_decomp_for_cia(op)


@cache
def _kernels(op: OpOverload, original: Kernel) -> dict[Any, Kernel]:
    refused = autograd_not_implemented(op, deferred_error=True)
    return {
        **dict.fromkeys(exported_program._AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE, refused),
        **dict.fromkeys(exported_program._BACKEND_KEYS_TO_OVERRIDE, original),
    }


def _run_original(original: Kernel, fake_mode: Any, _op: OpOverload, *arguments: Any, **named: Any) -> Any:
    with fake_mode:
        return original(*arguments, **named)
