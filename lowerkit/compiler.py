"""The Python API: ``compile`` a model, call it, save it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerkit.errors import CaptureError, UsageError
from lowerkit.pipeline import PassTiming, PipelineOptions, run_stages

if TYPE_CHECKING:
    from lowerkit.passes.base import PassContext
    from lowerkit.program.program import Program
    from lowerkit.runtimes.artifact_reader import Artifact
    from lowerkit.runtimes.session import Session
    from lowerkit.targets.cpu.target import CompiledParts, PlannedParts

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CompileOptions:
    """How to compile.

    Attributes:
        target: the target's name; ``lowerkit targets`` lists them.
        cpu: ``host`` or a level such as ``x86-64-v3``: what the artifact may use, checked again at load.
        dump_folder: where the IR after each pass is written; None writes nothing.
        workers: processes that compile kernels; None is one a core.
        use_cache: read and write the kernel cache on disk.
        golden: store the example inputs and our outputs in the artifact, for ``lowerkit verify``.
    """

    target: str = "cpu"
    cpu: str = "host"
    dump_folder: Path | None = None
    workers: int | None = None
    use_cache: bool = True
    golden: bool = True


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
            self._session = load(path, threads=self.threads)
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
        manifest = self.parts.manifest
        return {
            "steps": len(manifest.steps),
            "kernels": len(manifest.kernels),
            "weight_bytes": self.parts.weight_bytes,
            "code_bytes": len(self.parts.image.data),
            "cpu": manifest.cpu,
        }

    def _has_golden(self) -> bool:
        """Whether an artifact is to hold golden values: there are inputs, and this CPU can run the code."""
        if not self.options.golden or self.program.example_inputs is None:
            return False
        from lowerkit.targets.cpu.levels import runs_on_host

        if runs_on_host(self.parts.manifest.cpu):
            return True
        remark = f"no golden outputs: this machine cannot run {self.parts.manifest.cpu} code"
        self.remarks += [] if remark in self.remarks else [remark]
        return False

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
        side_car: Callable[[Artifact], Mapping[str, bytes]] | None = None
        if golden and self._has_golden():
            side_car = self._golden_run
        write_artifact(path, self.parts.manifest, self.parts.image, weights, side_car)

    def _read(self, read: Callable[[], Array]) -> Array:
        """Reads a weight, and makes sure that the files of the model are those that were captured."""
        for source in self.program.sources:
            source.require_unchanged()
        array = read()
        for source in self.program.sources:
            source.require_unchanged()
        return array

    def _golden_run(self, artifact: Artifact) -> dict[str, bytes]:
        """Runs the code and weights that were just written; nothing of them is read again to be checked."""
        from lowerkit.artifact.golden import golden_entries
        from lowerkit.runtimes.cpu.topology import default_threads
        from lowerkit.runtimes.session import Session

        inputs = self.program.example_inputs
        assert inputs is not None, "there are golden values only where there are inputs"
        session = Session(artifact, self.threads or default_threads(), "structure")
        return golden_entries(inputs, session.run(*inputs))


def compile(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    target: str = "cpu",
    *,
    cpu: str = "host",
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    threads: int | None = None,
    workers: int | None = None,
    use_cache: bool = True,
) -> Compiled:
    """Compiles a model.

    Args:
        model: an ``nn.Module``, an ExportedProgram, a ScriptModule, or a path (.pt2, .pt, .onnx, file.py:factory).
        example_inputs: tensors in the order of ``forward``; they fix every dim that is not symbolic.
        target: the target's name.
        cpu: ``host`` or the CPU level to compile for.
        dynamic_shapes: as for ``torch.export.export``, of a module or a factory's; all else has its shapes.
        kwargs: keyword inputs of ``forward``, or inputs of a file by name.
        threads: threads of a run; None is the cores this process may use.
        workers: processes that compile kernels; None is one a core.
        use_cache: read and write the caches of captured programs and of kernels on disk.

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
    compiled = compile_program(program, CompileOptions(target=target, cpu=cpu, workers=workers, use_cache=use_cache))
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
    if options.target != "cpu":
        raise UsageError("LK4003", f"there is no target {options.target!r}", hint="the targets are: cpu")
    context, timings = _lower(program, "fused", options, on_progress)

    from lowerkit.targets.cpu.target import CpuTarget

    target = CpuTarget(cpu=options.cpu, workers=options.workers, use_cache=options.use_cache)
    parts = target.compile(program, on_progress=on_progress)
    program.stage = "compiled"
    return Compiled(program, parts, options, [*program.remarks, *context.remarks, *parts.remarks], timings)


def plan_program(
    program: Program, options: CompileOptions | None = None, on_progress: Callable[[str], None] | None = None
) -> PlannedParts:
    """Plans a captured program without compiling a kernel or reading a weight: what it will need, and run.

    Raises:
        UnsupportedError, CodegenError: as :func:`compile_program`.
    """
    from lowerkit.targets.cpu.target import CpuTarget

    options = options or CompileOptions()
    _lower(program, "fused", options, on_progress)
    return CpuTarget(cpu=options.cpu).plan(program, on_progress)


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


def _lower(
    program: Program, until: str, options: CompileOptions, on_progress: Callable[[str], None] | None
) -> tuple[PassContext, list[PassTiming]]:
    context = pass_context(program)
    timings = run_stages(program, until, context, PipelineOptions(options.dump_folder, on_progress=on_progress))
    return context, timings
