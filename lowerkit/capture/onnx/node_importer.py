"""Nodes of one ONNX graph as ops of the torch dialect: by a rule each, weights by reference, a location on every op."""

# torch and torch-mlir are subclassed and told apart by names that they keep private; the versions are pinned.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

# The importers are part of torch-mlir, not of the MLIR bindings that `lowerkit.mlir` stands for.
from torch_mlir.extras import onnx_importer as upstream

from lowerkit.capture.onnx.calls import import_if, import_loop
from lowerkit.capture.onnx.collectives import import_collective, is_collective
from lowerkit.capture.onnx.contracts import checked_operands
from lowerkit.capture.onnx.functions import opset_versions
from lowerkit.capture.onnx.literals import literal
from lowerkit.capture.onnx.node_location import node_location
from lowerkit.capture.onnx.nodes import RULES
from lowerkit.capture.onnx.nodes.followed import followed_sizes
from lowerkit.capture.onnx.nodes.node import Node, Results, declared_info, torch_name
from lowerkit.capture.onnx.nodes.sizes import Sizes, tensor_of
from lowerkit.capture.onnx.quantized import (
    PRODUCTS,
    QUANTIZATION,
    import_product,
    import_quantization,
    takes,
    takes_product,
)
from lowerkit.capture.onnx.skeleton import OnnxGraph
from lowerkit.capture.onnx.tensors import DTYPE_NAMES, data_type_of, is_scalar
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_ir import RefusalError, defining_op
from lowerkit.passes.source_location import op_name
from lowerkit.program.dtypes import mlir_type
from lowerkit.program.locations import make_location

CONTROL_FLOW: dict[str, Callable[..., None]] = {"If": import_if, "Loop": import_loop}


class NodeImporter(upstream.NodeImporter):
    """Imports the nodes of one graph.

    Attributes:
        import_graph: imports the body of control flow.
        functions: takes the modules of the bodies that it meets.
        refused: what to say of each node that no rule took, and its operator.
        sizes: what is known of values that are computed from shapes.
    """

    __slots__ = ("functions", "import_graph", "ready", "refused", "sizes")
    functions: list[ir.Module]
    import_graph: Callable[[OnnxGraph, ir.Context], ir.Module]
    ready: OnnxGraph
    refused: dict[str, str]
    sizes: dict[str, Sizes]

    @classmethod
    def define_main(cls, ready: OnnxGraph, info: upstream.GraphInfo, module: ir.Operation) -> NodeImporter:
        """Creates the function; only the model's own inputs are arguments, the weights of the skeleton are ops."""
        cache = upstream.ContextCache(module.context)
        inputs = [info.input_map[name] for name in ready.inputs]
        with module.context, ir.Location.unknown():
            arguments = [cache.type_proto_to_type(value.type) for value in inputs]
            results = [cache.type_proto_to_type(value.type) for value in info.graph_proto.output]
            function = upstream.func_dialect.FuncOp(
                ready.name, ir.FunctionType.get(arguments, results), ip=ir.InsertionPoint(module.regions[0].blocks[0])
            )
            block = function.add_entry_block([ir.Location.name(f"{name}@") for name in ready.inputs])
        importer = cls(
            info,
            parent_op=function,
            block=block,
            context_cache=cache,
            module_op=module,
            module_cache=upstream.ModuleCache(module, cache),
        )
        importer.ready, importer.sizes, importer.refused = ready, {}, {}
        importer._nv_map.update(zip(ready.inputs, block.arguments, strict=True))
        importer._populate_graph_attrs(function)
        function.attributes["torch.assume_strict_symbolic_shapes"] = ir.UnitAttr.get(module.context)
        importer._define_weights()
        return importer

    def _define_weights(self) -> None:
        used = {name for node in self._gi.graph_proto.node for name in node.input}
        used.update(value.name for value in self._gi.graph_proto.output)
        for name, tensor in self.ready.weights.items():
            if name not in used:
                continue
            with ir.InsertionPoint(self._b), make_location(name, "", (), self._c):
                builtin = ir.RankedTensorType.get(tensor.shape, mlir_type(tensor.dtype))
                value = ir.Operation.create(
                    "lk.weight", results=[builtin], attributes={"symbol": ir.StringAttr.get(name)}
                ).result
                torch_type = self._cc.type_proto_to_type(self._gi.declared_input_map[name].type)
                self._nv_map[name] = ir.Operation.create(
                    "torch_c.from_builtin_tensor", results=[torch_type], operands=[value]
                ).result

    def import_initializer(self, initializer: TensorProto, extern_name: str | None = None) -> ir.Value:
        """Imports a literal."""
        name = extern_name or initializer.name
        with ir.InsertionPoint(self._b), make_location(name, "", (), self._c):
            made = literal(numpy_helper.to_array(initializer), torch_name(DTYPE_NAMES[initializer.data_type]))
        self._nv_map[name] = made
        return made

    def _import_body(self, body: OnnxGraph) -> ir.Operation:
        module = self.import_graph(body, self._c)
        self.functions.append(module)
        self.ready.bodies += [body, *body.bodies]
        return module.body.operations[0].operation

    def import_node(self, node: NodeProto) -> None:
        """Imports a node as an opaque operator, but for control flow and a few conversions."""
        with ir.InsertionPoint(self._b), node_location(node, self._c):
            if node.op_type in CONTROL_FLOW:
                CONTROL_FLOW[node.op_type](self, node, self._import_body)
                return
            operands = [self._nv_map[name] if name else self.get_none() for name in node.input]
            names = [name for name in node.output if name]
            types = [self._output_type(name) for name in node.output if name]
            if is_collective(node):
                self._nv_map[names[0]] = import_collective(node, operands[0], types[0])
                return
            if self._is_quantization(node):
                self._nv_map[node.output[0]] = import_quantization(node, operands, types[0], self._literal)
                return
            if node.op_type in PRODUCTS and takes_product(node, self._constant_type(node.input[1])):
                self._nv_map[node.output[0]] = import_product(node, operands, types[0])
                return
            operands = checked_operands(node, operands, self._constant)
            if self._import_by_rule(node, names, operands):
                return
            # What the other nodes are imported with.
            name = {"name": ir.StringAttr.get(f"onnx.{node.op_type}")}
            left = ir.Operation.create("torch.operator", results=types, operands=operands, attributes=name)
            self._nv_map.update(zip(names, left.results, strict=True))

    def _import_by_rule(self, proto: NodeProto, names: list[str], operands: Sequence[ir.Value]) -> bool:
        """Builds what a node computes, by the rule of its operator; returns whether one took it."""
        rule = RULES.get(proto.op_type)
        declared = [declared_info(self._gi.find_type_proto_for_name(name)) for name in names]
        version = opset_versions(self.ready.model).get("", 1)
        found = {name: operand for name, operand in zip(proto.input, operands, strict=True) if name}
        node = Node(proto, version, found, declared, self._constant, self.sizes)
        try:
            sizes = followed_sizes(node)
            if sizes is not None:
                built: Results = tensor_of(sizes, node.size_dtype)
            elif rule is not None:
                built = rule(node)
            else:
                raise RefusalError("")
        except (RefusalError, VerifyError) as refusal:
            if not any(map(_is_refused, operands)):
                self.refused[_description(proto, operands, str(refusal))] = proto.op_type
            return False
        if sizes is not None:
            self.sizes[names[0]] = sizes
        self._nv_map.update(zip(names, node.fitted(built), strict=True))
        return True

    def _is_quantization(self, node: NodeProto) -> bool:
        """Whether a node becomes an lk op; the rewrites have written the others in floats."""
        if node.op_type not in QUANTIZATION:
            return False
        names = [name for name in node.input[1:] if name]
        types = [self._gi.find_type_proto_for_name(name) for name in names]
        single = all(map(is_scalar, types)) and types[0].tensor_type.elem_type == TensorProto.FLOAT
        kinds = [self._gi.find_type_proto_for_name(name) for name in (node.input[0], node.output[0])]
        floats, integers = (kind.tensor_type.elem_type for kind in kinds)
        if node.op_type == "DequantizeLinear":
            floats, integers = integers, floats
        block = next((item.i for item in node.attribute if item.name == "block_size"), 0)
        return takes(node.op_type, integers, floats, [*map(self._literal, names)], block, single=single)

    def _literal(self, name: str) -> np.ndarray[Any, Any] | None:
        known = self._gi.initializer_map
        return numpy_helper.to_array(known[name]) if name in known else None

    def _constant(self, name: str) -> np.ndarray[Any, Any] | None:
        weight = self.ready.weights.get(name)
        return self._literal(name) if weight is None else weight.read()

    def _constant_type(self, name: str) -> tuple[int, tuple[int, ...]] | None:
        """Returns element type and shape of a literal or weight."""
        literal = self._gi.initializer_map.get(name)
        if literal is not None:
            return literal.data_type, tuple(literal.dims)
        weight = self.ready.weights.get(name)
        return None if weight is None else (data_type_of(weight.dtype), weight.shape)

    def _output_type(self, name: str) -> ir.Type:
        found = self._gi.find_type_proto_for_name(name)
        known = found and found.tensor_type.HasField("shape")
        return self._cc.type_proto_to_type(found) if known else ir.Type.parse("!torch.vtensor", context=self._c)


def _is_refused(value: ir.Value) -> bool:
    """Whether a node that no rule took makes a value: what reads it may lack its type."""
    owner = defining_op(value)
    return owner is not None and op_name(owner).startswith("onnx.")


def _description(node: NodeProto, operands: Sequence[ir.Value], reason: str) -> str:
    types = ", ".join(str(operand.type).removeprefix("!torch.") for operand in operands)
    return f"{node.op_type} (node {node.name or node.output[0]!r}) on ({types}){reason and f': {reason}'}"
