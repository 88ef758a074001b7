"""How each op of a program runs on the ranks, decided for all of them before any is changed.

Steps:
    1. what the plan says of ops with weights, of modules and of inputs (:mod:`lowerkit.passes.shard.choices`);
    2. from the end to the start, how readers want values: as what the plan fixes reads them, and through ops that can
       run along the same loop. A value has a wish where all its readers agree;
    3. from the start to the end, op by op, so that operands are known: what the plan fixes; else the rules
       (:mod:`lowerkit.passes.shard.rules`), or on terms (:mod:`lowerkit.passes.shard.terms`);
    4. a state is split as all that is written to it is, if it still is so when its reads are split: 3 again with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.dialect.types import is_float
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import element_of, operations, shape_of
from lowerkit.passes.shard.choices import Choices
from lowerkit.passes.shard.held_states import STATE_OPS, needed_otherwise, splittable, state_of
from lowerkit.passes.shard.invariance import is_invariant
from lowerkit.passes.shard.loops.nest import Nest, aligned
from lowerkit.passes.shard.loops.table import nest_of
from lowerkit.passes.shard.rules import nbytes, placed
from lowerkit.passes.shard.shardings import PARTIAL, WHOLE, Partial, Placed, Sharding, Shared, Split, divides
from lowerkit.passes.shard.steps import Step
from lowerkit.passes.shard.terms import is_linear_in

_DATA = frozenset({"arith.constant", "lk.weight", "tensor.empty"})

_RUNS_WHOLE, _IS_DATA = Step("whole"), Step("data")


class Decisions:
    """Decides for the ops of ``@main``.

    Attributes:
        ops: in order.
        nests: their loops; None where an op has none.
        steps: what becomes of them.
        arguments: how inputs are held that are split.
        held: how each value is held that is not whole.
        states: how each state is held that is not whole.
    """

    def __init__(self, block: ir.Block, choices: Choices, inputs: Sequence[str]) -> None:
        self.ops = operations(block)
        self.nests = [None if op.name in _DATA or op.name == "tensor.dim" else nest_of(op) for op in self.ops]
        self.steps: list[Step] = []
        self.held: dict[ir.Value, Sharding] = {}
        self.states: dict[str, Split | Shared] = {}
        self._ranks, self._keeps_states = choices.plan.ranks, choices.plan.keeps_states
        self._invariant = bool(self.ops) and is_invariant(self.ops[0])
        self.arguments = choices.inputs(list(block.arguments), inputs)
        self._fixed = [choices.fixed(op, nest) for op, nest in zip(self.ops, self.nests, strict=True)]
        self._wanted = self._wishes()
        self._settle()

    @staticmethod
    def is_split(step: Step) -> bool:
        """Whether each rank does a part of an op."""
        placed = step.placed
        return placed is not None and any(isinstance(held, Split) for held in (*placed.operands, *placed.results))

    # --- states ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        kept_whole: set[str] = set()
        while True:
            self._decide()
            if not self._keeps_states:
                return
            broken = needed_otherwise(self.ops, self.steps, self.held, self.states)
            found = splittable(self.ops, self.held, self._wanted, self._ranks)
            kept_whole |= broken
            ways = {name: held for name, held in (found | self.states).items() if name not in kept_whole}
            if ways == self.states:
                return
            self.states = ways

    # --- wishes ---------------------------------------------------------------------------------------------------

    def _wishes(self) -> dict[ir.Value, Split | Shared]:
        """Returns how all readers of a value want it, where they want the same slices; a state takes what it gets."""
        wanted: dict[ir.Value, Split | Shared | None] = {}
        for op, nest, fixed in zip(reversed(self.ops), reversed(self.nests), reversed(self._fixed), strict=True):
            if op.name == "lk.state_write":
                continue
            found: Placed | None = fixed.placed if fixed is not None else None
            if fixed is None and nest is not None:
                found = self._as_wished(op, nest, [wanted.get(value) for value in op.results])
            for number, value in enumerate(op.operands):
                wish = None if found is None else found.operands[number]
                own = wish if isinstance(wish, Split | Shared) else None
                wanted[value] = own if wanted.get(value, own) == own else None
        return {value: wish for value, wish in wanted.items() if wish is not None}

    def _as_wished(self, op: ir.Operation, nest: Nest, wishes: Sequence[Split | Shared | None]) -> Placed | None:
        """How an op runs that gives its results as their readers want them."""
        if op.name == "lk.attention" and wishes[0] is not None and self._has_fewer_heads(op, wishes):
            heads = shape_of(op.operands[1])[1]
            return self._sharing_heads(op, wishes[0], Shared(1, heads) if heads > 1 else WHOLE)
        loops = {None if wish is None else nest.loop_of_result(number, wish.axis) for number, wish in enumerate(wishes)}
        loop = loops.pop() if len(loops) == 1 else None
        if loop is None:
            return None
        shared = [wish for wish in wishes if isinstance(wish, Shared)]
        return nest.along_shared(loop, shared[0].parts) if shared else nest.along(loop, self._ranks)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self.held = dict(self.arguments)
        self.steps = []
        for number, op in enumerate(self.ops):
            step = self._step(number, op)
            self.steps.append(step)
            if step.action == "look_up":
                self.held[op.results[0]] = PARTIAL
            elif step.placed is not None and step.action != "pad":
                for result, held in zip(op.results, step.placed.results, strict=True):
                    if held != WHOLE:
                        self.held[result] = held

    def _step(self, number: int, op: ir.Operation) -> Step:
        if op.name in _DATA:
            return _IS_DATA
        if op.name == "tensor.dim":
            return Step("extent")
        given = [self.held.get(operand, WHOLE) for operand in op.operands]
        fixed, nest = self._fixed[number], self.nests[number]
        if fixed is not None and fixed.action == "look_up":
            return fixed
        if op.name in STATE_OPS:
            return self._state(op)
        if op.name == "lk.attention":
            own = Shared(1, shape_of(op.operands[1])[1])
            query = self._wanted.get(op.results[0], WHOLE) if given[0] == WHOLE else given[0]
            if given[1:3] == [own, own] and self._has_fewer_heads(op, [query]):
                return Step("run", self._sharing_heads(op, query, own))
            if self._has_fewer_heads(op, given):
                return Step("share_heads", self._sharing_heads(op, given[0], WHOLE))
        if nest is not None and any(isinstance(each, Shared) for each in given):
            alike = self._on_shared(nest, given) if fixed is None else None
            return _RUNS_WHOLE if alike is None else Step("run", alike)
        chosen = fixed.placed if fixed is not None else None
        if chosen is None and nest is not None:
            chosen = self._on_terms(op, given) or placed(
                op,
                nest,
                given,
                self._ranks,
                [self._wanted.get(result) for result in op.results],
                keeps_weight=fixed is not None,
            )
        if chosen is None or (self._invariant and _sums_floats(op, chosen)):
            return _RUNS_WHOLE  # where the sum of the ranks' terms is made would show in its bits
        padded = any(
            isinstance(held, Split) and not divides(result, held.axis, self._ranks)
            for result, held in zip(op.results, chosen.results, strict=True)
        )
        return Step("pad" if padded else "run", chosen)

    def _state(self, op: ir.Operation) -> Step:
        held = self.states.get(state_of(op))
        if held is None:
            return _RUNS_WHOLE
        return Step("run", Placed((held,) * len(op.operands), (held,) * len(op.results)))

    @staticmethod
    def _on_shared(nest: Nest, given: Sequence[Sharding]) -> Placed | None:
        """How an op runs on slices that several ranks have: on one of these, and all else whole."""
        ways = {
            (nest.loop_of(number, held.axis), held.parts)
            for number, held in enumerate(given)
            if isinstance(held, Shared)
        }
        if len(ways) != 1 or any(isinstance(held, Split | Partial) for held in given):
            return None
        ((loop, parts),) = ways
        return None if loop is None else nest.along_shared(loop, parts)

    def _on_terms(self, op: ir.Operation, given: Sequence[Sharding]) -> Placed | None:
        """How an op runs on terms, where its result is smaller than what would be summed for it alone."""
        numbers = [number for number, held in enumerate(given) if held == PARTIAL]
        if not numbers or any(isinstance(held, Split) for held in given) or not is_linear_in(op, numbers):
            return None
        if any(isinstance(held, Partial) and held != PARTIAL for held in given):
            return None
        values = {op.operands[number] for number in numbers}
        alone = sum(nbytes(value) for value in values if len(list(value.uses)) == 1)
        if nbytes(op.results[0]) >= alone:
            return None
        return Placed(tuple(given), (PARTIAL,) * len(op.results))

    @staticmethod
    def _sharing_heads(op: ir.Operation, query: Sharding, keys: Sharding) -> Placed:
        """How attention runs where several ranks share a key head."""
        scores = [aligned(mask, [(0,), (1,), (2,), (3,)]) for mask in list(op.operands)[3:]]
        masks = [Split(indices.index((1,))) if (1,) in indices else WHOLE for indices in scores]
        return Placed((query, keys, keys, *masks), (query,))

    def _has_fewer_heads(self, op: ir.Operation, given: Sequence[Sharding | None]) -> bool:
        heads = shape_of(op.operands[1])[1]
        return given[0] == Split(1) and 0 < heads < self._ranks and self._ranks % heads == 0


def _sums_floats(op: ir.Operation, chosen: Placed) -> bool:
    return any(
        isinstance(held, Partial) and held.reduction in ("sum", "product") and is_float(element_of(result))
        for result, held in zip(op.results, chosen.results, strict=True)
    )
