"""Matrices in shared memory as wgmma and tcgen05.mma find them: by a descriptor of 64 bits.

The descriptor has, in units of 16 bytes, the address where the tile starts (bits 0 to 13), the leading offset (16 to
29) and the stride offset (32 to 45); bits 49 to 51 shift the swizzle, of wgmma bits 62 and 63 say which one it is.
Eight lines of ``span`` bytes are an atom. Where the lines are rows of the matrix (K contiguous), atoms follow each
other down the rows at the stride offset, and without a swizzle along K at the leading offset. Where they are columns
(M or N contiguous), the leading offset goes along M or N and the stride offset along K; without a swizzle the other way
around.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from lowerkit.runtimes.cuda.simulated.async_proxy.bulk_copies import bulk_faults
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import PIECE, swizzled
from lowerkit.runtimes.cuda.simulated.batch import WARP, WARPGROUP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, unsigned

_SPANS: Mapping[int, int] = {0: PIECE, 1: 128, 2: 64, 3: 32}
_LINES = 8  # of an atom


class Layout(NamedTuple):
    """Where tiles lie: in bytes, int64 [tiles].

    Attributes:
        start: address of the first byte.
        leading, stride: offsets between atoms.
        span: bytes of a line of an atom, one for all tiles; 16 for no swizzle.
    """

    start: Array
    leading: Array
    stride: Array
    span: int


def offsets_of(descriptors: Array) -> tuple[Array, Array, Array]:
    """Returns start, leading and stride offset of descriptors (uint64 [tiles]) in bytes, int64 [tiles]."""
    fields = descriptors.astype(np.int64)
    start, leading, stride = ((fields >> at & 0x3FFF) * PIECE for at in (0, 16, 32))
    return start, leading, stride


def tile_addresses(layout: Layout, shape: tuple[int, int, int], *, transposed: bool) -> Array:
    """Returns the addresses in shared memory of the 16-byte pieces of tiles, int64 [tiles, lines, pieces of a line].

    Args:
        layout: where they lie.
        shape: rows (of A; of B: columns), elements along K, and bytes of an element.
        transposed: whether rows are contiguous rather than K; then lines go along K.
    """
    rows, length, size = shape
    start, leading, stride = (each[:, None, None] for each in layout[:3])
    span = layout.span
    if transposed:
        line, byte = np.arange(length)[:, None], np.arange(0, rows * size, PIECE)
        along, down = (leading, stride) if span > PIECE else (stride, leading)
        linear = byte // span * along + line // _LINES * down + line % _LINES * span + byte % span
    else:
        line, byte = np.arange(rows)[:, None], np.arange(0, length * size, PIECE)
        within = byte if span > PIECE else byte // PIECE * leading
        linear = line // _LINES * stride + line % _LINES * span + within
    return swizzled(start + linear, span)


def elements_of(words: Array, size: int, *, transposed: bool) -> Array:
    """Returns elements, unsigned of ``size`` bytes [tiles, rows, k], of pieces, uint64 [tiles, lines, pieces, 2]."""
    elements = words.view(f"u{size}").reshape(words.shape[0], words.shape[1], -1)
    return elements.transpose(0, 2, 1) if transposed else elements


def read_tile(
    read: InstructionReader,
    batch: Batch,
    groups: Array,
    descriptors: Array,
    shape: tuple[int, int, int],
    *,
    transposed: bool,
) -> Array:
    """Returns the elements of one operand, unsigned of their size, [groups, rows, k].

    Args:
        read: the instruction, for messages.
        batch: whose shared memory it is.
        groups: the numbers of the warpgroups, int64.
        descriptors: theirs, uint64.
        shape: rows (of A; of B: columns), elements along K, and bytes of an element.
        transposed: whether rows are contiguous rather than K.

    Raises:
        KernelFault: LK8017, a descriptor is not known, or shared memory is not there or not written.
    """
    fields = descriptors.astype(np.int64)
    modes = np.unique(fields >> 62 & 3)
    if modes.size > 1 or (fields >> 49 & 7).any():
        raise read.fault("a matrix descriptor with a base offset, or with another swizzle than its neighbour's")
    layout = Layout(*offsets_of(descriptors), _SPANS[int(modes[0])])
    addresses = tile_addresses(layout, shape, transposed=transposed)
    threads = groups * WARPGROUP
    blocks = (threads // batch.shape[1])[:, None, None]
    store = batch.shared.store
    with bulk_faults(read, batch, int(threads[0]), addresses, "multiplies what is at shared address"):
        offsets = batch.shared.offsets(addresses, blocks, PIECE)
        words = store.load(offsets, unsigned(8), PIECE // 8)
    if batch.races is not None:
        for warp in range(0, WARPGROUP, WARP):  # any of the four may read any part
            readers = np.broadcast_to((threads + warp)[:, None, None], offsets.shape).reshape(-1)
            batch.races.read(store, offsets.reshape(-1), PIECE, readers, read)
    return elements_of(words, shape[2], transposed=transposed)
