"""tensormap.replace and cp_fenceproxy, prefetch.tensormap, and how an instruction finds a tensor map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lowerkit.runtimes.cuda.simulated.access import GENERIC, Access, flat
from lowerkit.runtimes.cuda.simulated.async_proxy.bulk_copies import bulk_faults
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import (
    FIELDS,
    PIECE,
    TENSOR_MAP_ALIGNMENT,
    TENSOR_MAP_BYTES,
    BadTensorMap,
    TensorMap,
    decode,
)
from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.block_memory import PARAMETER_BASE, WINDOW
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, unsigned
from lowerkit.runtimes.cuda.simulated.text.syntax import Address, Name, Number, TensorAddress

_LANES = TENSOR_MAP_BYTES // PIECE


class TensorMapOperand:
    """The tensor map that an instruction names by a generic address, among parameters or in global memory."""

    def __init__(self, read: InstructionReader, operand: Address | TensorAddress) -> None:
        self._read = read
        self._slot = read.value(operand.base, "b64")
        self._offset = operand.offset
        self._known: dict[bytes, TensorMap] = {}

    def maps(self, batch: Batch, threads: Array) -> Sequence[TensorMap]:
        """Returns the tensor map of each thread.

        Raises:
            KernelFault: LK8017, there is none.
        """
        addresses = flat(batch, batch.registers[self._slot], threads).astype(np.int64) + self._offset
        found: dict[int, TensorMap] = {}
        for address, first in zip(*np.unique(addresses, return_index=True), strict=True):
            found[int(address)] = self._map(batch, int(threads[first]), int(address))
        return [found[int(address)] for address in addresses]

    def _map(self, batch: Batch, thread: int, address: int) -> TensorMap:
        who = f"{batch.thread_name(thread)} takes a tensor map from 0x{address:x}"
        if address % TENSOR_MAP_ALIGNMENT:
            raise self._read.fault(f"{who}: not a multiple of {TENSOR_MAP_ALIGNMENT}")
        raw = self._parameter(batch, address - PARAMETER_BASE)
        if raw is None:
            places = address + np.arange(0, TENSOR_MAP_BYTES, PIECE)
            with bulk_faults(self._read, batch, thread, places, "takes a tensor map from"):
                parts = [
                    store.load(offsets, unsigned(8), PIECE // 8)
                    for store, offsets, _ in batch.memory.pieces(places, PIECE, False)
                ]
            raw = np.concatenate(parts).view(np.uint8).reshape(-1)
        key = raw.tobytes()
        if key not in self._known:
            try:
                self._known[key] = decode(np.frombuffer(key, np.uint8))
            except BadTensorMap as error:
                raise self._read.fault(f"{who}: {error}") from None
        return self._known[key]

    def _parameter(self, batch: Batch, place: int) -> Array | None:
        if not 0 <= place < WINDOW:
            return None
        for name, start in self._read.slots.parameter_places.items():
            if start <= place and place + TENSOR_MAP_BYTES <= start + batch.parameters[name].size:
                return batch.parameters[name][place - start : place - start + TENSOR_MAP_BYTES]
        return None


def _tensor_map(read: InstructionReader) -> Step:
    if read.flag("replace"):
        return _replace(read)
    if read.flag("cp_fenceproxy"):
        return _copy(read)
    raise read.unknown("the form")


def _access(read: InstructionReader, operand: int, place: int, space: str, width: int, verb: str) -> Access:
    """Returns the accesses at ``place`` bytes behind the address that an operand is."""
    address = read.operand(operand)
    if not isinstance(address, Address):
        raise read.unknown("the address")
    # The bases of tensor maps stand in 64-bit registers, also those in shared memory.
    moved = replace(address, offset=address.offset + place)
    operands = tuple(moved if at == operand else each for at, each in enumerate(read.instruction.operands))
    inner = InstructionReader(replace(read.instruction, operands=operands), read.slots, read.origin)
    return Access(inner, operand, space, width, verb)


def _replace(read: InstructionReader) -> Step:
    read.required("tile")
    field = read.required(*FIELDS)
    space = read.choice("global", "shared::cta") or GENERIC
    read.required("b1024")
    start, size, count = FIELDS[field]
    kind = read.required(f"b{8 * size}")
    read.finish()
    indexed = count > 1
    read.count(3 if indexed else 2)
    number = read.immediate(1) if indexed else 0
    if not 0 <= number < count:
        raise read.unknown(f"dimension {number}")
    value = read.operand(2 if indexed else 1)
    if not isinstance(value, Name | Number):
        raise read.unknown("the value")
    source = read.value(value, kind)
    access = _access(read, 0, start + number * size, space, size, "writes")

    def run(batch: Batch) -> None:
        access.store(batch, [batch.registers[source]])

    return run


def _copy(read: InstructionReader) -> Step:
    """A warp copies a tensor map to global memory; what follows it in the other proxy shows in no value."""
    for modifier in ("global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"):
        read.required(modifier)
    read.required("cta", "cluster", "gpu", "sys")
    read.finish()
    read.count(3)
    if read.immediate(2) != TENSOR_MAP_BYTES:
        raise read.unknown(f"a copy of {read.immediate(2)} bytes")
    places = range(0, TENSOR_MAP_BYTES, PIECE)
    sources = [_access(read, 1, place, "shared", PIECE, "reads") for place in places]
    targets = [_access(read, 0, place, "global", PIECE, "writes") for place in places]

    def run(batch: Batch) -> None:
        for source, target in zip(sources, targets, strict=True):
            words = source.load(batch, unsigned(8), PIECE // 8)
            target.store(batch, [words[..., 0], words[..., 1]])

    return run


def build_prefetch_of_map(read: InstructionReader) -> Step:
    """Returns the step of ``prefetch.tensormap``, which checks that there is one.

    Raises:
        UnknownPtx: LK8018, there is none of this form.
    """
    read.required("tensormap")
    read.choice("param", "const")
    read.finish()
    read.count(1)
    operand = read.operand(0)
    if not isinstance(operand, Address):
        raise read.unknown("the address")
    maps = TensorMapOperand(read, operand)

    def run(batch: Batch) -> None:
        maps.maps(batch, batch.active_threads())

    return run


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"tensormap": _tensor_map}
