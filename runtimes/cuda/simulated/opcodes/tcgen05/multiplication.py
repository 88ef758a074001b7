"""tcgen05.mma: one thread begins a product D = A B + D; D lies in tensor memory, B in shared memory, A in either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from lowerkit.runtimes.cuda.simulated.access import flat
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.opcodes.tcgen05.warps import check_group, faults_of
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_core.products import add_product
from lowerkit.runtimes.cuda.simulated.tensor_memory.cells import (
    CELL_LANES,
    BadTensorMemory,
    TensorMemory,
    cells_of,
    place_of,
)
from lowerkit.runtimes.cuda.simulated.tensor_memory.descriptors import DEPTH, KINDS, Form, read_form, read_layout
from lowerkit.runtimes.cuda.simulated.tensor_memory.pipelines import Pipelines, SharedTiles
from lowerkit.runtimes.cuda.simulated.text.syntax import Address

_WORD = 4
_AWAITED = "nobody has waited at the mbarrier of a tcgen05.commit behind it"


class _Operands(NamedTuple):
    """What threads name, one of a block, int64 [threads]: addresses in tensor memory, descriptors (uint64), and whether
    products are added to D."""

    threads: Array
    d: Array
    a: Array
    b: Array
    adds: Array


def _address(read: InstructionReader, operand: int) -> Callable[[Batch, Array], Array]:
    """Returns what gives the address in tensor memory that threads have in an operand, int64."""
    address = read.operand(operand)
    if not isinstance(address, Address):
        raise read.unknown("the address")
    slot, offset = read.value(address.base, "b32"), address.offset
    return lambda batch, threads: flat(batch, batch.registers[slot], threads).astype(np.int64) + offset


def _multiply(read: InstructionReader) -> Step:
    check_group(read)
    kind = read.required(*KINDS).removeprefix("kind::")
    read.finish()
    read.count(5)
    in_tensor_memory = isinstance(read.operand(1), Address)
    d = _address(read, 0)
    a_address = _address(read, 1) if in_tensor_memory else None
    a_slot = -1 if in_tensor_memory else read.source(1, "b64")
    b_slot, form_slot = read.source(2, "b64"), read.source(3, "b32")
    adds_slot, negated = read.predicate(4)

    def run(batch: Batch) -> None:
        def values(slot: int, threads: Array) -> Array:
            return flat(batch, batch.registers[slot], threads)

        active = batch.active_threads()
        forms = values(form_slot, active)
        for threads, bits in _turns(active, forms, batch.shape[1]):
            a = values(a_slot, threads) if a_address is None else a_address(batch, threads)
            adds = values(adds_slot, threads) != negated
            operands = _Operands(threads, d(batch, threads), a, values(b_slot, threads), adds)
            with faults_of(read, batch, threads):
                _begin(read, batch, read_form(kind, bits), operands, in_tensor_memory=in_tensor_memory)

    return run


def _turns(threads: Array, forms: Array, width: int) -> list[tuple[Array, int]]:
    """Splits threads so that each part has one of a block and one instruction descriptor, in the order of threads."""
    blocks = threads // width
    ranks = np.arange(threads.size) - np.searchsorted(blocks, blocks)
    found: list[tuple[Array, int]] = []
    for rank in range(int(ranks.max(initial=-1)) + 1):
        mine = ranks == rank
        found += [(threads[mine & (forms == form)], int(form)) for form in np.unique(forms[mine])]
    return found


def _begin(read: InstructionReader, batch: Batch, form: Form, operands: _Operands, *, in_tensor_memory: bool) -> None:
    memory = batch.state(TensorMemory)
    threads, d, _, b, adds = operands
    blocks = threads // batch.shape[1]
    shape = form.depth, form.size
    lanes, columns, d_cells = _region(form, blocks, d, form.columns)
    y = SharedTiles(read, batch, threads, read_layout(b), (form.columns, *shape), transposed=form.transposed[1])
    tiles = [y]
    if in_tensor_memory:
        a_lanes, a_columns, a_cells = _region(form, blocks, operands.a, DEPTH // _WORD)
        if form.transposed[0]:
            raise BadTensorMemory("transposes a matrix that lies in tensor memory")
        if (a_lanes[:, :1] != lanes[:, :1]).any():
            raise BadTensorMemory("has A and D in other lanes of tensor memory than each other")
    else:
        x = SharedTiles(
            read, batch, threads, read_layout(operands.a), (form.rows, *shape), transposed=form.transposed[0]
        )
        tiles.append(x)
        a_lanes, a_columns, a_cells = lanes, columns[:, :0], d_cells[:, :0]
    pipelines: list[object] = [
        (thread, address, form.rows, form.columns, form.kind)
        for thread, address in zip(threads.tolist(), d.tolist(), strict=True)
    ]
    numbers = memory.begin(
        read, threads, reads=a_cells, writes=d_cells, awaited_by=_AWAITED, pipelines=pipelines, adds=adds
    )
    if in_tensor_memory:
        words = memory.words(blocks[:, None, None], a_lanes[:, :, None], a_columns[:, None])
        left = np.ascontiguousarray(words).view(f"u{form.size}")
    else:
        left = tiles[1].elements
    where = blocks[:, None, None], lanes[:, :, None], columns[:, None]
    old = memory.words(*where).view(np.int32 if form.kind == "i8" else np.float32)
    old = np.where(adds[:, None, None], old, old.dtype.type(0))
    new = add_product(
        batch.arithmetic, (form.a, form.b), (left, y.elements), old, negated=form.negated, saturates=form.saturates
    )
    if new is None:
        generation = batch.arithmetic.generation or "this target"
        raise read.fault(f"the arithmetic of tcgen05.mma for {form.a} on {generation} is not known")
    memory.put(*where, new.view(np.uint32))
    batch.state(Pipelines).begin(read, threads, numbers, tiles)


def _region(form: Form, blocks: Array, addresses: Array, columns: int) -> tuple[Array, Array, Array]:
    """Returns the lanes [blocks, rows] and columns [blocks, columns] of a matrix, and its cells [blocks, cells].

    Raises:
        BadTensorMemory: it cannot lie there.
    """
    lane, column = addresses >> 16, addresses & 0xFFFF
    allowed = (0,) if form.rows == 128 else (0, CELL_LANES)
    bad = ~np.isin(lane, allowed)
    if bad.any():
        at = int(np.argmax(bad))
        raise BadTensorMemory(
            f"has a matrix of {form.rows} rows at {place_of(int(addresses[at]))}: it begins at lane "
            + " or ".join(map(str, allowed)),
            at,
        )
    lanes, places = lane[:, None] + form.lanes, column[:, None] + np.arange(columns)
    firsts = lanes[:, ::CELL_LANES]
    return lanes, places, cells_of(blocks[:, None, None], firsts[:, :, None], places[:, None]).reshape(blocks.size, -1)


FORMS: Mapping[str, Callable[[InstructionReader], Step]] = {"mma": _multiply}
