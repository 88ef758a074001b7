"""Functions of floats for plain loops: NVIDIA's library for its back end, linked where a kernel asks for one.

The library comes with Triton, whose kernels have the same functions; without Triton there is none.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from lowerkit.targets.cuda.triton.toolchain import bundled_libdevice

FUNCTIONS = frozenset(
    {
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "erf", "erfc", "exp", "exp2",
        "expm1", "log", "log10", "log1p", "log2", "pow", "sin", "sinh", "tan", "tanh",
    }
)  # fmt: skip
"""What LLVM's intrinsics and the C math library call them; the library has them of f64 and f32."""
_REMAINDER = re.compile(r"= frem (?:\w+ )*?(double|float) (\S+), (\S+)")
_SUFFIXES = {"double": "", "float": "f"}


def available() -> bool:
    """Whether there is a library to link."""
    return bundled_libdevice() is not None


def call_library(text: str) -> str:
    """Returns LLVM IR that calls the library for the functions that it has, and for remainders of floats."""
    names = {f"llvm.{name}.f64": f"__nv_{name}" for name in FUNCTIONS} | {name: f"__nv_{name}" for name in FUNCTIONS}
    names |= {f"llvm.{name}.f32": f"__nv_{name}f" for name in FUNCTIONS} | {
        f"{name}f": f"__nv_{name}f" for name in FUNCTIONS
    }
    text = re.sub(r"@([\w.]+)\(", lambda match: f"@{names.get(match[1], match[1])}(", text)
    found = {kind for kind, _, _ in _REMAINDER.findall(text)}
    text = _REMAINDER.sub(
        lambda match: (
            f"= call {match[1]} @__nv_fmod{_SUFFIXES[match[1]]}({match[1]} {match[2]}, {match[1]} {match[3]})"
        ),
        text,
    )
    declared = [f"declare {kind} @__nv_fmod{_SUFFIXES[kind]}({kind}, {kind})\n" for kind in sorted(found)]
    return text + "".join(declared)


def link(module: Any, context: Any, triple: str, layout: str) -> None:
    """Adds the functions that a module declares."""
    library = llvm.parse_bitcode(_bitcode(), context)
    library.triple = triple
    library.data_layout = layout
    module.link_in(library)
    for function in module.functions:
        if function.name.startswith("__nv_") and not function.is_declaration:
            function.linkage = llvm.Linkage.internal


@lru_cache(maxsize=1)
def _bitcode() -> bytes:
    path: Path | None = bundled_libdevice()
    assert path is not None, "asked for before"
    return path.read_bytes()
