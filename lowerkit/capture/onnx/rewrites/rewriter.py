"""What a rewrite rule reads of a node, and how it writes the nodes that replace it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from lowerkit.capture.onnx.inline import unique_prefix
from lowerkit.capture.onnx.tensors import DTYPE_NAMES, LazyTensor

if TYPE_CHECKING:
    from lowerkit.capture.onnx.skeleton import OnnxGraph

Array = np.ndarray[Any, Any]


IN_RANGE = "lowerkit.in_range"
"""Marks a node whose indices are in range."""


class NoRewriteError(Exception):
    """The rule does not take this node; it stays as it is, and is refused by name if nothing else takes it."""


class KeptError(NoRewriteError):
    """The importer takes this node as it is: no other rule is to be tried either."""


class Rewriter:
    """One node under rewriting.

    Attributes:
        node: what is replaced.
        version: the opset of the model.
        nodes: what replaces it.
    """

    def __init__(
        self,
        ready: OnnxGraph,
        node: NodeProto,
        version: int,
        types: Mapping[str, Any],
        values: Mapping[str, Array],
    ) -> None:
        self.node = node
        self.version = version
        self.nodes: list[NodeProto] = []
        self._ready = ready
        self._graph = ready.graph
        self._types = types
        self._values = values
        self._own_types: dict[str, Any] = {}
        self._prefix = unique_prefix(node)
        self._attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}

    # Reading.

    def input(self, index: int) -> str:
        """Returns the name of an operand, empty where it is absent."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def output(self, index: int) -> str:
        """Returns the name of a result, empty where nobody wants it."""
        return self.node.output[index] if index < len(self.node.output) else ""

    def attribute(self, name: str, default: Any) -> Any:
        """Returns an attribute; texts as str."""
        value = self._attributes.get(name, default)
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, list):
            return [item.decode() if isinstance(item, bytes) else item for item in value]
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns a static shape; refuses any other."""
        tensor_type = self._types.get(name) or self._own_types.get(name)
        if tensor_type is None or not tensor_type.HasField("shape"):
            raise NoRewriteError(f"the rank of {name!r} is not known")
        if not all(dim.HasField("dim_value") for dim in tensor_type.shape.dim):
            raise NoRewriteError(f"the shape of {name!r} is not static")
        return tuple(dim.dim_value for dim in tensor_type.shape.dim)

    def extent(self, name: str, axis: int) -> int:
        """Returns one extent that is static; refuses any other."""
        rank = self.rank(name)
        tensor_type = self._types.get(name) or self._own_types[name]
        if not tensor_type.shape.dim[axis % rank].HasField("dim_value"):
            raise NoRewriteError(f"extent {axis} of {name!r} is not static")
        return tensor_type.shape.dim[axis % rank].dim_value

    def rank(self, name: str) -> int:
        """Returns the number of dimensions, whose sizes may be dynamic."""
        tensor_type = self._types.get(name) or self._own_types.get(name)
        if tensor_type is None or not tensor_type.HasField("shape"):
            raise NoRewriteError(f"the rank of {name!r} is not known")
        return len(tensor_type.shape.dim)

    def dtype(self, name: str) -> int:
        """Returns the element type, a ``TensorProto.DataType``."""
        tensor_type = self._types.get(name) or self._own_types.get(name)
        if tensor_type is None or not tensor_type.elem_type:
            raise NoRewriteError(f"the element type of {name!r} is not known")
        return tensor_type.elem_type

    def numpy_dtype(self, name: str) -> np.dtype[Any]:
        """Returns the element type as numpy has it."""
        return helper.tensor_dtype_to_np_dtype(self.dtype(name))

    def value(self, name: str) -> Array | None:
        """Returns a constant, None for what is computed."""
        return self._values.get(name)

    def tensor(self, name: str) -> LazyTensor | None:
        """Returns a constant of any size, whose data is read when it is wanted; None for what is computed."""
        if name in self._ready.weights:
            return self._ready.weights[name]
        found = self._values.get(name)
        return None if found is None else LazyTensor.of(found, DTYPE_NAMES[self.dtype(name)])

    def integers(self, name: str) -> list[int]:
        """Returns a constant list of integers; refuses what is computed."""
        found = self._values.get(name)
        if found is None:
            raise NoRewriteError(f"{name!r} is not a constant")
        return [int(item) for item in found.reshape(-1)]

    # Writing.

    def fresh(self, label: str) -> str:
        """Returns a name that nothing has."""
        return f"{self._prefix}/{label}{len(self.nodes)}.{len(self._graph.initializer)}"

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Adds a constant and returns its name."""
        name = self.fresh("constant")
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, dtype, order="C"), name))
        return name

    def weight(self, label: str, tensor: LazyTensor) -> str:
        """Adds a constant whose data is computed when it is wanted, and returns its name."""
        name = f"{self.fresh(label)}.{len(self._ready.weights)}"
        self._ready.add_weight(name, tensor)
        return name

    def scalar(self, value: float, like: str) -> str:
        """Adds a constant of rank 0 with the element type of ``like``."""
        return self.constant(value, self.numpy_dtype(like))

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Writes a node with one result and returns its name."""
        return self.ops(op_type, inputs, 1, **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """Writes a node with ``count`` results and returns their names."""
        stem = self.fresh(op_type)
        outputs = [f"{stem}#{index}" for index in range(count)]
        node = helper.make_node(
            op_type, list(inputs), outputs, name=self.node.name or self.node.output[0], **attributes
        )
        node.metadata_props.extend(self.node.metadata_props)
        self.nodes.append(node)
        return outputs

    def give(self, name: str, index: int = 0) -> None:
        """Lets ``name`` be a result of the node."""
        if self.output(index):
            node = helper.make_node("Identity", [name], [self.output(index)], name=self.node.name or self.output(index))
            node.metadata_props.extend(self.node.metadata_props)
            self.nodes.append(node)

    # Ops that many rules write.

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """Reshapes to a static shape without zeros."""
        return self.op("Reshape", name, self.constant(shape))

    def transpose(self, name: str, order: Sequence[int]) -> str:
        """Permutes axes."""
        return name if list(order) == list(range(len(order))) else self.op("Transpose", name, perm=list(order))

    def cast(self, name: str, to: int) -> str:
        """Converts elements."""
        return self.op("Cast", name, to=to)

    def gather(self, name: str, indices: Any, axis: int) -> str:
        """Takes constant positions along an axis; an int drops the axis."""
        return self.op("Gather", name, self.constant(indices), axis=axis)

    def look_up(self, name: str, indices: str, axis: int) -> str:
        """Takes elements along an axis, at positions that were computed to be in range: they are not checked."""
        found = self.op("GatherElements", name, indices, axis=axis)
        self.nodes[-1].metadata_props.add(key=IN_RANGE)
        return found

    def slice(self, name: str, axis: int, start: int, end: int) -> str:
        """Takes ``start:end`` along an axis."""
        return self.op(
            "Slice", name, self.constant([start]), self.constant([end]), self.constant([axis]), self.constant([1])
        )

    def named_slice(self, name: str, axis: int, start: int, end: int) -> str:
        """As :meth:`slice`, of a value whose type is known; so is the result's."""
        shape = list(self.shape(name))
        shape[axis] = end - start
        result = self.slice(name, axis, start, end)
        self._own_types[result] = helper.make_tensor_type_proto(self.dtype(name), shape).tensor_type
        return result

    def unsqueeze(self, name: str, axes: Sequence[int]) -> str:
        """Inserts axes of extent one."""
        return self.op("Unsqueeze", name, self.constant(axes))


def is_float(data_type: int) -> bool:
    """Whether an ONNX element type is one of the floats that ops compute in."""
    return data_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
