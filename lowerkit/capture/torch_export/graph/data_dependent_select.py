"""``x[i]`` by an index tensor of one element: what torch traces as a selection at a number that it does not know.

``x[i]`` and ``x[i.item()]`` become ``item`` and ``select``. The shape of the result is known, only where it lies in
memory is not, so a look-up by the index tensor is the same function::

    select(x, dim, item(i))  ->  index(x, [None, ..., i])

It counts from the end below 0, as ``select`` does, and an index out of range is refused at the call.
"""

# torch registers ops under private names; the version is pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from lowerkit.capture.torch_export.graph.checked_indices import CHECKED_INDICES
from lowerkit.capture.torch_export.graph.index_checks import NodesBefore
from lowerkit.capture.torch_export.operators import aten

_NUMBERS = (aten._local_scalar_dense.default, aten.item.default)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


def select_by_data(graph: fx.Graph) -> None:
    """Rewrites the selections of a functional graph; leaves what selects in another way."""
    changed = False
    for node in graph.find_nodes(op="call_function", target=aten.select.int):
        value, dim, number = node.args
        if not isinstance(number, fx.Node) or number.target not in _NUMBERS:
            continue
        (index,) = number.args
        if not isinstance(index, fx.Node) or index.meta["val"].dtype not in _INTEGERS:
            continue
        if any(free_unbacked_symbols(extent) for extent in node.meta["val"].shape):
            continue
        _look_up(node, value, dim, index)
        changed = True
    if changed:
        graph.eliminate_dead_code()


def _look_up(node: fx.Node, value: fx.Node, dim: int, index: fx.Node) -> None:
    before, given = NodesBefore(node), value.meta["val"]
    dim %= given.dim()
    if index.meta["val"].dim() > 0:
        index = before.call(aten.view.default, index, [])
    # A message names the op as the user's other look-ups have it.
    index = before.call(CHECKED_INDICES, index, [before.extent(value, dim)], True, None, "index")
    # The node stays itself: the signature knows outputs by their names.
    node.target, node.args = aten.index.Tensor, (value, [None] * dim + [index])
    with given.fake_mode:
        node.meta["val"] = given.new_empty([size for axis, size in enumerate(given.shape) if axis != dim])
