"""Which values of a program stand at the addresses of a call: for devices that hold a session to its memory plan.

Two values may lie at one place of the arena, one behind the other. A device sees addresses only, so it cannot tell that
one was written over the other too early: the numbers are wrong, and nothing is found. A device that follows values is
told of each call which step it is, and which value each of its buffers is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import Buffer, ProgramSpec, Step


@dataclass(frozen=True)
class NamedValue:
    """A value in the arena: the number of the buffer that owns its memory, and words for it."""

    number: int
    text: str


@dataclass(frozen=True)
class NamedCall:
    """A step of a program.

    Attributes:
        number: of the step.
        text: words for it.
        values: of its buffers in order; None where a buffer is no part of the arena.
    """

    number: int
    text: str
    values: tuple[NamedValue | None, ...]


class FollowsValues(ABC):
    """A device that is told of values."""

    @abstractmethod
    def name_call(self, call: NamedCall | None) -> None:
        """Says what the calls from now on are; None: nothing is known of them."""


@contextmanager
def naming(device: object, call: NamedCall | None) -> Generator[None]:
    """Tells a device what it is asked for inside, where it follows values."""
    if call is None or not isinstance(device, FollowsValues):
        yield
        return
    device.name_call(call)
    try:
        yield
    finally:
        device.name_call(None)


def named_call(program: ProgramSpec, number: int) -> NamedCall:
    """Returns what is said of step ``number``."""
    step = program.steps[number]
    return NamedCall(number, step_text(number, step), tuple(_value(program, buffer) for buffer in step.buffers))


def step_text(number: int, step: Step) -> str:
    """Returns words for a step: its number, name, kind and the user's line."""
    named = f" {step.name!r}" if step.name else ""
    where = f" at {step.location}" if step.location else ""
    return f"step {number}{named} ({step.kind or 'copy'}{where})"


def root_of(buffers: Sequence[Buffer], number: int) -> int:
    """Returns the buffer that owns the memory which a buffer lies in."""
    while buffers[number].kind == "alias":
        number = buffers[number].target
    return number


def _value(program: ProgramSpec, buffer: int) -> NamedValue | None:
    root = root_of(program.buffers, buffer)
    if program.buffers[root].kind != "arena":
        return None
    maker = next(
        number
        for number, step in enumerate(program.steps)
        if any(root_of(program.buffers, each) == root for each in step.buffers)
    )
    return NamedValue(root, f"the value of {step_text(maker, program.steps[maker])}")
