"""Asks a target, and names its package where it raises or answers with something else than it should."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.supervised.record import foreign_call
from lowerkit.targets.plan import Refusal
from lowerkit.targets.registry import HOST_TARGET, failed
from lowerkit.targets.target import Target

T = TypeVar("T")


def ask(target: Target, method: str, expected: type[T] | tuple[type[Any], ...], *arguments: Any) -> T:
    """Calls a method of a target.

    Args:
        target: whose.
        method: its name.
        expected: what it must return.
        arguments: of the call.

    Raises:
        CodegenError: LK5003, it raised, or returned something else; the CPU's errors come as they are.
        LowerkitError: what the target raised on purpose.
    """
    try:
        with foreign_call("target", target.name, method):
            answer: Any = getattr(target, method)(*arguments)
    except LowerkitError:
        raise
    except (Exception, SystemExit) as error:
        if target.name == HOST_TARGET:
            raise
        raise failed(target.name, f"{method} raised {type(error).__name__}: {error}") from error
    if not isinstance(answer, expected):
        names = expected if isinstance(expected, tuple) else (expected,)
        wanted = " or ".join(each.__name__ for each in names)
        raise failed(target.name, f"{method} returned {type(answer).__name__}, not {wanted}")
    reason: Any = answer.reason if isinstance(answer, Refusal) else ""
    require(target, isinstance(reason, str), f"{method} refused without a reason in words")
    return cast("T", answer)


def require(target: Target, holds: bool, otherwise: str) -> None:
    """Raises CodegenError, LK5003, with what a target answered wrongly, unless ``holds``."""
    if not holds:
        raise failed(target.name, otherwise)
