"""Raises convolutions to ``lk.conv`` and ``lk.conv_transpose``; a bias becomes an addition after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lowerkit.dialect import ConvOp, ConvTransposeOp
from lowerkit.dialect.lowering import conv as lowering
from lowerkit.dialect.types import compute_type
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import bias_along, binary, squeeze, unsqueeze
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    TensorInfo,
    bool_of,
    from_builtin,
    int_of,
    ints_of,
    is_none,
    like_result,
    spread,
    string_of,
    tensor_info,
    to_builtin,
)


@dataclass(frozen=True)
class _Convolution:
    """The arguments of a convolution, whatever the op spelled them like; one value for each spatial dim."""

    input: ir.Value
    filter: ir.Value
    bias: ir.Value | None
    strides: Sequence[int]
    padding: Sequence[int]
    """Low and high for each spatial dim: low0, high0, low1, high1, ..."""
    dilation: Sequence[int]
    groups: int
    transposed: bool = False
    output_padding: Sequence[int] = ()

    def build(self, op: ir.Operation) -> list[ir.Value]:
        """Builds the convolution in the place of ``op``."""
        spatial = tensor_info(self.filter).rank - 2
        batched = tensor_info(self.input).rank == spatial + 2
        data = self.input if batched else unsqueeze(self.input, 0)
        window: dict[str, Any] = {
            "strides": list(self.strides),
            "padding": list(self.padding),
            "dilation": list(self.dilation),
        }
        if self.transposed:
            extra = list(self.output_padding) or [0] * spatial
            result = ConvTransposeOp.build(
                to_builtin(data), to_builtin(self.filter), groups=self.groups, output_padding=extra, **window
            )
        elif None in tensor_info(self.filter).shape[2:]:
            result = self._loops(to_builtin(data), to_builtin(self.filter), window)
        else:
            result = ConvOp.build(to_builtin(data), to_builtin(self.filter), groups=self.groups, **window)
        # The shape rule of lk and that of PyTorch agree, so the shape of the op's result serves for the product.
        info = tensor_info(op.results[0])
        product = from_builtin(result, info if batched else TensorInfo((1, *info.shape), info.dtype))
        if self.bias is not None:
            product = binary("add", product, bias_along(self.bias, 1, spatial + 2))
        return like_result(product if batched else squeeze(product, 0), op)

    def _loops(self, data: ir.Value, taps: ir.Value, window: Mapping[str, Any]) -> ir.Value:
        """As plain loops: kernels are chosen by the sizes of the window, which are open here."""
        element = data.type.element_type
        sums = compute_type(element)
        return lowering.conv(
            data, taps, channels_last=False, groups=self.groups, accumulate=sums, result_element=element, **window
        )


def _spatial(filter_value: ir.Value) -> int:
    return tensor_info(filter_value).rank - 2


def _both_sides(padding: Sequence[int]) -> list[int]:
    return [value for value in padding for _ in range(2)]


def _optional(value: ir.Value) -> ir.Value | None:
    return None if is_none(value) else value


def _raise_conv(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """conv1d, conv2d, conv3d: (input, weight, bias, stride, padding, dilation, groups)."""
    data, taps, bias, strides, padding, dilation, groups = op.operands
    count = _spatial(taps)
    return _Convolution(
        data,
        taps,
        _optional(bias),
        spread(ints_of(strides), count),
        _both_sides(spread(ints_of(padding), count)),
        spread(ints_of(dilation), count),
        int_of(groups),
    ).build(op)


def _raise_conv_with_named_padding(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """The ``.padding`` overloads, whose padding is "same" or "valid"."""
    data, taps, bias, strides, padding, dilation, groups = op.operands
    count = _spatial(taps)
    spacing = spread(ints_of(dilation), count)
    kind = string_of(padding)
    if kind == "valid":
        sides = [0] * (2 * count)
    elif kind == "same":
        spans = [step * (size - 1) for step, size in zip(spacing, tensor_info(taps).static_shape()[2:], strict=True)]
        sides = [side for span in spans for side in (span // 2, span - span // 2)]
    else:
        raise RefusalError(f"padding {kind!r}")
    strides_list = spread(ints_of(strides), count)
    return _Convolution(data, taps, _optional(bias), strides_list, sides, spacing, int_of(groups)).build(op)


def _raise_conv_transpose(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """conv_transpose1d to 3d: (input, weight, bias, stride, padding, output_padding, groups, dilation)."""
    data, taps, bias, strides, padding, output_padding, groups, dilation = op.operands
    count = _spatial(taps)
    return _Convolution(
        data,
        taps,
        _optional(bias),
        spread(ints_of(strides), count),
        _both_sides(spread(ints_of(padding), count)),
        spread(ints_of(dilation), count),
        int_of(groups),
        transposed=True,
        output_padding=spread(ints_of(output_padding), count),
    ).build(op)


def _raise_convolution(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """convolution: (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, ...)."""
    data, taps, bias, strides, padding, dilation, transposed, output_padding, groups = list(op.operands)[:9]
    count = _spatial(taps)
    return _Convolution(
        data,
        taps,
        _optional(bias),
        spread(ints_of(strides), count),
        _both_sides(spread(ints_of(padding), count)),
        spread(ints_of(dilation), count),
        int_of(groups),
        transposed=bool_of(transposed),
        output_padding=spread(ints_of(output_padding) or [0], count),
    ).build(op)


@dataclass(frozen=True)
class RaiseConvolution(TablePass):
    """Raises convolutions to ``lk.conv`` and ``lk.conv_transpose``. Precondition: none."""

    name: ClassVar[str] = "raise-convolution"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.conv{count}d": _raise_conv for count in (1, 2, 3)},
        **{f"torch.aten.conv{count}d.padding": _raise_conv_with_named_padding for count in (1, 2, 3)},
        "torch.aten.conv_transpose1d": _raise_conv_transpose,
        "torch.aten.conv_transpose2d.input": _raise_conv_transpose,
        "torch.aten.conv_transpose3d.input": _raise_conv_transpose,
        "torch.aten.convolution": _raise_convolution,
        "torch.aten._convolution": _raise_convolution,
        "torch.aten._convolution.deprecated": _raise_convolution,
    }
