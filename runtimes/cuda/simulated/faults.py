"""The two errors of the simulated device: a kernel does what it must not, or its PTX is not known."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.errors import RuntimeFault


class KernelFault(RuntimeFault):
    """LK8017: a launch, or a kernel in it, does what no kernel may do.

    ``op`` has the kernel, the line of the PTX text and the instruction; ``location`` the line of the source.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        location: str | None = None,
        details: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__("LK8017", message, op=op, location=location, details=details, hint=hint)


class UnknownPtx(RuntimeFault):
    """LK8018: the simulated device does not know this PTX, or it is no PTX at all. The message has the line."""

    def __init__(self, reason: str, line: int) -> None:
        self.line = line
        super().__init__("LK8018", f"PTX line {line}: {reason}")
