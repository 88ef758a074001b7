"""The step table: a fused module as buffers, kernel plans and the steps that call them, in program order.

Vocabulary
    buffer   memory that a value lives in. A view is the buffer it looks at; a result that the function returns is
             written straight into the output.
    step     one kernel call, or a copy (results that are inputs, weights, states, or returned twice).
    ledger   for every region which family took it, and why the ones before it did not.
    memory   the host's, or that of an accelerator, whose functions ``lk.call`` names. A value lives in one of them and
             is copied into another where it is read first.

Steps of the build: walk ``@main`` once; get the code of each region and called function (of equal ones once); make
buffers as values appear; settle the results; fill in liveness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lowerkit.codegen.accelerator_call import call
from lowerkit.codegen.collective import done, start
from lowerkit.codegen.control_flow import branch, loop
from lowerkit.codegen.extent_guards import ExtentConditions, refuse_tables_of_extents
from lowerkit.codegen.index_checks import check, checks_first
from lowerkit.codegen.literals import literal_array
from lowerkit.codegen.memory import VIEW_OPS, with_liveness
from lowerkit.codegen.places import Places
from lowerkit.codegen.region_planner import RegionPlanner
from lowerkit.codegen.shapes import Shape, ShapeTable, dynamic_dims, result_shapes
from lowerkit.codegen.states import read_state, state_homes, write_state
from lowerkit.codegen.step_draft import PlannedCode, Source, StepDraft, byte_size, total
from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.updates import updated_buffer
from lowerkit.codegen.weight_table import StoredWeight, WeightTable
from lowerkit.codegen.work import region_flops
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.passes.function_by_function import target_of
from lowerkit.runtimes.expressions import substitute
from lowerkit.runtimes.manifest import HOST, Buffer, Guard, Signature, Step
from lowerkit.targets.ledger import Compile, LedgerEntry

_IGNORED = (
    "tensor.dim", "tensor.empty", "tensor.from_elements", "tensor.extract", "affine.apply", "affine.min", "affine.max",
)  # fmt: skip


@dataclass
class Schedule:
    """The step table and what it refers to.

    Attributes:
        buffers, steps: as in the manifest; ``Step.kernel`` indexes ``plans``.
        plans: the code, each payload once.
        weights: the stored tensors by name.
        ledger: one entry for each region.
        state_initials: state name to the stored tensor it starts from.
        guards: conditions on sizes that the code takes for granted, beyond those of the signature.
    """

    buffers: list[Buffer]
    steps: list[Step]
    plans: list[PlannedCode]
    weights: Mapping[str, StoredWeight]
    ledger: list[LedgerEntry]
    state_initials: dict[str, str] = field(default_factory=dict[str, str])
    guards: list[Guard] = field(default_factory=list[Guard])


def build_schedule(
    module: ir.Module,
    signature: Signature,
    table: WeightTable,
    compilers: Mapping[str, Compile],
    on_progress: Callable[[str], None] | None = None,
) -> Schedule:
    """Gets the code of every region of a fused module and lays out its steps.

    Args:
        module: stage ``fused``; it is not changed.
        signature: of the program.
        table: where the data behind ``lk.weight`` are stored; nothing of it is read.
        compilers: makes the code of a region of the host (:data:`HOST`), of a function or region of an accelerator.
        on_progress: called with a line for people.

    Raises:
        UnsupportedError: LK4001/LK4002, an op has no kernel, or a shape depends on data.
        CodegenError: LK5001/LK5002, a kernel cannot be planned, or the module is not fused.
    """
    builder = Walker(module, signature, table, compilers, on_progress)
    with module.context, ir.Location.unknown():
        return builder.build()


class Walker:
    """Walks functions: ``@main``, and where control flow calls others, those in place of the call.

    Attributes:
        draft: the step table so far.
        shapes: of the values of the function that is walked.
        places: where values live.
        conditions: on extents, that the code takes for granted.
        compilers: what makes code, by memory.
        memory: that of the function that is walked.
        operations, functions: the functions of the module and their bodies, by name.
        state_buffers: of states that were met, by name.
        state_homes: the memory of each state that lives with an accelerator, by name.
        own_buffers: the number of the first buffer of the function that is walked.
        incarnations: values that a state takes, which may live in its memory.
    """

    def __init__(
        self,
        module: ir.Module,
        signature: Signature,
        table: WeightTable,
        compilers: Mapping[str, Compile],
        on_progress: Callable[[str], None] | None,
    ) -> None:
        self.operations = {
            ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
            for op in module.body.operations
            if op.operation.name == "func.func"
        }
        self.functions = {name: op.regions[0].blocks[0] for name, op in self.operations.items()}
        if "main" not in self.functions:
            raise CodegenError("LK5002", "the fused module has no function @main")
        self.signature = signature
        self.on_progress = on_progress
        self.store = table.store
        self.draft = StepDraft(table)
        self.shapes = ShapeTable({})
        self.places = Places(self.draft)
        self.own_buffers = 0
        self.state_buffers: dict[str, int] = {}
        self.incarnations: set[ir.Value] = set()
        self.conditions = ExtentConditions()
        self.memory = HOST
        self.compilers = compilers
        operations = [op.operation for op in self.functions["main"].operations]
        self.state_homes: Mapping[str, str] = state_homes(operations, self._memory_of)
        self._planners = {name: RegionPlanner(operations, make) for name, make in compilers.items()}

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
        self.conditions.add_results(self.signature, result_extents, step_place(returned)[1])
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
            self.conditions.added_guards(self.signature),
        )

    def walk(
        self,
        function: str,
        arguments: Sequence[Source],
        shapes: Sequence[Shape],
        after: Sequence[ir.Operation] = (),
    ) -> tuple[list[Source], list[Shape]]:
        """Adds the steps of a function; returns where its results live, and their shapes.

        ``after``: the ops behind its call, where those may read what it changes in place.
        """
        block = self.functions[function]
        outer_shapes, outer_buffers, outer_copies = self.shapes, self.own_buffers, self.places.copies
        self.shapes = ShapeTable(dict(zip(block.arguments, shapes, strict=True)))
        self.places.copies = {}
        self.own_buffers = len(self.draft.buffers)
        self.places.sources.update(zip(block.arguments, arguments, strict=True))
        operations = checks_first([op.operation for op in block.operations])
        for position, op in enumerate(operations[:-1]):
            self._operation(op, [*operations[position + 1 :], *after])
        returned = list(operations[-1].operands)
        where = self.places.sources.__getitem__ if function == "main" or self.memory != HOST else self.source
        results = [where(value) for value in returned], [self.shapes.shape(value) for value in returned]
        self.shapes, self.own_buffers, self.places.copies = outer_shapes, outer_buffers, outer_copies
        return results

    def source(self, value: ir.Value) -> Source:
        """Returns where a value lives in the memory of the host."""
        return self.places.on_host(value)

    def buffer(self, source: Source) -> int:
        """Returns the buffer of a source; a weight gets one, in the layout that it has."""
        return self.places.buffer(source)

    def arena(self, value: ir.Value, memory: str) -> int:
        """Adds a temporary buffer for a value in a memory."""
        return self.draft.add(Buffer("arena", byte_size(value.type, self.shapes.shape(value)), memory=memory))

    def define(self, values: Sequence[ir.Value], buffers: Sequence[int], shapes: Sequence[Shape]) -> None:
        """States where values live and what shapes they have."""
        self.shapes.define(values, shapes)
        self.places.sources.update((value, Source(buffer)) for value, buffer in zip(values, buffers, strict=True))

    def _operation(self, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
        if op.name == "lk.region":
            self._region(op, rest)
        elif op.name == "lk.call":
            call(self, op, rest)
        elif op.name == "lk.weight":
            self.places.sources[op.results[0]] = Source(weight=ir.StringAttr(op.attributes["symbol"]).value)
        elif op.name in VIEW_OPS:
            self.places.sources[op.results[0]] = self.places.sources[op.operands[0]]
            self.conditions.add_view(op, self.shapes)
        elif op.name == "lk.state_read":
            read_state(self, op, rest)
        elif op.name == "lk.state_write":
            write_state(self, op)
        elif op.name == "lk.check_indices":
            check(self, op)
        elif op.name == "lk.collective_start":
            start(self, op)
        elif op.name == "lk.collective_done":
            done(self, op)
        elif op.name == "lk.cond":
            branch(self, op)
        elif op.name == "lk.while":
            loop(self, op)
        elif op.name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
            literal = self.draft.weights.constant(literal_array(op))
            self.places.sources[op.results[0]] = Source(self.draft.stored(literal))
        elif op.name not in _IGNORED and not op.name.startswith("arith."):
            raise CodegenError(
                "LK5002", f"{op.name} stands outside of a region", op=op.name, location=step_place(op)[1] or None
            )

    # --- regions --------------------------------------------------------------------------------------------------

    def _region(self, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
        name, location = step_place(op)
        operands = list(op.operands)
        sources = [self.places.sources[operand] for operand in operands]
        if self.on_progress is not None:
            self.on_progress(f"planning {name}")
        refuse_tables_of_extents(op)
        view, plan = self._planners[self.memory].plan(op, [source.weight for source in sources])
        shapes = [self.shapes.shape(operand) for operand in operands]
        results = result_shapes(view, shapes)
        self.conditions.add_region(view, shapes, location)
        self.shapes.define(op.results, results)
        used = [
            self.draft.packed(source, shape, plan, number, self.memory)
            if number in plan.packings
            else self.places.buffer_of(operand, self.memory)
            for number, (operand, source, shape) in enumerate(zip(operands, sources, shapes, strict=True))
        ]
        moved = [self.draft.size(buffer) for buffer in used]
        for number, value in enumerate(op.results):
            target = plan.in_place.get(number)
            if target is None:
                buffer = self.arena(value, self.memory)
                moved.append(self.draft.size(buffer))
            else:
                buffer = updated_buffer(self, op, target, value, rest, self.memory)
                moved[target] = 0
            self.places.sources[value] = Source(buffer)
            used.append(buffer)
        dims = dynamic_dims([*(operand.type for operand in operands), *(v.type for v in op.results)], shapes + results)
        kind = view.kind
        flops = op.opview.flops()  # type: ignore[attr-defined]
        step = len(self.draft.steps)
        self.draft.ledger.append(
            LedgerEntry(step, name, kind, location, plan.family, plan.note, plan.refusals, self.memory)
        )
        self.draft.steps.append(
            Step(
                kernel=self.draft.kernel(plan, self.memory),
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

    def _memory_of(self, op: ir.Operation) -> str:
        """The memory that an ``lk.call`` runs in."""
        function = self.operations.get(ir.StringAttr(op.attributes["callee"]).value)
        return target_of(function) if function is not None else HOST

    def _return(self, result: Source, number: int, op: ir.Operation) -> None:
        """A result that a step computed becomes an output; all others are copied."""
        buffer = self.buffer(result)
        size = self.draft.size(buffer)
        if self.draft.buffers[buffer].kind == "arena" and self.draft.buffers[buffer].memory == HOST:
            self.draft.buffers[buffer] = Buffer("output", size, index=number)
        else:
            self.draft.copy(buffer, self.draft.add(Buffer("output", size, index=number)), op)
