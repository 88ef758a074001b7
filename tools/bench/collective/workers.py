"""Processes that a measurement asks in turns: each makes what it measures once, and then does what it is told."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Maker = Callable[..., Any]
"""Called as ``maker(rank, *arguments)`` in the process of a rank; importable by name."""


class Workers:
    """A process for each rank. They wait asleep unless they are asked."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = list(pipes)

    def ask(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Returns by rank what ``function(made, *arguments)`` returns there; all do it at the same time.

        Raises:
            RuntimeError: it raised in a rank.
        """
        for pipe in self._pipes:
            pipe.send((function, arguments))
        return [_answer(pipe) for pipe in self._pipes]


@contextmanager
def workers(ranks: int, maker: Maker, *arguments: Any) -> Generator[Workers]:
    """Starts a process for each rank; gives them when all have made what they measure, and ends them with the block."""
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(ranks)]
    processes = [
        context.Process(target=_serve, args=(theirs, maker, rank, arguments), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    try:
        for process, (_, theirs) in zip(processes, pairs, strict=True):
            process.start()
            theirs.close()
        for ours, _ in pairs:
            _answer(ours)
        yield Workers([ours for ours, _ in pairs])
    finally:
        for ours, _ in pairs:
            ours.close()
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(parent: Connection, maker: Maker, rank: int, arguments: tuple[Any, ...]) -> None:
    made: list[Any] = []

    def make() -> None:
        made.append(maker(rank, *arguments))

    _tell(parent, make)
    while True:
        try:
            function, further = parent.recv()
        except EOFError:
            return
        _tell(parent, lambda: function(made[0], *further))  # noqa: B023 -- it is called at once


def _tell(parent: Connection, function: Callable[[], Any]) -> None:
    try:
        answer = (True, function())
    except Exception as error:
        answer = (False, f"{type(error).__name__}: {error}")
    parent.send(answer)


def _answer(pipe: Connection) -> Any:
    good, answer = pipe.recv()
    if not good:
        raise RuntimeError(answer)
    return answer


def mesh_rank(rank: int, path: Path, store: Path, ranks: int) -> Any:
    """Returns the session of one rank of an artifact, with one thread."""
    from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
    from lowerkit.runtimes.mesh.ranks import join_mesh

    return join_mesh(path, DirectoryStore(store), rank, ranks, threads=1)


def times(session: Any, inputs: Sequence[Any], runs: int) -> list[float]:
    """Returns the milliseconds of each of ``runs`` runs."""
    found: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        session.run(*inputs)
        found.append((time.perf_counter() - started) * 1e3)
    return found


def collective_share(session: Any, inputs: Sequence[Any]) -> float:
    """Returns the part of a run that its collectives take, waiting for the others included."""
    profile = session.profile(*inputs)
    own = sum(step.nanoseconds for step in profile if step.family == "collective")
    return own / sum(step.nanoseconds for step in profile)


def slowest(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Returns of each run the time of the rank that took longest."""
    return [max(each) for each in zip(*by_rank, strict=True)]
