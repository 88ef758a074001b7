"""Which arithmetic a kernel does, read from its PTX: tensor cores of which element, or f32 or f64 without."""

from __future__ import annotations

import re

_MATRIX = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)\.[\w.:]+")
_OLD = re.compile(r"\bmma\.sync\.")
_DOUBLE = re.compile(r"\b(?:add|sub|mul|fma)\.(?:r[nzmp]\.)?f64\b")
# What an instruction names its elements by, the widest last: it also names the f32 or s32 of its sums.
_ELEMENTS = (
    ("fp8", ("e4m3", "e5m2", "f8f6f4")), ("int8", (".s8", ".u8", "kind::i8")), ("tf32", ("tf32",)),
    ("bf16", ("bf16", ".f16", "kind::f16")), ("f64", (".f64",)),
)  # fmt: skip


def arithmetic_of(ptx: str) -> tuple[str, bool]:
    """Returns the kind of arithmetic, as :meth:`~.cards.Card.peak` takes it, and whether it is done by ``mma.sync``."""
    found = _MATRIX.findall(ptx)
    for kind, names in _ELEMENTS:
        if any(name in instruction for instruction in found for name in names):
            return f"matrix {kind}", _OLD.search(ptx) is not None
    return ("f64" if _DOUBLE.search(ptx) else "f32"), False
