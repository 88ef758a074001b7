"""All ranks of a mesh in this process: the same run every time, and the ranks' outputs held against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lowerkit.errors import LowerkitError, ParityError, UsageError

if TYPE_CHECKING:
    from lowerkit.cli.running.request import RunRequest
    from lowerkit.runtimes.manifest import ProgramSpec, TensorSpec


def run_in_simulation(request: RunRequest, program: ProgramSpec, size: int) -> None:
    """Runs ``size`` ranks in this process; prints and writes the outputs of rank 0.

    Raises:
        UsageError: LK1009, states were asked for.
        ParityError: LK6003, a rank has another output than rank 0.
        LowerkitError: of the first rank that failed by itself.
    """
    from lowerkit.cli.session_inputs import read_inputs
    from lowerkit.runtimes.cpu.topology import threads_of_rank

    if request.state is not None:
        raise UsageError("LK1009", "--sim takes no --state: simulated ranks keep none", hint=f"--nproc {size} does")
    from lowerkit.runtimes.mesh.simulated import run_simulated

    signature = program.signature
    named = read_inputs(signature, request.inputs, request.seed)
    inputs = [named[spec.name] for spec in signature.inputs]
    threads = threads_of_rank(request.threads, size)
    if request.simulated.given():
        from lowerkit.cli.running.simulated_time import give_timed

        return give_timed(request, program, inputs, size, threads)
    results = run_simulated(request.artifact, inputs, threads=threads, target=program.label, device=request.device)
    check_equal_outputs(signature.outputs, results)
    return request.give(signature, results[0])


def check_equal_outputs(specs: Sequence[TensorSpec], results: Sequence[Sequence[Any]]) -> None:
    """Checks that all ranks have the same outputs, bit for bit.

    Args:
        specs: of the outputs.
        results: by rank, the outputs in the order of ``specs``.

    Raises:
        ParityError: LK6003, with a line for each output and rank that differ.
    """
    problems = [
        f"output {spec.name!r} of rank {rank} differs from rank 0's in {count} of {max(own.size, other.size)} elements"
        for rank, outputs in enumerate(results)
        for spec, own, other in zip(specs, results[0], outputs, strict=True)
        if (count := _different_elements(own, other))
    ]
    if problems:
        raise _unequal(problems)


def _different_elements(own: Any, other: Any) -> int:
    import numpy as np

    if own.shape != other.shape or own.dtype != other.dtype:
        return max(own.size, other.size, 1)
    left, right = (
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1) for array in (own, other)
    )
    return int((left != right).any(axis=1).sum()) if own.size else 0


def _unequal(problems: Sequence[str]) -> LowerkitError:
    first, *further = problems
    return ParityError(
        "LK6003",
        first,
        details=further,
        hint="all ranks of a mesh have the same outputs: the program misses a collective, or a kernel is wrong",
    )
