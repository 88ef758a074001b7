"""The path of a model, readable from top to bottom: the default pipeline and the stages it runs through.

Stages, in order: ``captured`` (torch dialect) -> ``raised`` (lk + linalg) -> ``canonical`` (true for every target) ->
``partitioned`` (functions of accelerators) -> ``layout`` -> ``fused`` (everything inside regions) -> ``compiled``
(kernels, memory plan, step table). A canonical program is split among the ranks of a mesh by
:mod:`lowerkit.spmd.sharding`. Each boundary can be written to a file and taken up again from it. From
``partitioned`` on each target has passes of its own for its functions; the CPU's are in
:mod:`lowerkit.targets.cpu.passes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowerkit.errors import LowerkitError, PassError, UsageError, VerifyError
from lowerkit.passes.failed_pass import failure_of, invalid_after, leave_reproducer

if TYPE_CHECKING:
    from lowerkit.mlir import ir
    from lowerkit.passes.base import Pass, PassContext
    from lowerkit.program.program import Program
    from lowerkit.targets.target import Target

STAGES = ("captured", "raised", "canonical", "partitioned", "layout", "fused", "compiled")


def stage_passes(stage: str) -> list[Pass]:
    """Returns the passes that lead functions of the host to ``stage`` from the one before it, in order."""
    from lowerkit.passes.canonicalize.common_subexpressions import CommonSubexpressions
    from lowerkit.passes.canonicalize.fold_constants import FoldConstants
    from lowerkit.passes.canonicalize.fold_padding import FoldPadding
    from lowerkit.passes.canonicalize.hoist_slices import HoistSlices
    from lowerkit.passes.canonicalize.resolve_shapes import ResolveShapes
    from lowerkit.passes.canonicalize.simplify import Simplify
    from lowerkit.passes.canonicalize.simplify_elementwise import SimplifyElementwise
    from lowerkit.passes.partition.merge_predicates import MergePredicates
    from lowerkit.passes.partition.partition import Partition
    from lowerkit.passes.quantize.integer_products import IntegerProducts
    from lowerkit.passes.quantize.move_views import MoveViews
    from lowerkit.passes.quantize.requantize import Requantize
    from lowerkit.passes.raising.core.lower_types import LowerTypes
    from lowerkit.passes.raising.core.raise_broadcasts import RaiseBroadcasts
    from lowerkit.passes.raising.core.raise_diagonals import RaiseDiagonals
    from lowerkit.passes.raising.core.raise_fills import RaiseFills
    from lowerkit.passes.raising.core.raise_joins import RaiseJoins
    from lowerkit.passes.raising.core.raise_numbers import RaiseNumbers
    from lowerkit.passes.raising.core.raise_pads import RaisePads
    from lowerkit.passes.raising.core.raise_permutations import RaisePermutations
    from lowerkit.passes.raising.core.raise_pointwise import RaisePointwise
    from lowerkit.passes.raising.core.raise_slices import RaiseSlices
    from lowerkit.passes.raising.core.raise_views import RaiseViews
    from lowerkit.passes.raising.decompose.decompose_lists import DecomposeLists
    from lowerkit.passes.raising.raise_ops.raise_attention import RaiseAttention
    from lowerkit.passes.raising.raise_ops.raise_collectives import RaiseCollectives
    from lowerkit.passes.raising.raise_ops.raise_convolution import RaiseConvolution
    from lowerkit.passes.raising.raise_ops.raise_cumulative import RaiseCumulative
    from lowerkit.passes.raising.raise_ops.raise_gather import RaiseGather
    from lowerkit.passes.raising.raise_ops.raise_index_checks import RaiseIndexChecks
    from lowerkit.passes.raising.raise_ops.raise_matmul import RaiseMatmul
    from lowerkit.passes.raising.raise_ops.raise_normalization import RaiseNormalization
    from lowerkit.passes.raising.raise_ops.raise_pooling import RaisePooling
    from lowerkit.passes.raising.raise_ops.raise_quantization import RaiseQuantization
    from lowerkit.passes.raising.raise_ops.raise_reductions import RaiseReductions
    from lowerkit.passes.raising.raise_ops.raise_resize import RaiseResize
    from lowerkit.passes.raising.raise_ops.raise_scatter import RaiseScatter
    from lowerkit.passes.raising.raise_ops.raise_softmax import RaiseSoftmax
    from lowerkit.passes.raising.raise_ops.raise_sorting import RaiseSorting
    from lowerkit.passes.raising.recognize.recognize_attention import RecognizeAttention
    from lowerkit.passes.raising.recognize.recognize_gelu import RecognizeGelu
    from lowerkit.passes.raising.recognize.recognize_layer_norm import RecognizeLayerNorm
    from lowerkit.passes.raising.recognize.recognize_linear import RecognizeLinear
    from lowerkit.passes.raising.recognize.recognize_rms_norm import RecognizeRmsNorm
    from lowerkit.passes.raising.recognize.recognize_rope import RecognizeRope
    from lowerkit.passes.raising.simplify.fold_batch_norm import FoldBatchNorm
    from lowerkit.passes.raising.simplify.fold_empty_tensors import FoldEmptyTensors
    from lowerkit.passes.raising.simplify.simplify_torch import SimplifyTorch
    from lowerkit.targets.cpu.passes import host_passes

    match stage:
        case "raised":
            # Names are restored before ops are raised; attention before the products and repeats that it consists of.
            return [
                FoldBatchNorm(),
                RaiseIndexChecks(),
                FoldEmptyTensors(),
                SimplifyTorch(),
                RaiseQuantization(),
                DecomposeLists(),
                RecognizeLinear(),
                RecognizeGelu(),
                RecognizeLayerNorm(),
                RecognizeRmsNorm(),
                RecognizeRope(),
                RecognizeAttention(),
                RaiseAttention(),
                RaiseMatmul(),
                RaiseConvolution(),
                RaiseSoftmax(),
                RaiseNormalization(),
                RaisePooling(),
                RaiseReductions(),
                RaiseGather(),
                RaiseScatter(),
                RaiseResize(),
                RaiseSorting(),
                RaiseCumulative(),
                RaiseCollectives(),
                RaiseNumbers(),
                RaiseJoins(),
                RaiseFills(),
                RaiseBroadcasts(),
                RaisePads(),
                RaiseDiagonals(),
                RaisePermutations(),
                RaiseSlices(),
                RaiseViews(),
                RaisePointwise(),
                LowerTypes(),
            ]
        case "canonical":
            return [
                Simplify(),
                FoldPadding(),
                MoveViews(),
                IntegerProducts(),
                Requantize(),
                ResolveShapes(),
                SimplifyElementwise(),
                FoldPadding(),
                HoistSlices(),
                FoldConstants(),
                CommonSubexpressions(),
            ]
        case "partitioned":
            return [MergePredicates(), Partition()]
        case "layout" | "fused":
            return host_passes(stage)
        case _:
            raise AssertionError(f"no passes lead to stage {stage}")


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
    names = [spec.name for spec in program.signature.inputs]
    return PassContext(weights=program.weights, extent_ranges=ranges, input_names=names)


@dataclass(frozen=True)
class PipelineOptions:
    """How to run the pipeline.

    Attributes:
        dump_folder: where the IR after each pass is written as ``NN-pass-name.mlir``; None writes nothing.
        reproducer_folder: where a failing pass leaves a file that repeats the failure; None is the folder
            ``reproducers`` of the user's cache. The diagnostic names the file.
        on_progress: called with the name of what runs now.
        accelerators: those whose functions the program may hold; their own passes run on these.
    """

    dump_folder: Path | None = None
    reproducer_folder: Path | None = None
    on_progress: Callable[[str], None] | None = None
    accelerators: Sequence[Target] = ()


@dataclass
class PassTiming:
    """How long one pass took, in seconds, and whether it changed the module."""

    name: str
    seconds: float
    modified: bool


def run_stages(
    program: Program, until: str, context: PassContext, options: PipelineOptions | None = None
) -> list[PassTiming]:
    """Brings ``program`` from the stage it is in up to ``until`` (at most ``fused``), in place."""
    from lowerkit.passes.base import Pass
    from lowerkit.targets.asking import ask, require

    options = options or PipelineOptions()
    timings: list[PassTiming] = []
    start, end = STAGES.index(program.stage), STAGES.index(until)
    if start > end:
        raise UsageError("LK3003", f"the program is at stage {program.stage!r}, which is behind {until!r} already")
    for stage in STAGES[start + 1 : end + 1]:
        timings.extend(run_passes(program, stage_passes(stage), context, options, first_index=len(timings)))
        for target in options.accelerators if stage in ("layout", "fused") else ():
            passes = ask(target, "passes", (list, tuple), stage)
            require(target, all(isinstance(each, Pass) for each in passes), "passes returned what is no pass")
            timings.extend(run_passes(program, passes, context, options, len(timings), target.name))
        _require_level(program, stage, {target.name for target in options.accelerators})
        program.stage = stage
    return timings


def run_passes(
    program: Program,
    passes: Sequence[Pass],
    context: PassContext,
    options: PipelineOptions | None = None,
    first_index: int = 0,
    target: str = "",
) -> list[PassTiming]:
    """Runs ``passes`` in order on the functions of ``target`` (``""`` is the host).

    The IR is verified after each that changed it; a reproducer is left when one fails.

    Raises:
        PassError: LK3001, a pass failed for a reason of its own.
        VerifyError: LK3002, the IR after a pass does not verify.
        LowerkitError: whatever a pass raised on purpose, unchanged.
    """
    from lowerkit.passes.function_by_function import run_on_functions

    options = options or PipelineOptions()
    timings: list[PassTiming] = []
    before: ir.OpView | None = None
    for index, one_pass in enumerate(passes, start=first_index):
        if options.on_progress:
            options.on_progress(one_pass.name)
        if before is None and options.dump_folder is None:
            before = program.module.operation.clone()
        started = time.perf_counter()
        try:
            modified = run_on_functions(one_pass, program.module, context, target)
            if modified:
                _verify(program, one_pass)
        except Exception as error:
            if isinstance(error, LowerkitError) and not isinstance(error, (PassError, VerifyError)):
                raise
            if before is not None:
                hint = leave_reproducer(before, one_pass, options.reproducer_folder)
            else:
                hint = f"the IR before it is the last file in {options.dump_folder}"
            failure = failure_of(one_pass, error, program.module, hint)
            if failure is error:
                raise
            raise failure from error
        timings.append(PassTiming(one_pass.name, time.perf_counter() - started, modified))
        before = None if modified else before
        if options.dump_folder is not None:
            options.dump_folder.mkdir(parents=True, exist_ok=True)
            path = options.dump_folder / f"{index:02d}-{one_pass.name}.mlir"
            path.write_text(program.module.operation.get_asm(enable_debug_info=True))
    return timings


def _require_level(program: Program, stage: str, by_regions: set[str]) -> None:
    """Raises VerifyError, LK3005, with every op that may not stand where ``stage`` ends."""
    from lowerkit.dialect.levels import illegal_ops
    from lowerkit.passes.function_by_function import target_of
    from lowerkit.passes.source_location import describe

    found: list[str] = []
    for function in (op.operation for op in program.module.body.operations if op.operation.name == "func.func"):
        target = target_of(function)
        # A target by functions has its functions as they were accepted.
        own = stage if not target or target in by_regions else "partitioned"
        found += [f"{op.name} at {describe(op)}" for op in illegal_ops(function, own)]
    if found:
        raise VerifyError(
            "LK3005",
            f"{len(found)} ops may not stand in the IR at stage {stage!r}",
            details=found[:20],
            hint="a pass left them there: --dump-ir DIR shows which one",
        )


def _verify(program: Program, one_pass: Pass) -> None:
    from lowerkit.mlir import ir

    try:
        valid = program.module.operation.verify()
    except ir.MLIRError as error:
        raise invalid_after(one_pass, error, program.module) from error
    if not valid:
        raise invalid_after(one_pass, None, program.module)
