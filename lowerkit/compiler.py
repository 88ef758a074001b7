"""The Python API: ``compile`` a model, call it, save it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lowerkit.compiled import Compiled, CompileOptions
from lowerkit.errors import CaptureError, UsageError
from lowerkit.pipeline import PassTiming, PipelineOptions, pass_context, run_stages

if TYPE_CHECKING:
    from lowerkit.codegen.assemble import CompiledParts, PlannedParts
    from lowerkit.passes.base import PassContext
    from lowerkit.passes.partition.accelerator import Placement
    from lowerkit.program.program import Program
    from lowerkit.spmd.summary import ShardingSummary


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
    allow: Sequence[str] = (),
    mesh: str | None = None,
    shard: Mapping[str, Any] | str | None = None,
    invariant: bool = False,
) -> Compiled:
    """Compiles a model.

    Args:
        model: an ``nn.Module`` (one of DTensors brings mesh and plan), an ExportedProgram, a ScriptModule, or a path
            (.pt2, .pt, .onnx, file.py:factory).
        example_inputs: tensors in the order of ``forward``; they fix every dim that is not symbolic.
        target: accelerators and the CPU with their levels, such as ``cpu:x86-64-v3`` or ``acme_npu+cpu``.
        dynamic_shapes: as for ``torch.export.export``, of a module or a factory's; all else has its shapes.
        kwargs: keyword inputs of ``forward``, or inputs of a file by name.
        threads: threads of a run; None is the cores this process may use.
        workers: processes that compile kernels; None is one a core.
        use_cache: read and write the caches of captured programs and of kernels on disk.
        device: the device that takes the place of the target's in this process, such as ``cuda-sim``.
        allow: what accelerators may compute less exactly than the model says: ``tf32`` on ``cuda``.
        mesh: the ranks to split the model among, ``tp=2`` or ``dp=2,tp=2``; called in this process, simulated ones run.
        shard: how: patterns of module paths to ``column``, ``row`` and such, for a mesh of several axes by axis; or
            ``auto``, which is what a mesh alone means too.
        invariant: give the same bits for every mesh, also of one rank.

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
        from lowerkit.capture.torch_export.distributed_tensors import as_plan

        model, mesh, shard = as_plan(model, mesh, shard)
        program = capture(model, example_inputs, dynamic_shapes=dynamic_shapes, kwargs=kwargs)
    from lowerkit.spmd.sharding import sharding_of

    sharding = sharding_of(mesh, shard, program, invariant=invariant, target=target)
    options = CompileOptions(
        target, frozenset(allow), workers=workers, use_cache=use_cache, device=device, sharding=sharding
    )
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
    tiles = _tiles_of(options)
    stages, timings, remarks = lower_stages(program, options, on_progress)

    from lowerkit.codegen.assemble import compile_stages
    from lowerkit.codegen.offload import require_offload, summaries
    from lowerkit.program.dtypes import name_of
    from lowerkit.program.weight_growth import growth_remark
    from lowerkit.targets.target import LinkSettings

    placements = [placement for _, own in stages for placement in own]
    offload = summaries(placements, [each.name for each in accelerators]) if placements else []
    require_offload(placements, offload, options.require_offload, options.keep_on_host)
    settings = LinkSettings(options.workers, options.use_cache, on_progress)
    with tiles:
        parts = compile_stages(stages, hosts, accelerators, settings)
    program.stage, remarks = "compiled", [*program.remarks, *remarks, *parts.remarks]
    lowered = [each for each, _ in stages]
    sharding = _sharding_summary(options, parts)
    compiled = Compiled(program, lowered, parts, options, remarks, timings, offload, sharding)
    if growth := growth_remark(
        program.weights.given, ((name_of(weight.dtype), weight.nbytes) for weight in parts.weights.values())
    ):
        compiled.warn(growth)
    return compiled


def lower_stages(
    program: Program, options: CompileOptions, on_progress: Callable[[str], None] | None
) -> tuple[list[tuple[Program, Sequence[Placement]]], list[PassTiming], list[str]]:
    """Lowers a program, in place, to what is compiled: one program, or one for each stage of a pipeline.

    Returns:
        the programs with what accelerators compute of them, by stage; the times of the passes; their remarks.
    """
    if options.sharding is None or options.sharding.stages is None:
        context, timings = _lower(program, "fused", options, on_progress)
        return [(program, context.placements)], timings, context.remarks
    from lowerkit.spmd.sharding import stage_programs

    context, timings = _lower(program, "canonical", options, on_progress)
    remarks = dict.fromkeys(context.remarks)
    lowered: list[tuple[Program, Sequence[Placement]]] = []
    for stage in stage_programs(program, options.sharding):
        own, further = _lower(stage, "fused", options, on_progress)
        lowered.append((stage, own.placements))
        timings += further
        remarks |= dict.fromkeys(own.remarks)
    return lowered, timings, list(remarks)


def _tiles_of(options: CompileOptions) -> AbstractContextManager[None]:
    """Within what is returned, products take the tiles that the options name."""
    if options.tiles is None:
        return nullcontext()
    if "cuda" not in [target.name for target in options.spec.accelerator_targets]:
        raise UsageError("LK1004", "measured tiles have no effect without the target cuda", hint="leave them out")
    from lowerkit.targets.cuda.model.measured_tiles import TileFile, using_tiles

    return using_tiles(TileFile.load(options.tiles).tiles)


def _sharding_summary(options: CompileOptions, parts: CompiledParts) -> ShardingSummary | None:
    if options.sharding is None:
        return None
    from lowerkit.spmd.summary import summary_of

    stored = {name: each.nbytes for name, each in parts.weights.items()}
    return summary_of(options.sharding, parts.manifest.programs, stored)


def plan_program(
    program: Program, options: CompileOptions | None = None, on_progress: Callable[[str], None] | None = None
) -> PlannedParts:
    """Plans a captured program without compiling a kernel or reading a weight: what it will need, and run.

    Raises:
        UnsupportedError, CodegenError: as :func:`compile_program`.
    """
    from lowerkit.codegen.assemble import plan_stages

    options = options or CompileOptions()
    tiles = _tiles_of(options)
    stages, _, _ = lower_stages(program, options, on_progress)
    spec = options.spec
    with tiles:
        return plan_stages(stages, spec.host_targets, spec.accelerator_targets, on_progress)


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
    from lowerkit.pipeline import STAGES

    context = lowering_context(program, options)
    to_shard = options.sharding is not None and not program.mesh
    if to_shard and STAGES.index(program.stage) > STAGES.index("canonical"):
        raise UsageError(
            "LK1011",
            f"{program.source} is at stage {program.stage!r} already: a program is split among ranks before",
            hint="start from stage canonical or one before it, or from the model",
        )
    by_regions = [target for target in options.spec.accelerator_targets if target.unit == "region"]
    pipeline = PipelineOptions(options.dump_folder, on_progress=on_progress, accelerators=by_regions)
    timings: list[PassTiming] = []
    if options.sharding is not None and to_shard and STAGES.index(until) >= STAGES.index("canonical"):
        from lowerkit.spmd.sharding import shard

        timings += run_stages(program, "canonical", context, pipeline)
        timings += shard(program, options.sharding, context, pipeline)
    timings += run_stages(program, until, context, pipeline)
    program.placements = list(map(placement_entry, context.placements))
    return context, timings
