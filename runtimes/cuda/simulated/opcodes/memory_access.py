"""ld and st of all spaces, and of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lowerkit.runtimes.cuda.simulated.access import GENERIC, SPACES, Access, take_order
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.races.keys import Order
from lowerkit.runtimes.cuda.simulated.scalar_types import BYTES, Array, DType, computed, unsigned
from lowerkit.runtimes.cuda.simulated.text.syntax import Address, Name, Number, Operand
from lowerkit.runtimes.cuda.simulated.text.tokens import shown

_CACHES = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc")
_KINDS = tuple(kind for kind in BYTES if kind != "pred")
_LARGEST = 32  # bytes of one access


def _modifiers(read: InstructionReader) -> tuple[Order, str, str, int]:
    """Takes the modifiers; returns the order, the space, the type and how many of it."""
    order = take_order(read)
    read.drop(*_CACHES)
    hint = read.flag("L2::cache_hint")
    read.drop_hints()
    space = read.choice(*SPACES, "param") or GENERIC
    count = {"v2": 2, "v4": 4, "v8": 8}.get(read.choice("v2", "v4", "v8") or "", 1)
    kind = read.kind(*_KINDS)
    read.finish()
    read.count(3 if hint else 2)
    if hint:
        read.source(2, "b64")
    if BYTES[kind] * count > _LARGEST:
        raise read.unknown(f"an access of {BYTES[kind] * count} bytes")
    return order, space, kind, count


def _values(read: InstructionReader, operand: Operand, count: int) -> Sequence[Name | Number]:
    parts = read.parts(operand)
    if len(parts) != count:
        raise read.unknown(f"a vector of {len(parts)}")
    return parts


def _extended(values: Array, kind: str, dtype: DType) -> Array:
    """Returns loaded values as a register of ``dtype`` holds them: filled with the sign, or with zeros."""
    if values.dtype == dtype:
        return values
    if kind[0] == "s":
        return values.view(computed(kind)).astype(f"i{dtype.itemsize}").view(dtype)
    return values.astype(dtype)


def _load(read: InstructionReader) -> Step:
    order, space, kind, count = _modifiers(read)
    targets = [read.target(part, kind, wider=True) for part in _values(read, read.operand(0), count)]
    dtypes = [read.slots.template[target].dtype for target in targets]
    if space == "param":
        return _load_parameter(read, kind, targets, dtypes)
    access = Access(read, 1, space, BYTES[kind] * count, "reads", order)
    dtype = unsigned(BYTES[kind])

    def run(batch: Batch) -> None:
        values = access.load(batch, dtype, count)
        for number, target in enumerate(targets):
            batch.write(target, _extended(values[..., number], kind, dtypes[number]))

    return run


def _load_parameter(read: InstructionReader, kind: str, targets: Sequence[int], dtypes: Sequence[DType]) -> Step:
    operand = read.operand(1)
    if not isinstance(operand, Address) or not isinstance(operand.base, Name):
        raise read.unknown("the address of a parameter")
    name, start = operand.base.text, operand.offset
    size = read.slots.parameters.get(name)
    end = start + BYTES[kind] * len(targets)
    if size is None or start < 0 or end > size or start % (end - start):
        raise read.unknown(f"parameter {shown(name)} from byte {start} to {end}")
    dtype = unsigned(BYTES[kind])

    def run(batch: Batch) -> None:
        values = batch.parameters[name][start:end].view(dtype)
        for number, target in enumerate(targets):
            batch.write(target, _extended(values[number].reshape(1, 1), kind, dtypes[number]))

    return run


def _store(read: InstructionReader) -> Step:
    order, space, kind, count = _modifiers(read)
    if space in ("const", "param"):
        raise read.unknown(f"modifier .{space}")
    bits = f"b{8 * BYTES[kind]}"
    sources = [read.value(part, bits, wider=True) for part in _values(read, read.operand(1), count)]
    access = Access(read, 0, space, BYTES[kind] * count, "writes", order)
    dtype = unsigned(BYTES[kind])

    def run(batch: Batch) -> None:
        access.store(batch, [batch.registers[slot].astype(dtype, copy=False) for slot in sources])

    return run


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"ld": _load, "st": _store}
