"""Control flow under a dispatch mode of ours: the bodies run in the mode too."""

# torch names dispatch keys and higher-order operators in private modules only.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


def run_higher_order(mode: TorchDispatchMode, func: HigherOrderOperator, args: Sequence[Any], kwargs: Any) -> Any:
    """Runs ``torch.cond`` and the like by their plain implementation, each body in ``mode``.

    Raises:
        NotImplementedError: the operator has none.
    """
    plain = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    if plain is None:
        raise NotImplementedError(f"{func} has no plain implementation")
    return plain(*(_in_mode(mode, value) for value in args), **(kwargs or {}))


def run_parts(mode: TorchDispatchMode, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """Runs an op that is made of others, such as ``linear`` in the body of a loop, part by part in ``mode``.

    Returns ``NotImplemented`` for an op that is not: elsewhere PyTorch takes such ops apart before a mode sees them.
    """
    if not isinstance(func, OpOverload):
        return NotImplemented
    with mode:
        return func.decompose(*args, **(kwargs or {}))


@contextmanager
def forgotten_by_dynamo(exported: Any) -> Generator[None]:
    """Clears what TorchDynamo compiled inside, where the model has control flow.

    Eager compiles ``torch.cond`` and the like at their first call. What it compiled in a mode of ours is no good
    outside of it: a later export of such a model would fail.

    Args:
        exported: the ExportedProgram of the model, None where there is none.
    """
    try:
        yield
    finally:
        nodes = [] if exported is None else exported.graph.nodes
        if any(isinstance(node.target, HigherOrderOperator) for node in nodes) and "torch._dynamo" in sys.modules:
            torch.compiler.reset()


def _in_mode(mode: TorchDispatchMode, value: Any) -> Any:
    if isinstance(value, torch.Tensor) or not callable(value):
        return value
    body: Callable[..., Any] = value

    def run(*operands: Any) -> Any:
        with mode:
            return body(*operands)

    return run
