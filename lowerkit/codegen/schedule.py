"""The step table: a fused module as buffers, kernel plans and the steps that call them, in program order.

Vocabulary
    buffer   memory that a value lives in. A view is the buffer it looks at; a result that the function returns is
             written straight into the output.
    step     one kernel call, or a copy (results that are inputs, weights, states, or returned twice).
    ledger   for every region which family took it, and why the ones before it did not.

Steps of the build: walk ``@main`` once; plan each region (equal regions once); make buffers as values appear; settle
the results; fill in liveness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lowerkit.codegen.control_flow import branch, loop
from lowerkit.codegen.extent_guards import ExtentConditions, refuse_tables_of_extents
from lowerkit.codegen.in_place import incarnations, is_read_later
from lowerkit.codegen.index_checks import check, checks_first, may_end_the_run
from lowerkit.codegen.literals import literal_array
from lowerkit.codegen.memory import VIEW_OPS, overwritten_in_use, with_liveness
from lowerkit.codegen.region_planner import RegionPlanner
from lowerkit.codegen.shapes import Shape, ShapeTable, dynamic_dims, result_shapes
from lowerkit.codegen.step_draft import Source, StepDraft, byte_size, total
from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.weight_table import StoredWeight, WeightTable
from lowerkit.codegen.work import region_flops
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import substitute
from lowerkit.runtimes.manifest import Buffer, Guard, Signature, Step
from lowerkit.targets.ledger import LedgerEntry, Select
from lowerkit.targets.plan import KernelPlan

if TYPE_CHECKING:
    from lowerkit.program.weights import WeightStore
    from lowerkit.targets.cpu.levels import CpuFeatures

_IGNORED = ("tensor.dim", "tensor.from_elements", "tensor.extract", "affine.apply", "affine.min", "affine.max")


@dataclass
class Schedule:
    """The step table and what it refers to.

    Attributes:
        buffers, steps: as in the manifest; ``Step.kernel`` indexes ``plans``.
        plans: the kernels, each text once.
        weights: the stored tensors by name.
        ledger: one entry for each region.
        state_initials: state name to the stored tensor it starts from.
        guards: conditions on sizes that the code takes for granted, beyond those of the signature.
    """

    buffers: list[Buffer]
    steps: list[Step]
    plans: list[KernelPlan]
    weights: Mapping[str, StoredWeight]
    ledger: list[LedgerEntry]
    state_initials: dict[str, str] = field(default_factory=dict[str, str])
    guards: list[Guard] = field(default_factory=list[Guard])


def build_schedule(
    module: ir.Module,
    signature: Signature,
    weights: WeightStore,
    select: Select,
    cpu: CpuFeatures,
    on_progress: Callable[[str], None] | None = None,
) -> Schedule:
    """Plans every region of a fused module and lays out its steps.

    Args:
        module: stage ``fused``; it is not changed.
        signature: of the program.
        weights: the data behind ``lk.weight``; nothing of it is read.
        select: chooses a kernel for a region.
        cpu: the level to plan for.
        on_progress: called with a line for people.

    Raises:
        UnsupportedError: LK4001/LK4002, an op has no kernel, or a shape depends on data.
        CodegenError: LK5001/LK5002, a kernel cannot be planned, or the module is not fused.
    """
    builder = Walker(module, signature, weights, select, cpu, on_progress)
    with module.context, ir.Location.unknown():
        return builder.build()


class Walker:
    """Walks functions: ``@main``, and where control flow calls others, those in place of the call.

    Attributes:
        draft: the step table so far.
        shapes: of the values of the function that is walked.
    """

    def __init__(
        self,
        module: ir.Module,
        signature: Signature,
        weights: WeightStore,
        select: Select,
        cpu: CpuFeatures,
        on_progress: Callable[[str], None] | None,
    ) -> None:
        self.functions = {
            ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation.regions[0].blocks[0]
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        if "main" not in self.functions:
            raise CodegenError("LK5002", "the fused module has no function @main")
        self.signature = signature
        self.on_progress = on_progress
        self.store = weights
        self.draft = StepDraft(WeightTable(weights))
        self.shapes = ShapeTable({})
        self._sources: dict[ir.Value, Source] = {}
        self._own_buffers = 0
        self._state_buffers: dict[str, int] = {}
        self._incarnations: set[ir.Value] = set()
        self._conditions = ExtentConditions()
        self._planner = RegionPlanner([op.operation for op in self.functions["main"].operations], select, cpu)

    def build(self) -> Schedule:
        """Walks ``@main`` and settles its results."""
        arguments = list(self.functions["main"].arguments)
        shapes = [tuple(spec.shape) for spec in self.signature.inputs]
        inputs = [
            Source(self.draft.add(Buffer("input", byte_size(argument.type, shape), index=number)))
            for number, (argument, shape) in enumerate(zip(arguments, shapes, strict=True))
        ]
        results, result_extents = self.walk("main", inputs, shapes)
        returned = list(self.functions["main"].operations)[-1].operation
        self._conditions.add_results(self.signature, result_extents, step_place(returned)[1])
        for number, result in enumerate(results):
            self._return(result, number, returned)
        draft = self.draft
        initials = {
            spec.name: draft.weights.plain(spec.name) for spec in self.signature.states if spec.name in self.store
        }
        return Schedule(
            with_liveness(draft.buffers, draft.steps, draft.loops),
            draft.steps,
            draft.plans,
            draft.weights.entries,
            draft.ledger,
            initials,
            self._conditions.added_guards(self.signature),
        )

    def walk(
        self, function: str, arguments: Sequence[Source], shapes: Sequence[Shape]
    ) -> tuple[list[Source], list[Shape]]:
        """Adds the steps of a function; returns where its results live, and their shapes."""
        block = self.functions[function]
        outer_shapes, outer_buffers = self.shapes, self._own_buffers
        self.shapes = ShapeTable(dict(zip(block.arguments, shapes, strict=True)))
        self._own_buffers = len(self.draft.buffers)
        self._sources.update(zip(block.arguments, arguments, strict=True))
        operations = checks_first([op.operation for op in block.operations])
        for position, op in enumerate(operations[:-1]):
            self._operation(op, operations[position + 1 :])
        returned = list(operations[-1].operands)
        results = [self._sources[value] for value in returned], [self.shapes.shape(value) for value in returned]
        self.shapes, self._own_buffers = outer_shapes, outer_buffers
        return results

    def source(self, value: ir.Value) -> Source:
        """Returns where a value lives."""
        return self._sources[value]

    def buffer(self, source: Source) -> int:
        """Returns the buffer of a source; a weight gets one, in the layout that it has."""
        return self.draft.stored(self.draft.weights.plain(source.weight)) if source.weight else source.buffer

    def define(self, values: Sequence[ir.Value], buffers: Sequence[int], shapes: Sequence[Shape]) -> None:
        """States where values live and what shapes they have."""
        self.shapes.define(values, shapes)
        self._sources.update((value, Source(buffer)) for value, buffer in zip(values, buffers, strict=True))

    def _operation(self, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
        if op.name == "lk.region":
            self._region(op, rest)
        elif op.name == "lk.weight":
            self._sources[op.results[0]] = Source(weight=ir.StringAttr(op.attributes["symbol"]).value)
        elif op.name in VIEW_OPS:
            self._sources[op.results[0]] = self._sources[op.operands[0]]
            self._conditions.add_view(op, self.shapes)
        elif op.name == "lk.state_read":
            self._state_read(op, rest)
        elif op.name == "lk.state_write":
            state = self._state(ir.StringAttr(op.attributes["symbol"]).value, op)
            if self._buffer_of(op.operands[0]) != state:  # else an update has changed it in place
                self.draft.copy(self._buffer_of(op.operands[0]), state, op)
        elif op.name == "lk.check_indices":
            check(self, op)
        elif op.name == "lk.cond":
            branch(self, op)
        elif op.name == "lk.while":
            loop(self, op)
        elif op.name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
            literal = self.draft.weights.constant(literal_array(op))
            self._sources[op.results[0]] = Source(self.draft.stored(literal))
        elif op.name not in _IGNORED and not op.name.startswith("arith."):
            raise CodegenError(
                "LK5002", f"{op.name} stands outside of a region", op=op.name, location=step_place(op)[1] or None
            )

    # --- regions --------------------------------------------------------------------------------------------------

    def _region(self, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
        name, location = step_place(op)
        operands = list(op.operands)
        sources = [self._sources[operand] for operand in operands]
        if self.on_progress is not None:
            self.on_progress(f"planning {name}")
        refuse_tables_of_extents(op)
        view, selection = self._planner.plan(op, [source.weight for source in sources])
        plan = selection.plan
        shapes = [self.shapes.shape(operand) for operand in operands]
        results = result_shapes(view, shapes)
        self._conditions.add_region(view, shapes, location)
        self.shapes.define(op.results, results)
        used = [
            self.draft.packed(source, shape, plan, number) if number in plan.packings else self._buffer_of(operand)
            for number, (operand, source, shape) in enumerate(zip(operands, sources, shapes, strict=True))
        ]
        moved = [self.draft.size(buffer) for buffer in used]
        for number, value in enumerate(op.results):
            target = plan.in_place.get(number)
            if target is None:
                buffer = self._arena(value)
                moved.append(self.draft.size(buffer))
            else:
                buffer = self._updated(op, target, value, rest)
                moved[target] = 0
            self._sources[value] = Source(buffer)
            used.append(buffer)
        dims = dynamic_dims([*(operand.type for operand in operands), *(v.type for v in op.results)], shapes + results)
        kind = view.kind
        flops = op.opview.flops()  # type: ignore[attr-defined]
        refusals = tuple((family, refusal.reason) for family, refusal in selection.refusals)
        step = len(self.draft.steps)
        self.draft.ledger.append(LedgerEntry(step, name, kind, location, plan.family, plan.note, refusals))
        self.draft.steps.append(
            Step(
                kernel=self.draft.kernel(plan),
                buffers=used,
                dims=dims,
                tasks=substitute(plan.task_count, {}, dims),
                scratch_bytes=substitute(plan.scratch_bytes, {}, dims),
                name=name,
                kind=kind,
                family=plan.family,
                location=location,
                flops=flops if flops is not None else region_flops(view, shapes),
                bytes=total(moved if not plan.in_place else moved * 2),
            )
        )

    def _updated(self, op: ir.Operation, target: int, result: ir.Value, rest: Sequence[ir.Operation]) -> int:
        """The buffer that an update changes: its operand's own where nobody needs the old value, else a copy."""
        source = self._buffer_of(op.operands[target])
        kind = self.draft.buffers[source].kind
        old = [value for value, known in self._sources.items() if known.buffer == source]
        others = [value for number, value in enumerate(op.operands) if number != target]
        in_state = result in self._incarnations and not may_end_the_run(rest, self.functions)
        own = (kind == "arena" and source >= self._own_buffers) or (kind == "state" and in_state)
        if own and not any(value in old for value in others) and not is_read_later(old, rest):
            return source
        copy = self._arena(result)
        self.draft.copy(source, copy, op)
        return copy

    # --- values ---------------------------------------------------------------------------------------------------

    def _arena(self, value: ir.Value) -> int:
        return self.draft.add(Buffer("arena", byte_size(value.type, self.shapes.shape(value))))

    def _buffer_of(self, value: ir.Value) -> int:
        return self.buffer(self._sources[value])

    # --- states and results ---------------------------------------------------------------------------------------

    def _state(self, symbol: str, op: ir.Operation) -> int:
        if symbol not in self._state_buffers:
            names = [spec.name for spec in self.signature.states]
            if symbol not in names:
                raise CodegenError("LK5002", f"the signature has no state {symbol!r}", op=op.name)
            value = op.results[0] if len(op.results) else op.operands[0]
            buffer = Buffer("state", byte_size(value.type, self.shapes.shape(value)), index=names.index(symbol))
            self._state_buffers[symbol] = self.draft.add(buffer)
        return self._state_buffers[symbol]

    def _state_read(self, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
        """The state itself where it is not overwritten while the value is in use, else a copy."""
        symbol = ir.StringAttr(op.attributes["symbol"]).value
        state = self._state(symbol, op)
        value = op.results[0]
        self._incarnations |= incarnations(op, rest)
        if overwritten_in_use(value, symbol, rest):
            copy = self._arena(value)
            self.draft.copy(state, copy, op)
            state = copy
        self._sources[value] = Source(state)

    def _return(self, result: Source, number: int, op: ir.Operation) -> None:
        """A result that a step computed becomes an output; all others are copied."""
        buffer = self.buffer(result)
        size = self.draft.size(buffer)
        if self.draft.buffers[buffer].kind == "arena":
            self.draft.buffers[buffer] = Buffer("output", size, index=number)
        else:
            self.draft.copy(buffer, self.draft.add(Buffer("output", size, index=number)), op)
