"""PyTorch's operators, looked up with a guard: which of them there are differs from version to version.

``aten.cholesky.default`` is the overload where this PyTorch has it, else a :class:`MissingOperator`: a key of a table
that no graph asks for, and a diagnostic where it is called. So an operator that a version dropped costs what needs it,
and nothing else.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from lowerkit.errors import UnsupportedError


class MissingOperator:
    """An operator, or an overload of one, that this PyTorch does not have."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, overload: str) -> MissingOperator:
        if overload.startswith("__"):
            raise AttributeError(overload)
        return MissingOperator(f"{self.name}.{overload}")

    def __call__(self, *_arguments: Any, **_named: Any) -> NoReturn:
        """Refuses.

        Raises:
            UnsupportedError: LK4001, always.
        """
        raise UnsupportedError(
            "LK4001",
            f"torch {torch.__version__} has no operator {self.name}, which lowerkit needs here",
            hint="`lowerkit doctor` says which versions of torch are tested",
        )

    def __repr__(self) -> str:
        return f"<missing {self.name}>"


class _Operator:
    """An operator with its overloads as attributes; calling it chooses one, as PyTorch does."""

    def __init__(self, name: str, packet: Any) -> None:
        self._name = name
        self._packet = packet

    def __getattr__(self, overload: str) -> Any:
        if overload.startswith("__"):
            raise AttributeError(overload)
        found = getattr(self._packet, overload, None)
        return MissingOperator(f"{self._name}.{overload}") if found is None else found

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._packet(*arguments, **named)


class _Namespace:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, operator: str) -> Any:
        if operator.startswith("__"):
            raise AttributeError(operator)
        name = f"{self._name}::{operator}"
        packet = getattr(getattr(torch.ops, self._name), operator, None)
        return MissingOperator(name) if packet is None else _Operator(name, packet)


aten: Any = _Namespace("aten")
"""The operators of PyTorch itself."""
