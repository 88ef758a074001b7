"""A program of a mesh on all of its ranks at once, in numpy: what the compiled ranks are judged by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from lowerkit.dialect.interpreter.interpreter import Interpreter, executable_copy
from lowerkit.dialect.ops import CollectiveStartOp
from lowerkit.dialect.reference.numeric import Array

_PATIENCE = 120.0


def interpret_mesh(
    module: Any, inputs: Sequence[Array], weights: Callable[[str, int], Array], ranks: int
) -> list[list[Array]]:
    """Runs ``@main`` on every rank of a mesh of one axis; returns the results by rank.

    Args:
        module: of raised or fused IR; it is not changed.
        inputs: the same on all ranks.
        weights: gives the data of a weight by its name and the rank.
        ranks: how many.

    Raises:
        LowerkitError: what the first rank in order raised; see :func:`interpret`.
    """
    copy, functions = executable_copy(module)
    meeting = _Meeting(ranks)
    results: list[list[Array]] = [[] for _ in range(ranks)]
    errors: list[BaseException | None] = [None] * ranks

    def run(rank: int) -> None:
        try:
            interpreter = Interpreter(
                functions, lambda name: weights(name, rank), None, lambda op, value: meeting.combine(op, value, rank)
            )
            with copy.context:
                results[rank] = interpreter.call(functions["main"], inputs)
        except BaseException as error:
            errors[rank] = error
            meeting.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own = [error for error in errors if error is not None and not isinstance(error, threading.BrokenBarrierError)]
    if own or any(errors):
        raise (own or [error for error in errors if error is not None])[0]
    return results


class _Meeting:
    """Where ranks exchange the operands of a collective."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=_PATIENCE)
        self._values: list[Array | None] = [None] * ranks

    def combine(self, op: CollectiveStartOp, value: Array, rank: int) -> Array:
        self._values[rank] = value
        self.barrier.wait()
        found = op.combine([each for each in self._values if each is not None])[rank]
        self.barrier.wait()  # nobody overwrites what another one still reads
        return found
