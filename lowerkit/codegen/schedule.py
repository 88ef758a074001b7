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

from lowerkit.codegen.kernel import KernelPlan
from lowerkit.codegen.ledger import LedgerEntry, Select, Selection
from lowerkit.codegen.literals import literal_array
from lowerkit.codegen.memory import VIEW_OPS, overwritten_in_use, with_liveness
from lowerkit.codegen.region_view import RegionView
from lowerkit.codegen.shapes import Shape, ShapeTable, dynamic_dims, result_shapes
from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.weight_table import StoredWeight, WeightTable
from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import Expr, simplify, substitute
from lowerkit.runtimes.manifest import COPY_KERNEL, ITEM_SIZES, Buffer, Signature, Step

if TYPE_CHECKING:
    from lowerkit.capture.weights import WeightStore
    from lowerkit.codegen.cpu.features import CpuFeatures

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
    """

    buffers: list[Buffer]
    steps: list[Step]
    plans: list[KernelPlan]
    weights: Mapping[str, StoredWeight]
    ledger: list[LedgerEntry]
    state_initials: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class _Source:
    """Where a value lives: a buffer, or a weight that has no buffer before somebody reads it."""

    buffer: int = -1
    weight: str = ""


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
    builder = _Builder(module, signature, weights, select, cpu, on_progress)
    with module.context, ir.Location.unknown():
        return builder.build()


class _Builder:
    def __init__(
        self,
        module: ir.Module,
        signature: Signature,
        weights: WeightStore,
        select: Select,
        cpu: CpuFeatures,
        on_progress: Callable[[str], None] | None,
    ) -> None:
        functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
        main = next((op for op in functions if ir.StringAttr(op.attributes["sym_name"]).value == "main"), None)
        if main is None:
            raise CodegenError("LK5002", "the fused module has no function @main")
        self.block = main.regions[0].blocks[0]
        self.signature = signature
        self.select = select
        self.cpu = cpu
        self.on_progress = on_progress
        self.store = weights
        self.weights = WeightTable(weights)
        arguments = list(self.block.arguments)
        self.shapes = ShapeTable(
            {argument: spec.shape for argument, spec in zip(arguments, signature.inputs, strict=True)}
        )
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.plans: list[KernelPlan] = []
        self.ledger: list[LedgerEntry] = []
        self._sources: dict[ir.Value, _Source] = {}
        self._weight_buffers: dict[str, int] = {}
        self._state_buffers: dict[str, int] = {}
        self._selections: dict[tuple[object, ...], Selection] = {}
        self._views: dict[tuple[str, str], RegionView] = {}
        self._plan_numbers: dict[str, int] = {}
        for number, argument in enumerate(arguments):
            buffer = self._add(Buffer("input", self._bytes(argument), index=number))
            self._sources[argument] = _Source(buffer)

    def build(self) -> Schedule:
        operations = [op.operation for op in self.block.operations]
        for position, op in enumerate(operations):
            if op.name == "lk.region":
                self._region(op)
            elif op.name == "lk.weight":
                self._sources[op.results[0]] = _Source(weight=ir.StringAttr(op.attributes["symbol"]).value)
            elif op.name in VIEW_OPS:
                self._sources[op.results[0]] = self._sources[op.operands[0]]
            elif op.name == "lk.state_read":
                self._state_read(op, operations[position + 1 :])
            elif op.name == "lk.state_write":
                state = self._state(ir.StringAttr(op.attributes["symbol"]).value, op)
                self._copy(self._buffer_of(op.operands[0]), state, op)
            elif op.name == "func.return":
                self._return(op)
            elif op.name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
                self._sources[op.results[0]] = _Source(self._stored(self.weights.constant(literal_array(op))))
            elif op.name not in _IGNORED and not op.name.startswith("arith."):
                raise CodegenError(
                    "LK5002", f"{op.name} stands outside of a region", op=op.name, location=step_place(op)[1] or None
                )
        initials = {
            spec.name: self.weights.plain(spec.name) for spec in self.signature.states if spec.name in self.store
        }
        return Schedule(
            with_liveness(self.buffers, self.steps),
            self.steps,
            self.plans,
            self.weights.entries,
            self.ledger,
            initials,
        )

    # --- regions --------------------------------------------------------------------------------------------------

    def _region(self, op: ir.Operation) -> None:
        name, location = step_place(op)
        operands = list(op.operands)
        sources = [self._sources[operand] for operand in operands]
        names = [source.weight for source in sources]
        view = RegionView.from_region(op, names, location=location, known=self._views)
        if self.on_progress is not None:
            self.on_progress(f"planning {view.kind} {name}")
        selection = self._selections.get(view.key)
        if selection is None:
            selection = self._selections[view.key] = self.select(view, self.cpu)
        plan = selection.plan
        shapes = [self.shapes.shape(operand) for operand in operands]
        results = result_shapes(view, shapes)
        self.shapes.define(op.results, results)
        used = [
            self._packed(source, shape, plan, number) if number in plan.packings else self._buffer_of(operand)
            for number, (operand, source, shape) in enumerate(zip(operands, sources, shapes, strict=True))
        ]
        for value in op.results:
            buffer = self._add(Buffer("arena", self._bytes(value)))
            self._sources[value] = _Source(buffer)
            used.append(buffer)
        dims = dynamic_dims([*(operand.type for operand in operands), *(v.type for v in op.results)], shapes + results)
        kind = view.kind
        self.ledger.append(
            LedgerEntry(
                len(self.steps),
                name,
                kind,
                location,
                plan.family,
                plan.note,
                tuple((family, refusal.reason) for family, refusal in selection.refusals),
            )
        )
        self.steps.append(
            Step(
                kernel=self._kernel(plan),
                buffers=used,
                dims=dims,
                tasks=substitute(plan.task_count, {}, dims),
                scratch_bytes=substitute(plan.scratch_bytes, {}, dims),
                name=name,
                kind=kind,
                family=plan.family,
                location=location,
                flops=op.opview.flops() or 0,  # type: ignore[attr-defined]
                bytes=_total([self.buffers[buffer].size for buffer in used]),
            )
        )

    def _kernel(self, plan: KernelPlan) -> int:
        number = self._plan_numbers.setdefault(plan.mlir, len(self.plans))
        if number == len(self.plans):
            self.plans.append(plan)
        return number

    def _packed(self, source: _Source, shape: Shape, plan: KernelPlan, number: int) -> int:
        if not source.weight:
            raise CodegenError("LK5002", f"family {plan.family} packs operand {number}, which is no weight")
        extents = [extent for extent in shape if isinstance(extent, int)]
        return self._stored(self.weights.packed(source.weight, extents, plan.packings[number]))

    # --- values ---------------------------------------------------------------------------------------------------

    def _add(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _bytes(self, value: ir.Value) -> Expr:
        element = str(ir.RankedTensorType(value.type).element_type)
        size: Expr = ITEM_SIZES[element]
        for extent in self.shapes.shape(value):
            size = simplify(("mul", size, extent))
        return size

    def _buffer_of(self, value: ir.Value) -> int:
        source = self._sources[value]
        return self._stored(self.weights.plain(source.weight)) if source.weight else source.buffer

    def _stored(self, name: str) -> int:
        if name not in self._weight_buffers:
            self._weight_buffers[name] = self._add(Buffer("weight", self.weights.entries[name].nbytes, weight=name))
        return self._weight_buffers[name]

    def _copy(self, source: int, destination: int, op: ir.Operation) -> None:
        name, location = step_place(op)
        size = self.buffers[destination].size
        self.steps.append(
            Step(
                kernel=COPY_KERNEL,
                buffers=[source, destination],
                name=name,
                kind="copy",
                family="copy",
                location=location,
                bytes=simplify(("mul", size, 2)),
            )
        )

    # --- states and results ---------------------------------------------------------------------------------------

    def _state(self, symbol: str, op: ir.Operation) -> int:
        if symbol not in self._state_buffers:
            names = [spec.name for spec in self.signature.states]
            if symbol not in names:
                raise CodegenError("LK5002", f"the signature has no state {symbol!r}", op=op.name)
            value = op.results[0] if len(op.results) else op.operands[0]
            buffer = Buffer("state", self._bytes(value), index=names.index(symbol))
            self._state_buffers[symbol] = self._add(buffer)
        return self._state_buffers[symbol]

    def _state_read(self, op: ir.Operation, rest: Sequence[ir.Operation]) -> None:
        """The state itself where it is not overwritten while the value is in use, else a copy."""
        symbol = ir.StringAttr(op.attributes["symbol"]).value
        state = self._state(symbol, op)
        value = op.results[0]
        if overwritten_in_use(value, symbol, rest):
            copy = self._add(Buffer("arena", self._bytes(value)))
            self._copy(state, copy, op)
            state = copy
        self._sources[value] = _Source(state)

    def _return(self, op: ir.Operation) -> None:
        """Results that a step computed become outputs; all others are copied."""
        for number, value in enumerate(op.operands):
            buffer = self._buffer_of(value)
            if self.buffers[buffer].kind == "arena":
                self.buffers[buffer] = Buffer("output", self.buffers[buffer].size, index=number)
                continue
            output = self._add(Buffer("output", self.buffers[buffer].size, index=number))
            self._copy(buffer, output, op)


def _total(sizes: Sequence[Expr]) -> Expr:
    total: Expr = 0
    for size in sizes:
        total = simplify(("add", total, size))
    return total
