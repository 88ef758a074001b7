"""What one rank spends on a program of canonical IR, of one device or split among the ranks of a mesh.

Steps:
    1. count the work of each op; a value that only one elementwise op reads goes to it without a trip to memory, as the
       fusion of elementwise ops makes it;
    2. turn work into time by the roofline of the device, bytes of collectives into time by the link of their axis;
    3. place both in time: collectives run beside what stands between their start and their done.

A branch counts as the longer of its two bodies, a loop as one turn: its condition and its body once. Weights of both
bodies count, since a rank holds both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from lowerkit.mlir import ir
from lowerkit.passes.rewriting import defining_op, main_block, operations, users
from lowerkit.passes.source_location import describe
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.cost.collective_time import fastest
from lowerkit.spmd.cost.machine import DeviceModel, LinkModel, Links
from lowerkit.spmd.cost.timeline import Clock, Span
from lowerkit.spmd.cost.work import WorkCounter


@dataclass(frozen=True)
class ComputeCost:
    """Computation of a rank.

    Attributes:
        name: of the op.
        module: the path of its module in the model.
        flops, moved: operations; bytes read and written.
        span: when it runs.
    """

    name: str
    module: str
    flops: int
    moved: int
    span: Span


@dataclass(frozen=True)
class CollectiveCost:
    """A collective of a rank.

    Attributes:
        kind: of ``lk.collective_start``.
        axis, ranks: along which it is, and how many take part.
        module: the path of the module whose value it brings.
        operand_bytes: of this rank.
        moved: bytes through the link of this rank.
        algorithm: how, see :mod:`lowerkit.spmd.cost.collective_time`.
        span: when it runs, and how long computation waits for it.
    """

    kind: str
    axis: str
    ranks: int
    module: str
    operand_bytes: int
    moved: float
    algorithm: str
    span: Span


@dataclass(frozen=True)
class ProgramCost:
    """What one rank spends on one run.

    Attributes:
        compute: the ops that do work, in order.
        collectives: in the order of their starts.
        weight_bytes: the rank's weights, those that are split by its part.
        state_bytes: its states.
        activation_bytes: the most that its values take at once.
        seconds: of the run.
    """

    compute: tuple[ComputeCost, ...]
    collectives: tuple[CollectiveCost, ...]
    weight_bytes: int
    state_bytes: int
    activation_bytes: int
    seconds: float

    @cached_property
    def flops(self) -> int:
        """Operations of the rank."""
        return sum(each.flops for each in self.compute)

    @cached_property
    def moved(self) -> int:
        """Bytes between the rank and its memory."""
        return sum(each.moved for each in self.compute)

    @cached_property
    def compute_seconds(self) -> float:
        """Time of computation alone."""
        return sum(each.span.seconds for each in self.compute)

    @cached_property
    def collective_seconds(self) -> float:
        """Time of all collectives, one behind the other."""
        return sum(each.span.seconds for each in self.collectives)

    @cached_property
    def waited_seconds(self) -> float:
        """Time in which computation stands still for collectives."""
        return sum(each.span.waited for each in self.collectives)


def cost_of(
    module: ir.Module,
    axes: Iterable[MeshAxis] | Mapping[str, int],
    device: DeviceModel,
    link: LinkModel | Links,
    *,
    count: Callable[[str], int] | None = None,
    dynamic: int | None = None,
) -> ProgramCost:
    """Returns what one rank spends on ``@main`` of a module at stage ``canonical``; the module is not changed.

    Args:
        module: of one device, or what ``shard-program`` made of it.
        axes: the mesh; a collective along an axis takes the ranks that it states.
        device: of each rank.
        link: between ranks; one for all axes, or by axis.
        count: path of a module -> how many of it there are; where one layer stands for several alike ones.
        dynamic: what a symbolic extent counts as; None refuses it.

    Raises:
        UnsupportedError: LK4002, a symbolic extent and no ``dynamic``.
        ValueError: a collective is of a kind that has no algorithm, or along an axis that the mesh lacks.
    """
    sizes = _sizes(axes)
    links = link if isinstance(link, Links) else Links(link)
    run = _Run(sizes, device, links, count or (lambda _: 1), WorkCounter(dynamic), _functions_of(module))
    block = main_block(module)
    run.block(block)
    return ProgramCost(
        tuple(run.compute),
        tuple(run.collectives.values()),
        sum(run.weights.values()),
        sum(run.states.values()),
        run.peak(block),
        run.clock.now,
    )


def _functions_of(module: ir.Module) -> dict[str, ir.Block]:
    """Returns the bodies of the functions of a module by their names."""
    found = (op.operation for op in module.body.operations if op.operation.name == "func.func")
    return {ir.StringAttr(op.attributes["sym_name"]).value: op.regions[0].blocks[0] for op in found}


def _sizes(axes: Iterable[MeshAxis] | Mapping[str, int]) -> Mapping[str, int]:
    if isinstance(axes, Mapping):
        return cast("Mapping[str, int]", axes)
    return {axis.name: axis.size for axis in axes}


class _Run:
    def __init__(
        self,
        sizes: Mapping[str, int],
        device: DeviceModel,
        links: Links,
        count: Callable[[str], int],
        counter: WorkCounter,
        functions: Mapping[str, ir.Block],
    ) -> None:
        self.clock = Clock()
        self.compute: list[ComputeCost] = []
        self.collectives: dict[ir.Value, CollectiveCost] = {}
        self.weights: dict[str, int] = {}
        self.states: dict[str, int] = {}
        self._sizes, self._device, self._links = sizes, device, links
        self._count, self._counter, self._functions = count, counter, functions

    def block(self, block: ir.Block) -> None:
        for op in operations(block):
            match op.name:
                case "lk.weight":
                    self._data(op, self.weights)
                case "lk.state_read":
                    self._data(op, self.states)
                case "lk.collective_start":
                    self._start(op)
                case "lk.collective_done":
                    pending = op.operands[0]
                    self.collectives[pending] = replace(self.collectives[pending], span=self.clock.wait(pending))
                case "lk.cond":
                    self._branches(op)
                case "lk.while":
                    for body in self._bodies(op):
                        self.block(body)
                case _:
                    self._compute(op)

    def peak(self, block: ir.Block) -> int:
        """The most bytes that values of a block take at once, from the op that makes them to their last reader."""
        ops = operations(block)
        last: dict[ir.Value, int] = {}
        for place, op in enumerate(ops):
            last.update(dict.fromkeys((self._root(operand) for operand in op.operands), place))
        ends: dict[int, int] = {}
        live = most = 0
        for place, op in enumerate(ops):
            for result in op.results:
                if self._root(result) == result and op.name not in _NO_MEMORY and in_memory(result):
                    size = self._counter.nbytes(result)
                    live += size
                    ends[last.get(result, place)] = ends.get(last.get(result, place), 0) + size
            inside = max(map(self.peak, self._bodies(op)), default=0)
            most = max(most, live + inside)
            live -= ends.get(place, 0)
        return most

    def _bodies(self, op: ir.Operation) -> list[ir.Block]:
        """The bodies of the functions that an op runs."""
        names = (ir.StringAttr(op.attributes[key]).value for key in _CALLED if key in op.attributes)
        return [self._functions[name] for name in names]

    def _root(self, value: ir.Value) -> ir.Value:
        """The value whose memory a value is a view of."""
        owner = defining_op(value)
        while owner is not None and owner.name in _VIEWS:
            value = owner.operands[0]
            owner = defining_op(value)
        return value

    def _data(self, op: ir.Operation, found: dict[str, int]) -> None:
        symbol = ir.StringAttr(op.attributes["symbol"]).value
        if symbol not in found:
            found[symbol] = self._counter.nbytes(op.results[0]) * self._count(describe(op).module_path)

    def _start(self, op: ir.Operation) -> None:
        kind, axis = (ir.StringAttr(op.attributes[name]).value for name in ("kind", "axis"))
        ranks = ir.IntegerAttr(op.attributes["ranks"]).value
        if self._sizes.get(axis) != ranks:
            raise ValueError(f"a collective is along {ranks} ranks of {axis!r}, the mesh has {dict(self._sizes)}")
        path, operand = describe(op).module_path, op.operands[0]
        size = self._counter.nbytes(operand)
        link, times = self._links.along(axis), self._count(path)
        algorithm = fastest(kind, ranks, size, link)
        span = self.clock.begin(op.results[0], axis, algorithm.seconds(link) * times)
        self.collectives[op.results[0]] = CollectiveCost(
            kind, axis, ranks, path, size * times, algorithm.moved * times, algorithm.name, span
        )

    def _branches(self, op: ir.Operation) -> None:
        """Keeps of two bodies the one that takes longer."""
        tried: list[tuple[float, list[ComputeCost], dict[ir.Value, CollectiveCost], Clock]] = []
        begun = (self.clock, self.compute, self.collectives)
        for body in self._bodies(op):
            self.clock, self.compute, self.collectives = begun[0].copy(), list(begun[1]), dict(begun[2])
            self.block(body)
            tried.append((self.clock.now, self.compute, self.collectives, self.clock))
        _, self.compute, self.collectives, self.clock = max(tried, key=lambda each: each[0])

    def _compute(self, op: ir.Operation) -> None:
        work = self._counter.of(op, in_memory)
        if work.flops or work.moved:
            path = describe(op).module_path
            times = self._count(path)
            span = self.clock.compute(self._device.seconds(work.flops, work.moved) * times)
            self.compute.append(ComputeCost(op.name, path, work.flops * times, work.moved * times, span))


_CALLED = ("then_function", "else_function", "condition_function", "body_function")
"""Attributes of ``lk.cond`` and ``lk.while`` that name functions of the module."""
_VIEWS = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"})
_NO_MEMORY = frozenset({"lk.weight", "lk.state_read", "arith.constant", "tensor.empty", "lk.collective_done"})


def in_memory(value: ir.Value) -> bool:
    """Whether a value goes through memory; one that a single elementwise op reads goes to it in registers."""
    owner = defining_op(value)
    if owner is None or owner.name in ("lk.weight", "lk.state_read", "lk.collective_done") or owner.name in _VIEWS:
        return True
    readers = users(value)
    return not (len(readers) == 1 and is_elementwise(readers[0]))


def is_elementwise(op: ir.Operation) -> bool:
    """Whether an op computes each element of its results from elements of its operands, without a sum."""
    if op.name != "linalg.generic":
        return False
    kinds = ir.ArrayAttr(op.attributes["iterator_types"])
    return all(str(kind) == "#linalg.iterator_type<parallel>" for kind in kinds)
