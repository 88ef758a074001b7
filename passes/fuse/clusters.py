"""Clusters of elementwise ops that run as one ``linalg.generic``.

Vocabulary
    root       the last op of a cluster; its loops are the loops of the cluster.
    member     an elementwise op computed inside those loops.
    access     for each loop of a member the loop of the root that runs it (an index map).
    preserved  a member whose value is needed outside too: it becomes a further result.

Bytes: each member that joins saves writing its result and reading it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lowerkit.mlir import ir
from lowerkit.passes.elementwise import (
    Elementwise,
    IndexMap,
    as_elementwise,
    build_elementwise,
    compose,
    destination,
    identity_map,
)
from lowerkit.passes.rewriting import OpMap, defining_op, element_of, fused_location, is_used


@dataclass(eq=False)
class Cluster:
    """A root and the producers that have joined it, in reverse program order."""

    root: Elementwise
    members: list[Elementwise] = field(default_factory=list[Elementwise])
    access: OpMap[IndexMap] = field(default_factory=OpMap[IndexMap])
    preserved: list[Elementwise] = field(default_factory=list[Elementwise])

    def __post_init__(self) -> None:
        self.add(self.root, identity_map(self.root.rank))

    def add(self, member: Elementwise, access: IndexMap, *, preserve: bool = False) -> None:
        """Lets a producer run inside the loops of this cluster."""
        self.members.append(member)
        self.access[member.op] = access
        if preserve:
            self.preserved.append(member)

    def access_to(self, value: ir.Value) -> IndexMap | None:
        """Returns how the members read ``value``, in loops of the root; None if by two ways, or not as an input."""
        found: set[IndexMap] = set()
        for use in value.uses:
            owner = use.owner.operation
            access = self.access.get(owner)
            if access is None:
                continue
            reader = as_elementwise(owner)
            assert reader is not None
            if use.operand_number >= len(reader.inputs):
                return None
            found.add(compose(reader.maps[use.operand_number], access))
        return found.pop() if len(found) == 1 else None

    def input_count(self) -> int:
        """Returns how many tensors the cluster reads."""
        return len(
            {
                (value, compose(index_map, self.access[member.op]))
                for member in self.members
                for value, index_map in zip(member.inputs, member.maps, strict=True)
                if defining_op(value) not in self.access
            }
        )

    def merge(self) -> ir.Operation:
        """Writes the cluster as one ``linalg.generic`` in place of its root and erases the members."""
        ordered = list(reversed(self.members))
        inputs: dict[tuple[ir.Value, IndexMap], int] = {}
        for member in ordered:
            for value, index_map in zip(member.inputs, member.maps, strict=True):
                if defining_op(value) not in self.access:
                    inputs.setdefault((value, compose(index_map, self.access[member.op])), len(inputs))
        kept = [(self.root, index) for index, result in enumerate(self.root.op.results) if is_used(result)]
        kept += [(member, 0) for member in reversed(self.preserved)]
        with ir.InsertionPoint(self.root.op), self.root.op.location:
            inits = [
                view.inits[index] if view is self.root else destination(view, element_of(view.op.results[index]))
                for view, index in kept
            ]

            def write(arguments: list[ir.Value]) -> list[ir.Value]:
                scalars: dict[ir.Value, ir.Value] = {}
                for member in ordered:
                    access = self.access[member.op]
                    elements = [
                        scalars[value] if value in scalars else arguments[inputs[value, compose(index_map, access)]]
                        for value, index_map in zip(member.inputs, member.maps, strict=True)
                    ]
                    scalars.update(zip(member.op.results, member.write_body(elements, access), strict=True))
                return [scalars[view.op.results[index]] for view, index in kept]

            merged = build_elementwise(
                [value for value, _ in inputs],
                [index_map for _, index_map in inputs],
                inits,
                write,
                fused_location(member.op for member in ordered),
            )
        for (view, index), result in zip(kept, merged.results, strict=True):
            view.op.results[index].replace_all_uses_with(result)
        for member in self.members:
            member.op.erase()
        return merged
