"""One ``lk.region`` as kernel emitters see it: an anchor, an epilogue, operands, results and a canonical text.

The body is copied into a module of its own (``func.func @region``, block arguments = operands, in order), where
upstream elementwise fusion leaves at most one ``linalg.generic`` after the anchor. Emitters may look at the ops but not
change them; a family that rewrites the body works on :meth:`RegionView.clone_module`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from lowerkit.mlir import ir, run_pipeline
from lowerkit.targets.packing import Packing

REGION_FUNCTION = "region"

_NORMALIZE = "builtin.module(canonicalize,cse,linalg-fuse-elementwise-ops,canonicalize,cse)"


@dataclass(frozen=True)
class OperandInfo:
    """One operand of a region.

    Attributes:
        type: the tensor type.
        is_weight: whether the data is known at compile time, so that a kernel may have it packed.
        weight_name: the symbol in the weight store, ``""`` for an activation.
        index: position among the operands.
    """

    type: ir.RankedTensorType
    is_weight: bool
    weight_name: str
    index: int


class RegionView:
    """A read-only view of one region.

    Attributes:
        kind: the anchor's short name, as the fusion pass wrote it.
        operands: the operands, in order.
        results: the result types, in order.
        layouts: operand number -> the layout in which a weight is stored for another region, so that this one should
            read it there; families that cannot do without.
        module: the module that holds the body as ``@region``.
        location: ``file:line`` of the anchor in the user's code, for messages.
        allowed: what may be computed less exactly, see :class:`~lowerkit.targets.target.Target`.
        invariant: whether an element's bits may hang on nothing but what it is computed from: not on the extents that
            a mesh splits (columns, rows, batches, heads), nor on threads.
    """

    allowed: frozenset[str] = frozenset()
    invariant: bool = False

    def __init__(
        self,
        module: ir.Module,
        kind: str,
        weight_names: Sequence[str] = (),
        *,
        location: str = "",
        normalize: bool = True,
    ) -> None:
        """Takes ownership of ``module``: one ``func.func @region`` over tensors, and indices that are no operands.

        Args:
            module: the body; it is normalized in place.
            kind: short name of the anchor.
            weight_names: for each operand the weight's symbol, ``""`` for an activation; empty: no weights.
            location: ``file:line`` for messages.
            normalize: fuse what is elementwise; without, the ops stay as they are.
        """
        if normalize:
            run_pipeline(module, _NORMALIZE)
        self.module = module
        self.kind = kind
        self.location = location
        arguments = [value for value in self.block.arguments if isinstance(value.type, ir.RankedTensorType)]
        names = list(weight_names) or [""] * len(arguments)
        self.operands = [
            OperandInfo(ir.RankedTensorType(argument.type), bool(name), name, index)
            for index, (argument, name) in enumerate(zip(arguments, names, strict=True))
        ]
        self.results = [ir.RankedTensorType(value.type) for value in self.returned]
        self.layouts: Mapping[int, Packing] = {}

    @classmethod
    def from_region(
        cls,
        region: ir.Operation,
        weight_names: Sequence[str] = (),
        *,
        location: str = "",
        known: dict[tuple[str, str], RegionView] | None = None,
    ) -> RegionView:
        """Copies the body of an ``lk.region``; the op itself is not changed.

        Args:
            region: the op.
            weight_names: see the constructor.
            location: ``file:line`` for messages.
            known: views made before, by kind and body; one of an equal body is shared, the others are added.
        """
        kind = ir.StringAttr(region.attributes["kind"]).value
        module = _as_function(region)
        if known is None:
            return cls(module, kind, weight_names, location=location)
        key = kind, module.operation.get_asm(enable_debug_info=False, assume_verified=True)
        if key not in known:
            known[key] = cls(module, kind, weight_names, location=location)
        return known[key].of_weights(weight_names, location)

    @classmethod
    def from_function(
        cls, function: ir.Operation, weight_names: Sequence[str] = (), *, location: str = ""
    ) -> RegionView:
        """Copies a ``func.func`` that was given to a target, its ops as they were accepted.

        The weights that it names become operands behind its own.

        Args:
            function: the op; its name becomes the kind.
            weight_names: see the constructor; of its own operands.
            location: ``file:line`` for messages.
        """
        kind = ir.StringAttr(function.attributes["sym_name"]).value
        with function.context, ir.Location.unknown():
            module = ir.Module.create()
            copied = function.clone().operation
            ir.InsertionPoint(module.body).insert(copied)
            copied.attributes["sym_name"] = ir.StringAttr.get(REGION_FUNCTION)
            symbols = _weights_as_arguments(copied)
        tensors = sum(isinstance(operand, ir.RankedTensorType) for operand in _input_types(function))
        names = [*(weight_names or [""] * tensors), *symbols]
        return cls(module, kind, names, location=location, normalize=False)

    def of_weights(self, weight_names: Sequence[str], location: str) -> RegionView:
        """Returns a view of the same body (and what was found out about it) with other weights and another place."""
        view = copy.copy(self)
        view.location = location
        view.operands = [
            replace(operand, is_weight=bool(name), weight_name=name)
            for operand, name in zip(self.operands, weight_names, strict=True)
        ]
        return view

    def allowing(self, names: frozenset[str]) -> RegionView:
        """Returns a view of the same region, of which ``names`` may be computed less exactly."""
        view = copy.copy(self)
        view.allowed = names
        return view

    def as_invariant(self) -> RegionView:
        """Returns a view of the same region, of which kernels are asked to be :attr:`invariant`."""
        view = copy.copy(self)
        view.invariant = True
        return view

    def with_layouts(self, layouts: Mapping[int, Packing]) -> RegionView:
        """Returns a view of the same region whose weights lie in ``layouts``."""
        view = copy.copy(self)
        view.layouts = layouts
        return view

    @classmethod
    def from_text(cls, text: str, kind: str, weights: Sequence[str] = ()) -> RegionView:
        """Returns a view of ``func.func @region(...)`` written as text: for tests and reproducers."""
        from lowerkit.dialect.context import new_context

        context = new_context()
        with context, ir.Location.unknown():
            return cls(ir.Module.parse(text), kind, weights)

    @property
    def function(self) -> ir.Operation:
        """The ``func.func @region``."""
        return self.module.body.operations[0].operation

    @property
    def block(self) -> ir.Block:
        """The body; its arguments are the operands."""
        return self.function.regions[0].blocks[0]

    @property
    def returned(self) -> list[ir.Value]:
        """The values that the body yields."""
        operations = list(self.block.operations)
        return list(operations[-1].operation.operands)

    @cached_property
    def body_ops(self) -> list[ir.OpView]:
        """The ops of the body in order, without the terminator."""
        return list(self.block.operations)[:-1]

    @cached_property
    def anchor(self) -> ir.OpView | None:
        """The lk op of the body; None where there is none or more than one."""
        found = [op for op in self.body_ops if op.operation.name.startswith("lk.")]
        return found[0] if len(found) == 1 else None

    @cached_property
    def epilogue(self) -> ir.OpView | None:
        """The only ``linalg.generic`` of the body; None where there is none or more than one."""
        found = [op for op in self.body_ops if op.operation.name == "linalg.generic"]
        return found[0] if len(found) == 1 else None

    @cached_property
    def text(self) -> str:
        """The body as text without locations: with :attr:`weight_flags`, what makes two regions the same kernel."""
        return self.module.operation.get_asm(enable_debug_info=False, assume_verified=True)

    @property
    def weight_flags(self) -> tuple[bool, ...]:
        """For each operand whether it is a weight."""
        return tuple(operand.is_weight for operand in self.operands)

    @property
    def key(self) -> tuple[object, ...]:
        """Regions with equal keys get equal plans."""
        return self.kind, self.text, self.weight_flags, tuple(self.layouts.items()), self.invariant

    @property
    def buffer_types(self) -> list[ir.RankedTensorType]:
        """The types of the kernel's buffers: operands, then results."""
        return [*(operand.type for operand in self.operands), *self.results]

    def clone_module(self) -> ir.Module:
        """Returns a copy of the body's module, free to be changed."""
        with self.module.context, ir.Location.unknown():
            return ir.Module.parse(self.text)


def _as_function(region: ir.Operation) -> ir.Module:
    """Returns a module whose ``@region`` computes what ``region`` does."""
    with region.context, region.location:
        module = ir.Module.create()
        operands = [operand.type for operand in region.operands]
        results = [result.type for result in region.results]
        with ir.InsertionPoint(module.body):
            function = ir.Operation.create(
                "func.func",
                attributes={
                    "sym_name": ir.StringAttr.get(REGION_FUNCTION),
                    "function_type": ir.TypeAttr.get(ir.FunctionType.get(operands, results)),
                },
                regions=1,
            )
        block = function.regions[0].blocks.append(*operands, arg_locs=[region.location] * len(operands))
        with ir.InsertionPoint(block):
            copy = region.clone().operation
            end = ir.Operation.create("func.return")
        body = copy.regions[0].blocks[0]
        for inner, outer in zip(body.arguments, block.arguments, strict=True):
            inner.replace_all_uses_with(outer)
        operations = list(body.operations)
        for op in operations[:-1]:
            op.operation.move_before(end)
        with ir.InsertionPoint(end):
            ir.Operation.create("func.return", operands=list(operations[-1].operation.operands))
        end.erase()
        copy.erase()
    return module


def _input_types(function: ir.Operation) -> list[ir.Type]:
    return list(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)


def _weights_as_arguments(function: ir.Operation) -> list[str]:
    """Makes an argument of each ``lk.weight`` of a function; returns their symbols in order."""
    block = function.regions[0].blocks[0]
    symbols: list[str] = []
    for op in [op.operation for op in block.operations if op.operation.name == "lk.weight"]:
        symbols.append(ir.StringAttr(op.attributes["symbol"]).value)
        op.result.replace_all_uses_with(block.add_argument(op.result.type, op.location))
        op.erase()
    results = list(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results)
    inputs = [argument.type for argument in block.arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
    return symbols
