"""The model as it was handed in, on numpy arrays: what parity compares with."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from lowerkit.program.dtypes import to_numpy, to_torch
from lowerkit.program.program import Array

_NOISY_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes", "torch._dynamo")
_SILENT = logging.CRITICAL + 1


Nest = Callable[[Sequence[Array]], tuple[tuple[Any, ...], dict[str, Any]]]
"""Arrays in the order of the signature -> positional and keyword arguments."""


def nested_arguments(positional: Sequence[Any], named: Mapping[str, Any]) -> Nest:
    """Returns what makes arguments from arrays: tensors among the example arguments are replaced, all else stays.

    It raises TypeError for more or fewer arrays than tensors.
    """
    leaves, spec = pytree.tree_flatten((tuple(positional), dict(named)))
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def nest(arrays: Sequence[Array]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(arrays) != len(places):
            raise TypeError(f"{len(places)} arrays are needed, {len(arrays)} were given")
        arguments = list(leaves)
        for place, array in zip(places, arrays, strict=True):
            arguments[place] = to_torch(np.asarray(array))
        args, kwargs = pytree.tree_unflatten(arguments, spec)
        return args, kwargs

    return nest


class EagerCall:
    """The module on numpy arrays: tensors among the example arguments are replaced, all else stays as captured.

    Attributes:
        arguments: makes positional and keyword arguments from arrays.
    """

    def __init__(self, make: Callable[[], Any], positional: Sequence[Any], named: Mapping[str, Any]) -> None:
        self._make = make
        self.arguments = nested_arguments(positional, named)

    @property
    def module(self) -> Any:
        """The module itself; that of an ExportedProgram is made when it is asked for."""
        return self._make()

    def __call__(self, *arrays: Array) -> list[Array]:
        """Runs the module; returns the tensors of what it returns, in order."""
        args, kwargs = self.arguments(arrays)
        with quiet(), torch.no_grad():
            outputs = self.module(*args, **kwargs)
        return [np.array(to_numpy(leaf)) for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


def eager_callable(module: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> EagerCall:
    """Returns a module, with the example arguments that it was captured with, as a function on numpy arrays."""
    return EagerCall(lambda: module, positional, named)


def argument_names(module: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> list[str]:
    """Returns a name for each leaf of ``(positional, named)``: that of forward's argument, ``x_0`` inside nests."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (AttributeError, TypeError, ValueError):
        parameters = []
    plain = [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_POSITIONAL]
    stems = [plain[index] if index < len(plain) else f"arg_{index}" for index in range(len(positional))]
    names: list[str] = []
    for stem, value in [*zip(stems, positional, strict=True), *named.items()]:
        count = len(pytree.tree_leaves(value))
        leaf = isinstance(value, torch.Tensor) or pytree.tree_structure(value).is_leaf()
        names += [stem] if leaf else [f"{stem}_{index}" for index in range(count)]
    return names


def flat_arrays(arguments: Any) -> list[Array]:
    """Returns copies of the tensors among nested arguments, in order."""
    return [np.array(to_numpy(leaf)) for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]


@contextmanager
def quiet() -> Generator[None]:
    """Silences torch's warnings, which a user of lowerkit cannot act on, and the tracebacks that it logs.

    What they tell of a failure is in the exception, and that is reported.
    """
    # A level that changes empties the caches of all loggers: those that are silent stay untouched.
    loggers = [logger for name in _NOISY_LOGGERS if (logger := logging.getLogger(name)).level != _SILENT]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(_SILENT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
