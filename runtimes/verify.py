"""Proves an artifact again on this machine: every hash, then the golden inputs against the golden outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import ArtifactError
from lowerkit.runtimes.artifact_reader import Artifact, damaged, open_artifact
from lowerkit.runtimes.cpu.requirements import choose_program, missing_features, programs_for
from lowerkit.runtimes.cpu.topology import default_threads
from lowerkit.runtimes.manifest import GOLDEN_INPUTS_ENTRY, GoldenSpec, ProgramSpec, TensorSpec
from lowerkit.runtimes.memory_plan import plan_problems
from lowerkit.runtimes.mesh.places import mesh_size
from lowerkit.runtimes.safetensors_header import tensor_view
from lowerkit.runtimes.session import Session

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GoldenCheck:
    """One output against its golden values. ``largest_error`` is the largest absolute difference, NaN aside."""

    output: str
    elements: int
    mismatches: int
    largest_error: float


@dataclass(frozen=True)
class ProgramCheck:
    """One program of an artifact.

    Attributes:
        program, target: its name, and what it was compiled for.
        comparison: ``bitwise``, ``tolerance``, or ``none`` where it was not run.
        golden: one for each output.
        not_run: why it was not run; empty where it was.
    """

    program: str
    target: str
    comparison: str
    golden: list[GoldenCheck]
    not_run: str = ""

    def render(self) -> list[str]:
        """Returns lines for people."""
        if self.not_run:
            return [f"  {self.program} for {self.target}: not run: {self.not_run}"]
        lines = [f"  {self.program} for {self.target}:"]
        for check in self.golden:
            verdict = "as stored" if check.mismatches == 0 else f"{check.mismatches} of {check.elements} differ"
            measured = f"{self.comparison}, largest error {check.largest_error:.3g}"
            lines.append(f"    output {check.output}: {verdict} ({measured})")
        return lines


@dataclass(frozen=True)
class VerifyReport:
    """What ``verify`` found. The hashes of ``entries`` are right, or there would be no report."""

    path: str
    content_id: str
    entries: dict[str, int]
    programs: list[ProgramCheck]

    @property
    def passed(self) -> bool:
        """Whether every golden output was met; true where the artifact holds none."""
        return all(check.mismatches == 0 for program in self.programs for check in program.golden)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON-ready values."""
        return {**asdict(self), "passed": self.passed}

    def render(self) -> str:
        """Returns the report for people."""
        lines = [f"{self.path}: content id {self.content_id}"]
        lines += [f"  {name}: {size} bytes, sha-256 as stated" for name, size in self.entries.items()]
        lines += [line for program in self.programs for line in program.render()]
        return "\n".join(lines)


def verify_artifact(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    target: str | None = None,
    device: str | None = None,
) -> VerifyReport:
    """Checks every hash of an artifact and runs the golden inputs of each program that this machine can run.

    Args:
        path: the ``.lk`` file.
        threads: threads of a run; None: the physical cores this process may use.
        target: only the programs that were compiled for it, which must run here; None is all.
        device: as for :meth:`~lowerkit.runtimes.session.Session.load`.

    Raises:
        ArtifactError: as :func:`~lowerkit.runtimes.session.load`; LK8001 names every entry whose hash differs, and all
            values that lie at one place of memory while both are needed.
        RuntimeFault: LK8003, this machine can run none of the programs; LK8005, there is none for ``target``.
    """
    path = Path(path)
    artifact = open_artifact(path)
    try:
        mismatches = artifact.hash_mismatches()
        if mismatches:
            raise damaged(path, "entries differ from the manifest", mismatches)
        manifest = artifact.manifest
        overlaps = [line for program in manifest.programs for line in plan_problems(program, _least_dims(program))]
        if overlaps:
            raise damaged(path, "values lie at one place of memory while both are needed", overlaps)
        programs = programs_for(manifest, target, None)
        if target is not None or all(missing_features(program) for program in programs):
            choose_program(manifest, target, programs[0].name)  # raises, and names what is missing
        return VerifyReport(
            path=str(path),
            content_id=manifest.content_id,
            entries={name: info.size for name, info in manifest.entries.items()},
            programs=[
                _check_program(artifact, alike, threads or default_threads(), device) for alike in _alike(programs)
            ],
        )
    finally:
        artifact.close()


def _least_dims(program: ProgramSpec) -> dict[str, int]:
    return {dim.name: dim.minimum for dim in program.signature.dims}


def _alike(programs: Sequence[ProgramSpec]) -> list[list[ProgramSpec]]:
    """Returns programs by name and target: those of one list differ in the places of a mesh that they are for."""
    found: dict[tuple[str, str], list[ProgramSpec]] = {}
    for program in programs:
        found.setdefault((program.name, program.label), []).append(program)
    return list(found.values())


def _check_program(artifact: Artifact, alike: Sequence[ProgramSpec], threads: int, device: str | None) -> ProgramCheck:
    program = next((program for program in alike if program.golden is not None), alike[0])
    missing = sorted({feature for each in alike for feature in missing_features(each)})
    if missing:
        reason = f"this machine lacks {', '.join(missing)}"
        return ProgramCheck(program.name, program.label, "none", [], reason)
    if program.golden is None:
        run_program(artifact, program, None, threads, device)
        reason = "no golden outputs inside: only the hashes were checked"
        return ProgramCheck(program.name, program.label, "none", [], reason)
    signature = program.signature
    inputs, outputs = (
        _golden_tensors(artifact.path, artifact.entry_bytes(name), artifact.tensors(name), specs)
        for name, specs in ((GOLDEN_INPUTS_ENTRY, signature.inputs), (program.golden.entry, signature.outputs))
    )
    ranks = run_program(artifact, program, inputs, threads, device)
    checks = [
        max((_compare(spec, result, golden, program.golden) for result in results), key=lambda check: check.mismatches)
        for spec, golden, *results in zip(signature.outputs, outputs, *ranks, strict=True)
    ]
    return ProgramCheck(program.name, program.label, program.golden.comparison, checks)


def run_program(
    artifact: Artifact, program: ProgramSpec, inputs: Sequence[Any] | None, threads: int, device: str | None
) -> list[list[Array]]:
    """Loads a program of an open artifact, and runs it once; the ranks of a mesh in simulation.

    Args:
        artifact: not read again to be checked.
        program: of the artifact; ranks at other places of its mesh run those of its name and target that are for them.
        inputs: in the order of the signature; None only loads.
        threads: threads of all ranks together, at least one for each.
        device: as for :meth:`~lowerkit.runtimes.session.Session.load`.

    Returns:
        By rank its outputs; of one rank where the program has no mesh.

    Raises:
        LowerkitError: as :meth:`~lowerkit.runtimes.session.Session.load` and ``run``.
    """
    if not program.mesh:
        session = Session(artifact, threads, "structure", program.label, program.name, device)
        return [] if inputs is None else [session.run(*inputs)]
    from lowerkit.runtimes.mesh.simulated import run_artifact, simulated_sessions

    threads = max(1, threads // mesh_size(program.mesh))
    if inputs is None:
        with simulated_sessions(artifact, threads, "structure", program.label, program.name, device):
            return []
    return run_artifact(artifact, inputs, threads=threads, target=program.label, program=program.name, device=device)


def _golden_tensors(path: Path, blob: Any, tensors: Any, specs: list[TensorSpec]) -> list[Array]:
    names = [str(number) for number in range(len(specs))]
    if sorted(tensors) != sorted(names):
        raise ArtifactError("LK8006", f"{path} holds {len(tensors)} golden tensors for {len(specs)} of the signature")
    return [tensor_view(blob, tensors[name]) for name in names]


def _compare(spec: TensorSpec, result: Array, golden: Array, how: GoldenSpec) -> GoldenCheck:
    if result.shape != golden.shape or result.dtype != golden.dtype:
        return GoldenCheck(spec.name, result.size, max(result.size, 1), float("inf"))
    a, b = result.astype(np.float64), golden.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.asarray(np.abs(a - b))  # of rank 0 numpy gives a number
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    if how.comparison == "bitwise":
        rows = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (result, golden))
        left, right = (row.reshape(result.size, -1) if result.size else row.reshape(0, 1) for row in rows)
        different = int((left != right).any(axis=1).sum())
    else:
        allowed = how.absolute + how.relative * np.abs(b)
        different = int((~((error <= allowed) | (error == 0.0))).sum())
    largest = float(np.nanmax(error, initial=0.0)) if error.size else 0.0
    return GoldenCheck(spec.name, result.size, different, largest)
