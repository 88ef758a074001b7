"""One version of a served model: a loaded artifact, and whether its requests can be joined."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lowerkit.errors import RuntimeFault, UnsupportedError
from lowerkit.runtimes.arguments import Array, bind_dims
from lowerkit.runtimes.manifest import Manifest, ProgramSpec
from lowerkit.runtimes.replicas.batch import Batch

_ID_DIGITS = 12


class Runner(Protocol):
    """What a served model needs of a session; :class:`~lowerkit.runtimes.session.Session` is one."""

    @property
    def program(self) -> ProgramSpec:
        """The program that it runs, with its signature."""
        ...

    @property
    def manifest(self) -> Manifest:
        """That of the artifact."""
        ...

    def collect(self, *inputs: Any, **named: Any) -> list[Array]:
        """Returns inputs in the order of the signature; raises LK8004."""
        ...

    def run(self, *inputs: Any) -> list[Array]:
        """Runs the model once."""
        ...


Loader = Callable[[Path, int], Runner]
"""Loads an artifact for a number of threads."""


def load_session(path: Path, threads: int) -> Runner:
    """Returns a session of the artifact: the loader of every deployment that names no other."""
    from lowerkit.runtimes.session import load

    return load(path, threads=threads)


def version_name(manifest: Manifest) -> str:
    """Returns the name of an artifact's version: the first digits of its content id."""
    return manifest.content_id[:_ID_DIGITS]


@dataclass(frozen=True)
class ModelVersion:
    """A loaded artifact.

    Attributes:
        name: see :func:`version_name`.
        session: what runs it.
        batch: its batch, None where requests run one by one.
        obstacle: why they do.
    """

    name: str
    session: Runner
    batch: Batch | None
    obstacle: str

    @staticmethod
    def load(path: Path, content_id: str, threads: int, loader: Loader) -> ModelVersion:
        """Loads the artifact of a deployment.

        Args:
            path: of the file on this node.
            content_id: of the artifact that the deployment is of.
            threads: of a run.
            loader: makes the session.

        Raises:
            RuntimeFault: LK8024, the file here is another artifact.
            UnsupportedError: LK4008, the model cannot be served.
            LowerkitError: as the loader.
        """
        session = loader(path, threads)
        if session.manifest.content_id != content_id:
            raise RuntimeFault(
                "LK8024",
                f"{path} has the content id {session.manifest.content_id[:_ID_DIGITS]} here, "
                f"the deployment is of {content_id[:_ID_DIGITS]}",
                hint="give every node the same file, then deploy again",
            )
        return ModelVersion(version_name(session.manifest), session, *batch_or_reason(session.program))

    @property
    def alone(self) -> bool:
        """Whether each request runs alone."""
        return self.batch is None

    @property
    def most_rows(self) -> int:
        """The most rows that one run takes."""
        if self.batch is None:
            return 1
        (dim,) = (dim for dim in self.batch.signature.dims if dim.name == self.batch.dim)
        return sys.maxsize if dim.maximum is None else dim.maximum

    def arrays(self, inputs: dict[str, Array]) -> list[Array]:
        """Returns the inputs of a request in the order of the signature.

        Raises:
            RuntimeFault: LK8004, with every mismatch of name, dtype, shape and range.
        """
        arrays = self.session.collect(**inputs)
        bind_dims(self.session.program.signature, arrays)
        return arrays

    def rows(self, arrays: Sequence[Array]) -> int:
        """Returns the rows of a request; 1 where it runs alone."""
        return 1 if self.batch is None else self.batch.rows(arrays)

    def lane(self, arrays: Sequence[Array]) -> object:
        """Returns what is equal for requests that can be joined."""
        return object() if self.batch is None else (id(self), self.batch.key(arrays))


def batch_or_reason(program: ProgramSpec) -> tuple[Batch | None, str]:
    """Returns the batch of a program that can be served, or None and why its requests run one by one.

    Raises:
        UnsupportedError: LK4008, it keeps states between runs, or runs on a mesh.
    """
    problems = [f"it keeps the state {state.name!r}, which requests would share" for state in program.signature.states]
    if program.mesh:
        problems.append("it is for a mesh of several ranks, and a replica is one")
    if problems:
        raise UnsupportedError(
            "LK4008",
            "the model cannot be served: a request must not depend on others",
            details=problems,
            hint="compile it without states and mesh",
        )
    try:
        return Batch.of(program), ""
    except UnsupportedError as error:
        return None, "; ".join(error.details)
