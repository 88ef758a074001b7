"""What `lowerkit run` was asked for, and how it gives the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerkit.cli.output import print_json, print_table

if TYPE_CHECKING:
    from lowerkit.cli.running.simulation_options import SimulationOptions
    from lowerkit.runtimes.manifest import Signature


@dataclass(frozen=True)
class RunRequest:
    """One run of an artifact; the fields are the command's options.

    Attributes:
        artifact: the file.
        inputs: texts of ``--input``.
        seed: of random inputs.
        output: the folder for the outputs, or None.
        state: the folder of states, or None.
        threads: of a rank, or None.
        target: which program, or None.
        device: in the place of the program's own, or None.
        rank_deadline: seconds that ranks wait for each other.
        as_json: whether to print JSON.
        simulated: what --sim simulates.
        memory_limit: of a rank's address space, as a text; None: no other than there is.
        engine: who carries out what the ranks do together.
    """

    artifact: Path
    inputs: tuple[str, ...]
    seed: int
    output: Path | None
    state: Path | None
    threads: int | None
    target: str | None
    device: str | None
    rank_deadline: float
    as_json: bool
    simulated: SimulationOptions
    memory_limit: str | None
    engine: str = "lowerkit"

    def limited(self) -> AbstractContextManager[None]:
        """Returns what loads and runs are in, once modules are loaded: ``--memory-limit`` holds there.

        Raises:
            UsageError: LK1009, the limit is no size.
        """
        if self.memory_limit is None:
            return nullcontext()
        from lowerkit.runtimes.mapping.address_space import limited_to
        from lowerkit.spmd.cost.quantities import parse_bytes

        return limited_to(parse_bytes(self.memory_limit, "--memory-limit"))

    def give(self, signature: Signature, results: Sequence[Any], further: Mapping[str, Any] | None = None) -> None:
        """Writes the outputs to their folder, one .npy each, and prints what they are; as JSON ``further``, too."""
        import numpy as np

        rows: list[list[object]] = []
        if self.output is not None:
            self.output.mkdir(parents=True, exist_ok=True)
        for spec, array in zip(signature.outputs, results, strict=True):
            path = None if self.output is None else self.output / f"{spec.name.replace('/', '_')}.npy"
            if path is not None:
                np.save(path, array)
            rows.append([spec.name, spec.dtype, list(array.shape), str(path or "")])
        if self.as_json:
            keys = ("name", "dtype", "shape", "file")
            print_json("run", {"outputs": [dict(zip(keys, row, strict=True)) for row in rows], **(further or {})})
        else:
            print_table("", ["output", "dtype", "shape", "file"], rows)
