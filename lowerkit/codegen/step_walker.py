"""The walk over the functions of a program, as the parts of the schedule see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lowerkit.codegen.extent_guards import ExtentConditions
from lowerkit.codegen.places import Places
from lowerkit.codegen.shapes import Shape, ShapeTable
from lowerkit.codegen.step_draft import Source, StepDraft
from lowerkit.mlir import ir
from lowerkit.runtimes.manifest import Signature
from lowerkit.targets.ledger import Compile


class StepWalker(Protocol):
    """What the parts of the schedule need of the walk over the functions of a program.

    Attributes:
        signature: of the program.
        operations, functions: the functions of the module and their bodies, by name.
        compilers: what makes code, by memory.
        draft: the step table so far.
        places: where values live.
        conditions: on extents, that the code takes for granted.
        shapes: of the values of the function that is walked.
        memory: that of the function that is walked.
        state_buffers: of states that were met, by name.
        state_homes: the memory of each state that lives with an accelerator, by name.
        own_buffers: the number of the first buffer of the function that is walked.
        incarnations: values that a state takes, which may live in its memory.
    """

    signature: Signature
    operations: dict[str, ir.Operation]
    functions: dict[str, ir.Block]
    compilers: Mapping[str, Compile]
    draft: StepDraft
    places: Places
    conditions: ExtentConditions
    shapes: ShapeTable
    memory: str
    state_buffers: dict[str, int]
    state_homes: Mapping[str, str]
    own_buffers: int
    incarnations: set[ir.Value]

    def source(self, value: ir.Value) -> Source:
        """Returns where a value lives in the memory of the host."""
        ...

    def buffer(self, source: Source) -> int:
        """Returns the buffer of a source; a weight gets one, in the layout that it has."""
        ...

    def define(self, values: Sequence[ir.Value], buffers: Sequence[int], shapes: Sequence[Shape]) -> None:
        """States where values live and what shapes they have."""
        ...

    def walk(
        self,
        function: str,
        arguments: Sequence[Source],
        shapes: Sequence[Shape],
        after: Sequence[ir.Operation] = (),
    ) -> tuple[list[Source], list[Shape]]:
        """Adds the steps of a function; returns where its results live, and their shapes.

        ``after``: the ops behind its call, where those may read what it changes in place.
        """
        ...

    def arena(self, value: ir.Value, memory: str) -> int:
        """Adds a temporary buffer for a value in a memory."""
        ...
