"""The way of an anchor's result from registers to memory, through the region's fused ``linalg.generic`` if any.

A family calls :meth:`Epilogue.store` with a vector of results that lies along one axis of the anchor's result; the
epilogue reads its other operands at the same points (broadcasts become splats, permuted operands strided loads),
emits the body on them and writes every result of the region, permuted where its map says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from lowerkit.mlir import ir
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index
from lowerkit.targets.cpu.text.linear_access import Access, adjacent, linear_access
from lowerkit.targets.cpu.text.region_values import AnchorResult, Constant, Located, Unset, source_of
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.vector.body import VectorBody
from lowerkit.targets.plan import Refusal
from lowerkit.targets.region_view import RegionView

__all__ = ["Epilogue", "Input", "generic_maps", "is_parallel", "make_epilogue", "read_inputs"]

Input = Access | Constant | AnchorResult | None


@dataclass(frozen=True)
class Coordinate:
    """One coordinate of a point: the iteration dimensions it runs through, as one run (merged) or split again."""

    dims: tuple[int, ...]
    merged: bool


@dataclass
class Epilogue:
    """How to finish a region: see the module. Built by :func:`make_epilogue`.

    Attributes:
        frame: the kernel.
        body: the fused body, None where the anchor's result is stored as it is.
        dims: for each dimension of the anchor's result, the iteration dimension of the body.
        sizes: of the iteration dimensions.
        inputs: one per block argument of the body: where to read it, its constant, the anchor's result, or None.
        stores: for each result of the region, ``(number of the body's output, None for the anchor; its place)``.
        coordinates: what the coordinates of a point stand for.
    """

    frame: KernelFrame
    body: VectorBody | None
    dims: tuple[int, ...]
    sizes: tuple[Index, ...]
    inputs: list[Input] = field(default_factory=list[Input])
    stores: list[tuple[int | None, Access]] = field(default_factory=list[tuple[int | None, Access]])
    coordinates: tuple[Coordinate, ...] = ()

    def __post_init__(self) -> None:
        if not self.coordinates:
            self.coordinates = tuple(Coordinate((dim,), merged=True) for dim in self.dims)

    def collapsed(self, groups: Sequence[Sequence[int]], lane_group: int) -> Epilogue | Refusal:
        """Returns an epilogue whose points have one coordinate for each group of the anchor's dimensions.

        Where every operand walks a group contiguously its coordinate is used as it is; elsewhere it is split again,
        by divisions that are outside the innermost loop.

        Args:
            groups: dimensions of the anchor's result, outermost first.
            lane_group: the group along which vectors will lie.
        """
        accesses = [source for source in self.inputs if isinstance(source, Access)]
        accesses += [access for _, access in self.stores]
        reads_coordinates = self.body is not None and self.body.uses_index
        coordinates: list[Coordinate] = []
        for number, group in enumerate(groups):
            dims = [self.dims[dim] for dim in group]
            dims = [dim for dim in dims if self.sizes[dim] != 1] or dims[-1:]
            merged = len(dims) < 2 or not reads_coordinates
            for outer, inner in pairwise(dims):
                merged = merged and all(adjacent(access, outer, inner, self.sizes) for access in accesses)
            if number == lane_group and not merged:
                reason = "the epilogue does not walk the innermost dimensions of the anchor in one run"
                return Refusal(reason, of_extents=True)
            coordinates.append(Coordinate(tuple(dims), merged))
        return replace(self, coordinates=tuple(coordinates))

    def store(self, value: Value, point: Sequence[Index], axis: int, mask: Value | None = None) -> None:
        """Finishes and stores the results at ``point``.

        Args:
            value: results of the anchor's element type; lane i belongs to ``point`` moved by i along ``axis``.
            point: one coordinate per dimension of the anchor's result, or per group of a collapsed epilogue.
            axis: the coordinate along which the lanes lie.
            mask: lanes that exist; None for all.
        """
        text = self.frame.text
        place: list[Index] = [0] * len(self.sizes)
        for value_here, coordinate in zip(point, self.coordinates, strict=True):
            if coordinate.merged:
                for dim in coordinate.dims[-1:]:
                    place[dim] = value_here
                continue
            parts = text.unravel(value_here, [self.sizes[dim] for dim in coordinate.dims])
            for dim, part in zip(coordinate.dims, parts, strict=True):
                place[dim] = part
        lane_dims = self.coordinates[axis].dims if self.coordinates else ()
        lane_dim = lane_dims[-1] if lane_dims and self.sizes[lane_dims[-1]] != 1 else None
        outputs: list[Value] = []
        if self.body is not None:
            arguments = [
                self._argument(source, number, value, place, lane_dim, mask)
                for number, source in enumerate(self.inputs)
            ]
            outputs = self.body.emit(
                text,
                arguments,
                lambda dim: self._coordinates(dim, place, lane_dim, value.lanes),
                lanes=value.lanes,
            )
        for number, access in self.stores:
            result = value if number is None else outputs[number]
            stride = 1 if lane_dim is None else access.strides[lane_dim]
            text.strided_write(result, access.buffer, access.at(text, place), stride, mask)

    def _argument(
        self,
        source: Input,
        number: int,
        value: Value,
        place: Sequence[Index],
        lane_dim: int | None,
        mask: Value | None,
    ) -> Value | None:
        text = self.frame.text
        if source is None:
            return None
        if isinstance(source, AnchorResult):
            return value
        assert self.body is not None
        if isinstance(source, Constant):
            return text.constant(source.number, self.body.inputs[number], value.lanes)
        stride = 1 if lane_dim is None else source.strides[lane_dim]
        return text.strided_read(source.buffer, source.at(text, place), stride, value.lanes, mask)

    def _coordinates(self, dim: int, place: Sequence[Index], lane_dim: int | None, lanes: int) -> Value:
        text = self.frame.text
        base = text.broadcast(text.as_value(place[dim]), lanes)
        return text.add(base, text.lane_numbers(lanes)) if dim == lane_dim else base


def generic_maps(generic: ir.Operation) -> list[ir.AffineMap]:
    """Returns the indexing maps of a ``linalg.generic``, inputs then outputs."""
    return [ir.AffineMapAttr(attribute).value for attribute in ir.ArrayAttr(generic.attributes["indexing_maps"])]


def is_parallel(generic: ir.Operation) -> bool:
    """True when no iteration dimension is reduced."""
    return all("parallel" in str(kind) for kind in ir.ArrayAttr(generic.attributes["iterator_types"]))


def make_epilogue(region: RegionView, frame: KernelFrame) -> Epilogue | Refusal:
    """Returns the epilogue of an anchored region, or why it cannot be applied in registers.

    Call this in the head of the kernel: dynamic strides are computed where the text stands.
    """
    assert region.anchor is not None
    anchor = region.anchor.operation
    first_result = len(region.operands)
    rank = ir.RankedTensorType(anchor.results[0].type).rank
    anchor_sizes = _anchor_sizes(region, frame)
    if anchor_sizes is None:
        return Refusal("the anchor's dynamic sizes are not those of a result")
    if region.epilogue is None:
        epilogue = Epilogue(frame, None, tuple(range(rank)), anchor_sizes)
    else:
        started = _read_generic(region.epilogue.operation, anchor, frame, anchor_sizes)
        if isinstance(started, Refusal):
            return started
        epilogue = started
    generic = region.epilogue.operation if region.epilogue is not None else None
    for number, value in enumerate(region.returned):
        buffer, sizes = frame.buffers[first_result + number], frame.sizes[first_result + number]
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.operation == anchor:
            with anchor.context:
                map_ = ir.AffineMap.get_permutation(list(epilogue.dims)) if rank else ir.AffineMap.get_empty()
            output = None
        elif generic is not None and not isinstance(owner, ir.Block) and owner.operation == generic:
            output = ir.OpResult(value).result_number
            map_ = generic_maps(generic)[len(generic.operands) - len(generic.results) + output]
        else:
            return Refusal("the region yields a value that is neither the anchor's nor the epilogue's")
        access = linear_access(frame.text, map_, buffer, sizes)
        if access is None:
            return Refusal(f"result {number} is stored through the map {map_}")
        epilogue.stores.append((output, access))
    return epilogue


def read_inputs(
    generic: ir.Operation, body: VectorBody, frame: KernelFrame, anchor: ir.Operation | None
) -> list[Input] | Refusal:
    """Returns where each block argument of the body comes from; arguments that the body ignores come from nowhere."""
    inputs: list[Input] = []
    for number, (value, map_) in enumerate(zip(generic.operands, generic_maps(generic), strict=True)):
        source = source_of(value, frame, anchor)
        if isinstance(source, AnchorResult):
            inputs.append(source)
        elif not body.uses_argument(number):
            inputs.append(None)
        elif isinstance(source, Constant):
            inputs.append(source)
        elif isinstance(source, Located):
            access = linear_access(frame.text, map_, source.buffer, source.sizes)
            if access is None:
                return Refusal(f"operand {number} is read through the map {map_}, which is not linear")
            inputs.append(access)
        elif isinstance(source, Unset):
            return Refusal(f"operand {number} is read before it is written")
        else:
            return Refusal(f"operand {number} is computed inside the region, by an op that is not in registers")
    return inputs


def _anchor_sizes(region: RegionView, frame: KernelFrame) -> tuple[Index, ...] | None:
    """The sizes of the anchor's result: static, or those of a result of the region with its dimensions in order."""
    assert region.anchor is not None
    anchor = region.anchor.operation
    type_ = ir.RankedTensorType(anchor.results[0].type)
    if type_.has_static_shape:
        return tuple(type_.shape)
    for number, value in enumerate(region.returned):
        owner = value.owner
        operation = None if isinstance(owner, ir.Block) else owner.operation
        if operation == anchor:
            return tuple(frame.sizes[len(region.operands) + number])
        if operation is None or operation.name != "linalg.generic":
            continue
        maps = generic_maps(operation)
        output = maps[len(operation.operands) - len(operation.results) + ir.OpResult(value).result_number]
        for operand, map_ in zip(operation.operands, maps, strict=False):
            source = operand.owner
            if not isinstance(source, ir.Block) and source.operation == anchor and map_.is_permutation:
                places = {
                    expression.position: place
                    for place, expression in enumerate(output.results)
                    if isinstance(expression, ir.AffineDimExpr)
                }
                found = [places.get(ir.AffineDimExpr(expression).position) for expression in map_.results]
                sizes = frame.sizes[len(region.operands) + number]
                if all(place is not None for place in found):
                    return tuple(sizes[place] for place in found if place is not None)
    return None


def _read_generic(
    generic: ir.Operation, anchor: ir.Operation, frame: KernelFrame, anchor_sizes: tuple[Index, ...]
) -> Epilogue | Refusal:
    if not is_parallel(generic):
        return Refusal("the epilogue reduces")
    body = VectorBody(generic)
    if body.unsupported is not None:
        return Refusal(body.unsupported)
    inputs = read_inputs(generic, body, frame, anchor)
    if isinstance(inputs, Refusal):
        return inputs
    rank = len(anchor_sizes)
    orders: set[tuple[int, ...]] = set()
    for source, map_ in zip(inputs, generic_maps(generic), strict=True):
        if isinstance(source, AnchorResult):
            if map_.n_dims != rank or not map_.is_permutation:
                return Refusal(f"the epilogue reads the anchor's result through the map {map_}")
            orders.add(tuple(ir.AffineDimExpr(expression).position for expression in map_.results))
    if len(orders) != 1:
        return Refusal(f"the epilogue reads the anchor's result in {len(orders)} orders")
    dims = orders.pop()
    sizes: list[Index] = [1] * rank
    for size, dim in zip(anchor_sizes, dims, strict=True):
        sizes[dim] = size
    return Epilogue(frame, body, dims, tuple(sizes), inputs)
