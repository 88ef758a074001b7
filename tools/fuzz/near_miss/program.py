"""Several near misses as one module, and the ways in which it is captured and compiled."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lowerkit
from lowerkit import pipeline
from near_miss.pattern import SIZES, NearMiss, named_axes

RECOGNITION = (
    "fold-batch-norm", "fold-padding", "move-views", "requantize", "recognize-attention", "recognize-gelu",
    "recognize-layer-norm", "recognize-linear", "recognize-rms-norm", "recognize-rope",
)  # fmt: skip

Sizes = dict[str, int]


@dataclass(frozen=True)
class Way:
    """How a program is taken: the capture (export, trace, onnx), the sizes that are symbolic, the passes left out."""

    capture: str = "export"
    symbolic: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @staticmethod
    def of_program(number: int) -> Way:
        """Returns the way of a numbered program."""
        left_out = RECOGNITION if number % 6 == 1 else ()
        match number % 12:
            case 2:
                return Way("export", ("B",), left_out)
            case 5:
                return Way("export", ("B", "M", "T"), left_out)
            case 4 | 9:
                return Way("trace", (), left_out)
            case 10:
                return Way("onnx", (), left_out)
            case _:
                return Way("export", (), left_out)

    def sizes(self) -> list[Sizes]:
        """Returns the sizes at which the program runs; the first are those of the example."""
        if not self.symbolic:
            return [SIZES]
        further: list[Sizes] = [{"B": 3, "M": 4, "T": 7}, {"B": 5, "M": 11, "T": 2}]
        return [SIZES, *({**SIZES, **{name: other[name] for name in self.symbolic}} for other in further)]


class NotCapturedError(Exception):
    """torch itself does not capture or convert the module."""


def function_of(one: NearMiss, *, double: bool = False) -> Any:
    """Returns the function as a module, whose lines tracers name; with ``double`` narrower float types are float64."""
    text = one.body()
    if double:
        text = re.sub(r"torch\.(bfloat16|float16|float32|float|half)\b", "torch.float64", text)
        text = re.sub(r"\.(float|half|bfloat16)\(\)", ".double()", text)
    text = text.replace("\n", "\n    ")
    text = f"class Function(torch.nn.Module):\n    def forward({', '.join(['self', *one.inputs])}):{text}\n"
    path = Path(_folder().name) / f"{name_of(one)}{'_in_float64' if double else ''}.py"
    path.write_text(text)  # diagnostics and tracers name only files that there are
    space: dict[str, Any] = {"torch": torch, "F": nn.functional}
    exec(compile(text, str(path), "exec"), space)
    return space["Function"]()


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="near-misses-")


def name_of(one: NearMiss) -> str:
    """The name of the file that diagnostics say a near miss is in."""
    return f"near_miss_{one.seed}"


def arguments_of(one: NearMiss, sizes: Mapping[str, int]) -> list[torch.Tensor]:
    """Returns all arguments of one near miss; constants have the example's sizes."""
    return [one.data(name, SIZES if name in one.constants else sizes) for name in one.inputs]


class Several(nn.Module):
    """Several near misses in one module; its inputs are theirs, one after the other."""

    def __init__(self, near_misses: Sequence[NearMiss]) -> None:
        super().__init__()
        self.near_misses = list(near_misses)
        self.functions = nn.ModuleList(function_of(one) for one in near_misses)
        for number, one in enumerate(near_misses):
            for name in one.constants:
                self.register_buffer(f"f{number}_{name}", one.data(name, SIZES))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns what the functions return, one after the other."""
        given, found = iter(tensors), list[torch.Tensor]()
        for number, (one, function) in enumerate(zip(self.near_misses, self.functions, strict=True)):
            arguments = [getattr(self, f"f{number}_{n}") if n in one.constants else next(given) for n in one.inputs]
            result = function(*arguments)
            found += result if isinstance(result, tuple) else [result]
        return tuple(found)


@dataclass
class Captured:
    """A module as lowerkit takes it, and which of the named sizes of each near miss stayed symbolic."""

    model: Any
    examples: list[torch.Tensor] | None
    varying: list[bool]


def captured(near_misses: Sequence[NearMiss], way: Way) -> Captured:
    """Captures the module by torch.

    Raises:
        NotCapturedError: it cannot be captured, or not be converted to ONNX.
    """
    module = Several(near_misses).eval()
    specs = [one.inputs[name] for one in near_misses for name in one.given]
    examples = [one.data(name, SIZES) for one in near_misses for name in one.given]
    axes = [{axis for axis, size in named_axes(spec).items() if size in way.symbolic} for spec in specs]
    shapes = ([dict.fromkeys(each, torch.export.Dim.AUTO) for each in axes],) if way.symbolic else None
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            if way.capture == "trace":
                traced = torch.jit.trace(module, tuple(examples), check_trace=False)
                return Captured(traced, examples, [False] * len(near_misses))
            exported = torch.export.export(
                module, tuple(examples), dynamic_shapes=None if shapes is None else (tuple(shapes[0]),), strict=False
            )
            if way.capture == "onnx":
                program = torch.onnx.export(exported, dynamo=True, verbose=False, optimize=True)
                assert program is not None, "dynamo=True gives a program"
                return Captured(program.model_proto, None, [False] * len(near_misses))
    except Exception as error:
        raise NotCapturedError(f"{type(error).__name__}: {error}") from error
    return Captured(exported, None, _varying(exported, near_misses, axes))


def _varying(exported: Any, near_misses: Sequence[NearMiss], axes: Sequence[set[int]]) -> list[bool]:
    by_name = {node.name: node.meta["val"] for node in exported.graph.find_nodes(op="placeholder")}
    values = [by_name[name] for name in exported.graph_signature.user_inputs]
    free = [
        all(isinstance(value.shape[axis], torch.SymInt) for axis in each)
        for value, each in zip(values, axes, strict=True)
    ]
    found, place = list[bool](), 0
    for one in near_misses:
        found.append(all(free[place : place + len(one.given)]))
        place += len(one.given)
    return found


def compiled(model: Captured, left_out: Sequence[str] = ()) -> Any:
    """Compiles; with the default pipeline but for some passes."""
    with _without(left_out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examples = None if model.examples is None else tuple(model.examples)
        return lowerkit.compile(model.model, examples, threads=1, workers=1)


@contextmanager
def _without(names: Sequence[str]) -> Any:
    whole = pipeline.stage_passes
    pipeline.stage_passes = lambda stage: [each for each in whole(stage) if each.name not in names]
    try:
        yield
    finally:
        pipeline.stage_passes = whole
