"""Which targets there are, and how a user names them: ``cpu``, ``cpu:x86-64-v4``, ``acme_npu:v2+cpu:x86-64-v3``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from lowerkit.errors import CodegenError, UnsupportedError
from lowerkit.targets.target import Target

GROUP = "lowerkit.targets"
HOST_TARGET = "cpu"


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

    def resolved(self) -> str:
        """Returns the spec with every level named: for cache keys and artifacts."""
        targets = (*self.accelerator_targets, self.host_target)
        return "+".join(f"{target.name}:{target.level}" if target.level else target.name for target in targets)


def known_targets() -> dict[str, EntryPoint]:
    """Returns the entry points of all targets that packages here bring, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def target_class(name: str) -> type[Target]:
    """Returns the class of a target.

    Raises:
        UnsupportedError: LK4003, no package here brings it.
        CodegenError: LK5003, its package cannot be imported, or brings something else.
    """
    points = known_targets()
    if name not in points:
        near = difflib.get_close_matches(name, points, 1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UnsupportedError(
            "LK4003", f"there is no target {name!r}", hint=f"{guess}the targets here are: {', '.join(sorted(points))}"
        )
    try:
        found = points[name].load()
    except (Exception, SystemExit) as error:
        raise failed(name, f"it cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Target)) or found.name != name:
        raise failed(name, f"its entry point gives {found!r}, which is no Target of that name")
    return found


def find_target(name: str, level: str = "") -> Target:
    """Returns a target at a level.

    Raises:
        UnsupportedError: LK4003, there is no such target or level.
        CodegenError: LK5003, the package fails.
    """
    made = target_class(name)
    if made.levels and level not in ("", "host", *made.levels):
        near = difflib.get_close_matches(level, made.levels, 1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UnsupportedError(
            "LK4003",
            f"the target {name!r} has no level {level!r}",
            hint=f"{guess}its levels are: {', '.join(made.levels)}",
        )
    try:
        return made(level)
    except UnsupportedError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(name, f"it cannot be made: {type(error).__name__}: {error}") from error


def failed(name: str, reason: str) -> CodegenError:
    """Returns LK5003: the package that brings target ``name`` is at fault."""
    point = known_targets().get(name)
    package = f" (package {point.dist.name} {point.dist.version})" if point is not None and point.dist else ""
    return CodegenError(
        "LK5003",
        f"the target {name!r}{package} failed: {reason}",
        hint="the fault is in that package: report it there; --target cpu compiles without it",
    )
