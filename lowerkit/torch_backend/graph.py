"""One graph of AOTAutograd as a function: compiled at its first call, when parameters have values."""

# torch keeps its modes private; the versions are pinned.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._dynamo.utils import counters
from torch.fx.node import map_arg
from torch.utils import _python_dispatch

from lowerkit.errors import LowerkitError, RuntimeFault
from lowerkit.torch_backend.frozen import FrozenInputs, can_be_frozen
from lowerkit.torch_backend.nodes import Refusal, is_number, refusal_at_sight
from lowerkit.torch_backend.partition import partition
from lowerkit.torch_backend.program import SegmentRunner
from lowerkit.torch_backend.refusals import is_refusal, logger, refusal_error, refused_nodes, report, report_sizes
from lowerkit.torch_backend.segment import Segment
from lowerkit.torch_backend.settings import Settings
from lowerkit.torch_backend.sizes import SymbolReader, expression_of


@dataclass(frozen=True)
class _Version:
    """A graph, compiled for the values of its frozen inputs; ``last_read`` are values that no step reads later."""

    steps: Sequence[SegmentRunner | fx.Node]
    last_read: Sequence[Sequence[fx.Node]]
    frozen: FrozenInputs


class CompiledGraph:
    """What runs in the place of a graph.

    Compiled anew where a frozen input has changed; at the second change they become inputs that each call reads.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        frozen: Iterable[int],
        names: Mapping[str, str],
        settings: Settings,
        *,
        whole: bool,
    ) -> None:
        """Args:
        module: the graph; all that it does is functional.
        frozen: numbers of the arguments that are parameters and buffers that it does not change.
        names: what users call the arguments, by the names of the placeholders.
        settings: how it is compiled.
        whole: a refusal is an error.
        """
        self._module = module
        self._placeholders: list[fx.Node] = list(module.graph.find_nodes(op="placeholder"))
        self._static = [self._placeholders[index] for index in frozen]
        self._names = names
        self._settings = settings
        self._whole = whole
        self._lock = threading.RLock()
        self._symbols = SymbolReader.of(self._placeholders)
        self._refused: dict[fx.Node, Refusal] = {}
        self._version: _Version | None = None
        self._changes = 0

    def boxed(self) -> Callable[[list[Any]], list[Any]]:
        """Returns it as AOTAutograd calls it: with a list of arguments, which is emptied."""

        def run(arguments: list[Any]) -> list[Any]:
            return self.run(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def run(self, arguments: list[Any]) -> list[Any]:
        """Runs the graph once.

        Raises:
            LowerkitError: at the first call, what lowerkit refuses, where the graph must be compiled as a whole.
        """
        values: dict[fx.Node, Any] = dict(zip(self._placeholders, arguments, strict=True))
        evaluate = self._symbols.read(arguments)
        arguments.clear()
        version = self._version
        if version is None or (self._static and version.frozen.changed(values)):
            version = self._renewed(values)

        def value(node: fx.Node) -> Any:
            if node in values:
                return values[node]
            if is_number(node):
                return evaluate(expression_of(node.meta["val"]))
            return getattr(self._module, str(node.target))

        def run_by_pytorch(node: fx.Node) -> None:
            given, named = map_arg((node.args, node.kwargs), value)
            values[node] = node.target(*given, **named)  # type: ignore[operator]

        for step, last_read in zip(version.steps, version.last_read, strict=True):
            if isinstance(step, fx.Node):
                run_by_pytorch(step)
            else:
                try:
                    values.update(step([value(node) for node in step.live], evaluate))
                except RuntimeFault as error:
                    if self._whole or error.code != "LK8004":
                        raise
                    report_sizes(error, step.nodes)
                    for node in step.nodes:
                        run_by_pytorch(node)
            for node in last_read:
                del values[node]
        returned: Any = map_arg(self._module.graph.output_node().args[0], value)
        return list(returned)

    def _renewed(self, values: Mapping[fx.Node, Any]) -> _Version:
        with self._lock:
            version = self._version
            if version is not None:
                changed = version.frozen.changed(values)
                if not changed:
                    return version  # another thread was first
                self._note_change(changed)
            with torch.inference_mode(False), torch.no_grad(), _python_dispatch._disable_current_modes():
                self._version = version = self._compile(values)
            return version

    def _note_change(self, changed: Sequence[fx.Node]) -> None:
        self._changes += 1
        name = self._names.get(changed[0].name, changed[0].name)
        which = f"{name}, ..." if changed[1:] else name
        if self._changes == 1:
            what = f"{len(changed)} parameters have changed" if changed[1:] else "a parameter has changed"
            logger.warning("%s (%s): the graph is compiled anew", what, which)
        else:
            logger.warning("parameters change from call to call (%s): each call reads them from now on", which)
            self._static = []

    def _compile(self, values: Mapping[fx.Node, Any]) -> _Version:
        graph = self._module.graph
        if self._version is None:
            at_sight = {node: refusal for node in graph.nodes if (refusal := refusal_at_sight(node)) is not None}
            stated = {node: refusal for node, refusal in at_sight.items() if refusal.code}
            if self._whole and stated:
                raise refusal_error(stated)
            self._refused = at_sight
        frozen = {node: values[node] for node in self._static if can_be_frozen(values[node])}
        watched = FrozenInputs(frozen)
        runners: dict[tuple[fx.Node, ...], SegmentRunner] = {}
        while True:
            steps = partition(graph, self._refused)
            missing = [step for step in steps if isinstance(step, Segment) and tuple(step.nodes) not in runners]
            if not missing:
                break
            for segment in missing:
                try:
                    runners[tuple(segment.nodes)] = self._runner(segment, frozen)
                except LowerkitError as error:
                    if self._whole or not is_refusal(error):
                        raise
                    self._refused |= refused_nodes(error, segment, self._settings)
                    break
        if self._version is None:
            report(self._refused)
        counters["lowerkit"]["graphs"] += 1
        made = [runners[tuple(step.nodes)] if isinstance(step, Segment) else step for step in steps]
        return _Version(made, _last_read(steps, graph), watched)

    def _runner(self, segment: Segment, frozen: Mapping[fx.Node, torch.Tensor]) -> SegmentRunner:
        packed = {node: frozen[node] for node in segment.inputs if node in frozen}
        constants = {node: getattr(self._module, str(node.target)) for node in segment.inputs if node.op == "get_attr"}
        runner = SegmentRunner(segment, {**packed, **constants}, self._names, self._settings)
        counters["lowerkit"]["programs"] += 1
        return runner


def _last_read(steps: Sequence[Segment | fx.Node], graph: fx.Graph) -> list[list[fx.Node]]:
    """Returns for each step the values that nobody needs after it."""
    needed = set(graph.output_node().all_input_nodes)
    found: list[list[fx.Node]] = []
    for step in reversed(steps):
        read = step.all_input_nodes if isinstance(step, fx.Node) else step.inputs
        values = [node for node in read if not is_number(node) and node.op != "get_attr"]
        found.append([node for node in values if node not in needed])
        needed.update(values)
    return found[::-1]
