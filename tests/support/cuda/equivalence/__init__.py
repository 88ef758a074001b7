"""Arguments that a mutant is equivalent: it cannot be told from its kernel by anything that the kernel computes."""

from __future__ import annotations

from tests.support.cuda.equivalence.arguments import Equivalence

__all__ = ["Equivalence"]
