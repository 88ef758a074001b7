"""How large a TorchScript program is once each function is written out where it is called.

Calls of calls multiply: thirty functions that call each other twice are a billion operations. torch writes them out
without a bound, when a program is captured and when it first runs, so they are counted before.
"""

# torch names the nodes of TorchScript graphs in private modules only.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.jit._state import _python_cu

from lowerkit.errors import CaptureError

MAXIMUM_NODES = 250_000
"""Of a program that is written out. The largest models that are known have some tens of thousands."""

_units: WeakKeyDictionary[torch.jit.ScriptModule, Any] = WeakKeyDictionary()
"""Where the functions of loaded programs are: torch does not say."""


def note_unit(script: torch.jit.ScriptModule, unit: Any) -> None:
    """Remembers the compilation unit that holds the functions of ``script``."""
    _units[script] = unit


def require_bounded_expansion(script: torch.jit.ScriptModule, what: str) -> None:
    """Counts the nodes of ``script.forward`` with all calls written out.

    Raises:
        CaptureError: LK2003, there are more than :data:`MAXIMUM_NODES`, or functions call themselves.
    """
    if not hasattr(script, "forward"):
        return
    count = _Counter(script).of_graph(script.graph)
    if count > MAXIMUM_NODES:
        raise CaptureError(
            "LK2003",
            f"{what} is a TorchScript program of {count if count < 1 << 60 else 'endless'} operations where its "
            f"functions are called, {MAXIMUM_NODES} are read",
            hint="functions that call others several times multiply: loop over them, or call fewer",
        )


class _Counter:
    """Counts each function once."""

    def __init__(self, script: torch.jit.ScriptModule) -> None:
        unit: Any = _units.get(script, _python_cu)
        self.find: Callable[[str], Any] = unit.find_function
        self.counts: dict[str, int] = {}
        held: Any = script  # torch declares that calling a module, and all it holds, gives tensors
        self.modules = {module._c._type().qualified_name(): module for module in held.modules()}

    def of_graph(self, block: Any) -> int:
        """Nodes of a graph or block, those of its blocks and of what it calls among them."""
        total = 0
        for node in block.nodes():
            total += 1 + sum(self.of_graph(inner) for inner in node.blocks())
            kind = node.kind()
            if kind == "prim::CallFunction":
                total += self.of_function(str(next(iter(node.inputs())).type()))
            elif kind == "prim::CallMethod":
                owner = next(iter(node.inputs())).type()
                if isinstance(owner, torch._C.ClassType):
                    total += self.of_function(f"{owner.qualified_name()}.{node.s('name')}")
        return total

    def of_function(self, name: str) -> int:
        """Nodes of a function by its qualified name; of those that cannot be found, none."""
        if name not in self.counts:
            self.counts[name] = 1 << 60  # one that comes back to itself never ends
            graph = self._graph(name)
            self.counts[name] = 0 if graph is None else self.of_graph(graph)
        return self.counts[name]

    def _graph(self, name: str) -> Any:
        found = self.find(name)
        if found is not None:
            return found.graph
        owner, _, method = name.rpartition(".")
        module: Any = self.modules.get(owner)
        return None if module is None or not module._c._has_method(method) else module._c._get_method(method).graph
