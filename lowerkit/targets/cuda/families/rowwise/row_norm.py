"""Layer norm, RMS norm and group norm: mean and variance of a row, then one pass over its elements.

The variance is that of the differences from the mean, in f32 (f64 for f64): no difference of two large sums. A row that
fits stays in registers and is read once; a longer one is read three times (RMS norm: twice), mostly from L2.

A group is a row, too, once the channels are seen as ``[groups, channels of one]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.rowwise.row_regions import RowRegion, read_rows
from lowerkit.targets.cuda.families.rowwise.row_tiles import choose_rows
from lowerkit.targets.cuda.families.rowwise.rows import Piece, Rows, divided, square_root, sum_of
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.triton.scalars import constant, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Tensor, offset_text, row_major
from lowerkit.targets.cuda.triton.writer import KernelWriter
from lowerkit.targets.plan import KernelExpr, Refusal, expression
from lowerkit.targets.region_view import RegionView

_FLOATS = ("f32", "f16", "bf16", "f64")


@dataclass(frozen=True)
class _Affine:
    """A scale or a bias, with its strides over the dims of the rows."""

    tensor: Tensor
    strides: tuple[KernelExpr, ...]


@dataclass(frozen=True)
class _Norm:
    """A norm over ``reduced`` dims of ``source``.

    Attributes:
        split: the anchor's result has fewer dims than the source: it is addressed by flat numbers.
        centred: whether the mean is taken away.
    """

    source: Tensor
    reduced: tuple[int, ...]
    scale: _Affine | None
    bias: _Affine | None
    epsilon: float
    centred: bool
    split: bool


class RowNormFamily(KernelFamily):
    """``lk.layer_norm``, ``lk.rms_norm`` and ``lk.group_norm`` of floats, with an epilogue."""

    name: ClassVar[str] = "row_norm"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        found = read_rows(region, ("lk.layer_norm", "lk.rms_norm", "lk.group_norm"), _FLOATS)
        if isinstance(found, Refusal):
            return found
        norm = _read_group(found) if found.anchor.name == "lk.group_norm" else _read_norm(found)
        return norm if isinstance(norm, Refusal) else _plan(found, norm)


def _read_norm(found: RowRegion) -> _Norm | Refusal:
    source = found.source
    rank = len(source.sizes)
    first = rank - ir.IntegerAttr(found.anchor.attributes["normalized_rank"]).value
    affine: list[_Affine | None] = []
    for field in ("scale", "bias"):
        tensor = found.float_operand(field)
        if isinstance(tensor, Refusal):
            return tensor
        affine.append(None if tensor is None else _Affine(tensor, (*(0,) * first, *tensor.strides)))
    epsilon = ir.FloatAttr(found.anchor.attributes["epsilon"]).value
    centred = found.anchor.name == "lk.layer_norm"
    return _Norm(source, tuple(range(first, rank)), affine[0], affine[1], epsilon, centred, False)


def _read_group(found: RowRegion) -> _Norm | Refusal:
    anchor, source = found.anchor, found.source
    groups = ir.IntegerAttr(anchor.attributes["groups"]).value
    last = ir.BoolAttr(anchor.attributes["channels_last"]).value
    axis = len(source.sizes) - 1 if last else 1
    within = expression("floordiv", source.sizes[axis], groups)
    sizes = (*source.sizes[:axis], groups, within, *source.sizes[axis + 1 :])
    step = source.strides[axis]
    strides = (*source.strides[:axis], expression("mul", step, within), step, *source.strides[axis + 1 :])
    split = Tensor(source.pointer, source.element, sizes, strides, source.offset)
    affine: list[_Affine | None] = []
    for field in ("scale", "bias"):
        tensor = found.float_operand(field)
        if isinstance(tensor, Refusal):
            return tensor
        if tensor is None:
            affine.append(None)
            continue
        each = [0] * len(sizes)
        along: list[KernelExpr] = list(each)
        along[axis], along[axis + 1] = expression("mul", tensor.strides[0], within), tensor.strides[0]
        affine.append(_Affine(tensor, tuple(along)))
    reduced = tuple(each for each in range(1, len(sizes)) if each != axis)
    epsilon = ir.FloatAttr(anchor.attributes["epsilon"]).value
    return _Norm(split, reduced, affine[0], affine[1], epsilon, True, True)


def _plan(found: RowRegion, norm: _Norm) -> PlannedRegion:
    writer, compute = KernelWriter(), found.compute
    rows = found.rows(writer, norm.source, norm.reduced, choose_rows)
    sum_ = sum_of(compute)
    count = rows.count_text(compute)

    def element(piece: Piece) -> str:
        return rows.load(piece, norm.source, compute)

    mean = ""
    if norm.centred:
        (total,) = rows.fold(sum_, lambda piece: [element(piece)])
        mean = rows.spread(writer.let(divided(compute, total, count), "mean"))

    def centred(piece: Piece) -> str:
        return writer.let(f"{element(piece)} - {mean}") if norm.centred else element(piece)

    def square(piece: Piece) -> list[str]:
        value = centred(piece)
        if piece.mask is not None:  # where there is no element, the mean was taken from nothing
            value = writer.let(f"tl.where({piece.mask}, {value}, 0)")
        return [f"{value} * {value}"]

    (squares,) = rows.fold(sum_, square)
    variance = writer.let(f"{divided(compute, squares, count)} + {constant(norm.epsilon, compute)}", "variance")
    root = writer.let(square_root(compute, variance), "root")
    factor = rows.spread(writer.let(divided(compute, constant(1.0, compute), root), "factor"))
    with rows.pieces() as piece:
        value = writer.let(f"{centred(piece)} * {factor}")
        for affine, operator in ((norm.scale, "*"), (norm.bias, "+")):
            if affine is not None:
                value = writer.let(
                    f"{value} {operator} {rows.load(piece, affine.tensor, compute, '0', affine.strides)}"
                )
        value = writer.let(converted(value, compute, found.result), "value")
        found.epilogue.write(writer, value, _axes(found, norm, rows, piece))
    flops = 8 if norm.centred else 4
    return found.planned(RowNormFamily.name, writer, rows, flops)


def _axes(found: RowRegion, norm: _Norm, rows: Rows, piece: Piece) -> list[Axis]:
    if not norm.split:
        return list(piece.axes)
    writer = rows.writer
    flat = writer.let(offset_text(writer, row_major(norm.source.sizes), 0, piece.axes), "flat")
    masks = [axis.mask for axis in piece.axes if axis.mask is not None]
    mask = writer.let(" & ".join(masks), "mask") if masks else None
    sizes = found.source.sizes
    return [Axis(flat, tuple(range(len(sizes))), sizes, mask)]
