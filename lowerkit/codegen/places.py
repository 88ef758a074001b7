"""Where values live while the step table is written: a buffer in one memory, and copies of it in others."""

from __future__ import annotations

from lowerkit.codegen.step_draft import Source, StepDraft
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import defining_op
from lowerkit.runtimes.manifest import HOST, Buffer


class Places:
    """The buffers of values.

    Attributes:
        sources: where each value was made.
        copies: (value, memory) -> the buffer that it was copied to, of the function that is walked: what another one
            copied may not have run.
    """

    def __init__(self, draft: StepDraft) -> None:
        self._draft = draft
        self.sources: dict[ir.Value, Source] = {}
        self.copies: dict[tuple[ir.Value, str], int] = {}

    def buffer(self, source: Source) -> int:
        """Returns the buffer of a source; a weight gets one, in the layout that it has."""
        if source.weight:
            return self._draft.stored(self._draft.weights.plain(source.weight))
        return source.buffer

    def on_host(self, value: ir.Value) -> Source:
        """Returns where a value lives in the memory of the host."""
        source = self.sources[value]
        return source if source.weight else Source(self.buffer_of(value))

    def buffer_of(self, value: ir.Value, memory: str = HOST) -> int:
        """Returns the buffer of a value in a memory; the value is copied there at the first time."""
        source = self.sources[value]
        if source.weight:
            return self._draft.stored(self._draft.weights.plain(source.weight), memory)
        buffer = self._draft.buffers[source.buffer]
        if buffer.memory == memory:
            return source.buffer
        if buffer.kind == "weight":  # a literal is stored in both
            return self._draft.stored(buffer.weight, memory)
        if (value, memory) not in self.copies:
            copy = self._draft.add(Buffer("arena", buffer.size, memory=memory))
            self._draft.copy(source.buffer, copy, _maker(value))
            self.copies[value, memory] = copy
        return self.copies[value, memory]

    def forget_copy(self, buffer: int) -> None:
        """A copy is about to change: whoever reads the value later copies it again."""
        self.copies = {key: copy for key, copy in self.copies.items() if copy != buffer}


def _maker(value: ir.Value) -> ir.Operation:
    """The op that a copy of ``value`` is named after: the one that made it, or the function that takes it."""
    owner = defining_op(value)
    return value.owner.owner.operation if owner is None else owner
