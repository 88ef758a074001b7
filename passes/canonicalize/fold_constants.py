"""Computes ahead of time what depends on weights and constants alone, without reading the weights now.

Vocabulary
    constant op    all it reads is constant: weights, ``arith.constant``, other constant ops.
    root           a constant op that something not constant reads.
    cone           a root and the constant ops it needs.

Steps
    1. find the constant ops, in program order; one whose result is too large is not constant (the size bound: a
       broadcast to a terabyte must stay a broadcast). A root has a narrower bound than what is computed on the way to
       one and never stored (a weight squared in f32): while a root is too large, it is not constant, and what it reads
       may become roots;
    2. copy each root's cone into a module of its own, as text;
    3. the root becomes an ``lk.weight`` whose data is that module, interpreted when it is asked for. Roots with the
       same text share one weight.
    4. constant tensors with more than a few elements become weights too: IR holds no data. Scalars that are taken
       out of constant tensors become ``arith.constant``: shapes may hang on them.

Bytes: the artifact grows by the results and shrinks by weights that nothing reads any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lowerkit.dialect import LkOperation, WeightOp
from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.types import numpy_dtype, tensor_bytes
from lowerkit.mlir import arith, func, ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.rewriting import (
    OpSet,
    captured_values,
    clone_op,
    defining_op,
    erase_dead,
    has_effects,
    is_used,
    main_block,
    nested_operations,
    operations,
    replace,
    weight_symbol,
)
from lowerkit.passes.shard.invariance import is_for_kernels
from lowerkit.program.dtypes import name_of
from lowerkit.program.weights import Shard, WeightStore

Array = np.ndarray[Any, Any]

_of_thread = threading.local()
_FOLDABLE = ("lk.", "linalg.", "tensor.", "arith.", "math.")
_NEVER = frozenset(
    {"lk.region", "lk.call", "lk.cond", "lk.while", "lk.state_read", "lk.collective_start", "lk.collective_done"}
)
# Cheaper to repeat than to load, or not data at all.
_FREE = frozenset({"arith.constant", "tensor.empty", "linalg.fill", "lk.weight"})


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Turns computations on weights into weights.

    Precondition: stage raised, canonical or layout (no regions yet).

    Attributes:
        bound: bytes that a folded result may have although the weights that it is computed from are smaller; larger
            ones are left, with a remark. Results no larger than these weights together are always folded.
        way_bound: the same of a result on the way to a folded one, beside its operands.
        inline_elements: elements up to which a constant tensor stays in the IR.
        max_flops: arithmetic operations that one folded lk op may take.
    """

    name: ClassVar[str] = "fold-constants"
    bound: int = 16 << 20
    way_bound: int = 256 << 20
    inline_elements: int = 8
    max_flops: int = 1 << 32

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        known: dict[str, str] = {}
        changed = False
        constant = self._constant_ops(block, context)
        for op in operations(block):
            if op not in constant or not any(_read_by_others(result, constant, block) for result in op.results):
                continue
            if op.name == "arith.constant":
                changed = self._move_out(op, context.weights) or changed
            elif op.name not in _FREE:
                changed = _fold(op, constant, context, known) or changed
        return erase_dead(block) > 0 or changed

    def _constant_ops(self, block: ir.Block, context: PassContext) -> OpSet:
        """Returns the constant ops whose roots may all be stored."""
        refused = OpSet()
        while True:
            constant, remarks = OpSet(), list[str]()
            for op in operations(block):
                if op not in refused and self._is_constant(op, constant, remarks):
                    constant.add(op)
            large = [op for op in operations(block) if op in constant and self._is_large_root(op, constant, block)]
            if not large:
                break
            for op in large:
                refused.add(op)
        for remark in dict.fromkeys([*remarks, *(self._left(op) for op in operations(block) if op in refused)]):
            context.remark(self.name, remark)
        return constant

    def _left(self, op: ir.Operation) -> str:
        size = sum(tensor_bytes(result.type) or 0 for result in op.results)
        return f"left {op.name} with {size} bytes of constant result (bound {self.bound}) at {op.location}"

    def _is_large_root(self, op: ir.Operation, constant: OpSet, block: ir.Block) -> bool:
        """Whether a root is larger than the bound and than the weights that it is computed from."""
        if op.name in _FREE or not any(_read_by_others(result, constant, block) for result in op.results):
            return False
        size = sum(tensor_bytes(result.type) or 0 for result in op.results)
        if size <= self.bound:
            return False
        leaves = [leaf for leaf in _cone(op) if leaf.name in ("lk.weight", "arith.constant")]
        return size > sum(tensor_bytes(leaf.results[0].type) or 0 for leaf in leaves)

    def _is_constant(self, op: ir.Operation, constant: OpSet, remarks: list[str]) -> bool:
        if not op.name.startswith(_FOLDABLE) or op.name in _NEVER or has_effects(op) or is_for_kernels(op):
            return False
        sources = [*op.operands, *captured_values(op)]
        if any(defining_op(value) not in constant for value in sources):
            return False
        sizes = [tensor_bytes(result.type) for result in op.results]
        if any(size is None for size in sizes):
            return False
        if op.name in _FREE:
            return True
        size = sum(size for size in sizes if size is not None)
        available = sum(tensor_bytes(value.type) or 0 for value in sources if not _is_destination(value))
        if size > max(self.way_bound, available):
            remarks.append(self._left(op))
            return False
        flops = op.opview.flops() if isinstance(op.opview, LkOperation) else 0
        if not isinstance(flops, int) or flops > self.max_flops:
            remarks.append(f"left {op.name} on constants with {flops} operations at {op.location}")
            return False
        return True

    def _move_out(self, op: ir.Operation, weights: WeightStore) -> bool:
        """Makes a constant tensor a weight, if it is large and not a splat."""
        attribute = op.attributes["value"]
        if not isinstance(attribute, ir.DenseElementsAttr) or attribute.is_splat:
            return False
        kind = ir.RankedTensorType(op.results[0].type)
        array = read_dense(attribute, kind)
        if array is None or array.size <= self.inline_elements:
            return False
        name = weights.unique_name("constant")
        weights.add(name, array)
        with ir.InsertionPoint(op), op.location:
            replace(op, [WeightOp.build(name, kind)])
        return True


def _is_destination(value: ir.Value) -> bool:
    op = defining_op(value)
    return op is not None and op.name == "tensor.empty"


def _read_by_others(value: ir.Value, constant: OpSet, block: ir.Block) -> bool:
    for use in value.uses:
        reader = use.owner.operation
        while reader.block != block:
            reader = reader.parent.operation
        if reader not in constant:
            return True
    return False


def read_dense(attribute: ir.Attribute, kind: ir.RankedTensorType) -> Array | None:
    """Returns the elements of a dense constant; None for element types that the bindings cannot read."""
    try:
        array = np.array(attribute)
    except (TypeError, ValueError):
        return None
    return array.astype(numpy_dtype(kind.element_type)).reshape(kind.shape)


def _fold(op: ir.Operation, constant: OpSet, context: PassContext, known: dict[str, str]) -> bool:
    """Replaces the results of a root that others read."""
    cone = _cone(op)
    changed = False
    for index, result in enumerate(op.results):
        if not is_used(result):
            continue
        text = _cone_text(cone, result)
        with ir.InsertionPoint(op), op.location:
            if isinstance(result.type, ir.RankedTensorType):
                symbol = known.get(text)
                if symbol is None:
                    symbol = known[text] = _derive(text, cone, op, index, context.weights)
                value = WeightOp.build(symbol, result.type)
            else:
                value = _evaluate_scalar(text, cone, result.type, context)
                if value is None:
                    continue
        result.replace_all_uses_with(value)
        changed = True
    return changed


def _cone(root: ir.Operation) -> list[ir.Operation]:
    """Returns the ops that ``root`` needs, operands first, ``root`` last."""
    ordered: list[ir.Operation] = []
    seen = OpSet()
    stack: list[tuple[ir.Operation, bool]] = [(root, False)]
    while stack:
        op, ready = stack.pop()
        if op in seen:
            continue
        if ready:
            seen.add(op)
            ordered.append(op)
            continue
        stack.append((op, True))
        for value in reversed([*op.operands, *captured_values(op)]):
            producer = defining_op(value)
            if producer is not None and producer not in seen:
                stack.append((producer, False))
    return ordered


def _cone_text(cone: list[ir.Operation], result: ir.Value) -> str:
    """Returns a module whose ``@main()`` computes ``result``."""
    with ir.Location.unknown(cone[0].context):
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", ([], [result.type]))
        mapping: dict[ir.Value, ir.Value] = {}
        with ir.InsertionPoint(function.add_entry_block()):
            for op in cone:
                clone_op(op, mapping)
            func.ReturnOp([mapping[result]])
        return str(module)


def _symbols(cone: list[ir.Operation]) -> list[str]:
    found = (weight_symbol(op.results[0]) for op in cone if op.name == "lk.weight")
    return list(dict.fromkeys(symbol for symbol in found if symbol is not None))


def _derive(text: str, cone: list[ir.Operation], root: ir.Operation, index: int, weights: WeightStore) -> str:
    """Adds the weight that ``text`` computes and returns its name."""
    parents = _symbols(cone)
    kind = ir.RankedTensorType(root.results[index].type)
    step = root.name.partition(".")[2]
    name = weights.unique_name(f"{parents[0]}.{step}" if parents else step)
    shared = [weights.shard(parent) for parent in parents]
    axes = dict(axis for each in shared if each is not None for axis in each.axes)
    shard = Shard(tuple(axes.items())) if axes else None
    compute, shape = _interpreted(text, parents), list(kind.shape)
    if shard is not None:
        compute, shape = _of_each_rank(compute, shared, shard), [*shard.sizes, *shape]
    weights.derive(name, parents, compute, dtype=name_of(numpy_dtype(kind.element_type)), shape=shape, shard=shard)
    return name


def _of_each_rank(compute: Callable[..., Array], shared: Sequence[Shard | None], of: Shard) -> Callable[..., Array]:
    """Computes the part of each rank from its parts of the weights that are shared, and stacks them."""
    names = [name for name, _ in of.axes]

    def compute_parts(*arrays: Array) -> Array:
        parts: list[Array] = []
        for place in np.ndindex(*of.sizes):
            own = dict(zip(names, place, strict=True))
            given = (
                each if shard is None else shard.part(each, own) for each, shard in zip(arrays, shared, strict=True)
            )
            parts.append(compute(*given))
        return np.stack(parts).reshape(*of.sizes, *parts[0].shape)

    return compute_parts


def _interpreted(text: str, parents: list[str]) -> Callable[..., Array]:
    def compute(*arrays: Array) -> Array:
        from lowerkit.dialect.interpreter.interpreter import interpret  # needed only once the data is asked for

        module = parse_module(text, _own_context())
        return interpret(module, [], dict(zip(parents, arrays, strict=True)).__getitem__)[0]

    return compute


def _own_context() -> ir.Context:
    """The context in which this thread interprets: making one takes longer than most constants do."""
    if not hasattr(_of_thread, "context"):
        _of_thread.context = new_context()
    return _of_thread.context


def _evaluate_scalar(text: str, cone: list[ir.Operation], kind: ir.Type, context: PassContext) -> ir.Value | None:
    """Computes a scalar now: the small weights it depends on are read."""
    parents = _symbols(cone)
    if any(context.weights.shard(parent) is not None for parent in parents):
        return None  # it differs from rank to rank
    if sum(context.weights.nbytes(parent) for parent in parents) > 1 << 20:
        return None
    if not all(context.weights.has_data(parent) for parent in parents):
        return None
    if not any(inner.name.startswith("tensor.") for op in cone for inner in (op, *nested_operations(op))):
        return None  # scalar arithmetic is upstream's
    number = np.asarray(_interpreted(text, parents)(*(context.weights.get(parent) for parent in parents))).item()
    if isinstance(kind, (ir.IndexType, ir.IntegerType)):
        return arith.ConstantOp(kind, ir.IntegerAttr.get(kind, int(number))).result
    return arith.ConstantOp(kind, ir.FloatAttr.get(kind, float(number))).result
