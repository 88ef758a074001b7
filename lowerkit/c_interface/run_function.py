"""LLVM IR of ``NAME_run`` and ``NAME_reset``: the step table of an artifact as calls of its kernels.

Vocabulary
    arguments  the struct of the header: slots of eight bytes, in the order of :class:`Arguments`
    bases      arena, states, inputs, outputs: pointers of the arguments; weights and code lie in the object itself

``int NAME_run(const NAME_arguments *)``: checks dims, guards and pointers, then for each step stores its dims and the
pointers of its buffers on the stack and calls its kernel: over all tasks at once, or through the caller's ``parallel``.
Jumps of the step table become branches between blocks, one block a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowerkit.c_interface.guard_checks import failures
from lowerkit.c_interface.index_check_ir import SEARCH
from lowerkit.c_interface.layout import Layout
from lowerkit.c_interface.runtime_ir import SHARED
from lowerkit.runtimes.expressions import Expr
from lowerkit.runtimes.manifest import (
    CHECK_KERNEL,
    COPY_KERNEL,
    ITEM_SIZES,
    JUMP_KERNEL,
    IndexCheck,
    ProgramSpec,
    Signature,
    Step,
)

BAD_DIM, NULL_POINTER, BAD_INDEX = 1, 2, 3
"""What ``NAME_run`` returns beside 0."""


@dataclass(frozen=True)
class Arguments:
    """Slot numbers of the struct of arguments; -1 where there is none."""

    dims: dict[str, int]
    inputs: list[int]
    outputs: list[int]
    state: int
    arena: int
    parallel: int
    pool: int
    bad_index: int

    @classmethod
    def of(cls, signature: Signature) -> Arguments:
        """Numbers the slots: dims, inputs, outputs, state (where there are any), arena, parallel, pool, bad_index."""
        dims = {dim.name: number for number, dim in enumerate(signature.dims)}
        inputs = [len(dims) + number for number in range(len(signature.inputs))]
        outputs = [len(dims) + len(inputs) + number for number in range(len(signature.outputs))]
        next_slot = len(dims) + len(inputs) + len(outputs)
        state = next_slot if signature.states else -1
        next_slot += bool(signature.states)
        return cls(dims, inputs, outputs, state, next_slot, next_slot + 1, next_slot + 2, next_slot + 3)


@dataclass
class _Writer:
    lines: list[str] = field(default_factory=list[str])
    count: int = 0

    def value(self, text: str) -> str:
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def offset(self, pointer: str, offset: str) -> str:
        return pointer if offset == "0" else self.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")


_MINMAX = {"min": "smin", "max": "smax"}
_PLAIN = {"add": "add", "sub": "sub", "mul": "mul"}


class RunFunction:
    """Writes the IR of a model.

    Args:
        name: prefix of every symbol.
        program: of the artifact.
        layout: its memory.
        weight_offsets: weight name -> offset in ``@NAME_weights``.
    """

    def __init__(self, name: str, program: ProgramSpec, layout: Layout, weight_offsets: dict[str, int]) -> None:
        self.name = name
        self.program = program
        self.layout = layout
        self.weight_offsets = weight_offsets
        self.arguments = Arguments.of(program.signature)
        self.writer = _Writer()
        self.known: dict[Expr, str] = {}

    def text(self) -> str:
        """Returns the IR of both functions and of what they need."""
        checked = any(step.check is not None for step in self.program.steps)
        shared = SHARED.format(name=self.name, scratch=self.layout.scratch_bytes)
        return shared + (SEARCH.format(name=self.name) if checked else "") + self._run() + self._reset()

    def _run(self) -> str:
        writer = self.writer = _Writer()
        most_buffers = max((len(step.buffers) for step in self.program.steps), default=1)
        most_dims = max((len(_dims(step)) for step in self.program.steps), default=1)
        writer.line(f"%buffers = alloca [{max(1, most_buffers)} x ptr], align 8")
        writer.line(f"%dims = alloca [{max(1, most_dims)} x i64], align 8")
        arguments = self.arguments
        for dim, (low, high) in self.layout.ranges.items():
            found = self._slot(arguments.dims[dim], "i64")
            self.known[dim] = found
            below = writer.value(f"icmp slt i64 {found}, {low}")
            above = writer.value(f"icmp sgt i64 {found}, {high}")
            self._leave_if(writer.value(f"or i1 {below}, {above}"), BAD_DIM)
        for guard in self.program.signature.guards:
            for failed in failures(guard.condition, self._expression, writer.value):
                self._leave_if(failed, BAD_DIM)
        self.inputs = [self._slot(slot, "ptr") for slot in arguments.inputs]
        self.outputs = [self._slot(slot, "ptr") for slot in arguments.outputs]
        self.state = self._slot(arguments.state, "ptr") if arguments.state >= 0 else ""
        self.arena = self._slot(arguments.arena, "ptr")
        needed = [*self.inputs, *self.outputs, *([self.state] if self.state else [])]
        needed += [self.arena] if self.layout.arena_bytes + self.layout.scratch_bytes else []
        for pointer in needed:
            self._leave_if(writer.value(f"icmp eq ptr {pointer}, null"), NULL_POINTER)
        self.parallel, self.pool = self._slot(arguments.parallel, "ptr"), self._slot(arguments.pool, "ptr")
        self.scratch = writer.offset(self.arena, str(self.layout.arena_bytes))
        self.checks = 0
        checked = any(step.check is not None for step in self.program.steps)
        self.bad_index = self._slot(arguments.bad_index, "ptr") if checked else ""
        steps = self.program.steps
        if any(step.kernel == JUMP_KERNEL for step in steps):
            self._steps_with_jumps(steps)
        else:
            for step in steps:
                self._step(step)
        body = "\n".join(writer.lines)
        return f"define i32 @{self.name}_run(ptr %arguments) {{\n{body}\n  ret i32 0\n}}\n"

    def _slot(self, number: int, kind: str) -> str:
        pointer = self.writer.offset("%arguments", str(8 * number))
        return self.writer.value(f"load {kind}, ptr {pointer}, align 8")

    def _leave_if(self, condition: str, status: int) -> None:
        writer = self.writer
        writer.count += 1
        leave, stay = f"leave{writer.count}", f"stay{writer.count}"
        writer.line(f"br i1 {condition}, label %{leave}, label %{stay}")
        writer.lines += [f"{leave}:", f"  ret i32 {status}", f"{stay}:"]

    def _steps_with_jumps(self, steps: Sequence[Step]) -> None:
        """Writes a block for each step; what expressions the steps need is computed ahead of all of them."""
        writer = self.writer
        for step in steps:
            for number in step.buffers:
                self._pointer(number)
            if step.kernel in (COPY_KERNEL, CHECK_KERNEL):
                self._expression(self.program.buffers[step.buffers[0]].size)
            for expression in (*_dims(step), step.tasks):
                self._expression(expression)
        for number, step in enumerate(steps):
            writer.line(f"br label %step{number}")
            writer.lines.append(f"step{number}:")
            if step.kernel != JUMP_KERNEL:
                self._step(step)
                continue
            if step.buffers:
                byte = writer.value(f"load i8, ptr {self._pointer(step.buffers[0])}, align 1")
                goes_on = writer.value(f"icmp ne i8 {byte}, 0")
                writer.line(f"br i1 {goes_on}, label %behind{number}, label %step{step.target}")
            else:
                writer.line(f"br label %step{step.target}")
            writer.lines.append(f"behind{number}:")
        writer.line(f"br label %step{len(steps)}")
        writer.lines.append(f"step{len(steps)}:")

    def _step(self, step: Step) -> None:
        writer = self.writer
        pointers = [self._pointer(number) for number in step.buffers]
        if step.kernel == COPY_KERNEL:
            size = self._expression(self.program.buffers[step.buffers[0]].size)
            writer.line(
                f"call void @llvm.memmove.p0.p0.i64(ptr {pointers[1]}, ptr {pointers[0]}, i64 {size}, i1 false)"
            )
            return
        if step.check is not None:
            self._check(step, step.check, pointers[0])
            return
        for number, pointer in enumerate(pointers):
            writer.line(f"store ptr {pointer}, ptr {writer.offset('%buffers', str(8 * number))}, align 8")
        for number, dim in enumerate(step.dims):
            value = self._expression(dim)
            writer.line(f"store i64 {value}, ptr {writer.offset('%dims', str(8 * number))}, align 8")
        kernel = writer.offset(f"@{self.name}_code", str(self.program.kernels[step.kernel].offset))
        writer.line(
            f"call void @{self.name}_dispatch(ptr {kernel}, ptr %buffers, ptr %dims, "
            f"i64 {self._expression(step.tasks)}, ptr {self.scratch}, ptr {self.parallel}, ptr {self.pool})"
        )

    def _check(self, step: Step, check: IndexCheck, indices: str) -> None:
        """Leaves with :data:`BAD_INDEX` where an index is out of range; says which where the caller wants to know."""
        writer = self.writer
        for number, extent in enumerate(check.extents):
            value = self._expression(extent)
            writer.line(f"store i64 {value}, ptr {writer.offset('%dims', str(8 * number))}, align 8")
        item, count = ITEM_SIZES[check.dtype], len(check.extents)
        size = self._expression(self.program.buffers[step.buffers[0]].size)
        exempt = "i1 false, i64 0" if check.exempt is None else f"i1 true, i64 {check.exempt}"
        elements = writer.value(f"sdiv i64 {size}, {item}")
        fault = writer.value(
            f"call i64 @{self.name}_first_fault(ptr {indices}, i64 {elements}, i64 {item}, "
            f"i1 {str(check.wraps).lower()}, {exempt}, ptr %dims, i64 {count})"
        )
        found = writer.value(f"icmp sge i64 {fault}, 0")
        wanted = writer.value(f"icmp ne ptr {self.bad_index}, null")
        writer.count += 1
        labels = [f"{label}{writer.count}" for label in ("fault", "told", "leave", "stay")]
        writer.line(f"br i1 {found}, label %{labels[0]}, label %{labels[3]}")
        writer.lines.append(f"{labels[0]}:")
        writer.line(f"br i1 {wanted}, label %{labels[1]}, label %{labels[2]}")
        writer.lines.append(f"{labels[1]}:")
        index = writer.value(f"call i64 @{self.name}_index(ptr {indices}, i64 {fault}, i64 {item})")
        which = writer.value(f"srem i64 {fault}, {count}")
        extent = writer.value(f"load i64, ptr {writer.value(f'getelementptr i64, ptr %dims, i64 {which}')}, align 8")
        for number, value in enumerate((str(self.checks), fault, index, extent)):
            writer.line(f"store i64 {value}, ptr {writer.offset(self.bad_index, str(8 * number))}, align 8")
        writer.line(f"br label %{labels[2]}")
        writer.lines += [f"{labels[2]}:", f"  ret i32 {BAD_INDEX}", f"{labels[3]}:"]
        self.checks += 1

    def _pointer(self, number: int) -> str:
        place = self.layout.places[number]
        match place.kind:
            case "weight":
                base, start = f"@{self.name}_weights", self.weight_offsets[place.weight]
            case "state":
                base, start = self.state, place.start
            case "input":
                base, start = self.inputs[place.index], 0
            case "output":
                base, start = self.outputs[place.index], 0
            case _:
                base, start = self.arena, place.start
        return self.writer.offset(base, self._expression(("add", place.offset, start) if start else place.offset))

    def _expression(self, expr: Expr) -> str:
        """Returns a constant or the SSA name of the value of ``expr``; each is computed once."""
        if isinstance(expr, int):
            return str(expr)
        if expr in self.known:
            return self.known[expr]
        assert not isinstance(expr, str), "every dim was loaded first"
        assert len(expr) == 3, "a manifest holds no kernel dims"
        operator, left, right = expr[0], self._expression(expr[1]), self._expression(expr[2])
        writer = self.writer
        if operator in _PLAIN:
            if left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
                a, b = int(left), int(right)
                return str({"add": a + b, "sub": a - b, "mul": a * b}[operator])
            found = writer.value(f"{_PLAIN[operator]} i64 {left}, {right}")
        elif operator in _MINMAX:
            found = writer.value(f"call i64 @llvm.{_MINMAX[operator]}.i64(i64 {left}, i64 {right})")
        else:
            found = writer.value(f"call i64 @{self.name}_{operator}(i64 {left}, i64 {right})")
        self.known[expr] = found
        return found

    def _reset(self) -> str:
        """Returns ``void NAME_reset(void *state)``, where the model has states."""
        if not self.program.signature.states:
            return ""
        lines: list[str] = []
        for number, spec in enumerate(self.program.signature.states):
            start = self.layout.state_starts[number]
            ends = [*self.layout.state_starts[number + 1 :], self.layout.state_bytes]
            target = f"%s{number}"
            lines.append(f"  {target} = getelementptr i8, ptr %state, i64 {start}")
            initial = self.program.state_initials.get(spec.name)
            if initial is None:
                lines.append(f"  call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {ends[0] - start}, i1 false)")
            else:
                size = next(b.size for b in self.program.buffers if b.kind == "state" and b.index == number)
                source = f"getelementptr (i8, ptr @{self.name}_weights, i64 {self.weight_offsets[initial]})"
                lines.append(f"  call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")
        body = "\n".join(lines)
        return f"define void @{self.name}_reset(ptr %state) {{\n{body}\n  ret void\n}}\n"


def _dims(step: Step) -> list[Expr]:
    """What a step has in its array of dims."""
    return step.dims if step.check is None else step.check.extents
