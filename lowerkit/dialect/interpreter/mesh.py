"""A program of a mesh on all of its ranks at once, in numpy: what the compiled ranks are judged by.

A rank leaves its operand where the others find it and goes on; it waits where it needs what they left. So ranks may
start collectives along several axes in orders of their own, as the compiled ones do, and ranks that wait for each other
in a circle are told at once.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from lowerkit.dialect.interpreter.interpreter import Combine, Interpreter, Pending, States, executable_copy
from lowerkit.dialect.ops import CollectiveStartOp
from lowerkit.dialect.ops.collective import MESSAGES
from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir

T = TypeVar("T")


def interpret_mesh(
    module: Any,
    inputs: Sequence[Array],
    weights: Callable[[str, int], Array],
    mesh: int | Mapping[str, int],
    states: Callable[[int], States] | None = None,
) -> list[list[Array]]:
    """Runs ``@main`` on every rank of a mesh; returns the results by rank.

    Args:
        module: of raised or fused IR, or a list with one for each rank, of one context; it is not changed.
        inputs: the same on all ranks.
        weights: gives the data of a weight by its name and the rank.
        mesh: the ranks of its only axis; or the size of each axis by its name, the last one varies fastest.
        states: gives the states of a rank, which are updated in place.

    Raises:
        LowerkitError: what the first rank in order raised; see :func:`interpret`.
        VerifyError: LK3002, ranks along an axis compute different things together, or wait for each other in a circle.
    """
    ranks = mesh if isinstance(mesh, int) else math.prod(mesh.values())
    modules: list[Any] = list(module) if isinstance(module, Sequence) else [module] * ranks
    copies = {id(each): executable_copy(each) for each in modules}

    def run(rank: int, combine: Combine) -> list[Array]:
        copy, functions = copies[id(modules[rank])]
        with copy.context:
            own = None if states is None else states(rank)
            return Interpreter(functions, lambda name: weights(name, rank), own, combine).call(
                functions["main"], inputs
            )

    return on_all_ranks(mesh, run)


def on_all_ranks(mesh: int | Mapping[str, int], run: Callable[[int, Combine], T]) -> list[T]:
    """Runs a function for every rank of a mesh, each in a thread of its own; returns the results by rank.

    Args:
        mesh: as for :func:`interpret_mesh`.
        run: is given the rank, and what its interpreter begins collectives with.

    Raises:
        LowerkitError: what the first rank in order raised.
        VerifyError: as :func:`interpret_mesh`.
    """
    ranks = mesh if isinstance(mesh, int) else math.prod(mesh.values())
    meeting = _Meeting(ranks, None if isinstance(mesh, int) else mesh)
    results: dict[int, T] = {}
    errors: list[BaseException | None] = [None] * ranks

    def begin(rank: int) -> None:
        try:
            results[rank] = run(rank, lambda op, value: meeting.start(op, value, rank))
        except BaseException as error:
            errors[rank] = error
        finally:
            meeting.leave(failed=errors[rank] is not None)

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [error for error in errors if error is not None]
    if failed:
        raise next((error for error in failed if not isinstance(error, _OthersLeft)), failed[0])
    return [results[rank] for rank in range(ranks)]


class _OthersLeft(Exception):
    """Another rank failed, and this one would wait for it."""


class _Meeting:
    """Where ranks leave the operands of collectives: by the group, and the number of the collective there.

    The group of a message is a pair of ranks, sender first. A collective is forgotten when all ranks have theirs.
    """

    def __init__(self, ranks: int, mesh: Mapping[str, int] | None) -> None:
        self._mesh = mesh
        self._ranks = ranks
        self._begun: Counter[tuple[object, int]] = Counter()
        self._left: dict[tuple[object, int], dict[int, tuple[CollectiveStartOp, Array]]] = {}
        self._taken: Counter[tuple[object, int]] = Counter()
        self._waits: dict[int, tuple[str, Callable[[], bool]]] = {}
        self._changed = threading.Condition()
        self._running = ranks
        self._failed = False

    def start(self, op: CollectiveStartOp, value: Array, rank: int) -> Pending:
        """Leaves the operand of a rank; returns what waits for those of the others and gives the rank's result."""
        kind, axis = op.kind.value, op.axis.value
        line = self._line(op, rank)
        group, members = (axis, line[0]), list(line)
        if kind in MESSAGES:
            members = [rank, line[op.other("peer")]]
            members = members if kind == "send" else members[::-1]
            group = (axis, *members)
        own = 0 if kind == "send" else members.index(rank)
        with self._changed:
            key = group, self._begun[group, rank]
            self._begun[group, rank] += 1
            self._left.setdefault(key, {})[rank] = op, value
            self._changed.notify_all()

        def finish() -> Array:
            with self._changed:
                needed = [] if kind == "send" else members
                self._await(rank, _described(op), lambda: self._left.get(key, {}).keys() >= set(needed))
                if kind == "send":
                    return op.combine([value])[0]
                left = self._left[key]
                self._taken[key] += 1
                if self._taken[key] == (1 if kind in MESSAGES else len(members)):
                    del self._left[key]
            _require_alike([left[member][0] for member in members], members)
            return op.combine([left[member][1] for member in members])[own]

        return finish

    def leave(self, *, failed: bool) -> None:
        """A rank has come to its end."""
        with self._changed:
            self._running -= 1
            self._failed |= failed
            self._changed.notify_all()

    def _await(self, rank: int, what: str, ready: Callable[[], bool]) -> None:
        """Waits until ``ready``, with the lock held."""
        self._waits[rank] = what, ready
        try:
            while not ready():
                if self._failed:
                    raise _OthersLeft(f"rank {rank} waits for {what}, and another rank has failed")
                if len(self._waits) == self._running and not any(waits() for _, waits in self._waits.values()):
                    lines = [f"rank {one} waits for {text}" for one, (text, _) in sorted(self._waits.items())]
                    raise VerifyError("LK3002", "the ranks of the mesh wait for each other", details=lines)
                self._changed.wait()
        finally:
            del self._waits[rank]

    def _line(self, op: CollectiveStartOp, rank: int) -> Sequence[int]:
        """Returns the ranks that are where ``rank`` is along all other axes."""
        axis, size = op.axis.value, op.ranks.value
        if self._mesh is None:
            line = range(self._ranks)
        elif axis not in self._mesh:
            raise VerifyError("LK3002", f"{_described(op)}: the mesh has the axes {', '.join(self._mesh)}")
        else:
            names = list(self._mesh)
            apart = math.prod(self._mesh[name] for name in names[names.index(axis) + 1 :])
            first = rank - rank // apart % self._mesh[axis] * apart
            line = range(first, first + apart * self._mesh[axis], apart)
        if len(line) != size:
            raise VerifyError("LK3002", f"{_described(op)} is for {size} ranks, and the axis has {len(line)}")
        return line


def _described(op: CollectiveStartOp) -> str:
    return f"{op.kind.value} along {op.axis.value} ({op.operation.location})"


def _require_alike(ops: Sequence[CollectiveStartOp], members: Sequence[int]) -> None:
    """Checks that ranks compute the same thing together; of a message the types alone."""
    described = [_signature(op) for op in ops]
    if any(one != described[0] for one in described[1:]):
        lines = [
            f"rank {rank}: {_described(op)}: {text}" for rank, op, text in zip(members, ops, described, strict=True)
        ]
        raise VerifyError("LK3002", "ranks along an axis compute different things together", details=lines)


def _signature(op: CollectiveStartOp) -> str:
    kind = ir.RankedTensorType(op.value.type)
    # An extent that is known to one rank and not to another is the same one.
    value = f"{kind.element_type} of rank {kind.rank}"
    if op.kind.value in MESSAGES:
        return f"message of {value}"
    return f"{op.kind.value} ({op.reduction.value}, root {op.other('root')}) of {value}"
