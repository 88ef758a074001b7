"""The text of a Triton kernel under construction.

Vocabulary
    size     an extent, a stride or a count: a :data:`~lowerkit.targets.plan.KernelExpr`, so that launches are planned
             with the same expressions that kernels are written with
    text     an expression of Triton
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from lowerkit.targets.cuda.triton.kernel import KERNEL
from lowerkit.targets.plan import KernelExpr

_HEAD = """import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice


@triton.jit
"""
_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


def render(size: KernelExpr) -> str:
    """Returns a size as text; the ``i``-th open extent is the parameter ``n{i}``."""
    if isinstance(size, int):
        return str(size)
    operation, *parts = size
    if operation == "dim":
        return f"n{parts[0]}"
    left, right = (render(part) for part in parts)
    if operation == "ceildiv":
        return f"(({left} + {right} - 1) // {right})"
    if operation in ("min", "max"):
        return f"tl.{operation}imum({left}, {right})"
    return f"({left} {_OPERATORS[operation]} {right})"


def as_i64(text: str) -> str:
    """Returns an integer in 64 bits; a number has no type of its own in Triton."""
    return f"tl.full([], {text}, tl.int64)" if text.isdecimal() else f"({text}).to(tl.int64)"


class KernelWriter:
    """Lines of a kernel, and the names in them: an expression that is asked for again is the name it has."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._known: list[dict[str, str]] = [{}]
        self._count = 0
        self._helpers: dict[str, str] = {}

    def helper(self, name: str, parameters: str, body: str) -> str:
        """Adds a function beside the kernel, such as reductions take; returns its name.

        Args:
            name: its name; one that is there already is the same function.
            parameters: its parameters.
            body: what it returns.
        """
        self._helpers[name] = f"def {name}({parameters}):\n    return {body}\n\n\n@triton.jit\n"
        return name

    def line(self, text: str) -> None:
        """Adds a line."""
        self._lines.append("    " * self._depth + text)

    def let(self, text: str, stem: str = "t") -> str:
        """Returns a name for the value of an expression."""
        if text.isidentifier() or text.isdecimal():
            return text
        for known in self._known:
            if text in known:
                return known[text]
        name = self.fresh(stem)
        self.line(f"{name} = {text}")
        self._known[-1][text] = name
        return name

    def fresh(self, stem: str) -> str:
        """Returns a name that nothing has."""
        self._count += 1
        return f"{stem}{self._count - 1}_"

    @contextmanager
    def block(self, head: str) -> Generator[None]:
        """Puts what is written into the body of ``head``; its names end with it."""
        self.line(head)
        self._depth += 1
        self._known.append({})
        yield
        self._known.pop()
        self._depth -= 1

    def source(self, pointers: int, dims: int, descriptors: int = 0) -> str:
        """Returns the module: a function of pointers ``p0`` and on, descriptors ``d0`` and on, dims ``n0`` and on."""
        counts = {"p": pointers, "d": descriptors, "n": dims}
        parameters = [f"{letter}{number}" for letter, count in counts.items() for number in range(count)]
        body = "\n".join(self._lines) or "    pass"
        return f"{_HEAD}{''.join(self._helpers.values())}def {KERNEL}({', '.join(parameters)}):\n{body}\n"
