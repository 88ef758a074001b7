"""lk.layer_norm, lk.rms_norm and lk.group_norm: rows brought to unit scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, OptionalOperand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import rows as lowering
from lowerkit.dialect.reference import rows as numpy_rows
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import compatible_shapes, element_count, fail, is_dynamic, ranked, show
from lowerkit.dialect.types import require_float
from lowerkit.dialect.window import channel_axis
from lowerkit.mlir import ext, ir


class LayerNormOp(LkOperation, name="layer_norm", traits=[ext.Pure]):
    """Normalizes over the last dimensions to mean 0 and variance 1, computed in f32 (f64 for f64), rounded once.

    ``result = (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias``; an absent scale is 1, an absent
    bias 0.

    Operands:
        input: a float tensor.
        scale: of the shape of the normalized dimensions; optional.
        bias: of the shape of the normalized dimensions; optional.

    Results:
        result: of the type of the input.

    Attributes:
        normalized_rank: how many of the last dimensions form a row.
        epsilon: what is added to the variance.

    FLOPs: 8 for each element: mean 1, difference 1, variance 2, scale by the root 1, affine 2, and 1 for the rest.

    Bytes: operands and result, each once.
    """

    input: Operand
    scale: OptionalOperand
    bias: OptionalOperand
    normalized_rank: ir.IntegerAttr
    epsilon: ir.FloatAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        scale: ir.Type | None = None,
        bias: ir.Type | None = None,
        *,
        normalized_rank: int = 1,
        epsilon: float = 1e-5,
    ) -> list[ir.Type]:
        """Returns the type of the input; see :meth:`LkOperation.infer_result_types`."""
        return [_check_row_norm(input, {"scale": scale, "bias": bias}, normalized_rank, epsilon)]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        scale: ir.Value | None = None,
        bias: ir.Value | None = None,
        *,
        normalized_rank: int = 1,
        epsilon: float = 1e-5,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op."""
        operands = {"input": input, "scale": scale, "bias": bias}
        parameters: dict[str, Any] = {"normalized_rank": normalized_rank, "epsilon": epsilon}
        return cls.create(operands, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array, scale: Array | None = None, bias: Array | None = None) -> tuple[Array, ...]:
        """Computes in float64 and rounds once."""
        axes = tuple(range(input.ndim - self.normalized_rank.value, input.ndim))
        return self.rounded(numpy_rows.layer_norm(input, scale, bias, axes, self.epsilon.value))

    def build_linalg(self) -> list[ir.Value]:
        """Builds mean, variance and one pass over the elements."""
        return [lowering.layer_norm(self.input, self.scale, self.bias, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 8 for each element."""
        return _per_element(shape(self.input), 8)


class RmsNormOp(LkOperation, name="rms_norm", traits=[ext.Pure]):
    """Divides by the root mean square over the last dimensions, computed in f32 (f64 for f64), rounded once.

    ``result = x / sqrt(mean(x^2) + epsilon) * scale``; an absent scale is 1.

    Operands:
        input: a float tensor.
        scale: of the shape of the normalized dimensions; optional.

    Results:
        result: of the type of the input.

    Attributes:
        normalized_rank: how many of the last dimensions form a row.
        epsilon: what is added to the mean square.

    FLOPs: 4 for each element: square, add, multiply by the root, multiply by the scale.

    Bytes: operands and result, each once.
    """

    input: Operand
    scale: OptionalOperand
    normalized_rank: ir.IntegerAttr
    epsilon: ir.FloatAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls, input: ir.Type, scale: ir.Type | None = None, *, normalized_rank: int = 1, epsilon: float = 1e-5
    ) -> list[ir.Type]:
        """Returns the type of the input; see :meth:`LkOperation.infer_result_types`."""
        return [_check_row_norm(input, {"scale": scale}, normalized_rank, epsilon)]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        scale: ir.Value | None = None,
        *,
        normalized_rank: int = 1,
        epsilon: float = 1e-5,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op."""
        parameters: dict[str, Any] = {"normalized_rank": normalized_rank, "epsilon": epsilon}
        return cls.create({"input": input, "scale": scale}, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array, scale: Array | None = None) -> tuple[Array, ...]:
        """Computes in float64 and rounds once."""
        axes = tuple(range(input.ndim - self.normalized_rank.value, input.ndim))
        return self.rounded(numpy_rows.rms_norm(input, scale, axes, self.epsilon.value))

    def build_linalg(self) -> list[ir.Value]:
        """Builds the mean square and one pass over the elements."""
        return [lowering.rms_norm(self.input, self.scale, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 4 for each element."""
        return _per_element(shape(self.input), 4)


class GroupNormOp(LkOperation, name="group_norm", traits=[ext.Pure]):
    """Normalizes each group of channels of each sample to mean 0 and variance 1, in f32 (f64 for f64), rounded once.

    The mean and variance run over the channels of the group and all spatial dimensions; the formula is that of
    ``lk.layer_norm``, with scale and bias per channel. As many groups as channels make it instance normalization.

    Operands:
        input: ``[N, C, ...]``, or ``[N, ..., C]`` with channels_last; float.
        scale: ``[C]``; optional.
        bias: ``[C]``; optional.

    Results:
        result: of the type of the input.

    Attributes:
        groups: the number of groups, a divisor of C.
        epsilon: what is added to the variance.
        channels_last: the layout of input and result.

    FLOPs: 8 for each element, as for ``lk.layer_norm``.

    Bytes: operands and result, each once.
    """

    input: Operand
    scale: OptionalOperand
    bias: OptionalOperand
    groups: ir.IntegerAttr
    epsilon: ir.FloatAttr
    channels_last: ir.BoolAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls,
        input: ir.Type,
        scale: ir.Type | None = None,
        bias: ir.Type | None = None,
        *,
        groups: int,
        epsilon: float = 1e-5,
        channels_last: bool = False,
    ) -> list[ir.Type]:
        """Returns the type of the input; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        require_float("input", data.element_type)
        if data.rank < 2:
            fail(f"operand input must have a batch and a channel dimension, found {data}")
        channels = data.shape[channel_axis(data.rank, channels_last)]
        if groups < 1 or (not is_dynamic(channels) and channels % groups):
            fail(f"attribute groups is {groups}, which must be positive and divide C = {channels}")
        _check_epsilon(epsilon)
        _check_affine({"scale": scale, "bias": bias}, [channels], "the channels")
        return [data]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        scale: ir.Value | None = None,
        bias: ir.Value | None = None,
        *,
        groups: int,
        epsilon: float = 1e-5,
        channels_last: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op."""
        operands = {"input": input, "scale": scale, "bias": bias}
        parameters: dict[str, Any] = {"groups": groups, "epsilon": epsilon, "channels_last": channels_last}
        return cls.create(operands, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array, scale: Array | None = None, bias: Array | None = None) -> tuple[Array, ...]:
        """Computes in float64 and rounds once."""
        groups, axis = self.groups.value, channel_axis(input.ndim, self.channels_last.value)
        shape = input.shape
        split = input.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
        axes = tuple(other for other in range(1, split.ndim) if other != axis)
        shape_of_affine = (groups, -1, *[1] * (split.ndim - axis - 2))
        factor = None if scale is None else scale.reshape(shape_of_affine)
        offset = None if bias is None else bias.reshape(shape_of_affine)
        result = numpy_rows.layer_norm(split, factor, offset, axes, self.epsilon.value)
        return self.rounded(result.reshape(shape))

    def build_linalg(self) -> list[ir.Value]:
        """Splits the channels, then builds mean, variance and one pass over the elements."""
        return [lowering.group_norm(self.input, self.scale, self.bias, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 8 for each element."""
        return _per_element(shape(self.input), 8)


def _check_row_norm(input: ir.Type, affine: dict[str, ir.Type | None], rank: int, epsilon: float) -> ir.Type:
    data = ranked("input", input)
    require_float("input", data.element_type)
    if not 1 <= rank <= data.rank:
        fail(f"attribute normalized_rank is {rank}, which must lie between 1 and the rank {data.rank} of the input")
    _check_epsilon(epsilon)
    _check_affine(affine, data.shape[data.rank - rank :], "the normalized dimensions")
    return data


def _check_epsilon(epsilon: float) -> None:
    if not 0.0 <= epsilon < float("inf"):
        fail(f"attribute epsilon must be finite and not negative, found {epsilon}")


def _check_affine(affine: dict[str, ir.Type | None], shape: Sequence[int], what: str) -> None:
    for name, kind in affine.items():
        if kind is None:
            continue
        tensor = ranked(name, kind)
        require_float(name, tensor.element_type)
        if not compatible_shapes(tensor.shape, shape):
            fail(f"operand {name} has shape {show(tensor.shape)}, but {what} of the input are {show(shape)}")


def _per_element(shape: Sequence[Any], count: int) -> Count | None:
    elements = element_count(shape)
    return None if elements is None else count * elements
