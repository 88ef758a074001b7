"""From a TorchScript graph to an ExportedProgram, by torch's own converter and with what it leaves out.

Three differences to ``TS2EPConverter`` as it comes: shapes are those of the example inputs (it makes every dim
symbolic, which takes minutes and leaves shapes unknown); parameters are told from buffers by name (it compares every
pair of tensors, element by element); and source lines and module paths are carried over.
"""

# torch and torch-mlir are subclassed and told apart by names that they keep private; the versions are pinned.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._export.converter import (
    TS2EPConverter,
    TS2FXGraphConverter,
    _create_jit_graph,
    get_block_to_lifted_attrs,
    normalize_name,
    replace_quantized_ops_with_standard_ops,
)
from torch.export import ExportedProgram
from torch.fx import node as fx_node
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import _disable_current_modes

from lowerkit.capture.torchscript_control_flow import logical_not, number_op, run_branch, run_loop

_SOURCE = re.compile(r"^(?P<file>.+?)\((?P<line>[0-9]+)\): (?P<name>.+)$", re.MULTILINE)
_SMALL = 4096
"""Elements of a tensor that is still taken for arithmetic on sizes."""

_MACHINERY = ("/torch/nn/modules/module.py", "/torch/jit/", "/torch/_trace", "/torch/utils/")


class ScriptConverter(TS2EPConverter):
    """Converts one ScriptModule for one set of positional tensors."""

    def __init__(self, script: torch.jit.ScriptModule, arguments: tuple[Any, ...]) -> None:
        self.ts_model = script
        self.ts_graph, self.params, _, _ = _create_jit_graph(script, arguments)
        self.sample_args = arguments
        self.sample_kwargs = None
        parameters = {name for name, _ in script.named_parameters(remove_duplicate=False)}
        state = script.state_dict()
        self.name_to_param = {name: value for name, value in state.items() if name in parameters}
        self.name_to_buffer = {name: value for name, value in state.items() if name not in parameters}
        self.name_to_non_tensor_attributes: dict[str, Any] = {}
        self.name_to_constant: dict[str, Any] = {}
        self.lift_get_attr()

    def convert(self) -> ExportedProgram:
        """Returns the program; raises what torch's converter and exporter raise."""
        lifted, attribute_names = get_block_to_lifted_attrs(self.ts_graph)
        graph_converter = _GraphConverter(
            self.ts_graph,
            self.name_to_param,
            self.name_to_buffer,
            lifted,
            self.name_to_non_tensor_attributes,
            self.name_to_constant,
            attribute_names,
        )
        module = graph_converter.convert()
        replace_quantized_ops_with_standard_ops(module)
        constants = {
            name: value
            for name, value in graph_converter.name_to_constant.items()
            if isinstance(value, torch.Tensor) and value.numel() <= _SMALL
        }
        return torch.export.export(_Interpreted(module, constants), self.sample_args, strict=False)


class _GraphConverter(TS2FXGraphConverter):
    def convert_node(self, node: torch._C.Node) -> None:
        last = next(iter(reversed(self.fx_graph.nodes)), None)
        super().convert_node(node)
        stack = _stack_trace(str(node.sourceRange()))
        path = _module_path(node.scopeName())
        for made in reversed(self.fx_graph.nodes):
            if made is last:
                break
            made.meta.setdefault("stack_trace", stack)
            made.meta.setdefault("nn_module_stack", {path: (path, torch.nn.Module)})

    def convert_call_function_op(self, node: torch._C.Node) -> None:
        computes = number_op(node)
        if computes is None:
            super().convert_call_function_op(node)
            return
        operands = list(node.inputs())[: 1 if node.kind() == "aten::neg" else 2]
        self._define(node, computes, [self.get_fx_value_by_ir_value(value) for value in operands])

    def convert_aten___not__(self, node: torch._C.Node) -> None:
        self._define(node, logical_not, [self.get_fx_value_by_ir_value(value) for value in node.inputs()])

    def convert_prim_If(self, node: torch._C.Node) -> None:  # noqa: N802  # the converter's own name
        self._check_set_attr_in_if_block(node)
        predicate = self.get_fx_value_by_ir_value(next(node.inputs()))
        names = self._arguments_of(node)
        (then, otherwise), _ = self._convert_block_to_subgraph(node, names)
        arguments = tuple(self.get_fx_value_by_fqn(name) for name in names)
        kinds = [str(output.type()) for output in node.outputs()]
        self._define(node, run_branch, [predicate, then, otherwise, arguments, kinds], alone=len(kinds) == 1)

    def convert_prim_Loop(self, node: torch._C.Node) -> None:  # noqa: N802
        try:
            self._check_prim_loop_support(node)
        except RuntimeError:  # torch's way to say that data decides
            turns, going, *carried = (self.get_fx_value_by_ir_value(value) for value in node.inputs())
            names = self._arguments_of(node)
            (body,), _ = self._convert_block_to_subgraph(node, names)
            shared = [self.get_fx_value_by_fqn(name) for name in names]
            kinds = [str(output.type()) for output in node.outputs()]
            self._define(node, run_loop, [body, turns, going, kinds, *carried, *shared], alone=False)
        else:
            super().convert_prim_Loop(node)

    def _arguments_of(self, node: torch._C.Node) -> list[str]:
        """Names of what the blocks of a node read from outside, parameters included."""
        names = self._identify_inputs_as_arguments(node)
        return sorted(names.union(*(self.blocks_to_lifted_attrs[block] for block in node.blocks())))

    def _define(
        self, node: torch._C.Node, computes: Callable[..., Any], arguments: list[Any], *, alone: bool = True
    ) -> None:
        """Adds a call; it gives the only output of ``node``, or a tuple with one item for each."""
        called = self.fx_graph.call_function(computes, tuple(arguments))
        for index, output in enumerate(node.outputs()):
            value = called if alone else self.fx_graph.call_function(operator.getitem, (called, index))
            self.name_to_node[output.debugName()] = value

    def _convert_block_to_subgraph(self, node: torch._C.Node, arguments: list[str]) -> tuple[list[Any], list[Any]]:
        """As torch's, but by this class, so that blocks inside blocks are converted alike."""
        converters: list[Any] = []
        for block in node.blocks():
            inner = _GraphConverter(
                block,
                self.name_to_param,
                self.name_to_buffer,
                self.blocks_to_lifted_attrs,
                {},
                self.name_to_constant,
                self.name_to_attribute_fqn,
            )
            for name in arguments:
                inner.name_to_node[name] = inner.fx_graph.placeholder(normalize_name(name))
            converters.append(inner)
        return [self.fx_graph.get_attr(self.add_subgraph(inner.convert())) for inner in converters], converters


class _Interpreted(torch.nn.Module):
    """Runs a graph node by node, so that what the exporter records carries each node's metadata.

    No GraphModule (the exporter would run its graph itself), but with the same parameters under the same names.
    """

    def __init__(self, module: fx.GraphModule, constants: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.__dict__.update(module.__dict__)
        # Not attributes of a module: what is assigned to a module is looked at by the exporter.
        self.__dict__["interpreter"] = lambda: _NumberKeeper(self, module.graph, constants)
        self.training = False

    def forward(self, *arguments: Any) -> Any:
        with preserve_node_meta():
            return self.__dict__["interpreter"]().run(*arguments)


class _NumberKeeper(fx.Interpreter):
    """Keeps numbers numbers.

    A traced ``x.shape[-1] // 2`` is TorchScript arithmetic on tensors of one element, converted back at the end. To
    the exporter such a result is data, so every shape that it touches would be unknown. Here what depends on sizes
    and constants only is computed beside the export, on real tensors, and handed on as the number it is.
    """

    def __init__(self, module: torch.nn.Module, graph: fx.Graph, constants: dict[str, torch.Tensor]) -> None:
        super().__init__(module, graph=graph)
        self._constants = constants
        self._real: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr" and n.target in self._constants:
            self._real[n] = self._constants[str(n.target)]
        concrete = n.op == "call_function" and all(source in self._real for source in n.all_input_nodes)
        if concrete and any(isinstance(self._real[source], torch.Tensor) for source in n.all_input_nodes):
            value = self._compute(n)
            if isinstance(value, (bool, int, float)):
                self._real[n] = value
                return value
            concrete = False
            if isinstance(value, torch.Tensor) and value.numel() <= _SMALL:
                self._real[n] = value
        result = super().run_node(n)
        if _is_numbers(result):
            self._real[n] = result
        elif concrete and isinstance(result, torch.Tensor) and result.numel() <= _SMALL:
            self._real[n] = self._compute(n)
        return result

    def _compute(self, node: fx.Node) -> Any:
        with _disable_current_modes():
            arguments = fx_node.map_arg(node.args, self._real.__getitem__)
            named = fx_node.map_arg(node.kwargs, self._real.__getitem__)
            return node.target(*arguments, **named)  # type: ignore[operator]  # a call_function's target


def _is_numbers(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_is_numbers(item) for item in value)
    return type(value) in (bool, int, float)


def _stack_trace(source: str) -> str:
    """Writes TorchScript's stack (innermost first) as Python does, without the machinery of module calls."""
    frames = [
        f'  File "{match["file"]}", line {match["line"]}, in {match["name"]}'
        for match in _SOURCE.finditer(source)
        if not any(part in match["file"] for part in _MACHINERY)
    ]
    return "\n".join(reversed(frames))


def _module_path(scope: str) -> str:
    """``a.Model::/b.Encoder::encoder/c.Linear::0`` is ``encoder.0``."""
    names = [part.rpartition("::")[2] for part in scope.split("/")]
    return ".".join(name for name in names if name)
