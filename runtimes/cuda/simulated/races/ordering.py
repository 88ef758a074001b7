"""What orders warps beside barriers: releases and acquires at the places of atomics, and fences around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowerkit.runtimes.cuda.simulated.races.clocks import BlockClocks
from lowerkit.runtimes.cuda.simulated.races.keys import Order
from lowerkit.runtimes.cuda.simulated.races.sync_graph import SyncGraph
from lowerkit.runtimes.cuda.simulated.scalar_types import Array


class Ordering:
    """What each warp of a batch has learned from releases; a warp is named by its number in the batch.

    A *cell* is a place that atomics meet at. It has the node of what its last write released, joined with what it held
    where that write was part of an atomic: a release sequence.

    Attributes:
        graph: the nodes of the launch.
        nodes: int64 [warps of the batch], what each warp has acquired.
    """

    def __init__(self, warps: int, warps_per_block: int, *, fences: bool) -> None:
        """``warps`` is how many the launch has, ``fences`` whether the kernel has fences."""
        self.graph = SyncGraph(warps, warps_per_block)
        self._per_block = warps_per_block
        self._fences = fences
        self._cells: dict[object, Array] = {}
        self._ended: dict[object, Array] = {}  # of mbarriers, what the last phase released; -1 for other cells
        self.begin(0, 0, None)

    def begin(self, first_warp: int, warps: int, clocks: BlockClocks | None) -> None:
        """Begins a batch of ``warps`` warps; the first one has the number ``first_warp`` in the launch."""
        self._first_warp, self._clocks = first_warp, clocks
        self.nodes: Array = np.zeros(warps, np.int64)
        self._fenced: Array = np.zeros(warps, np.int64)  # what a relaxed write releases
        self._pending: Array = np.zeros(warps, np.int64)  # what a fence would acquire

    def end(self, place: object) -> None:
        """Forgets the cells of a piece of memory."""
        self._cells.pop(place, None)
        self._ended.pop(place, None)

    def end_phase(self, place: object, size: int, cells: Array) -> None:
        """Phases of mbarriers end: what was released at their cells since the last end is what a wait acquires."""
        held = self._held(place, size)
        if place not in self._ended:
            self._ended[place] = np.full(size, -1, np.int64)
        self._ended[place][cells] = held[cells]
        held[cells] = 0

    def load(self, place: object, cells: Array, warps: Array, order: Order, *, within_block: bool) -> None:
        """Warps read cells of a piece of memory; ``within_block`` says that only their block can meet there."""
        held = self._cells.get(place)
        if held is None or not (order.acquires or (order.strong and self._fences)):
            return
        ended = self._ended.get(place)
        found = held[cells] if ended is None else np.where(ended[cells] >= 0, ended[cells], held[cells])
        if order.acquires and within_block:
            self._settle(warps, found)
        self._learn(warps, found, order)

    def holds(self, place: object) -> bool:
        """Returns whether atomics met somewhere in a piece of memory."""
        return place in self._cells

    def store(self, place: object, size: int, cells: Array, warps: Array, order: Order, now: int) -> None:
        """Warps write cells of a piece of memory that has ``size`` of them."""
        held = self._held(place, size)
        held[cells] = self._published(warps, order, now) if order.strong else 0
        if place in self._ended:
            self._ended[place][cells] = -1  # whatever was there is no mbarrier any more

    def change(
        self, place: object, size: int, cells: Array, warps: Array, order: Order, now: int, wrote: Array | None
    ) -> None:
        """Warps read and write cells, one after another; ``wrote`` says whose write took place (None: all)."""
        if not (order.acquires or order.releases or self._fences):
            return
        held = self._held(place, size)
        codes, inverse = np.unique(cells * self.nodes.size + warps, return_inverse=True)
        cells, warps = codes // self.nodes.size, codes % self.nodes.size
        published = self._published(warps, order, now)
        if wrote is not None:
            wrote_once = np.zeros(codes.size, np.bool_)
            np.logical_or.at(wrote_once, inverse, wrote)
            published = np.where(wrote_once, published, 0)
        found = np.empty(codes.size, np.int64)
        for turn in turns(cells):
            before = held[cells[turn]]
            found[turn] = before
            held[cells[turn]] = self.graph.join(before, published[turn])
        self._learn(warps, found, order)

    def fence(self, warps: Array, now: int) -> None:
        """Warps run a fence: it acquires for relaxed reads before it, and releases for relaxed writes behind it."""
        self.nodes[warps] = self.graph.join(self.nodes[warps], self._pending[warps])
        self._pending[warps] = 0
        self._fenced[warps] = self._snapshots(warps, now)

    def meet(self, here: Array | None) -> None:
        """Warps meet at a barrier, in each block by itself; bool [blocks, warps of a block], None for all."""
        for nodes in (self.nodes, self._fenced, self._pending):
            if not nodes.any():
                continue
            view = nodes.reshape(-1, self._per_block)
            taking = view if here is None else np.where(here, view, 0)
            joined = taking[:, 0]
            for warp in range(1, self._per_block):
                joined = self.graph.join(joined, taking[:, warp])
            view[...] = joined[:, None] if here is None else np.where(here, joined[:, None], view)

    def _held(self, place: object, size: int) -> Array:
        if place not in self._cells:
            self._cells[place] = np.zeros(size, np.int64)
        return self._cells[place]

    def _published(self, warps: Array, order: Order, now: int) -> Array:
        if not order.releases:
            return self._fenced[warps]
        different, inverse = np.unique(warps, return_inverse=True)
        return self._snapshots(different, now)[inverse]

    def _snapshots(self, warps: Array, now: int) -> Array:
        assert self._clocks is not None, "a batch has begun"
        first = self._first_warp + warps // self._per_block * self._per_block
        return self.graph.release(self.nodes[warps], first, self._clocks.snapshot(warps, now))

    def _settle(self, warps: Array, found: Array) -> None:
        """Lets the clocks of warps know what nodes say of their blocks: mbarriers are waited for again and again."""
        assert self._clocks is not None, "a batch has begun"
        for node in np.unique(found[found != 0]).tolist():
            learners = np.unique(warps[found == node])
            first = self._first_warp + learners // self._per_block * self._per_block
            rows = self.graph.knowledge(node)[first[:, None] + np.arange(self._per_block)]
            self._clocks.learn(learners, rows)

    def _learn(self, warps: Array, found: Array, order: Order) -> None:
        some = found != 0
        if not some.any():
            return
        pairs = np.unique(np.stack((warps[some], found[some]), 1), axis=0)
        target = self.nodes if order.acquires else self._pending
        for turn in turns(pairs[:, 0]):
            learners = pairs[turn, 0]
            target[learners] = self.graph.join(target[learners], pairs[turn, 1])


def turns(values: Array) -> Sequence[Array]:
    """Splits indices of sorted values so that no value is twice in one part; the first ones of each come first."""
    starts = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    if starts.size == values.size:
        return [np.arange(values.size)]
    ranks = np.arange(values.size) - np.repeat(starts, np.diff(np.append(starts, values.size)))
    order = np.argsort(ranks, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(ranks[order])) + 1)
