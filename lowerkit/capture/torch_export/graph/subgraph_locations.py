"""The user's lines in the bodies of ``torch.cond`` and ``torch.while_loop``.

PyTorch traces a body by running code that it generated from an earlier trace, so the nodes of the last trace name lines
of that code (``<eval_with_key>.47``). The code's module knows which node each line was made of, and the nodes of the
first trace name the user's lines.
"""

# torch generates the code and keeps what it was made of under private names; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch import fx

from lowerkit.program.locations import frames_of_trace

_GENERATED = "<eval_with_key>"
_DEEPEST = 8
"""Code that was made of generated code that was made of ...: so many steps are followed."""


class GeneratedLines:
    """Knows the nodes behind the lines of code that was generated while it watched."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[dict[int, int | None], int, list[fx.Node]]] = {}

    def note(self, module: fx.GraphModule) -> None:
        """Remembers what the code of ``module`` was made of."""
        code: Any = getattr(type(module).forward, "__code__", None)
        lines, start = getattr(module, "_lineno_map", None), getattr(module, "_prologue_start", None)
        if code is not None and lines and start is not None:
            self._made[code.co_filename] = (lines, start, list(module.graph.nodes))

    def restore(self, module: fx.GraphModule) -> None:
        """Replaces the stack traces in the bodies of ``module`` that name generated lines, where those are known."""
        for inner in module.modules():
            if isinstance(inner, fx.GraphModule) and inner is not module:
                for node in inner.graph.nodes:
                    found = self._trace_behind(node.meta.get("stack_trace"))
                    if found is not None:
                        node.meta["stack_trace"] = found

    def _trace_behind(self, trace: str | None) -> str | None:
        found: str | None = None
        for _ in range(_DEEPEST):
            frames = frames_of_trace(trace)
            if not frames or not frames[-1][0].startswith(_GENERATED):
                return found
            file, line = frames[-1]
            lines, start, nodes = self._made.get(file, ({}, 0, []))
            place = lines.get(line - start)
            if place is None or place >= len(nodes):
                return found
            trace = nodes[place].meta.get("stack_trace")
            found = trace or found
        return found


@contextmanager
def watched_lines() -> Generator[GeneratedLines]:
    """Watches what code is generated for which nodes."""
    lines = GeneratedLines()
    compile_again: Callable[[fx.GraphModule], Any] = fx.GraphModule.recompile

    def recompile(module: fx.GraphModule) -> Any:
        result = compile_again(module)
        lines.note(module)
        return result

    fx.GraphModule.recompile = recompile  # type: ignore[method-assign]
    try:
        yield lines
    finally:
        fx.GraphModule.recompile = compile_again  # type: ignore[method-assign]
