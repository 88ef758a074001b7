"""All rules over all kernels of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lowerkit.runtimes.cuda.simulated.ordering_lint.barrier_inits import BarrierInits
from lowerkit.runtimes.cuda.simulated.ordering_lint.findings import Finding, source_of
from lowerkit.runtimes.cuda.simulated.ordering_lint.flow import Paths
from lowerkit.runtimes.cuda.simulated.ordering_lint.map_changes import MapChanges
from lowerkit.runtimes.cuda.simulated.ordering_lint.operands import Origins
from lowerkit.runtimes.cuda.simulated.ordering_lint.product_registers import ProductRegisters
from lowerkit.runtimes.cuda.simulated.ordering_lint.rule import Rule
from lowerkit.runtimes.cuda.simulated.ordering_lint.shared_writes import SharedWrites
from lowerkit.runtimes.cuda.simulated.text.parser import parse_module
from lowerkit.runtimes.cuda.simulated.text.syntax import KernelText, ModuleText

RULES: tuple[type[Rule[Any]], ...] = (SharedWrites, ProductRegisters, BarrierInits, MapChanges)


def check(ptx: str) -> list[Finding]:
    """Returns what is not ordered in the kernels of a module, by line; empty if nothing is found.

    Raises:
        UnknownPtx: LK8018, the text is no module that is known.
    """
    module = parse_module(ptx)
    return sorted(found for kernel in module.kernels.values() for found in _check(module, kernel))


def _check(module: ModuleText, kernel: KernelText) -> Iterator[Finding]:
    instructions = kernel.instructions
    if not instructions:
        return
    paths, origins = Paths(instructions), Origins(instructions)
    for make in RULES:
        rule = make(instructions, origins)
        states = dict(paths.states(rule.start(), rule.merge, rule.step))
        while rule.exchange(paths, states):
            states = dict(paths.states(rule.start(), rule.merge, rule.step))
        for number, state in states.items():
            for behind, message in rule.gaps(number, state):
                here = instructions[number]
                since = 0 if behind is None else instructions[behind].place.line
                yield Finding(here.place.line, since, kernel.name, rule.name, message, source_of(module, here))
