"""ONNX Runtime's ``AllGather`` along any axis, as one along the first."""

from __future__ import annotations

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter


def all_gather(b: Rewriter) -> None:
    """Writes AllGather with its axis brought to the front, and back behind it."""
    axis, rank = b.attribute("axis", 0), b.rank(b.input(0))
    if not isinstance(axis, int) or not -rank <= axis < rank or axis == 0 or len(b.node.input) != 1:
        raise NoRewriteError("it is along the first axis, or along none")
    axis %= rank
    others = [place for place in range(rank) if place != axis]
    size = {name: b.attribute(name, None) for name in ("group_size",) if b.attribute(name, None) is not None}
    front = b.transpose(b.input(0), [axis, *others])
    gathered = b.op("AllGather", front, domain=b.node.domain, axis=0, **size)
    b.give(b.transpose(gathered, [*range(1, axis + 1), 0, *range(axis + 1, rank)]))
