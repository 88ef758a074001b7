"""A random function: its inputs, states and weights, its statements as text, and the module that they make."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

FLOATS = ("float32", "float64", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


@dataclass(frozen=True)
class Given:
    """A tensor that a function is given: where from (``input``, ``state`` or ``weight``) and what it holds.

    ``holds``: ``normal``, ``small`` (integers), ``bool``, ``special`` (with NaN, infinities, signed zeros), ``index``
    (0 up to ``bound``), ``positive`` (0.5 to 1.5). ``strided``: the memory is that of the transposed tensor.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    holds: str
    seed: int
    bound: int = 1
    strided: bool = False

    def tensor(self, shape: tuple[int, ...] | None = None, seed: int = 0) -> torch.Tensor:
        """Values for ``shape`` (its own by default); another ``seed`` gives others of the kind."""
        generator = torch.Generator().manual_seed(self.seed + 7919 * seed)
        shape = self.shape if shape is None else shape
        kind = getattr(torch, self.dtype)
        if self.holds == "bool":
            value = torch.randint(0, 2, shape, generator=generator).to(kind)
        elif self.holds == "index":
            value = torch.randint(0, max(self.bound, 1), shape, generator=generator).to(kind)
        elif self.holds == "small":
            low = 0 if self.dtype == "uint8" else -9
            value = torch.randint(low, 10, shape, generator=generator).to(kind)
        elif self.holds == "positive":
            value = (torch.rand(shape, generator=generator) + 0.5).to(kind)
        else:
            value = torch.randn(shape, generator=generator).to(kind)
            if self.holds == "special" and value.numel():
                specials = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40])
                places = torch.randint(0, value.numel(), (3,), generator=generator)
                chosen = torch.randint(0, len(specials), (3,), generator=generator)
                value.view(-1)[places] = specials[chosen].to(kind)
        if self.strided and value.dim() > 1:
            value = value.transpose(0, -1).contiguous().transpose(0, -1)
        return value


@dataclass
class Function:
    """Statements over given tensors; ``returns`` are names."""

    given: list[Given] = field(default_factory=list[Given])
    lines: list[str] = field(default_factory=list[str])
    returns: list[str] = field(default_factory=list[str])

    @property
    def inputs(self) -> list[Given]:
        return [given for given in self.given if given.role == "input"]

    @property
    def held(self) -> list[Given]:
        """States and weights."""
        return [given for given in self.given if given.role != "input"]

    def body(self) -> str:
        """The class's text; ``given`` tensors are set from outside."""
        names = ", ".join(["self", *(f"{given.name}: torch.Tensor" for given in self.inputs)])
        lines = [self._with_self(line) for line in self.lines]
        returned = ", ".join(self._with_self(name) for name in self.returns)
        text = "\n".join(f"        {line}" for line in [*lines, f"return ({returned},)"])
        return f"class Function(torch.nn.Module):\n    def forward({names}):\n{text}\n"

    def text_name(self) -> str:
        """The name of the Python module that holds the text: diagnostics name it."""
        return _text_name(self.body())

    def module(self, *, double: bool = False) -> torch.nn.Module:
        """A new module; with ``double``, all floats are float64 and statements that name a float type name that."""
        text = self.body()
        if double:
            text = re.sub(r"torch\.(float32|float16|bfloat16|half|float)\b", "torch.float64", text)
        module = load_text(text).Function()
        for given in self.held:
            value = given.tensor()
            value = value.double() if double and value.is_floating_point() else value
            module.register_buffer(given.name, value)
        return module.eval()

    def tensors(self) -> list[torch.Tensor]:
        """The example inputs."""
        return [given.tensor() for given in self.inputs]

    def without_unused(self) -> Function:
        """The same function without given tensors that no statement names."""
        text = " ".join([*self.lines, *self.returns])
        used = [given for given in self.given if re.search(rf"\b{given.name}\b", text)]
        return replace(self, given=used)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Function:
        given: list[Given] = []
        for entry in data["given"]:
            values = cast("dict[str, Any]", {**entry, "shape": tuple(entry["shape"])})
            given.append(Given(**values))
        return Function(given, data["lines"], data["returns"])

    def _with_self(self, text: str) -> str:
        for given in self.held:
            text = re.sub(rf"\b{given.name}\b", f"self.{given.name}", text)
        return text


HEADER = """import torch
import torch.nn.functional as F
from graph.control import cond, while_loop, scan
from graph.registry import registered

"""

_folder: Path | None = None


def set_folder(folder: Path) -> None:
    """Where the texts of modules are written: TorchScript and diagnostics read them there."""
    global _folder  # noqa: PLW0603
    _folder = folder


def load_text(text: str) -> Any:
    """Imports ``text`` as a module of its own."""
    assert _folder is not None, "set_folder comes first"
    name = _text_name(text)
    path = _folder / f"{name}.py"
    path.write_text(HEADER + text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dynamo looks functions of branches and loops up by their module
    spec.loader.exec_module(module)
    return module


def _text_name(text: str) -> str:
    return f"graph_{hashlib.sha1(text.encode()).hexdigest()[:10]}"


class Together(torch.nn.Module):
    """Several functions as one module: each takes its own inputs and gives its own outputs."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(function.module() for function in functions)
        self.counts = [len(function.inputs) for function in functions]

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        place = 0
        for part, count in zip(self.parts, self.counts, strict=True):
            results += part(*inputs[place : place + count])
            place += count
        return results
