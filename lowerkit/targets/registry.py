"""Which targets there are: what packages here bring by entry points, the CPU among them."""

from __future__ import annotations

import difflib
from importlib.metadata import EntryPoint
from typing import cast

from lowerkit.errors import CodegenError, UnsupportedError
from lowerkit.runtimes.device import entry_points_of, packages_of
from lowerkit.runtimes.supervised.record import foreign_call
from lowerkit.targets.target import Target

GROUP = "lowerkit.targets"
HOST_TARGET = "cpu"


def known_targets() -> dict[str, EntryPoint]:
    """Returns the entry points of all targets that packages here bring, by name."""
    return {point.name: point for point in entry_points_of(GROUP)}


def target_class(name: str) -> type[Target]:
    """Returns the class of a target.

    Raises:
        UnsupportedError: LK4003, no package here brings it, or several do.
        CodegenError: LK5003, its package cannot be imported, or brings something else.
    """
    points = known_targets()
    if name not in points:
        near = difflib.get_close_matches(name, points, 1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UnsupportedError(
            "LK4003",
            f"there is no target {name!r}",
            hint=f"{guess}the installed targets are: {', '.join(sorted(points))}",
        )
    rivals = packages_of(GROUP, name)
    if len(rivals) > 1:
        raise UnsupportedError(
            "LK4003",
            f"{len(rivals)} packages bring a target {name!r}: {' and '.join(rivals)}",
            hint="uninstall all but one of them",
        )
    try:
        with foreign_call("target", name, "importing it"):
            found = points[name].load()
    except (Exception, SystemExit) as error:
        raise failed(name, f"it cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Target)) or found.name != name:
        raise failed(name, f"its entry point gives {found!r}, which is no Target of that name")
    levels = cast("object", found.levels)  # what a package writes there is its own affair
    if not isinstance(levels, tuple) or not all(isinstance(each, str) for each in cast("tuple[object, ...]", levels)):
        raise failed(name, f"levels is {levels!r}, not a tuple of names")
    return found


def find_target(name: str, level: str = "") -> Target:
    """Returns a target at a level; at several, ``sm_90,sm_80``, where it takes them together.

    Raises:
        UnsupportedError: LK4003, there is no such target or level, or it takes one level alone.
        CodegenError: LK5003, the package fails.
    """
    made = target_class(name)
    several = level.split(",")
    if len(several) > 1 and not made.several_levels:
        raise UnsupportedError(
            "LK4003",
            f"{level!r} names several levels of {name!r}, which compiles for one",
            hint=f"compile one artifact for each level of {name!r}",
        )
    for each in several:
        _check_level(name, made, each)
    try:
        with foreign_call("target", name, "making it"):
            return made(level)
    except UnsupportedError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(name, f"it cannot be made: {type(error).__name__}: {error}") from error


def _check_level(name: str, made: type[Target], level: str) -> None:
    if level not in ("", "host", *made.levels):
        near = difflib.get_close_matches(level, made.levels, 1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        known = f"{guess}its levels are: {', '.join(made.levels)}" if made.levels else f"it has none: write {name}"
        raise UnsupportedError("LK4003", f"the target {name!r} has no level {level!r}", hint=known)


def failed(name: str, reason: str) -> CodegenError:
    """Returns LK5003: the package that brings target ``name`` is at fault."""
    point = known_targets().get(name)
    package = f" (package {point.dist.name} {point.dist.version})" if point is not None and point.dist else ""
    return CodegenError(
        "LK5003",
        f"the target {name!r}{package} failed: {reason}",
        hint="the fault is in that package: report it there; --target cpu compiles without it",
    )
