"""Folds batch norms with fixed statistics into the convolution or linear layer before them.

    scale = gamma / sqrt(var + eps)        y = scale * (conv(x, w) + b - mean) + beta
          = conv(x, w * scale) + ((b - mean) * scale + beta)                        (Ioffe and Szegedy 2015, section 3)

The new filter and bias are derived weights: computed in float64 when they are packed, rounded once. Where there is
nothing to fold into, the batch norm becomes a multiplication and an addition per channel (in f32 for f16 and bf16,
as eager does: one rounding at the end).

Bytes: folded, the batch norm's load and store of the activation disappear; the weights stay as large as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from lowerkit.dialect import WeightOp
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.torch_build import of_type_of
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    LOW_PRECISION_FLOATS,
    TORCH_DTYPE_CODES,
    RefusalError,
    TensorInfo,
    bool_of,
    build,
    constant_bool,
    constant_int,
    constant_none,
    defining_op,
    from_builtin,
    int_of,
    is_none,
    number_of,
    tensor_info,
)
from lowerkit.passes.rewriting import erase_dead, is_used, main_block, operations, users, weight_symbol
from lowerkit.program.weights import WeightStore

Array = np.ndarray[Any, Any]

# Operands: input, gamma, beta, mean, var, then where `training` (None: never) and epsilon are.
_BATCH_NORMS: dict[str, tuple[int | None, int]] = {
    "torch.aten.batch_norm": (5, 7),
    "torch.aten.native_batch_norm": (5, 7),
    "torch.aten._native_batch_norm_legit_no_training": (None, 6),
}

# Operands: input, filter, bias, ...; where the group count is (None: one group).
_PRODUCERS: dict[str, int | None] = {
    "torch.aten.conv1d": 6,
    "torch.aten.conv2d": 6,
    "torch.aten.conv3d": 6,
    "torch.aten.conv2d.padding": 6,
    "torch.aten.conv3d.padding": 6,
    "torch.aten.convolution": 8,
    "torch.aten.conv_transpose1d": 6,
    "torch.aten.conv_transpose2d.input": 6,
    "torch.aten.conv_transpose3d.input": 6,
    "torch.aten.linear": None,
}

_LARGEST_SCALE = 2.0**64
"""Filters times a larger one may leave the range of f32."""

# What nobody reads any more once a batch norm is gone. Other torch ops may have effects and are not ours to judge.
_LEFT_OVER = frozenset({*_PRODUCERS, "lk.weight", "torch_c.from_builtin_tensor"})


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Removes batch norms whose parameters and statistics are weights.

    Precondition: stage captured. A batch norm in training mode, or with parameters that are computed, stays.
    """

    name: ClassVar[str] = "fold-batch-norm"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        changed = False
        for op in operations(main_block(module)):
            if op.name not in _BATCH_NORMS:
                continue
            try:
                norm = _read(op, context.weights)
                with ir.InsertionPoint(op), op.location:
                    value = _fold(norm, context.weights) or _scale_and_shift(norm, context.weights)
            except RefusalError as error:
                context.remark(self.name, f"left {op.name} at {op.location}: {error}")
                continue
            op.results[0].replace_all_uses_with(of_type_of(op.results[0], value))
            op.erase()
            changed = True
        if changed:
            erase_dead(main_block(module), _LEFT_OVER)
        return changed


@dataclass(frozen=True)
class _BatchNorm:
    """A batch norm whose parameters are weights: names, in the order gamma, beta, mean, var; None for absent ones."""

    op: ir.Operation
    names: tuple[str | None, ...]
    epsilon: float
    channels: int

    @property
    def parents(self) -> list[str]:
        return [name for name in self.names if name is not None]

    def scale_and_shift(self, arrays: Sequence[Array]) -> tuple[Array, Array]:
        """Returns scale and shift in float64 from the parents' data."""
        given = iter(arrays)
        gamma, beta, mean, var = (None if name is None else next(given).astype(np.float64) for name in self.names)
        assert mean is not None
        assert var is not None
        with np.errstate(all="ignore"):
            scale = 1.0 / np.sqrt(var + self.epsilon)
            if gamma is not None:
                scale = gamma * scale
            shift = -mean * scale
            return scale, shift if beta is None else shift + beta

    def keeps_range(self, weights: WeightStore) -> bool:
        """Whether a filter times the scale stays finite; without data it is taken to."""
        if not all(weights.has_data(name) for name in self.parents):
            return True
        scale, shift = self.scale_and_shift([weights.get(name) for name in self.parents])
        return bool(np.all(np.abs(scale) <= _LARGEST_SCALE) and np.all(np.isfinite(shift)))


def _weight_name(value: ir.Value) -> str | None:
    """Returns the name of the weight behind a torch tensor."""
    cast = defining_op(value, "torch_c.from_builtin_tensor")
    return None if cast is None else weight_symbol(cast.operands[0])


def _read(op: ir.Operation, weights: WeightStore) -> _BatchNorm:
    training, epsilon = _BATCH_NORMS[op.name]
    if training is not None and bool_of(op.operands[training]):
        raise RefusalError("it normalizes by the statistics of the batch (training mode)")
    if any(is_used(result) for result in list(op.results)[1:]):
        raise RefusalError("its statistics are used")
    names: list[str | None] = []
    for label, value in zip(("weight", "bias", "mean", "variance"), list(op.operands)[1:5], strict=True):
        name = None if is_none(value) else _weight_name(value)
        if name is None and (label in ("mean", "variance") or not is_none(value)):
            raise RefusalError(f"its {label} is computed at run time")
        names.append(name)
    info = tensor_info(op.operands[0])
    if info.rank < 2:
        raise RefusalError(f"its input {info} has no channel dim")
    mean = names[2]
    assert mean is not None
    return _BatchNorm(op, tuple(names), float(number_of(op.operands[epsilon])), weights.spec(mean)[1][0])


def _fold(norm: _BatchNorm, weights: WeightStore) -> ir.Value | None:
    """Rebuilds the producer with folded filter and bias; None where there is no producer to fold into."""
    value = norm.op.operands[0]
    producer = defining_op(value, *_PRODUCERS)
    if producer is None or users(value) != [norm.op] or len(list(value.uses)) != 1:
        return None
    if producer.name == "torch.aten.linear" and tensor_info(value).rank != 2:
        return None  # a batch norm over [N, C, L] has its channels before the features of the linear layer
    filter_name, bias = _weight_name(producer.operands[1]), producer.operands[2]
    bias_name = None if is_none(bias) else _weight_name(bias)
    if filter_name is None or (bias_name is None and not is_none(bias)):
        return None
    if len(users(producer.operands[1])) != 1:
        return None  # a shared filter: folding would duplicate it
    info = tensor_info(producer.operands[1])
    if producer.name != "torch.aten.linear" and tensor_info(value).rank != info.rank:
        return None  # without a batch the dim after the channels is what a batch norm takes for channels
    if info.dtype in LOW_PRECISION_FLOATS:
        return None  # a folded filter would be rounded a second time; eager scales and shifts in f32
    if not norm.keeps_range(weights):
        return None  # of a sum with infinite filters NaN would be left, where eager has infinity
    axis, groups = _output_axis(producer)

    def folded_filter(data: Array, *parameters: Array) -> Array:
        scale, _ = norm.scale_and_shift(parameters)
        return _scale_filter(data, scale, axis, groups)

    def folded_bias(*arrays: Array) -> Array:
        parameters = arrays if bias_name is None else arrays[1:]
        scale, shift = norm.scale_and_shift(parameters)
        with np.errstate(all="ignore"):
            total = shift if bias_name is None else arrays[0].astype(np.float64) * scale + shift
            return total.astype(weights.get(filter_name).dtype)

    new_filter = _derive(weights, f"{filter_name}.folded", [filter_name, *norm.parents], folded_filter, info)
    bias_parents = [*([] if bias_name is None else [bias_name]), *norm.parents]
    stem = f"{filter_name}.folded_bias" if bias_name is None else f"{bias_name}.folded"
    new_bias = _derive(weights, stem, bias_parents, folded_bias, info.with_shape([norm.channels]))
    operands = [producer.operands[0], new_filter, new_bias, *list(producer.operands)[3:]]
    location = ir.Location.fused([producer.location, norm.op.location])
    rebuilt = ir.Operation.create(
        producer.name,
        results=[norm.op.results[0].type],
        operands=operands,
        attributes={name: producer.attributes[name] for name in producer.attributes},
        loc=location,
    )
    return rebuilt.results[0]


def _output_axis(producer: ir.Operation) -> tuple[int, int]:
    """Returns the dimension of the filter that counts output channels (per group), and the number of groups."""
    transposed = "conv_transpose" in producer.name
    if producer.name == "torch.aten.convolution":
        transposed = bool_of(producer.operands[6])
    groups_at = _PRODUCERS[producer.name]
    groups = 1 if groups_at is None else int_of(producer.operands[groups_at])
    return (1, groups) if transposed else (0, 1)


def _scale_filter(data: Array, scale: Array, axis: int, groups: int) -> Array:
    """Multiplies each output channel of a filter; transposed convolutions have [Cin, Cout/groups, k...]."""
    if axis == 0:
        factors = scale.reshape(-1, *(1,) * (data.ndim - 1))
    else:
        per_group = scale.reshape(groups, 1, -1)
        factors = np.repeat(per_group, data.shape[0] // groups, axis=1).reshape(
            data.shape[0], -1, *(1,) * (data.ndim - 2)
        )
    return (data.astype(np.float64) * factors).astype(data.dtype)


def _scale_and_shift(norm: _BatchNorm, weights: WeightStore) -> ir.Value:
    """Multiplies and adds per channel."""
    value = norm.op.operands[0]
    info = tensor_info(value)
    wide = info.with_dtype("f32") if info.dtype in LOW_PRECISION_FLOATS else info
    shape = [norm.channels, *(1,) * (info.rank - 2)]
    parameter = wide.with_shape(shape)
    dtype = np.float64 if wide.dtype == "f64" else np.float32

    def part(index: int) -> Callable[..., Array]:
        return lambda *arrays: norm.scale_and_shift(arrays)[index].astype(dtype).reshape(shape)

    stem = norm.parents[0].rpartition(".")[0] or norm.parents[0]
    scale = _derive(weights, f"{stem}.scale", norm.parents, part(0), parameter)
    shift = _derive(weights, f"{stem}.shift", norm.parents, part(1), parameter)
    result = _convert(value, wide)
    result = build("torch.aten.mul.Tensor", [result, scale], [wide.torch_type()])[0]
    result = build("torch.aten.add.Tensor", [result, shift, constant_int(1)], [wide.torch_type()])[0]
    return _convert(result, info)


def _convert(value: ir.Value, info: TensorInfo) -> ir.Value:
    if tensor_info(value).dtype == info.dtype:
        return value
    operands = [
        value, constant_int(TORCH_DTYPE_CODES[info.dtype]), constant_bool(False), constant_bool(False), constant_none(),
    ]  # fmt: skip
    return build("torch.aten.to.dtype", operands, [info.torch_type()])[0]


def _derive(
    weights: WeightStore, stem: str, parents: Sequence[str], function: Callable[..., Array], info: TensorInfo
) -> ir.Value:
    """Adds a derived weight and returns it as a torch tensor."""
    name = weights.unique_name(stem)
    weights.derive(name, parents, function, dtype=info.dtype, shape=info.static_shape())
    return from_builtin(WeightOp.build(name, info.builtin_type()), info)
