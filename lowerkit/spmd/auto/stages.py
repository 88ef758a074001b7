"""Where the stages of a pipeline begin: contiguous parts of the model, the slowest of which is as fast as can be.

Vocabulary
    unit     what stays together: a numbered layer, ``model.layers.7``, or a module outside of all layers
    chain    the units in program order
    cut      a place between two units where a stage ends

Steps: cost each unit by its ops and the weights that it reads; then, by dynamic programming over the chain, find the
cuts of the plan whose stages fit the device, and of these the one with the fastest slowest stage.

Bytes and time: units times units times stages steps of arithmetic at most, nothing is lowered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

from lowerkit.spmd.auto.shorten import Counts, prefixes

Load: TypeAlias = tuple[float, int]
"""Seconds of a unit, and bytes of its weights and states."""


@dataclass(frozen=True)
class Chain:
    """What is cut.

    Attributes:
        patterns: those that name the modules of each unit.
        loads: of each unit.
    """

    patterns: list[tuple[str, ...]]
    loads: list[Load]


def chain_of(paths: Iterable[str], by_module: Mapping[str, Load], counts: Counts) -> Chain:
    """Returns the chain of a program.

    Args:
        paths: of all modules of the whole program, in program order.
        by_module: of the shortened program: what each module costs.
        counts: what stands for what.
    """
    units = _units([path for path in paths if counts.stand_in(path) in by_module])
    costs: dict[str, Load] = {}
    inside: dict[str, set[str]] = {}
    for path, (seconds, held) in by_module.items():
        unit = next((prefix for prefix in prefixes(path) if prefix in units), None)
        if unit is not None:
            before = costs.get(unit, (0.0, 0))
            costs[unit] = (before[0] + seconds, before[1] + held)
            inside.setdefault(unit, set()).add(path)
    patterns: list[tuple[str, ...]] = []
    for unit in units:
        members = inside[counts.stand_in(unit)]
        own = [unit] if counts.stand_in(unit) in members else []
        patterns.append((*own, *([f"{unit}.*"] if len(members) > len(own) else [])))
    return Chain(patterns, [costs[counts.stand_in(unit)] for unit in units])


def _units(paths: Sequence[str]) -> dict[str, None]:
    """Returns the units in the order in which the program reaches them."""
    found: dict[str, None] = {}
    for path in paths:
        layer = next((prefix for prefix in prefixes(path) if prefix.rpartition(".")[2].isdecimal()), path)
        if layer:
            found[layer] = None
    # A module around others runs before and behind them: what it does itself goes where it is needed.
    around = {prefix for path in found for prefix in prefixes(path) if prefix != path}
    return {path: None for path in found if path not in around}


def balanced(loads: Sequence[Load], stages: int, memory: float) -> list[int]:
    """Returns the stage of each unit of a chain; each stage has one at least.

    Args:
        loads: of the units, at least as many as there are stages.
        stages: how many.
        memory: bytes that a stage may hold; where that cannot be, the fullest stage is as small as can be.
    """
    seconds = [0.0, *accumulate(load[0] for load in loads)]
    held = [0, *accumulate(load[1] for load in loads)]

    def stage(first: int, end: int) -> tuple[float, float, int]:
        own = held[end] - held[first]
        return (max(0.0, own - memory), seconds[end] - seconds[first], own)

    count = len(loads)
    best = {end: (stage(0, end), 0) for end in range(1, count + 1)}
    cuts = [{end: first for end, (_, first) in best.items()}]
    for number in range(2, stages + 1):
        following: dict[int, tuple[tuple[float, float, int], int]] = {}
        for end in range(number, count + 1):
            for first in range(end - 1, number - 2, -1):
                last = stage(first, end)
                if end in following and last > following[end][0]:
                    break  # a last stage that begins earlier is slower still
                candidate = (_worst(best[first][0], last), first)
                following[end] = min(following.get(end, candidate), candidate)
        best = following
        cuts.append({end: first for end, (_, first) in best.items()})
    found: list[int] = []
    end = count
    for number in range(stages - 1, -1, -1):
        first = cuts[number][end]
        found[:0] = [number] * (end - first)
        end = first
    return found


def _worst(one: tuple[float, float, int], other: tuple[float, float, int]) -> tuple[float, float, int]:
    return (max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2]))
