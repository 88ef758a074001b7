"""Compiler bugs to be found: each replaces one function of a pass, a kernel or the memory plan by a wrong one.

Kernels are written in this process and only compiled in others, so a replaced emitter reaches them too.
"""

# Bugs are planted in private functions: that is where they would be.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lowerkit.capture.torch_export.decompositions import own_table
from lowerkit.capture.torch_export.graph import importer as fx_importer
from lowerkit.mlir import ir
from lowerkit.passes.canonicalize import fold_constants, fold_padding
from lowerkit.passes.layout import channels_last
from lowerkit.passes.raising.raise_ops import raise_attention, raise_normalization, raise_softmax
from lowerkit.runtimes import binding
from lowerkit.targets.cpu.elementwise import contiguous
from lowerkit.targets.cpu.vector import body as vector_body

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class PlantedBug:
    """A bug, a model that it breaks, and how a bisection must name it.

    Attributes:
        plant: replaces the function.
        module, inputs: the model.
        stage, culprit, op: of the finding; ``culprit`` is how it starts.
        line: text of the source line to be named.
        cause: how the sentence on the cause starts, or a word in it.
    """

    plant: Plant
    module: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    stage: str
    culprit: str
    op: str
    line: str
    cause: str


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.1, 1.0, 16))

    def forward(self, x: Tensor) -> Tensor:
        gain = torch.exp(self.weight * 2)
        return torch.relu(x) * gain


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x * 1.5, (1, 1, 1, 1))
        return self.conv(padded)  # a convolution of what was padded


class Sequence3(nn.Module):
    """Values that live across each other, so that the arena has to keep several apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.second = nn.Linear(32, 32)
        self.third = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        kept = functional.gelu(self.first(x))  # kept for the sum
        other = torch.softmax(self.second(kept), -1)
        last = torch.softmax(self.third(other), -1)
        return torch.softmax(kept, 0) @ last.transpose(0, 1)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, (1, 3), padding=(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))  # height and width are equal


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        scores = torch.sin(x)
        return torch.softmax(scores, dim=-1)  # over the last axis


class Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x)
        return functional.scaled_dot_product_attention(query, x, x)  # scaled by 1 / 4


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x * 1e-3)  # a variance near epsilon


class Difference(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        doubled = torch.tanh(x)
        return torch.sigmoid(doubled - y)  # not the same as y - doubled


class Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 40)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))  # with its bias


class Long(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * 3.0  # 255 elements: no whole number of vectors


class Hypotenuse(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        length = torch.hypot(x, y)  # spelled out at capture
        return torch.relu(length - 1)


class Leaky(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        leaky = functional.leaky_relu(x, 0.25)  # the slope is a literal
        return torch.exp(leaky)


def _wrong_fold(patch: pytest.MonkeyPatch) -> None:
    right = fold_constants._interpreted

    def wrong(text: str, parents: list[str]) -> Callable[..., Any]:
        compute = right(text, parents)
        return lambda *arrays: compute(*arrays) * compute(*arrays).dtype.type(1.5)

    patch.setattr(fold_constants, "_interpreted", wrong)


def _off_by_one_pad(patch: pytest.MonkeyPatch) -> None:
    right = fold_padding._fold

    def wrong(op: ir.Operation) -> bool:
        folded = right(op)
        if folded:
            low, high, *rest = list(ir.DenseI64ArrayAttr(op.attributes["padding"]))
            op.attributes["padding"] = ir.DenseI64ArrayAttr.get([low + 1, high - 1, *rest])
        return folded

    patch.setattr(fold_padding, "_fold", wrong)


def _stale_slot(patch: pytest.MonkeyPatch) -> None:
    right = binding.plan_memory

    def wrong(sizes: Sequence[int], first: Sequence[int], last: Sequence[int], alignment: int) -> tuple[list[int], int]:
        return right(sizes, first, [min(end, start + 1) for start, end in zip(first, last, strict=True)], alignment)

    patch.setattr(binding, "plan_memory", wrong)


def _wrong_permutation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(channels_last, "channels_to_last", lambda _rank: [0, 3, 2, 1])


def _wrong_axis(patch: pytest.MonkeyPatch) -> None:
    right = raise_softmax.int_of
    patch.setattr(raise_softmax, "int_of", lambda value: right(value) - 1)


def _missing_scale(patch: pytest.MonkeyPatch) -> None:
    class Unscaled:
        @staticmethod
        def build(*operands: Any, scale: float | None, **named: Any) -> Any:
            return right.build(*operands, scale=1.0, **named)

    right = raise_attention.AttentionOp
    patch.setattr(raise_attention, "AttentionOp", Unscaled)


def _wrong_epsilon(patch: pytest.MonkeyPatch) -> None:
    right = raise_normalization.number_of
    patch.setattr(raise_normalization, "number_of", lambda value: right(value) / 10)


def _emitting(patch: pytest.MonkeyPatch, name: str, operands: Callable[[list[Any]], list[Any]]) -> None:
    right = vector_body._emit_op

    def wrong(b: Any, op: ir.Operation, values: list[Any], late: Any) -> Any:
        return right(b, op, operands(values) if op.name == name else values, late)

    patch.setattr(vector_body, "_emit_op", wrong)


def _swapped_operands(patch: pytest.MonkeyPatch) -> None:
    _emitting(patch, "arith.subf", lambda values: values[::-1])


def _dropped_bias(patch: pytest.MonkeyPatch) -> None:
    right = vector_body._emit_op

    def wrong(b: Any, op: ir.Operation, values: list[Any], late: Any) -> Any:
        return values[0] if op.name == "arith.addf" else right(b, op, values, late)

    patch.setattr(vector_body, "_emit_op", wrong)


def _broken_tail(patch: pytest.MonkeyPatch) -> None:
    right = contiguous._store

    def wrong(frame: Any, nest: Any, outputs: Any, point: Any, group: Any, mask: Any) -> None:
        if mask is not None:
            outputs = [frame.text.like(0.0, value) for value in outputs]
        right(frame, nest, outputs, point, group, mask)

    patch.setattr(contiguous, "_store", wrong)


def _wrong_decomposition(patch: pytest.MonkeyPatch) -> None:
    def wrong(left: Tensor, right: Tensor) -> Tensor:
        return torch.sqrt(left * left + right)

    patch.setitem(own_table.OWN_DECOMPOSITIONS, torch.ops.aten.hypot.default, wrong)


def _wrong_literal(patch: pytest.MonkeyPatch) -> None:
    importer: Any = fx_importer.NodeImporter
    right = importer._import_literal

    def wrong(self: Any, value: Any) -> Any:
        return right(self, value * 2 if isinstance(value, float) else value)

    patch.setattr(importer, "_import_literal", wrong)


def _normal(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(*shape),)


PLANTED_BUGS: dict[str, PlantedBug] = {
    "wrong-constant-fold": PlantedBug(
        _wrong_fold, Folded, _normal(3, 16), "canonical", "pass fold-constants", "lk.weight", "torch.exp(", "scale"
    ),
    "off-by-one-pad": PlantedBug(
        _off_by_one_pad,
        Padded,
        _normal(1, 3, 9, 9),
        "canonical",
        "pass fold-padding",
        "lk.conv",
        "self.conv(",
        "position",
    ),
    "stale-arena-slot": PlantedBug(
        _stale_slot, Sequence3, _normal(32, 32), "compiled", "memory plan", "matmul", "functional.gelu(", "memory"
    ),
    "wrong-transpose-permutation": PlantedBug(
        _wrong_permutation, Images, _normal(1, 4, 6, 6), "layout", "pass channels-last", "lk.conv", "self.conv(", ""
    ),
    "softmax-over-the-wrong-axis": PlantedBug(
        _wrong_axis, Rows, _normal(8, 8), "raised", "pass raise-softmax", "lk.softmax", "torch.softmax(", ""
    ),
    "missing-attention-scale": PlantedBug(
        _missing_scale,
        Attended,
        _normal(2, 3, 12, 16),
        "raised",
        "pass raise-attention",
        "lk.attention",
        "scaled_dot_product_attention(",
        "",
    ),
    "wrong-epsilon": PlantedBug(
        _wrong_epsilon,
        Normed,
        _normal(5, 24),
        "raised",
        "pass raise-normalization",
        "lk.layer_norm",
        "self.norm(",
        "",
    ),
    "swapped-operands": PlantedBug(
        _swapped_operands,
        Difference,
        lambda: (torch.randn(4, 40), torch.randn(4, 40)),
        "compiled",
        "kernel family elementwise",
        "arith.subf",
        "doubled - y",
        "sign",
    ),
    "dropped-bias": PlantedBug(
        _dropped_bias,
        Biased,
        _normal(6, 24),
        "compiled",
        "kernel family matmul",
        "arith.addf",
        "self.linear(",
        "addition",
    ),
    "broken-vector-tail": PlantedBug(
        _broken_tail, Long, _normal(5, 51), "compiled", "kernel family elementwise", "arith.", "torch.relu(x)", ""
    ),
    "wrong-decomposition": PlantedBug(
        _wrong_decomposition,
        Hypotenuse,
        lambda: (torch.rand(4, 8) + 1, torch.rand(4, 8) + 1),
        "exported",
        "decomposition",
        "aten.hypot",
        "torch.hypot(",
        "",
    ),
    "wrong-literal": PlantedBug(
        _wrong_literal, Leaky, _normal(4, 8), "captured", "capture", "torch.aten.leaky_relu", "leaky_relu(", ""
    ),
}
