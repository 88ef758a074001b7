"""Runs a TorchScript program node by node while ``torch.export`` traces: what runs is what is exported.

Vocabulary
    environment  the values of a graph by name: tensors of the trace, numbers, lists, dicts, modules.

Numbers, lists, dicts and objects are Python's while the program is traced, and are gone afterwards. Branches and loops
whose course is known then are taken and written out; where data decides, see :mod:`control_flow`.
Shapes are those of the example inputs; source lines and module paths are carried over.
"""

# torch names the nodes of TorchScript graphs in private modules only.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import traceback
from torch.utils import _pytree as pytree

from lowerkit.capture.torchscript.control_flow import run_branches, run_loop
from lowerkit.capture.torchscript.operations import compute, module_path, stack_trace
from lowerkit.capture.torchscript.quantized import PackedWeight, is_packed, is_quantization_parameter, unpacked
from lowerkit.capture.torchscript.values import Known, is_alias, known_tensor, lifted
from lowerkit.errors import UnsupportedError

Environment = dict[str, Any]


def export_script(script: torch.jit.ScriptModule, arguments: tuple[Any, ...]) -> ExportedProgram:
    """Exports a ScriptModule for one set of positional arguments; raises what the exporter raises.

    Raises:
        UnsupportedError: LK4001, the program does what cannot be captured.
    """
    graph = script.inlined_graph
    return torch.export.export(_Traced(script, graph), arguments, strict=False)


class _Traced(torch.nn.Module):
    """A module with the parameters and buffers of a script under the same names, which runs its graph."""

    def __init__(self, script: torch.jit.ScriptModule, graph: torch._C.Graph) -> None:
        super().__init__()
        # Not attributes of a module: what is assigned to a module is looked at by the exporter.
        self.__dict__["script"], self.__dict__["graph"] = script, graph
        self.__dict__["packed_weights"] = {}
        self.training = False
        for name, value in script.named_parameters(remove_duplicate=False):
            # Those of a loaded file are plain tensors.
            parameter = torch.nn.Parameter(value.detach(), requires_grad=value.requires_grad)
            self.place_of(name).register_parameter(name.rpartition(".")[2], parameter)
        for name, value in script.named_buffers(remove_duplicate=False):
            self.place_of(name).register_buffer(name.rpartition(".")[2], value)
        self._hold_attributes(graph, {next(graph.inputs()).debugName(): _Module("", script)})

    @property
    def packed(self) -> dict[str, PackedWeight]:
        """Packed weights by their paths; their tensors are buffers."""
        return self.__dict__["packed_weights"]

    def place_of(self, name: str) -> torch.nn.Module:
        """Returns the module that holds the tensor ``name``; it is made where it is missing."""
        module: torch.nn.Module = self
        for part in name.split(".")[:-1]:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part] or module
        return module

    def _hold_attributes(self, block: Any, modules: dict[str, _Module]) -> None:
        """Registers tensors that are attributes and neither parameters nor buffers: constants of the program."""
        for node in block.nodes():
            owner = modules.get(node.input().debugName()) if node.kind() == "prim::GetAttr" else None
            if owner is not None:
                name = node.s("name")
                value, path = getattr(owner.script, name), f"{owner.path}{name}"
                if isinstance(value, torch.jit.ScriptModule):
                    modules[node.output().debugName()] = _Module(f"{path}.", value)
                elif is_packed(value):
                    self.packed[path] = weight = unpacked(value)
                    for part, tensor in weight.tensors.items():
                        self.place_of(f"{path}.{part}").register_buffer(part, tensor)
                elif isinstance(value, torch.Tensor) and not hasattr(self.place_of(path), name):
                    self.place_of(path).register_buffer(name, value, persistent=False)
            for inner in node.blocks():
                self._hold_attributes(inner, modules)

    def forward(self, *arguments: Any) -> Any:
        with traceback.preserve_node_meta():
            return lifted(Interpreter(self).run(self.__dict__["graph"], arguments))


class _Module:
    """A module of the script, by its path (with a dot behind it)."""

    def __init__(self, path: str, script: Any) -> None:
        self.path = path
        self.script = script


class Interpreter:
    """Runs the blocks of one program in one trace."""

    def __init__(self, holder: _Traced) -> None:
        self.holder = holder
        self.assigned: dict[str, torch.Tensor] = {}
        """Tensors assigned to attributes; they are written into the buffers at the end, as old values may be in use."""
        self.operations = 0
        """How many operations have given a tensor."""

    def run(self, graph: torch._C.Graph, arguments: tuple[Any, ...]) -> Any:
        """Runs the graph; returns what the program returns."""
        first, *others = graph.inputs()
        environment: Environment = {first.debugName(): _Module("", self.holder.__dict__["script"])}
        environment |= {value.debugName(): given for value, given in zip(others, arguments, strict=True)}
        found = self.run_block(graph, environment)
        for path, value in self.assigned.items():
            buffer = getattr(self.holder.place_of(path), path.rpartition(".")[2])
            if buffer.shape != value.shape or buffer.dtype != value.dtype:
                raise UnsupportedError("LK4001", f"the model gives its attribute {path!r} another shape or type")
            # What is returned may be the old value.
            found = pytree.tree_map(partial(_apart, buffer=buffer), found)
            buffer.copy_(value)
        return found[0] if len(found) == 1 else tuple(found)

    def run_block(self, block: Any, environment: Environment) -> list[Any]:
        """Runs a block, whose inputs and outer values the environment holds; returns its outputs."""
        for node in block.nodes():
            traceback.current_meta["stack_trace"] = stack_trace(str(node.sourceRange()))
            path = module_path(node)
            traceback.current_meta["nn_module_stack"] = {path: (path, torch.nn.Module)}
            self.run_node(node, environment)
        return [environment[value.debugName()] for value in block.outputs()]

    def run_node(self, node: torch._C.Node, environment: Environment) -> None:
        """Runs a node and binds its outputs."""
        kind = node.kind()
        outputs = [value.debugName() for value in node.outputs()]
        inputs = [environment[value.debugName()] for value in node.inputs()]
        if kind == "prim::If":
            found: Any = run_branches(self, node, inputs[0], environment)
        elif kind == "prim::Loop":
            found = run_loop(self, node, inputs, environment)
        elif kind in ("prim::ListUnpack", "prim::TupleUnpack"):
            found = list(inputs[0])
        elif kind == "prim::GetAttr":
            if outputs[0] in environment:  # read ahead of a branch or loop
                return
            found = [self._attribute(inputs[0], node.s("name"))]
        else:
            made = self._made(node, kind, inputs)
            self.operations += isinstance(made, torch.Tensor)
            found = [made] if len(outputs) == 1 else list(made) if outputs else []
        environment.update(zip(outputs, found, strict=True))

    def _made(self, node: torch._C.Node, kind: str, inputs: list[Any]) -> Any:
        """Returns the only output of a node, or a sequence of all."""
        if kind == "prim::SetAttr":
            self._assign(inputs[0], node.s("name"), inputs[1])
            return None
        return compute(node, inputs)

    def _attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, SimpleNamespace):
            return getattr(owner, name)
        value, path = getattr(owner.script, name), f"{owner.path}{name}"
        if isinstance(value, torch.jit.ScriptModule):
            return _Module(f"{path}.", value)
        if path in self.holder.packed:
            place, weight = self.holder.place_of(f"{path}."), self.holder.packed[path]
            return replace(weight, tensors={part: getattr(place, part) for part in weight.tensors})
        if isinstance(value, torch.Tensor) and is_quantization_parameter(owner.script, value):
            return known_tensor(value)
        if isinstance(value, torch.Tensor):
            return self.assigned.get(path, getattr(self.holder.place_of(path), name))
        return value

    def _assign(self, owner: Any, name: str, value: Any) -> None:
        if isinstance(owner, SimpleNamespace):
            setattr(owner, name, value)
        elif isinstance(value, (torch.Tensor, Known)) and hasattr(self.holder.place_of(owner.path + name), name):
            self.assigned[owner.path + name] = lifted(value)
        else:
            raise UnsupportedError(
                "LK4001",
                f"the model assigns its attribute {owner.path + name!r}, which is no tensor",
                hint="keep what survives a run in a buffer",
            )


def _apart(value: Any, *, buffer: torch.Tensor) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) and is_alias(value, buffer) else value
