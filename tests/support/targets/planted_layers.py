"""Bugs in each layer of the CUDA target, to be found by its witnesses: a family, Triton's lowering, launches."""

# Bugs are planted in private functions: that is where they would be.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from lowerkit.runtimes.cuda import device
from lowerkit.targets.cuda.ptx import compile as ptx_compile
from lowerkit.targets.cuda.ptx import link
from lowerkit.targets.cuda.triton import epilogue, scalars

Plant = Callable[[pytest.MonkeyPatch], None]


class Difference(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x - y) * 3.0  # not the same as y - x


class Sorted(nn.Module):
    """Launches with several temporaries at once."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x)[0]  # of integers


class Convolved(nn.Module):
    """Plain loops that multiply: no family takes f64."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)  # in loops


@dataclass(frozen=True)
class PlantedLayerBug:
    """A bug, a model that it breaks, and what a bisection must say.

    Attributes:
        plant: replaces the function.
        module, inputs: the model.
        layer: that is wrong, and the verdicts of the witnesses.
        op, line: as of :class:`~tests.support.planted_bugs.PlantedBug`.
        told: text in the details.
    """

    plant: Plant
    module: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    layer: str
    verdicts: tuple[str, str]
    op: str
    line: str
    told: str


def _pair() -> tuple[Tensor, ...]:
    return torch.randn(4, 40), torch.randn(4, 40)  # 160 elements: no whole number of blocks


def _image() -> tuple[Tensor, ...]:
    return (torch.randn(1, 3, 4, 4, dtype=torch.float64),)


def _integers() -> tuple[Tensor, ...]:
    return (torch.randint(-99, 99, (1, 5000)),)


def _swapped_operands(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(scalars._FLOAT_BINARY, "arith.subf", "{1} - {0}")


def _no_mask(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(epilogue, "_mask", lambda *_arguments: None)


def _rewritten(patch: pytest.MonkeyPatch, pattern: str, by: str) -> None:
    right = ptx_compile._compile

    def wrong(*arguments: Any) -> ptx_compile.Compiled:
        compiled = right(*arguments)
        return msgspec.structs.replace(compiled, ptx=re.sub(pattern, by, compiled.ptx))

    patch.setattr(ptx_compile, "_compile", wrong)


def _wrong_instruction(patch: pytest.MonkeyPatch) -> None:
    _rewritten(patch, r"\bsub\.rn\.f32", "add.rn.f32")


def _lost_predicate(patch: pytest.MonkeyPatch) -> None:
    _rewritten(patch, r"@%p\d+ st\.global", "st.global")


def _wrong_loop(patch: pytest.MonkeyPatch) -> None:
    _rewritten(patch, r"\bmul(\.rn)?\.f64", "sub.rn.f64")


def _wrong_pointers(patch: pytest.MonkeyPatch) -> None:
    right = link._with_code

    def wrong(function: Any, level: str, compiled: Mapping[Any, Any]) -> Any:
        described = right(function, level, compiled)
        launches = [
            msgspec.structs.replace(each, pointers=[1, 0, *each.pointers[2:]]) if each.pointers[:2] == [0, 1] else each
            for each in described.launches
        ]
        return msgspec.structs.replace(described, launches=launches)

    patch.setattr(link, "_with_code", wrong)


def _overlapping_temporaries(patch: pytest.MonkeyPatch) -> None:
    right = device._shape

    def wrong(*arguments: Any) -> Any:
        shaped = right(*arguments)
        return replace(shaped, temporaries=tuple((0, size) for _, size in shaped.temporaries))

    patch.setattr(device, "_shape", wrong)


PLANTED_LAYERS: dict[str, PlantedLayerBug] = {
    "a family that swaps operands": PlantedLayerBug(
        _swapped_operands, Difference, _pair, "the kernel", ("differs", "differs"), "arith.subf", "x - y",
        "family elementwise",
    ),
    "a family that drops a mask": PlantedLayerBug(
        _no_mask, Difference, _pair, "the kernel", ("offends", "offends"), "arith.mulf", "x - y", "= tl.load(p0 + ",
    ),
    "a wrong instruction in PTX": PlantedLayerBug(
        _wrong_instruction, Difference, _pair, "Triton's lowering", ("agrees", "differs"), "arith.subf", "x - y",
        "for sm_90",
    ),
    "a predicate lost in PTX": PlantedLayerBug(
        _lost_predicate, Difference, _pair, "Triton's lowering", ("agrees", "offends"), "arith.mulf", "x - y",
        "tl.store(p2",
    ),
    "a wrong instruction in plain loops": PlantedLayerBug(
        _wrong_loop, Convolved, _image, "the kernel or LLVM's lowering", ("silent", "differs"), "lk.conv",
        "self.conv(", "plain loops",
    ),
    "pointers of a launch in another order": PlantedLayerBug(
        _wrong_pointers, Difference, _pair, "the launch or the schedule", ("agrees", "agrees"), "arith.subf", "x - y",
        "dB to numpy",
    ),
    "temporaries that overlap": PlantedLayerBug(
        _overlapping_temporaries, Sorted, _integers, "the launch or the schedule", ("agrees", "agrees"), "lk.sort",
        "torch.sort(", "family ordering",
    ),
}  # fmt: skip
