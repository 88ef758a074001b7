"""Process groups that a captured graph communicates in, as axes of a mesh.

A graph names a group by a word of the process that captured it. Where the group is there, its ranks say which axis of
the mesh it is: neighbours along an axis lie as many ranks apart as all later axes have together. A graph from a file
has one group at most, all ranks, whose size the ops state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir, walk
from lowerkit.passes.rewriting import defining_op
from lowerkit.passes.source_location import op_name
from lowerkit.runtimes.mesh.structs import MeshAxis

if TYPE_CHECKING:
    from torch.fx import Graph

_NAMESPACE = "_c10d_functional"
_WORLD = "world"
_OF_MESH = "mesh_"


def mesh_of_groups(graph: Graph, module: ir.Module) -> list[MeshAxis]:
    """Returns the mesh of the ranks that a graph communicates with; writes into its imported module who is meant.

    Raises:
        UnsupportedError: LK4007, as :meth:`ProcessGroups.of`.
    """
    groups = ProcessGroups.of(graph)
    if groups.axes:
        groups.mark(module)
    return list(groups.mesh)


@dataclass(frozen=True)
class ProcessGroups:
    """The groups of a graph.

    Attributes:
        mesh: their axes; a rank's place is row-major in it.
        axes: the axis of each group, by the word that the graph names it with.
    """

    mesh: tuple[MeshAxis, ...] = ()
    axes: tuple[tuple[str, MeshAxis], ...] = ()

    @staticmethod
    def of(graph: Graph) -> ProcessGroups:
        """Finds the groups of a graph.

        Raises:
            UnsupportedError: LK4007, they are no axes of one mesh, or how many ranks they have is not known.
        """
        sizes: dict[str, int | None] = {}
        for node in graph.nodes:
            if node.op != "call_function" or getattr(node.target, "namespace", "") != _NAMESPACE:
                continue
            named = _arguments(node)
            if "group_name" in named:
                group = str(named["group_name"])
                sizes[group] = named.get("group_size") or sizes.get(group)
        if not sizes:
            return ProcessGroups()
        live = {group: _live_ranks(group) for group in sizes}
        if len(sizes) == 1:
            ((group, stated),) = sizes.items()
            ranks = live[group]
            size = len(ranks[1]) if ranks is not None else stated
            if size is None:
                raise _unknown([group])
            axis = MeshAxis(_WORLD if ranks is None else ranks[0], size)
            return ProcessGroups((axis,), ((group, axis),))
        found = {group: ranks for group, ranks in live.items() if ranks is not None}
        if len(found) < len(sizes):
            raise _unknown([group for group in sizes if group not in found])
        return _axes_of(found)

    def mark(self, module: ir.Module) -> None:
        """Writes down on each collective of a captured module which axis it runs along."""
        axes = dict(self.axes)

        def note(op: ir.Operation) -> None:
            if not op_name(op).startswith(f"torch.{_NAMESPACE}.") or len(op.operands) < 2:
                return
            owner = defining_op(op.operands[len(op.operands) - 1])
            if owner is None or owner.name != "torch.constant.str":
                return
            axis = axes[ir.StringAttr(owner.attributes["value"]).value]
            op.attributes["lk.axis"] = ir.StringAttr.get(axis.name)
            op.attributes["lk.ranks"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis.size)

        with module.context:
            walk(module.operation, note)


def _arguments(node: Any) -> dict[str, Any]:
    names = [argument.name for argument in node.target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _live_ranks(group: str) -> tuple[str, list[int]] | None:
    """Returns the axis name and the ranks of a group of this process; None where there is no such group."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        resolve: Any = vars(distributed.distributed_c10d)["_resolve_process_group"]  # torch exports no name for it
        found = resolve(group)
    except (LookupError, RuntimeError, ValueError):
        return None
    ranks = distributed.get_process_group_ranks(found)
    text = str(getattr(found, "group_desc", ""))
    if text.startswith(_OF_MESH):
        return text.removeprefix(_OF_MESH), ranks
    return (_WORLD if len(ranks) == distributed.get_world_size() else f"group-{group}"), ranks


def _axes_of(found: dict[str, tuple[str, list[int]]]) -> ProcessGroups:
    from torch import distributed

    strides = {group: ranks[1] - ranks[0] if len(ranks) > 1 else 0 for group, (_, ranks) in found.items()}
    order = sorted(found, key=lambda group: -strides[group])
    axes = {group: MeshAxis(found[group][0], len(found[group][1])) for group in order}
    distinct = list(dict.fromkeys(axes.values()))
    behind = 1
    regular = math.prod(axis.size for axis in distinct) == distributed.get_world_size()
    for axis in reversed(distinct):
        own = [strides[group] for group in order if axes[group] == axis]
        regular = regular and (axis.size == 1 or set(own) == {behind})
        behind *= axis.size
    if not regular:
        shown = "; ".join(f"{name}: {ranks}" for name, ranks in found.values())
        raise UnsupportedError(
            "LK4007",
            f"the process groups of the graph are no axes of one mesh of {distributed.get_world_size()} ranks: {shown}",
            hint="make them with torch.distributed.device_mesh.init_device_mesh",
        )
    return ProcessGroups(tuple(distinct), tuple(axes.items()))


def _unknown(groups: list[str]) -> UnsupportedError:
    return UnsupportedError(
        "LK4007",
        f"how many ranks the process group {', '.join(map(repr, groups))} has is not known: the graph does not say it",
        hint="compile where the group exists: after torch.distributed.init_process_group, also with the backend 'fake'",
    )
