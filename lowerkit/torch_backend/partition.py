"""Divides an ATen graph into segments that lowerkit compiles and nodes that PyTorch runs.

Rules
    refused      nodes that lowerkit does not take are PyTorch's, each by itself.
    last views   views between what was computed (or given) and an output are PyTorch's, too: they cost nothing, and
                 the output shares memory and has strides as eager's.
    levels       a segment takes all that needs no node of PyTorch's (level 0), then all that needs those of level 0
                 alone (level 1), ... So there are as few segments as can be, and no circle.
    numbers      are found from the sizes of a call, and belong to nobody.
"""

from __future__ import annotations

import operator
from collections.abc import Container

from torch import fx

from lowerkit.torch_backend.nodes import has_order, is_found_from_sizes, is_view
from lowerkit.torch_backend.segment import Segment


def partition(graph: fx.Graph, refused: Container[fx.Node]) -> list[Segment | fx.Node]:
    """Returns segments and nodes of PyTorch's in the order in which they run; ``refused`` are nodes of PyTorch's."""
    calls = [node for node in graph.nodes if node.op == "call_function" and not is_found_from_sizes(node)]
    eager = _with_their_results(calls, refused)
    last_views = _last_views(graph)
    needed = _needed(graph, last_views, eager)
    level = _levels(calls, eager)
    steps: list[Segment | fx.Node] = []
    for number in range(max(level.values(), default=-1) + 1):
        here = [node for node in calls if level[node] == number]
        compiled = [node for node in here if node in needed]
        if compiled:
            steps.append(Segment.of(compiled, eager, last_views))
        steps += [node for node in here if node in eager]
    return steps + [node for node in calls if node in last_views and node not in eager]


def _with_their_results(calls: list[fx.Node], refused: Container[fx.Node]) -> set[fx.Node]:
    """The results of a node that has several are taken apart by whoever runs it."""
    found: set[fx.Node] = set()
    for node in calls:
        if node in refused or (node.target is operator.getitem and node.args[0] in found):
            found.add(node)
    return found


def _levels(calls: list[fx.Node], eager: set[fx.Node]) -> dict[fx.Node, int]:
    level: dict[fx.Node, int] = {}
    least = 0
    for node in calls:
        sources = [source for source in node.all_input_nodes if source in level]
        if node in eager:
            level[node] = max((level[source] for source in sources), default=0)
            if has_order(node):
                level[node] = least = max(least, level[node])
        else:
            level[node] = max((level[source] + (source in eager) for source in sources), default=0)
    return level


def _last_views(graph: fx.Graph) -> set[fx.Node]:
    """Views on the way from a value to an output."""
    found: set[fx.Node] = set()
    for node in graph.output_node().all_input_nodes:
        current = node
        while current.op == "call_function" and is_view(current) and current not in found:
            found.add(current)
            source = current.args[0]
            assert isinstance(source, fx.Node), "a view is of a tensor"
            current = source
    return found


def _needed(graph: fx.Graph, last_views: set[fx.Node], eager: set[fx.Node]) -> set[fx.Node]:
    """What has to be compiled: all that PyTorch's nodes, the last views and the outputs read."""
    found: set[fx.Node] = set()
    readers = [*last_views, graph.output_node()]
    todo = [source for node in readers for source in node.all_input_nodes if source not in last_views]
    todo += [source for node in eager for source in node.all_input_nodes]
    while todo:
        node = todo.pop()
        if node not in found and node not in eager and node.op == "call_function" and not is_found_from_sizes(node):
            found.add(node)
            todo += node.all_input_nodes
    return found
