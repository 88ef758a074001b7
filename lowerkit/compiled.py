"""A compiled model: how it was asked for, what it can do, and the file that it is saved as."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from lowerkit.codegen.assemble import CompiledParts
    from lowerkit.codegen.offload import OffloadSummary
    from lowerkit.passes.shard.plan import MeshPlan
    from lowerkit.pipeline import PassTiming
    from lowerkit.program.program import Program
    from lowerkit.runtimes.artifact_reader import Artifact
    from lowerkit.runtimes.manifest import ProgramSpec
    from lowerkit.runtimes.session import Session
    from lowerkit.spmd.simulated_session import SimulatedSession
    from lowerkit.spmd.summary import ShardingSummary
    from lowerkit.targets.spec import TargetSpec

Array = np.ndarray[Any, Any]

logger = logging.getLogger("lowerkit")


@dataclass(frozen=True)
class CompileOptions:
    """How to compile.

    Attributes:
        target: accelerators and the CPU with their levels (``acme_npu+cpu:x86-64-v3``), as text or parsed;
            ``lowerkit targets`` lists them. A level is what the artifact may use, checked again at load; of several
            (``cpu:x86-64-v3,x86-64-v4``) the loader takes the best one.
        allow: what accelerators may compute less exactly than the model says: ``tf32``.
        keep_on_host: ops, by their name in the IR or in the captured graph, that no accelerator is offered.
        require_offload: share of the FLOPs, 0 to 1, that the accelerators must take; None asks for nothing.
        dump_folder: where the IR after each pass is written; None writes nothing.
        workers: processes that compile kernels; None is one a core.
        use_cache: read and write the kernel cache on disk.
        golden: store the example inputs and our outputs in the artifact, for ``lowerkit verify``.
        device: the device that takes the place of the target's where the model runs in this process: ``cuda-sim``.
        sharding: how the program is split among the ranks of a mesh; None: it is for one device.
        tiles: the file of ``lowerkit tune`` that products for CUDA take their tiles from; None: predicted ones.
    """

    target: TargetSpec | str = "cpu"
    allow: frozenset[str] = frozenset()
    keep_on_host: frozenset[str] = frozenset()
    require_offload: float | None = None
    dump_folder: Path | None = None
    workers: int | None = None
    use_cache: bool = True
    golden: bool = True
    device: str | None = None
    sharding: MeshPlan | None = None
    tiles: Path | None = None

    @cached_property
    def spec(self) -> TargetSpec:
        """The target, parsed."""
        from lowerkit.targets.spec import TargetSpec

        spec = TargetSpec.parse(self.target) if isinstance(self.target, str) else self.target
        return replace(spec, allow=spec.allow | self.allow)


@dataclass
class Compiled:
    """A compiled model: callable, and savable as one file.

    Calling it takes numpy, DLPack or torch tensors as the model does, nested or in the order of the signature, and
    returns numpy arrays nested as the model returned them.

    Attributes:
        program: the model as it was captured, and then lowered in place.
        lowered: what was compiled: the program itself, or one for each stage of a pipeline.
    """

    program: Program
    lowered: list[Program]
    parts: CompiledParts
    options: CompileOptions
    remarks: list[str]
    timings: list[PassTiming]
    offload: list[OffloadSummary]
    sharding: ShardingSummary | None = None
    threads: int | None = None
    _session: Session | None = field(default=None, repr=False)
    _ranks: SimulatedSession | None = field(default=None, repr=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the model once.

        Raises:
            RuntimeFault: LK8004, the arguments do not fit the signature; all mismatches at once.
        """
        return self.runner(*inputs, **named)

    @property
    def session(self) -> Session:
        """The loaded artifact; written to a private temporary folder at first use.

        Raises:
            UsageError: LK8021, the program is for a mesh: :attr:`runner` runs all of its ranks.
        """
        if self._session is None:
            from lowerkit.runtimes.session import load

            self._session = load(self._temporary(), threads=self.threads, device=self.options.device)
        return self._session

    @property
    def runner(self) -> Session | SimulatedSession:
        """What runs the model in this process: the session, or of a program for a mesh all of its ranks, simulated."""
        if not self.program.mesh:
            return self.session
        if self._ranks is None:
            from lowerkit.spmd.simulated_session import SimulatedSession

            self._ranks = SimulatedSession(self._temporary(), self.threads, self.options.device)
        return self._ranks

    def _temporary(self) -> Path:
        """Writes the artifact to a private temporary folder, which lives as long as this."""
        self._folder = tempfile.TemporaryDirectory(prefix="lowerkit-")
        path = Path(self._folder.name) / "model.lk"
        self._write(path, golden=False)
        return path

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the artifact; a file that is there is replaced only when the new one is complete.

        Raises:
            ResourceError: LK7001, the disk is full.
            InputError: LK1005, the path cannot be written.
        """
        self._write(Path(path), golden=True)

    def state_witness(self, witness: dict[str, Any]) -> None:
        """Writes into the artifact what was compared before it: the ``witness`` of the programs' metadata."""
        manifest = self.parts.manifest
        programs = [
            msgspec.structs.replace(each, metadata={**each.metadata, "witness": witness}) for each in manifest.programs
        ]
        self.parts = replace(self.parts, manifest=msgspec.structs.replace(manifest, programs=programs))

    def warn(self, text: str) -> None:
        """Says at level WARNING of the logger ``lowerkit`` what a user should know unasked; it is a remark, too."""
        if text not in self.remarks:
            self.remarks.append(text)
            logger.warning("%s", text)

    def summary(self) -> dict[str, Any]:
        """Returns counts of regions, kernels and bytes, for people."""
        return {
            "steps": len(self.parts.program.steps),
            "kernels": len(self.parts.program.kernels),
            "weight_bytes": self.parts.weight_bytes,
            "code_bytes": self.parts.code_bytes,
            "targets": [program.label for program in self.parts.manifest.programs],
            "offload": [summary.to_json() for summary in self.offload],
            "mesh": None if self.sharding is None else self.sharding.to_json(),
        }

    def _golden_programs(self) -> list[ProgramSpec]:
        """The programs that get golden outputs: where there are inputs, those whose code this machine can run."""
        if not self.options.golden or self.program.example_inputs is None:
            return []
        from lowerkit.targets.runnable import targets_not_here

        runnable: list[ProgramSpec] = []
        for program in self.parts.manifest.programs:
            missing = targets_not_here(program, self.options.spec, self.options.device)
            remarks = [f"no golden outputs: this machine cannot run {each.level or each.name} code" for each in missing]
            self.remarks += [remark for remark in remarks if remark not in self.remarks]
            runnable += [] if missing or program.golden is None else [program]
        return runnable

    def _write(self, path: Path, *, golden: bool) -> None:
        from lowerkit.artifact.safetensors_blob import TensorSource
        from lowerkit.artifact.writer import write_artifact

        # Once loaded, the packed weights lie in a mapped file: reading them there is cheaper than packing them again.
        loaded = self._session
        weights = {
            name: TensorSource(
                w.dtype, w.shape, partial(self._read, w.read) if loaded is None else partial(loaded.weight, name)
            )
            for name, w in self.parts.weights.items()
        }
        programs = self._golden_programs() if golden else []
        side_car = partial(self._golden_run, programs) if programs else None
        write_artifact(path, self.parts.manifest, self.parts.code, weights, side_car, self._certificate())

    def _certificate(self) -> bytes | None:
        """The proof that the ranks of a mesh compute what the model does, bound to the programs; None without one.

        Raises:
            ParityError: LK6004, the steps do not issue the collectives that were proved.
        """
        if self.program.certificate is None:
            return None
        from lowerkit.spmd.certificate.binding import certificate_bytes

        return certificate_bytes(self.program.certificate, self.parts.manifest, self.program.weights)

    def _read(self, read: Callable[[], Array]) -> Array:
        """Reads a weight, and makes sure that the files of the model are those that were captured."""
        for source in self.program.sources:
            source.require_unchanged()
        array = read()
        for source in self.program.sources:
            source.require_unchanged()
        return array

    def _golden_run(self, programs: Sequence[ProgramSpec], artifact: Artifact) -> dict[str, bytes]:
        """Runs the code and weights that were just written; nothing of them is read again to be checked."""
        from lowerkit.artifact.golden import golden_entries
        from lowerkit.runtimes.cpu.topology import default_threads
        from lowerkit.runtimes.verify import run_program

        inputs = self.program.example_inputs
        assert inputs is not None, "there are golden values only where there are inputs"
        outputs: dict[str, list[Array]] = {}
        for program in programs:
            threads, device = self.threads or default_threads(), self.options.device
            assert program.golden is not None, "programs are made with a place for them"
            outputs[program.golden.entry] = run_program(artifact, program, inputs, threads, device)[0]
            self._warn_of_nan(program, outputs[program.golden.entry])
        return golden_entries(inputs, outputs)

    def _warn_of_nan(self, program: ProgramSpec, outputs: Sequence[Array]) -> None:
        """A mistake in an element whose golden value is NaN is not seen by ``lowerkit verify``."""
        for output, array in zip(program.signature.outputs, outputs, strict=True):
            if array.dtype.kind in "iub" or not (count := int(np.isnan(array).sum())):
                continue
            self.warn(
                f"{count:,} of {array.size:,} golden values of the output {output.name!r} are NaN, so "
                "`lowerkit verify` proves little of them: give example inputs whose outputs are numbers"
            )
