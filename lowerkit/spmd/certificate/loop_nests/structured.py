"""The loop nest of ``linalg.generic``, out of its maps and its body."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.spmd.certificate.graph import BodyOp, Form
from lowerkit.spmd.certificate.indices import Index, number, total
from lowerkit.spmd.certificate.loop_nests.nest import LoopKind, Nest, Shapes


def read_arguments(form: Form) -> set[int]:
    """Returns the block arguments that the body of a form reads."""

    def read(body: list[BodyOp]) -> set[int]:
        found: set[int] = set()
        for op in body:
            found.update(op[2], *map(read, op[4]))
        return found

    return read(form.body or [])


def uses_op(form: Form, name: str) -> bool:
    """Whether the body of a form holds an op of this name."""

    def holds(body: list[BodyOp]) -> bool:
        return any(op[0] == name or any(map(holds, op[4])) for op in body)

    return holds(form.body or [])


_COMBINED: dict[str, LoopKind] = {
    "arith.addf": "sum",
    "arith.addi": "sum",
    "arith.mulf": "product",
    "arith.muli": "product",
    "arith.maximumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minsi": "min",
}


def structured(form: Form, own: Shapes, before: Shapes) -> Nest | None:
    """The nest of ``linalg.generic``, out of its maps."""
    del before
    count = len(form.maps)
    if any(each is None for each in form.maps) or not form.loops:
        return None
    extents: dict[int, int] = {}
    shapes = [*own.operands[:count]]
    for each, shape in zip(form.maps, shapes, strict=True):
        for (constant, *pairs), size in zip(each or [], shape, strict=True):
            if constant == 0 and len(pairs) == 2 and pairs[1] == 1:
                extents.setdefault(pairs[0], size)
    if len(extents) != len(form.loops):
        return None
    reduction = _reduction(form, count - len(own.results))
    nest = Nest()
    absolute = uses_op(form, "linalg.index")
    kinds: dict[str, LoopKind] = {"p": "parallel", "r": reduction}
    loops = [nest.loop(extents[loop], "opaque" if absolute else kinds[kind]) for loop, kind in enumerate(form.loops)]
    for each in form.maps:
        nest.operands.append(tuple(_place(dimension, loops) for dimension in each or []))
    nest.operands += [()] * form.captured
    nest.results = nest.operands[count - len(own.results) : count]
    read = read_arguments(form)
    nest.unread = frozenset(number for number in range(count - len(own.results), count) if number not in read)
    return nest


def _place(dimension: list[int], loops: Sequence[Index]) -> Index:
    constant, *pairs = dimension
    terms = [(loops[loop], factor) for loop, factor in zip(pairs[::2], pairs[1::2], strict=True)]
    return total((number(constant), 1), *terms)


def _reduction(form: Form, inputs: int) -> LoopKind:
    """How the turns of reductions are combined: by the last op of the body, where nothing else reads the outcome."""
    body = form.body or []
    if "r" not in form.loops or len(body) < 2 or any(op[4] for op in body):
        return "opaque"
    *rest, last, end = body
    arguments = len(form.maps)
    if arguments != inputs + 1 or end[2] != [arguments + len(body) - 2] or inputs not in last[2]:
        return "opaque"
    if last[2].count(inputs) != 1 or any(inputs in op[2] for op in rest):
        return "opaque"
    return _COMBINED.get(last[0], "opaque")
