"""cp.async.bulk and cp.reduce.async.bulk: copies of whole boxes of a tensor, or of rows of bytes, and their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from lowerkit.runtimes.cuda.simulated.access import flat
from lowerkit.runtimes.cuda.simulated.async_proxy.bulk_copies import BulkCopies, Operation, Pieces, bulk_faults
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import MOST_DIMENSIONS, PIECE, TensorMap, swizzled
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.atomics import operation_of
from lowerkit.runtimes.cuda.simulated.opcodes.tensor_maps import TensorMapOperand
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, computed, unsigned
from lowerkit.runtimes.cuda.simulated.text.syntax import Address, Name, TensorAddress

_HERE = ("shared::cta", "shared::cluster")  # a cluster is one block here
_ALIGNMENT = 128  # of a box in shared memory
_COMPLETION = "mbarrier::complete_tx::bytes"
_REDUCTIONS: Mapping[str, tuple[str, ...]] = {
    "add": ("u32", "s32", "u64", "f32", "f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("u32", "s32", "u64", "s64"),
    "or": ("u32", "s32", "u64", "s64"),
    "xor": ("u32", "s32", "u64", "s64"),
}


class _Place(NamedTuple):
    """An address: the slot of its base, and bytes behind that."""

    slot: int
    offset: int

    def of(self, batch: Batch, threads: Array) -> Array:
        """Returns the address that each thread has, int64."""
        return flat(batch, batch.registers[self.slot], threads).astype(np.int64) + self.offset


def _place(read: InstructionReader, operand: object, *, shared: bool) -> _Place:
    if not isinstance(operand, Address):
        raise read.unknown("an address")
    narrow = False
    if shared and isinstance(operand.base, Name):
        slot = read.slots.register(operand.base.text, read.instruction.scope)
        narrow = slot is not None and read.slots.template[slot].dtype.itemsize == 4
    return _Place(read.value(operand.base, "b32" if narrow else "b64"), operand.offset)


def build_bulk(read: InstructionReader) -> Step:
    """Returns the step of a ``cp`` or ``cp.reduce`` that has the modifiers ``async`` and ``bulk``.

    Raises:
        UnknownPtx: LK8018, there is none of this form.
    """
    reduces = read.flag("reduce")
    read.required("async")
    read.required("bulk")
    if read.flag("commit_group"):
        read.finish()
        read.count(0)
        return lambda batch: batch.state(BulkCopies).commit()
    if read.flag("wait_group"):
        return _wait(read)
    if read.flag("prefetch"):
        raise read.unknown("modifier .prefetch")
    if read.flag("tensor"):
        return _tensor(read, reduces)
    if reduces:
        raise read.unknown("modifier .reduce")
    return _rows(read)


def _wait(read: InstructionReader) -> Step:
    only_reads = read.flag("read")
    read.finish()
    read.count(1)
    keep = read.immediate(0)
    return lambda batch: batch.state(BulkCopies).wait(keep, only_reads=only_reads)


def _spaces(read: InstructionReader) -> bool:
    """Takes the spaces, and how a copy completes; returns whether it goes to shared memory."""
    order = [modifier for modifier in read.instruction.modifiers if modifier in (*_HERE, "global")]
    read.required(*_HERE)
    read.required("global")
    loads = order[0] != "global"
    read.required(_COMPLETION if loads else "bulk_group")
    return loads


def _hint(read: InstructionReader, count: int) -> None:
    """Takes a hint to the cache, and its operand behind ``count`` others."""
    hinted = read.flag("L2::cache_hint")
    read.finish()
    read.count(count + hinted)


def _tensor(read: InstructionReader, reduces: bool) -> Step:
    rank = int(read.required(*(f"{number}d" for number in range(1, MOST_DIMENSIONS + 1)))[0])
    loads = _spaces(read)
    reduction = read.required(*_REDUCTIONS) if reduces else None
    if reduces and loads:
        raise read.unknown("the direction")
    read.choice("tile")
    _hint(read, 3 if loads else 2)
    box, shared = read.operand(1 if loads else 0), read.operand(0 if loads else 1)
    if not isinstance(box, TensorAddress) or len(box.coordinates) != rank:
        raise read.unknown("the coordinates")
    maps = TensorMapOperand(read, box)
    coordinates = [read.value(part, "b32") for part in box.coordinates]
    here = _place(read, shared, shared=True)
    barrier = _place(read, read.operand(2), shared=True) if loads else None

    def run(batch: Batch) -> None:
        threads = batch.active_threads()
        copies = batch.state(BulkCopies)
        corners = np.stack([flat(batch, batch.registers[slot], threads).view(np.int32) for slot in coordinates], 1)
        places = here.of(batch, threads)
        barriers = None if barrier is None else _offsets(read, batch, threads, barrier.of(batch, threads), 8)
        for at, tensor in enumerate(maps.maps(batch, threads)):
            thread = int(threads[at])
            if len(tensor.sizes) != rank:
                raise read.fault(f"{batch.thread_name(thread)} takes a tensor map of {len(tensor.sizes)} dimensions")
            operation = None if reduction is None else _operation(read, reduction, tensor)
            pieces = _box(read, batch, thread, int(places[at]), tensor, corners[at].astype(np.int64), operation)
            if barriers is None:
                copies.store(read, pieces, operation)
            else:
                copies.load(read, pieces, int(barriers[at]))

    return run


def _operation(read: InstructionReader, name: str, tensor: TensorMap) -> Operation:
    if tensor.element not in _REDUCTIONS[name]:
        raise read.fault(f"{name} of {tensor.element}, which is not known")
    kind = tensor.element if name in ("add", "min", "max", "inc", "dec") else f"b{8 * tensor.element_bytes}"
    if name in ("min", "max") and tensor.element in ("f16", "bf16"):
        raise read.fault(f"{name} of {tensor.element}, which is not known")
    function, view, word = operation_of(name, kind), computed(kind), unsigned(tensor.element_bytes)
    return lambda there, given: function(there.view(view), given.view(view)).view(word)


@lru_cache(maxsize=64)
def _index(box: tuple[int, ...], step: int) -> Array:
    """Returns the indices of the pieces of ``step`` elements in a box, int64 [dimensions, pieces], innermost first."""
    counts = [box[0] // step, *box[1:]]
    index = np.indices(counts[::-1]).reshape(len(box), -1)[::-1].astype(np.int64)
    index[0] *= step
    return index


def _box(
    read: InstructionReader,
    batch: Batch,
    thread: int,
    place: int,
    tensor: TensorMap,
    corner: Array,
    operation: Operation | None,
) -> Pieces:
    """Returns what a thread moves between ``place`` in shared memory and the box at ``corner``."""
    if place % _ALIGNMENT:
        raise read.fault(f"{batch.thread_name(thread)} uses shared address {place}: not a multiple of {_ALIGNMENT}")
    size = tensor.element_bytes
    # Pieces lie inside or outside as a whole where the tensor and the box begin and end between two of them.
    whole = operation is None and int(corner[0]) * size % PIECE == 0 and tensor.sizes[0] * size % PIECE == 0
    step = PIECE // size if whole else 1
    width = step * size
    index = _index(tensor.box, step)
    inside = np.ones(index.shape[1], np.bool_)
    places = np.full(index.shape[1], tensor.address)
    for number, (extent, stride) in enumerate(zip(tensor.sizes, tensor.strides, strict=True)):
        at = index[number] + int(corner[number])
        inside &= (at >= 0) & (at < extent)
        places += at * stride
    linear = place + width * np.arange(index.shape[1])
    offsets = _offsets(read, batch, np.full(linear.size, thread), swizzled(linear, tensor.span), width)
    return Pieces(thread, offsets, inside, places[inside], width)


def _offsets(read: InstructionReader, batch: Batch, threads: Array, addresses: Array, width: int) -> Array:
    """Returns where addresses of shared memory lie in its bytes."""
    with bulk_faults(read, batch, int(threads[0]), addresses, "uses shared address"):
        return batch.shared.offsets(addresses, threads // batch.shape[1], width)


def _rows(read: InstructionReader) -> Step:
    """``[to], [from], bytes`` and, to shared memory, the mbarrier."""
    loads = _spaces(read)
    _hint(read, 4 if loads else 3)
    to, source = (_place(read, read.operand(at), shared=loads == (at == 0)) for at in (0, 1))
    here, there = (to, source) if loads else (source, to)
    size = read.source(2, "b32")
    barrier = _place(read, read.operand(3), shared=True) if loads else None

    def run(batch: Batch) -> None:
        threads = batch.active_threads()
        copies = batch.state(BulkCopies)
        sizes = flat(batch, batch.registers[size], threads).astype(np.int64)
        shared, places = here.of(batch, threads), there.of(batch, threads)
        barriers = None if barrier is None else _offsets(read, batch, threads, barrier.of(batch, threads), 8)
        for at, thread in enumerate(threads.tolist()):
            pieces = _row(read, batch, thread, int(sizes[at]), (int(shared[at]), int(places[at])))
            if barriers is None:
                copies.store(read, pieces, None)
            else:
                copies.load(read, pieces, int(barriers[at]))

    return run


def _row(read: InstructionReader, batch: Batch, thread: int, size: int, ends: Sequence[int]) -> Pieces:
    if size % PIECE or any(end % PIECE for end in ends):
        raise read.fault(
            f"{batch.thread_name(thread)} copies {size} bytes between shared address {ends[0]} and 0x{ends[1]:x}: "
            f"not multiples of {PIECE}"
        )
    steps = np.arange(0, size, PIECE)
    if not steps.size:
        raise read.fault(f"{batch.thread_name(thread)} copies no bytes")
    offsets = _offsets(read, batch, np.full(steps.size, thread), ends[0] + steps, PIECE)
    return Pieces(thread, offsets, np.ones(steps.size, np.bool_), ends[1] + steps, PIECE)
