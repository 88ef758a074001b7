"""The Python API: ``compile`` a model, call it, save it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import CaptureError, UsageError
from lowerkit.pipeline import PassTiming, PipelineOptions, run_stages

if TYPE_CHECKING:
    from lowerkit.codegen.assemble import CompiledParts, PlannedParts
    from lowerkit.codegen.offload import OffloadSummary
    from lowerkit.passes.base import PassContext
    from lowerkit.program.program import Program
    from lowerkit.runtimes.artifact_reader import Artifact
    from lowerkit.runtimes.manifest import ProgramSpec
    from lowerkit.runtimes.session import Session
    from lowerkit.targets.spec import TargetSpec

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CompileOptions:
    """How to compile.

    Attributes:
        target: accelerators and the CPU with their levels (``acme_npu+cpu:x86-64-v3``), as text or parsed;
            ``lowerkit targets`` lists them. A level is what the artifact may use, checked again at load; of several
            (``cpu:x86-64-v3,x86-64-v4``) the loader takes the best one.
        keep_on_host: ops, by their name in the IR or in the captured graph, that no accelerator is offered.
        require_offload: share of the FLOPs, 0 to 1, that the accelerators must take; None asks for nothing.
        dump_folder: where the IR after each pass is written; None writes nothing.
        workers: processes that compile kernels; None is one a core.
        use_cache: read and write the kernel cache on disk.
        golden: store the example inputs and our outputs in the artifact, for ``lowerkit verify``.
        device: the device that takes the place of the target's where the model runs in this process: ``cuda-sim``.
    """

    target: TargetSpec | str = "cpu"
    keep_on_host: frozenset[str] = frozenset()
    require_offload: float | None = None
    dump_folder: Path | None = None
    workers: int | None = None
    use_cache: bool = True
    golden: bool = True
    device: str | None = None

    @cached_property
    def spec(self) -> TargetSpec:
        """The target, parsed."""
        from lowerkit.targets.spec import TargetSpec

        return TargetSpec.parse(self.target) if isinstance(self.target, str) else self.target


@dataclass
class Compiled:
    """A compiled model: callable, and savable as one file.

    Calling it takes numpy, DLPack or torch tensors as the model does, nested or in the order of the signature, and
    returns numpy arrays nested as the model returned them.
    """

    program: Program
    parts: CompiledParts
    options: CompileOptions
    remarks: list[str]
    timings: list[PassTiming]
    offload: list[OffloadSummary]
    threads: int | None = None
    _session: Session | None = field(default=None, repr=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the model once.

        Raises:
            RuntimeFault: LK8004, the arguments do not fit the signature; all mismatches at once.
        """
        return self.session(*inputs, **named)

    @property
    def session(self) -> Session:
        """The loaded artifact; written to a private temporary folder at first use."""
        if self._session is None:
            from lowerkit.runtimes.session import load

            self._folder = tempfile.TemporaryDirectory(prefix="lowerkit-")
            path = Path(self._folder.name) / "model.lk"
            self._write(path, golden=False)
            self._session = load(path, threads=self.threads, device=self.options.device)
        return self._session

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the artifact; a file that is there is replaced only when the new one is complete.

        Raises:
            ResourceError: LK7001, the disk is full.
            InputError: LK1005, the path cannot be written.
        """
        self._write(Path(path), golden=True)

    def summary(self) -> dict[str, Any]:
        """Returns counts of regions, kernels and bytes, for people."""
        return {
            "steps": len(self.parts.program.steps),
            "kernels": len(self.parts.program.kernels),
            "weight_bytes": self.parts.weight_bytes,
            "code_bytes": self.parts.code_bytes,
            "targets": [program.label for program in self.parts.manifest.programs],
            "offload": [summary.to_json() for summary in self.offload],
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
            runnable += [] if missing else [program]
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
        write_artifact(path, self.parts.manifest, self.parts.code, weights, side_car)

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
        from lowerkit.runtimes.session import Session

        inputs = self.program.example_inputs
        assert inputs is not None, "there are golden values only where there are inputs"
        outputs: dict[str, list[Array]] = {}
        for program in programs:
            threads, device = self.threads or default_threads(), self.options.device
            session = Session(artifact, threads, "structure", program.label, program.name, device)
            assert program.golden is not None, "programs are made with a place for them"
            outputs[program.golden.entry] = session.run(*inputs)
        return golden_entries(inputs, outputs)


def compile(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    target: str = "cpu",
    *,
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int | None = None,
    workers: int | None = None,
    use_cache: bool = True,
    device: str | None = None,
) -> Compiled:
    """Compiles a model.

    Args:
        model: an ``nn.Module``, an ExportedProgram, a ScriptModule, or a path (.pt2, .pt, .onnx, file.py:factory).
        example_inputs: tensors in the order of ``forward``; they fix every dim that is not symbolic.
        target: accelerators and the CPU with their levels, such as ``cpu:x86-64-v3`` or ``acme_npu+cpu``.
        dynamic_shapes: as for ``torch.export.export``, of a module or a factory's; all else has its shapes.
        kwargs: keyword inputs of ``forward``, or inputs of a file by name.
        threads: threads of a run; None is the cores this process may use.
        workers: processes that compile kernels; None is one a core.
        use_cache: read and write the caches of captured programs and of kernels on disk.
        device: the device that takes the place of the target's in this process, such as ``cuda-sim``.

    Raises:
        LowerkitError: see the exit codes; nothing runs on eager PyTorch instead.
    """
    if isinstance(model, (str, os.PathLike)):
        from lowerkit.capture.load_model import capture_path

        program = capture_path(
            str(model), example_inputs=example_inputs, kwargs=kwargs, dynamic_shapes=dynamic_shapes, use_cache=use_cache
        )
    else:
        from lowerkit.capture.capture import capture

        program = capture(model, example_inputs, dynamic_shapes=dynamic_shapes, kwargs=kwargs)
    options = CompileOptions(target=target, workers=workers, use_cache=use_cache, device=device)
    compiled = compile_program(program, options)
    compiled.threads = threads
    return compiled


def lower_program(
    program: Program, until: str, options: CompileOptions, on_progress: Callable[[str], None] | None = None
) -> PassContext:
    """Brings ``program`` to stage ``until`` in place; returns the context with the remarks of the passes."""
    return _lower(program, until, options, on_progress)[0]


def compile_program(
    program: Program, options: CompileOptions | None = None, on_progress: Callable[[str], None] | None = None
) -> Compiled:
    """Compiles a captured (or partly lowered) program."""
    options = options or CompileOptions()
    missing = [name for name in program.weights if not program.weights.has_data(name)]
    if missing:
        raise CaptureError(
            "LK2001",
            f"{len(missing)} weights of {program.source} are on the meta device and have no data: {missing[0]!r}, ...",
            hint="load the weights before compiling; `lowerkit inspect --meta` sizes a model without them",
        )
    if options.workers is not None and options.workers < 1:
        raise UsageError("LK1009", f"workers is {options.workers}, expected 1 or more")
    hosts, accelerators = options.spec.host_targets, options.spec.accelerator_targets  # unknown ones are named first
    context, timings = _lower(program, "fused", options, on_progress)

    from lowerkit.codegen.assemble import compile_parts
    from lowerkit.codegen.offload import require_offload, summaries
    from lowerkit.targets.target import LinkSettings

    offload = summaries(context.placements, [each.name for each in accelerators]) if context.placements else []
    require_offload(context.placements, offload, options.require_offload)
    parts = compile_parts(
        program, hosts, accelerators, LinkSettings(options.workers, options.use_cache, on_progress), context.placements
    )
    program.stage, remarks = "compiled", [*program.remarks, *context.remarks, *parts.remarks]
    return Compiled(program, parts, options, remarks, timings, offload)


def plan_program(
    program: Program, options: CompileOptions | None = None, on_progress: Callable[[str], None] | None = None
) -> PlannedParts:
    """Plans a captured program without compiling a kernel or reading a weight: what it will need, and run.

    Raises:
        UnsupportedError, CodegenError: as :func:`compile_program`.
    """
    from lowerkit.codegen.assemble import plan_parts

    options = options or CompileOptions()
    context, _ = _lower(program, "fused", options, on_progress)
    spec = options.spec
    return plan_parts(program, spec.host_targets, spec.accelerator_targets, context.placements, on_progress)


def pass_context(program: Program) -> PassContext:
    """Returns what the passes may know about ``program`` beside its module."""
    from lowerkit.passes.base import PassContext

    dims = {dim.name: (dim.minimum, dim.maximum) for dim in program.signature.dims}
    ranges = {
        (number, axis): dims[extent]
        for number, spec in enumerate(program.signature.inputs)
        for axis, extent in enumerate(spec.shape)
        if isinstance(extent, str)
    }
    return PassContext(weights=program.weights, extent_ranges=ranges)


def lowering_context(program: Program, options: CompileOptions) -> PassContext:
    """Returns :func:`pass_context` with the accelerators that ops are offered to.

    Raises:
        UnsupportedError: LK4003, there is no such target.
    """
    import msgspec

    from lowerkit.passes.partition.accelerator import Placement
    from lowerkit.targets.offering import Offer

    spec = options.spec
    return replace(
        pass_context(program),
        accelerators=[Offer(target, spec.host_target) for target in spec.accelerator_targets],
        keep_on_host=options.keep_on_host,
        placements=msgspec.convert(program.placements, list[Placement]),
    )


def _lower(
    program: Program, until: str, options: CompileOptions, on_progress: Callable[[str], None] | None
) -> tuple[PassContext, list[PassTiming]]:
    from lowerkit.codegen.offload import placement_entry

    context = lowering_context(program, options)
    by_regions = [target for target in options.spec.accelerator_targets if target.unit == "region"]
    pipeline = PipelineOptions(options.dump_folder, on_progress=on_progress, accelerators=by_regions)
    timings = run_stages(program, until, context, pipeline)
    program.placements = list(map(placement_entry, context.placements))
    return context, timings
