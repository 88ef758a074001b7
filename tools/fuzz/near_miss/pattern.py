"""Near misses from seeds: a recognised form, and the choices that were taken in it.

The forms are in ``patterns``. The first choice of a slot or an input is the recognised form; the slots of
``forms`` are recognised in as many ways as the number says: each is a base to be changed. ``fixed`` is how likely an
argument but the first is a constant of the module. Inputs are written ``dtype[sizes]:kind``; B, M and T are sizes that
may be symbolic. Kinds: normal, positive, mask (bool, a row of false), infinite (a row of -inf and some more), above
(some +inf), lowest (some of the lowest number), nan (one), huge, zero, rows (all numbers of a row alike), integers,
large (integers up to 100,000 either way).
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "bool": torch.bool,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
}
SIZES = {"B": 2, "M": 5, "T": 6}
_SPECIFICATION = re.compile(r"(\w+)\[([^\]]*)\](?::(\w+))?")


@dataclass(frozen=True)
class Pattern:
    """A recognised form and the choices around it."""

    body: str
    inputs: dict[str, list[str]]
    slots: dict[str, list[str]]
    forms: dict[str, int] = field(default_factory=dict[str, int])
    fixed: float = 0.5

    @property
    def choices(self) -> int:
        """How many choices there are."""
        return sum(map(len, [*self.inputs.values(), *self.slots.values()]))


PATTERNS = {
    name: Pattern(**table)
    for path in sorted(Path(__file__).with_name("patterns").glob("*.toml"))
    for name, table in tomllib.loads(path.read_text()).items()
}


@dataclass(frozen=True)
class NearMiss:
    """One function: the choices taken, and which arguments are constants of the module."""

    pattern: str
    seed: int
    choices: dict[str, str]
    inputs: dict[str, str]
    constants: tuple[str, ...]

    @property
    def given(self) -> list[str]:
        """The arguments that are inputs."""
        return [name for name in self.inputs if name not in self.constants]

    def body(self) -> str:
        """Returns the lines of the function."""
        lines = PATTERNS[self.pattern].body.format(**self.choices).splitlines()
        return "".join(f"\n    {line}" for line in lines if line.strip())

    def changed(self) -> list[str]:
        """Returns the slots, and the inputs, that are not as the recognised form has them."""
        pattern = PATTERNS[self.pattern]
        slots = [name for name, choice in self.choices.items() if choice != pattern.slots[name][0]]
        return slots + [name for name, spec in self.inputs.items() if spec != pattern.inputs[name][0]]

    def with_recognised(self, name: str) -> NearMiss:
        """Returns the near miss with one slot or input as the recognised form has it."""
        pattern = PATTERNS[self.pattern]
        if name in self.choices:
            return replace(self, choices={**self.choices, name: pattern.slots[name][0]})
        return replace(self, inputs={**self.inputs, name: pattern.inputs[name][0]})

    def data(self, name: str, sizes: Mapping[str, int]) -> torch.Tensor:
        """Returns the tensor of an argument."""
        return data_of(self.inputs[name], self.seed + list(self.inputs).index(name), sizes)


def make(seed: int, only: Sequence[str] = ()) -> NearMiss:
    """Returns the near miss of a seed: one to three changes, and often another of the recognised forms as a base.

    A pattern comes up as often as it has choices.
    """
    chosen = random.Random(seed)
    names = list(only) or list(PATTERNS)
    (name,) = chosen.choices(names, [PATTERNS[name].choices for name in names])
    pattern = PATTERNS[name]
    choices = {slot: options[0] for slot, options in pattern.slots.items()}
    inputs = {argument: options[0] for argument, options in pattern.inputs.items()}
    places = [*choices, *inputs]
    for place in chosen.sample(places, k=min(len(places), chosen.choice([1, 1, 2, 2, 3]))):
        if place in choices:
            choices[place] = chosen.choice(pattern.slots[place])
        else:
            inputs[place] = chosen.choice(pattern.inputs[place])
    for slot, ways in pattern.forms.items():
        if choices[slot] == pattern.slots[slot][0] and chosen.random() < 0.7:
            choices[slot] = chosen.choice(pattern.slots[slot][:ways])
    if chosen.random() < 0.15:  # all of one type: f16, bf16 or f64
        dtype = chosen.choice(("f16", "bf16", "f64"))
        inputs = {argument: re.sub(r"^f32\[", f"{dtype}[", spec) for argument, spec in inputs.items()}
    constants = tuple(argument for argument in list(inputs)[1:] if chosen.random() < pattern.fixed)
    return NearMiss(name, seed, choices, inputs, constants)


def named_axes(spec: str) -> dict[int, str]:
    """Returns the axes of an input whose sizes have names."""
    match = _SPECIFICATION.fullmatch(spec)
    assert match is not None, spec
    return {axis: size for axis, size in enumerate(match[2].split(",")) if size in SIZES}


def data_of(spec: str, seed: int, sizes: Mapping[str, int]) -> torch.Tensor:
    """Returns a tensor as a specification says."""
    match = _SPECIFICATION.fullmatch(spec)
    assert match is not None, spec
    dtype, kind = DTYPES[match[1]], match[3] or "normal"
    shape = [sizes[size] if size in sizes else int(size) for size in match[2].split(",") if size]
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=generator, dtype=torch.float64)
    some = torch.rand(shape, generator=generator) < 0.3
    if kind in ("mask", "infinite"):
        some.select(-2, 0).fill_(True) if len(shape) > 1 and shape[-2] > 1 else None
        value = ~some if kind == "mask" else value.masked_fill(some, -torch.inf)
    elif kind == "above":
        value = value.masked_fill(some, torch.inf)
    elif kind == "lowest":
        value = value.masked_fill(some, torch.finfo(dtype).min)
    elif kind == "positive":
        value = value.abs() + 0.1
    elif kind == "nan" and value.numel():
        value.view(-1)[value.numel() // 2] = torch.nan
    elif kind == "huge":
        value = value * 100
    elif kind == "zero":
        value = value * 0
    elif kind == "rows":
        value = value[..., :1].expand(shape).clone()
    elif kind == "integers":
        value = torch.randint(0, 4, shape, generator=generator)
    elif kind == "large":
        value = torch.randint(-100_000, 100_000, shape, generator=generator)
    return value.to(dtype)
