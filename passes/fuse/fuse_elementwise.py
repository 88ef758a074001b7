"""Merges elementwise ops that feed one another into one loop nest, so that what lies between is never stored.

Steps, from the last op of the function to the first, so that all readers of an op are placed before it is:
    1. take the op apart (:mod:`lowerkit.passes.elementwise`); leave it if it is not elementwise;
    2. look for the cluster of its readers: all of them, or the earliest one if the others come later (then the op's
       value stays a result as well);
    3. join if that saves memory traffic and repeats no expensive work; otherwise start a cluster of its own. Sums are
       narrowed to bytes where they are made: not in loops of another shape, and not beside those of another product,
       for which they would have to be stored;
    4. write each cluster with several members as one ``linalg.generic``.

Bytes: two per member and element are saved (a store and a load). Nothing is computed twice, except cheap bodies
that are broadcast into larger loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import Elementwise, IndexMap, as_elementwise, identity_map
from lowerkit.passes.fuse.anchors import is_anchor
from lowerkit.passes.fuse.clusters import Cluster
from lowerkit.passes.rewriting import (
    OpMap,
    ancestor_in,
    defining_op,
    element_of,
    erase_dead,
    main_block,
    operations,
    positions,
    users,
)


@dataclass(frozen=True)
class FuseElementwise(Pass):
    """Merges chains and small graphs of elementwise, broadcast and transpose ops.

    Precondition: stage raised, canonical or layout (no regions yet).

    Attributes:
        max_inputs: tensors that one loop nest reads at most. Each takes an address register and a stream that the
            hardware prefetcher must follow.
    """

    name: ClassVar[str] = "fuse-elementwise"
    max_inputs: int = 12

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        snapshot = operations(block)
        position = positions(snapshot)
        cluster_of = OpMap[Cluster]()
        clusters: list[Cluster] = []
        for op in reversed(snapshot):
            view = as_elementwise(op)
            if view is None:
                continue
            joined = self._join(view, block, position, cluster_of)
            if joined is None:
                joined = Cluster(view)
                clusters.append(joined)
            cluster_of[op] = joined
        changed = False
        for cluster in clusters:
            if len(cluster.members) > 1:
                cluster.merge()
                changed = True
        return erase_dead(block) > 0 or changed

    def _join(
        self,
        view: Elementwise,
        block: ir.Block,
        position: OpMap[int],
        cluster_of: OpMap[Cluster],
    ) -> Cluster | None:
        """Lets ``view`` join the cluster of its readers, if that pays; returns the cluster."""
        if len(view.op.results) != 1:
            return None
        value = view.op.results[0]
        readers = [ancestor_in(block, reader) for reader in users(value)]
        candidates = {id(cluster_of[reader]): cluster_of[reader] for reader in readers if reader in cluster_of}
        if not candidates:
            return None
        cluster = min(candidates.values(), key=lambda candidate: position[candidate.root.op])
        outside = [reader for reader in readers if cluster_of.get(reader) is not cluster]
        if any(position[reader] < position[cluster.root.op] for reader in outside):
            return None
        access = cluster.access_to(value)
        if access is None or not _pays(view, access, cluster, stored=bool(outside)):
            return None
        if _narrows(view):
            whole = access == identity_map(cluster.root.rank) and view.shape == cluster.root.shape
            if not whole or any(_narrows(member) for member in cluster.members):
                return None
        if cluster.input_count() + len(view.inputs) - 1 > self.max_inputs:
            return None
        cluster.add(view, access, preserve=bool(outside))
        return cluster


def _pays(view: Elementwise, access: IndexMap, cluster: Cluster, *, stored: bool) -> bool:
    """Whether computing ``view`` inside the loops of ``cluster`` beats storing and loading its value."""
    if access == identity_map(cluster.root.rank) and view.shape == cluster.root.shape:
        return True
    if stored or _finishes_an_anchor(view):
        return False  # stored values need the loops' own order; an anchor's epilogue is the better home
    permuted = len(access) == cluster.root.rank and None not in access and len(set(access)) == len(access)
    return permuted or not view.is_expensive() or _same_extent(view, cluster)


def _same_extent(view: Elementwise, cluster: Cluster) -> bool:
    """Whether both run over equally many elements, unit loops aside: then a broadcast repeats nothing."""
    return sorted(extent for extent in view.shape if extent != 1) == sorted(
        extent for extent in cluster.root.shape if extent != 1
    )


def _finishes_an_anchor(view: Elementwise) -> bool:
    """Whether ``view`` can be computed on the accumulators of an op such as matmul that only it reads."""
    return any(
        index_map == identity_map(view.rank)
        and (producer := defining_op(value)) is not None
        and is_anchor(producer)
        and users(value) == [view.op]
        for value, index_map in zip(view.inputs, view.maps, strict=True)
    )


def _narrows(view: Elementwise) -> bool:
    """Whether an op makes bytes of 32-bit integers: it should run on the sums of a product while they are there."""
    return str(element_of(view.op.results[0])) == "i8" and any(
        str(element_of(value)) == "i32" for value in view.inputs[:1]
    )
