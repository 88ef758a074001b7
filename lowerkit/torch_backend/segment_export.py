"""A segment as an ExportedProgram, which capture takes.

Vocabulary
    frozen    an input that is packed at compile time: a parameter or a buffer.
    carrier   an input that brings a number, since a program takes tensors alone: a size that no other input has as an
              extent comes as the shape ``[n, 0]`` of a tensor without elements, any other number as a tensor of rank 0.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.operators import aten
from lowerkit.torch_backend.nodes import is_body, is_number, takes_tensor
from lowerkit.torch_backend.segment import Segment
from lowerkit.torch_backend.sizes import expression_of, fake_mode, is_size, is_symbolic

_KEPT = ("val", "stack_trace", "nn_module_stack", "seq_nr")


@dataclass(frozen=True)
class Carrier:
    """A number as an input; ``dtype`` of a tensor of rank 0, None of an extent."""

    expression: Any
    dtype: str | None

    def array(self, number: float) -> np.ndarray[Any, Any]:
        """Returns the input that brings ``number``."""
        return np.empty((int(number), 0), np.float32) if self.dtype is None else np.array(number, self.dtype)


@dataclass
class ExportedSegment:
    """An ExportedProgram of a segment; its inputs are those that are not frozen, in order, then the carriers."""

    program: ExportedProgram
    live: list[fx.Node]
    carriers: list[Carrier]


def export_segment(
    segment: Segment, frozen: Mapping[fx.Node, torch.Tensor], names: Mapping[str, str]
) -> ExportedSegment:
    """Writes a segment as an ExportedProgram.

    Args:
        segment: what is to be compiled.
        frozen: values of the inputs that are packed.
        names: by the names of graph inputs, what users call them.
    """
    return _Writer(segment, frozen, names).write()


@dataclass
class _Writer:
    segment: Segment
    frozen: Mapping[fx.Node, torch.Tensor]
    names: Mapping[str, str]
    root: torch.nn.Module = field(default_factory=torch.nn.Module)
    graph: fx.Graph = field(default_factory=fx.Graph)
    copied: dict[fx.Node, fx.Node] = field(default_factory=dict[fx.Node, fx.Node])
    scalars: dict[fx.Node, fx.Node] = field(default_factory=dict[fx.Node, fx.Node])
    carriers: list[Carrier] = field(default_factory=list[Carrier])
    input_specs: list[InputSpec] = field(default_factory=list[InputSpec])
    state: dict[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])

    def write(self) -> ExportedSegment:
        segment = self.segment
        live = [node for node in segment.inputs if node not in self.frozen]
        for node in segment.inputs:
            if node in self.frozen:
                self._freeze(node, self.frozen[node])
        for node in live:
            self.copied[node] = self._placeholder(self._name(node), node.meta["val"])
        self._add_numbers(live)
        for node in segment.nodes:
            self._copy(node)
        returned = [self.copied[node] for node in segment.outputs]
        self.graph.output(tuple(returned))
        output_specs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in returned]
        in_spec = pytree.tree_flatten((tuple(range(len(live) + len(self.carriers))), {}))[1]
        out_spec = pytree.tree_flatten(tuple(range(len(returned))))[1]
        mode = fake_mode(segment.nodes)
        program = ExportedProgram(
            root=self.root,
            graph=self.graph,
            graph_signature=ExportGraphSignature(self.input_specs, output_specs),
            state_dict=self.state,
            range_constraints={} if mode is None or mode.shape_env is None else dict(mode.shape_env.var_to_range),
            module_call_graph=[ModuleCallEntry("", ModuleCallSignature([], [], in_spec, out_spec))],
        )
        return ExportedSegment(program, live, self.carriers)

    def _freeze(self, node: fx.Node, tensor: torch.Tensor) -> None:
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        target = self.names.get(node.name, node.name)
        while target in self.state:
            target += "_"
        placeholder = self.copied[node] = self.graph.placeholder(self._name(node))
        placeholder.meta["val"] = node.meta["val"]
        kind = InputKind.PARAMETER if is_parameter else InputKind.BUFFER
        argument = TensorArgument(placeholder.name)
        self.input_specs.append(InputSpec(kind, argument, target, None if is_parameter else True))
        self.state[target] = tensor

    def _placeholder(self, name: str, value: torch.Tensor) -> fx.Node:
        placeholder = self.graph.placeholder(name)
        placeholder.meta["val"] = value
        self.input_specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(placeholder.name), None))
        return placeholder

    def _name(self, node: fx.Node) -> str:
        name = re.sub(r"\W", "_", self.names.get(node.name, node.name))
        return name if name.isidentifier() and not keyword.iskeyword(name) else f"arg_{name}"

    def _add_numbers(self, live: Sequence[fx.Node]) -> None:
        """Finds an extent, or adds a carrier, for each number that an op reads and each symbol that a shape holds."""
        extents: dict[Any, tuple[fx.Node, int]] = {}
        for node in live:
            for axis, extent in enumerate(node.meta["val"].shape):
                if is_symbolic(extent):
                    extents.setdefault(expression_of(extent), (self.copied[node], axis))
        sizes: dict[fx.Node, None] = {}
        for node in self.segment.nodes:
            for source in node.all_input_nodes:
                if is_number(source):
                    self._add_given(source, node, sizes)
        wanted = {expression_of(node.meta["val"]): node.meta["val"] for node in sizes}
        for symbol in sorted(self._symbols() - wanted.keys(), key=str):
            wanted[symbol] = fake_mode(self.segment.nodes).shape_env.create_symintnode(symbol, hint=None)
        for expression, value in wanted.items():
            if expression not in extents:
                with fake_mode(self.segment.nodes):
                    tensor = torch.empty((value, 0), dtype=torch.float32)
                extents[expression] = (self._carrier(Carrier(expression, None), tensor), 0)
        for node in sizes:
            size = self.copied[node] = self.graph.call_function(
                aten.sym_size.int, extents[expression_of(node.meta["val"])]
            )
            size.meta["val"] = node.meta["val"]

    def _symbols(self) -> set[Any]:
        values = [node.meta.get("val") for node in [*self.segment.nodes, *self.segment.inputs]]
        tensors = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        extents = [extent for tensor in tensors for extent in tensor.shape if is_symbolic(extent)]
        return {symbol for extent in extents for symbol in expression_of(extent).free_symbols}

    def _add_given(self, number: fx.Node, reader: fx.Node, sizes: dict[fx.Node, None]) -> None:
        """Adds the numbers of a call out of which ``number`` is computed: to ``sizes``, or as a scalar."""
        value = number.meta["val"]
        if not is_symbolic(value) or number in sizes:
            return
        if takes_tensor(reader, number) and not is_size(value):
            if number not in self.scalars:
                dtype = torch.int64 if isinstance(value, torch.SymInt) else torch.float64
                with fake_mode(self.segment.nodes):
                    scalar = torch.empty((), dtype=dtype)
                carrier = Carrier(expression_of(value), str(dtype).removeprefix("torch."))
                self.scalars[number] = self._carrier(carrier, scalar)
        elif number.op == "call_function" and not self._is_given(number):
            for source in number.all_input_nodes:
                self._add_given(source, number, sizes)
        else:
            sizes[number] = None

    def _is_given(self, number: fx.Node) -> bool:
        """Whether a number is not computed by the program: an extent, or what is known of a tensor outside of it."""
        tensors = [source for source in number.all_input_nodes if not is_number(source)]
        inside = {*self.segment.nodes, *self.segment.inputs}
        return number.target is torch.ops.aten.sym_size.int or any(tensor not in inside for tensor in tensors)

    def _carrier(self, carrier: Carrier, tensor: torch.Tensor) -> fx.Node:
        self.carriers.append(carrier)
        return self._placeholder(f"number_{len(self.carriers)}", tensor)

    def _copy(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if is_body(source) and source not in self.copied:
                name = str(source.target)
                self.root.add_module(name, getattr(source.graph.owning_module, name))
                self.copied[source] = self.graph.get_attr(name)
            elif (
                is_number(source)
                and is_symbolic(source.meta["val"])
                and source not in self.copied
                and not (source in self.scalars and takes_tensor(node, source))
            ):
                self._copy(source)

        def argument(source: fx.Node) -> Any:
            if source in self.scalars and takes_tensor(node, source):
                return self.scalars[source]
            if is_number(source) and not is_symbolic(source.meta["val"]):
                value = source.meta["val"]
                return int(value) if isinstance(value, torch.SymInt) else value
            return self.copied[source]

        copied = self.copied[node] = self.graph.node_copy(node, argument)
        copied.meta = {key: value for key, value in node.meta.items() if key in _KEPT}
