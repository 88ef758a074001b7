"""How a user names what to compile for: ``cpu``, ``cpu:x86-64-v4``, ``acme_npu:v2+cpu:x86-64-v3``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lowerkit.errors import UnsupportedError
from lowerkit.targets.registry import HOST_TARGET, find_target
from lowerkit.targets.target import Target


@dataclass(frozen=True)
class TargetSpec:
    """What a program is compiled for: accelerators in the order in which they are asked, and the host's target.

    Attributes:
        accelerators: (name, level) of each, level ``""`` where none was named.
        host: level of the CPU; ``host`` is the widest level that this machine has.
    """

    accelerators: tuple[tuple[str, str], ...] = ()
    host: str = "host"

    @classmethod
    def parse(cls, text: str) -> TargetSpec:
        """Reads ``name[:level][+name[:level]...]``; the CPU stands last and may be left out.

        Raises:
            UnsupportedError: LK4003, the text names no target, one twice, or the CPU before an accelerator.
        """
        parts = [(name, level) for name, _, level in (part.strip().partition(":") for part in text.split("+"))]
        names = [name for name, _ in parts]
        if "" in names or len(set(names)) != len(names) or HOST_TARGET in names[:-1]:
            raise UnsupportedError(
                "LK4003",
                f"the target {text!r} cannot be read",
                hint="write accelerators first and the CPU last, each once: acme_npu:v2+cpu:x86-64-v4",
            )
        if names[-1] == HOST_TARGET:
            return cls(tuple(parts[:-1]), parts[-1][1] or "host")
        return cls(tuple(parts))

    def __str__(self) -> str:
        return "+".join(f"{name}:{level}" if level else name for name, level in (*self.accelerators, self._host))

    @property
    def _host(self) -> tuple[str, str]:
        return HOST_TARGET, "" if self.host == "host" else self.host

    @cached_property
    def host_target(self) -> Target:
        """The target of the host.

        Raises:
            UnsupportedError: LK4003, there is no such level.
        """
        return find_target(HOST_TARGET, self.host)

    @cached_property
    def accelerator_targets(self) -> tuple[Target, ...]:
        """The targets that are asked before the host.

        Raises:
            UnsupportedError: LK4003, there is no such target or level.
            CodegenError: LK5003, a package fails.
        """
        return tuple(find_target(name, level) for name, level in self.accelerators)
