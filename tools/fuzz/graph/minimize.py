"""Makes a failing function smaller while it fails in the same way, and writes it as a test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from graph.function import Function

_ROUNDS = 6


def minimized(function: Function, fails: Callable[[Function], bool], *, tries: int = 80) -> Function:
    """The smallest function found for which ``fails``; drops statements and outputs, shrinks shapes, plainer dtypes."""
    left = tries
    for _ in range(_ROUNDS):
        smaller = None
        for candidate in _candidates(function):
            if left <= 0:
                return function
            left -= 1
            if fails(candidate):
                smaller = candidate
                break
        if smaller is None:
            return function
        function = smaller
    return function if left <= 0 else minimized(function, fails, tries=left)


def _candidates(function: Function) -> Iterator[Function]:
    for name in function.returns:
        if len(function.returns) > 1:
            yield _cleaned(replace(function, returns=[name]))
    for end in range(1, len(function.lines)):
        made = _made(function.lines[end - 1])
        if made:
            yield _cleaned(replace(function, lines=function.lines[:end], returns=made[:1]))
    for place, line in enumerate(function.lines):
        rest = function.lines[:place] + function.lines[place + 1 :]
        names = _made(line)
        if not names:
            yield replace(function, lines=rest)
            continue
        reads = [n for n in re.findall(r"\b[vxws]\d+(?:_\d+)?\b", line.split(" = ", 1)[1]) if n not in names]
        for other in dict.fromkeys(reads):
            swap = re.compile(r"\b(" + "|".join(map(re.escape, names)) + r")\b")
            lines = [swap.sub(other, text) for text in rest]
            yield _cleaned(
                replace(
                    function, lines=lines, returns=list(dict.fromkeys(swap.sub(other, n) for n in function.returns))
                )
            )
    for place, given in enumerate(function.given):
        if given.strided:
            yield _with(function, place, replace(given, strided=False))
        if given.holds == "special":
            yield _with(function, place, replace(given, holds="normal"))
    extents = sorted({extent for given in function.given for extent in given.shape if extent > 1}, reverse=True)
    for extent in extents:
        for smaller in (1, 2, extent // 2):
            if smaller < extent:
                given = [
                    replace(g, shape=tuple(smaller if e == extent else e for e in g.shape)) for g in function.given
                ]
                yield replace(function, given=given)
    for kind in sorted({g.dtype for g in function.given if g.dtype in ("float16", "bfloat16", "float64")}):
        given = [replace(g, dtype="float32") if g.dtype == kind else g for g in function.given]
        yield replace(function, given=given)


def _with(function: Function, place: int, given: object) -> Function:
    return replace(function, given=[*function.given[:place], given, *function.given[place + 1 :]])  # type: ignore[list-item]


def _made(line: str) -> list[str]:
    found = re.match(r"((?:v\d+(?:_\d+)?(?:, )?)+) = ", line)
    return found.group(1).split(", ") if found else []


def _cleaned(function: Function) -> Function:
    """Drops statements whose results nothing reads, and what they alone were given."""
    return without_dead(function).without_unused()


def without_dead(function: Function) -> Function:
    """Drops statements whose results nothing reads, from the end; writes stay, and so do the inputs."""
    lines: list[str] = []
    read = " ".join(function.returns)
    for line in reversed(function.lines):
        made = _made(line)
        if made and not any(re.search(rf"\b{name}\b", read) for name in made):
            continue
        lines.insert(0, line)
        read += " " + (line.split(" = ", 1)[1] if made else line)
    return replace(function, lines=lines)
