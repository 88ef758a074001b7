"""Matrices in shared memory as wgmma finds them: by a descriptor of 64 bits.

The descriptor has, in units of 16 bytes, the address where the tile starts (bits 0 to 13), the leading offset (16 to
29) and the stride offset (32 to 45); bits 49 to 51 shift the swizzle, bits 62 and 63 say which one it is. Eight lines
of ``span`` bytes are an atom. Where the lines are rows of the matrix (K contiguous), atoms follow each other down the
rows at the stride offset, and without a swizzle along K at the leading offset. Where they are columns (M or N
contiguous), the leading offset goes along M or N and the stride offset along K; without a swizzle the other way around.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowerkit.runtimes.cuda.simulated.async_proxy.bulk_copies import bulk_faults
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import PIECE, swizzled
from lowerkit.runtimes.cuda.simulated.batch import WARP, WARPGROUP, Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.scalar_types import Array, unsigned

_SPANS: Mapping[int, int] = {0: PIECE, 1: 128, 2: 64, 3: 32}
_LINES = 8  # of an atom


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
    rows, length, size = shape
    fields = descriptors.astype(np.int64)
    start, leading, stride = ((fields >> at & 0x3FFF)[:, None, None] * PIECE for at in (0, 16, 32))
    modes = np.unique(fields >> 62 & 3)
    if modes.size > 1 or (fields >> 49 & 7).any():
        raise read.fault("a matrix descriptor with a base offset, or with another swizzle than its neighbour's")
    span = _SPANS[int(modes[0])]
    if transposed:
        line, byte = np.arange(length)[:, None], np.arange(0, rows * size, PIECE)
        along, down = (leading, stride) if span > PIECE else (stride, leading)
        linear = byte // span * along + line // _LINES * down + line % _LINES * span + byte % span
    else:
        line, byte = np.arange(rows)[:, None], np.arange(0, length * size, PIECE)
        within = byte if span > PIECE else byte // PIECE * leading
        linear = line // _LINES * stride + line % _LINES * span + within
    addresses = swizzled(start + linear, span)
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
    elements = words.view(f"u{size}").reshape(groups.size, line.size, -1)
    return elements.transpose(0, 2, 1) if transposed else elements
