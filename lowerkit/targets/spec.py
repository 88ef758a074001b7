"""How a user names what to compile for: ``cpu:x86-64-v4``, ``acme_npu:v2+cpu``, ``cuda:sm_90,cuda:sm_80``.

Several levels of a target stand behind one another, ``cpu:x86-64-v3,x86-64-v4``; its name may be said again.
"""

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
        accelerators: (name, level) of each, level ``""`` where none was named, ``sm_90,sm_80`` where several were.
        allow: what targets may compute less exactly: names of their ``permits``.
        hosts: levels of the CPU, a program of the artifact for each; ``host`` is the widest that this machine has.
    """

    accelerators: tuple[tuple[str, str], ...] = ()
    hosts: tuple[str, ...] = ("host",)
    allow: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> TargetSpec:
        """Reads ``name[:level,...][+name[:level,...]...]``; the CPU stands last, and may be left out.

        Raises:
            UnsupportedError: LK4003, the text names no target, one twice, or the CPU before an accelerator.
        """
        parts = [_name_and_levels(part) for part in text.split("+")]
        names = [name for name, _ in parts]
        if "" in names or len(set(names)) != len(names) or HOST_TARGET in names[:-1]:
            raise UnsupportedError(
                "LK4003",
                f"the target {text!r} cannot be read",
                hint="write accelerators first and the CPU last, each once: acme_npu:v2+cpu:x86-64-v4",
            )
        if names[-1] == HOST_TARGET:
            hosts = tuple(dict.fromkeys(level.strip() or "host" for level in parts.pop()[1].split(",")))
        else:
            hosts = ("host",)
        return cls(tuple(parts), hosts)

    def __str__(self) -> str:
        return "+".join(f"{name}:{level}" if level else name for name, level in (*self.accelerators, self._host))

    @property
    def _host(self) -> tuple[str, str]:
        return HOST_TARGET, "" if self.hosts == ("host",) else ",".join(self.hosts)

    @cached_property
    def host_targets(self) -> tuple[Target, ...]:
        """The targets of the host, the one with most features first: the order in which a loader tries their programs.

        Raises:
            UnsupportedError: LK4003, there is no such level.
        """
        targets = {target.level: target for target in (find_target(HOST_TARGET, level) for level in self.hosts)}
        return tuple(sorted(targets.values(), key=lambda target: -len(target.features())))

    @property
    def host_target(self) -> Target:
        """The first of :attr:`host_targets`: what accelerators are weighed against."""
        return self.host_targets[0]

    @property
    def allowed(self) -> dict[str, str]:
        """What was allowed, and the words of its target for it.

        Raises:
            UnsupportedError: LK4003, no target knows it.
        """
        permits = {name: words for target in self.accelerator_targets for name, words in target.permits.items()}
        return {name: permits[name] for name in sorted(self.allow)}

    @cached_property
    def accelerator_targets(self) -> tuple[Target, ...]:
        """The targets that are asked before the host.

        Raises:
            UnsupportedError: LK4003, there is no such target or level.
            CodegenError: LK5003, a package fails.
        """
        targets = tuple(find_target(name, level) for name, level in self.accelerators)
        permits = {name: target for target in targets for name in target.permits}
        unknown = sorted(self.allow - set(permits))
        if unknown:
            known = ", ".join(f"{name} ({target.permits[name]})" for name, target in sorted(permits.items()))
            raise UnsupportedError(
                "LK4003",
                f"the target {str(self)!r} has nothing called {unknown[0]!r} that could be allowed",
                hint=f"these may be allowed: {known}" if known else "it computes everything as the model says",
            )
        for target in targets:
            target.allowed = self.allow & set(target.permits)
        return targets


def _name_and_levels(part: str) -> tuple[str, str]:
    """``name:level,name:level`` as the name and its levels; another name inside stays there, where it is no level."""
    name, _, levels = part.strip().partition(":")
    each = [level.strip().removeprefix(f"{name}:") for level in levels.split(",")]
    return name, ",".join(dict.fromkeys(each))
