"""atom and red. Threads take their turns in the order of their numbers: one of the orders that a card may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated.access import GENERIC, SPACES, Access, flat, take_order
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.byte_store import ByteStore
from lowerkit.runtimes.cuda.simulated.decoder import Function, InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.float_arithmetic import extreme, widened
from lowerkit.runtimes.cuda.simulated.races.keys import Order
from lowerkit.runtimes.cuda.simulated.rounding import canonical, narrow
from lowerkit.runtimes.cuda.simulated.scalar_types import BYTES, Array, computed, is_float, pairwise, unsigned

_TYPES: Mapping[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
# Types of the elements of vectors, which some cards change with one instruction.
_VECTOR_TYPES: Mapping[str, tuple[str, ...]] = {
    "add": ("f32", "f16", "bf16", "f16x2", "bf16x2"),
    "min": ("f16", "bf16", "f16x2", "bf16x2"),
    "max": ("f16", "bf16", "f16x2", "bf16x2"),
}
_LARGEST_VECTOR = 16  # bytes
_LOGIC: Mapping[str, Function] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def _incremented(old: Array, limit: Array) -> Array:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decremented(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _sum(kind: str) -> Function:
    half = kind.removesuffix("x2")
    if half == "bf16":
        function: Function = lambda a, b: narrow(widened(a) + widened(b), "bf16")  # noqa: E731
    elif half in ("f16", "f32"):
        function = lambda a, b: canonical(a + b)  # noqa: E731
    else:
        function = np.add
    return pairwise(function, kind) if kind != half else function


def operation_of(name: str, kind: str) -> Function:
    """Returns ``f(old, operands)``, the new value."""
    table: Mapping[str, Function] = {
        **_LOGIC,
        "min": np.minimum,
        "max": np.maximum,
        "inc": _incremented,
        "dec": _decremented,
        "exch": lambda _, value: value,
        "cas": lambda old, expected, value: np.where(old == expected, value, old),
    }
    if is_float(kind) and name in ("min", "max"):
        return extreme(kind, largest=name == "max")
    return _sum(kind) if name == "add" else table[name]


def _atomic(read: InstructionReader) -> Step:
    returns = read.instruction.opcode == "atom"
    order = take_order(read, "relaxed")
    read.drop("noftz")
    hint = read.flag("L2::cache_hint")
    read.drop_hints()
    name = read.required(*_TYPES)
    space = read.choice(*SPACES) or GENERIC
    vector = read.choice("v2", "v4", "v8")
    kind = read.kind(*(_TYPES[name] if vector is None else _VECTOR_TYPES.get(name, ())))
    read.finish()
    if space in ("const", "local"):
        raise read.unknown(f"modifier .{space}")
    first = 1 if returns else 0
    count = 2 if name == "cas" else 1
    read.count(first + 1 + count + hint)
    if hint:
        read.source(first + 1 + count, "b64")
    if vector is not None:
        return _vector(read, name, kind, int(vector[1:]), space, order)
    access = Access(read, first, space, BYTES[kind], "changes", order)
    sources = [read.source(first + 1 + number, kind) for number in range(count)]
    target = read.target(read.operand(0), kind) if returns else None
    operation, view, word = operation_of(name, kind), computed(kind), unsigned(BYTES[kind])

    def run(batch: Batch) -> None:
        threads = None if batch.active is None else batch.active_threads()
        operands = [flat(batch, batch.registers[slot], threads).view(view) for slot in sources]
        access.require_written(batch, threads)
        before = np.empty(operands[0].size, view)
        for store, offsets, which in access.places(batch, threads):
            mine = operands if which is None else [operand[which] for operand in operands]
            old = _apply(store, offsets, mine, operation)
            before[slice(None) if which is None else which] = old
            if batch.races is not None:
                numbers = batch.active_threads() if which is None else batch.active_threads()[which]
                access.tell_change(batch, store, offsets, numbers, old == mine[0] if name == "cas" else None)
        if target is not None:
            values = np.zeros(batch.shape, word)
            values.reshape(-1)[slice(None) if threads is None else threads] = before.view(word)
            batch.write(target, values)

    return run


def _vector(read: InstructionReader, name: str, kind: str, count: int, space: str, order: Order) -> Step:
    """Each element is changed on its own."""
    first = 1 if read.instruction.opcode == "atom" else 0
    size = BYTES[kind]
    if size * count > _LARGEST_VECTOR:
        raise read.unknown(f"a vector of {size * count} bytes")
    access = Access(read, first, space, size * count, "changes", order)
    sources = [read.value(part, kind) for part in read.parts(read.operand(first + 1))]
    targets = [read.target(part, kind) for part in read.parts(read.operand(0))] if first else []
    if len(sources) != count or len(targets) not in (0, count):
        raise read.unknown(f"a vector of {len(sources)}")
    operation, view, word = operation_of(name, kind), computed(kind), unsigned(size)

    def run(batch: Batch) -> None:
        threads = None if batch.active is None else batch.active_threads()
        columns = [flat(batch, batch.registers[slot], threads).view(view) for slot in sources]
        access.require_written(batch, threads)
        before = np.empty((count, columns[0].size), view)
        for store, offsets, which in access.places(batch, threads):
            some = slice(None) if which is None else which
            for number, column in enumerate(columns):
                before[number, some] = _apply(store, offsets + number * size, [column[some]], operation)
            access.tell_change(batch, store, offsets, batch.active_threads()[some])
        for target, old in zip(targets, before, strict=False):
            values = np.zeros(batch.shape, word)
            values.reshape(-1)[slice(None) if threads is None else threads] = old.view(word)
            batch.write(target, values)

    return run


def _apply(store: ByteStore, offsets: Array, operands: Sequence[Array], operation: Function) -> Array:
    """Changes the values at ``offsets``, one after another; returns what each of them was."""
    values = store.data.view(operands[0].dtype)
    places = offsets // values.dtype.itemsize
    if np.unique(places).size == places.size:  # nobody meets anybody: all at once
        old = values[places]
        values[places] = operation(old, *operands)
        return old
    old = np.empty(places.size, values.dtype)
    for number, place in enumerate(places.tolist()):
        one = slice(place, place + 1)
        old[number] = values[place]
        values[one] = operation(values[one], *(operand[number : number + 1] for operand in operands))
    return old


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"atom": _atomic, "red": _atomic}
