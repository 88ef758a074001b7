"""Values of every node of a captured graph, run by PyTorch: in the model's own element types, and in float64.

They are torch's own where the graph is right. Whether it is, the reference says (:mod:`float64_reference`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, TensorArgument
from torch.fx.node import Target, map_aggregate
from torch.utils._pytree import tree_leaves

from lowerkit.capture.torch_export.graph.functionalize import callable_of
from lowerkit.program.dtypes import to_numpy, to_torch

if TYPE_CHECKING:
    from lowerkit.program.functional_program import FunctionalProgram

Array = np.ndarray[Any, Any]
_LOW_PRECISION = (torch.float32, torch.float16, torch.bfloat16)


def _stable_sort(value: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ops.aten.sort.stable(value, stable=True, dim=dim, descending=descending)


def _stable_argsort(value: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    return torch.ops.aten.argsort.stable(value, stable=True, dim=dim, descending=descending)


_STABLE: dict[Any, Any] = {
    torch.ops.aten.sort.default: _stable_sort,
    torch.ops.aten.argsort.default: _stable_argsort,
}


def node_values(
    program: FunctionalProgram,
    inputs: Sequence[Array],
    nodes: Collection[str],
    *,
    float64: bool,
    copies: bool = False,
    stable_sorts: bool = False,
) -> dict[str, list[Array]]:
    """Runs the imported graph and returns node name -> its tensors (several for a split) for the nodes asked for.

    With ``float64``, weights and inputs are widened and every cast or creation of a narrower floating type inside the
    graph is carried out in float64 instead: the result the model would have without rounding. A graph that changes
    tensors in place gives what they hold at the end, with ``copies`` what each node gave. With ``stable_sorts``, sorts
    that leave the order of equal keys open, and take whichever is fastest on this machine, take the stable one, which
    is what a compiled model does: what is computed of the order can be compared then.
    """
    recorder = _Recorder(_as_module(program), frozenset(nodes), float64, copies, stable_sorts)
    given = iter(inputs)
    arguments = [_argument(program, spec, given) for spec in program.graph_signature.input_specs]
    with torch.no_grad():
        recorder.run(*(_widen_tensor(value) if float64 else value for value in arguments))
    return recorder.values


def output_nodes(program: FunctionalProgram) -> list[str]:
    """Returns the nodes of the model's outputs, then of its final states."""
    return [
        spec.arg.name
        for kind in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION)
        for spec in program.graph_signature.output_specs
        if spec.kind == kind and isinstance(spec.arg, TensorArgument)
    ]


def float64_outputs(program: FunctionalProgram, inputs: Sequence[Array], count: int) -> list[Array] | None:
    """Returns the graph's outputs, then its final states, in float64; None where there are other than ``count``."""
    names = output_nodes(program)
    values = node_values(program, inputs, names, float64=True)
    found = [values[name][0] for name in names if name in values]
    return found if len(found) == count else None


def _as_module(program: FunctionalProgram) -> fx.GraphModule:
    return fx.GraphModule(program.graph.owning_module or {}, program.graph)


def _argument(program: FunctionalProgram, spec: InputSpec, given: Iterator[Array]) -> Any:
    """Returns what a placeholder stands for: the next input, a weight, or a constant."""
    if spec.kind == InputKind.USER_INPUT:
        return to_torch(next(given)) if isinstance(spec.arg, TensorArgument) else getattr(spec.arg, "value", None)
    return program.tensor_of(spec)


class _Recorder(fx.Interpreter):
    """Interprets a graph and keeps the values of some nodes."""

    def __init__(
        self, module: fx.GraphModule, nodes: frozenset[str], float64: bool, copies: bool, stable_sorts: bool
    ) -> None:
        super().__init__(module)
        self.stable_sorts = stable_sorts
        self.nodes = nodes
        self.float64 = float64
        self.copies = copies
        self.values: dict[str, list[Array]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n.name in self.nodes:
            tensors = [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
            if tensors:
                self.values[n.name] = [np.array(to_numpy(one)) if self.copies else to_numpy(one) for one in tensors]
        return value

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_attr(target, args, kwargs)
        if self.float64 and isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.double()
        return value

    def call_function(self, target: Target, args: Any, kwargs: Any) -> Any:
        target = callable_of(target)
        if self.stable_sorts and target in _STABLE:
            target = _STABLE[target]
        if not self.float64:
            return super().call_function(target, args, kwargs)
        widen = _widen
        result = super().call_function(target, map_aggregate(args, widen), map_aggregate(kwargs, widen))
        return map_aggregate(result, _widen_tensor) if isinstance(result, (tuple, list)) else _widen_tensor(result)


def _widen(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _LOW_PRECISION else value


def _widen_tensor(value: Any) -> Any:
    """Ops that create a tensor in the default type (full, arange, rsqrt of an integer) are widened afterwards."""
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in _LOW_PRECISION else value
