"""The options of ``torch.compile(model, backend="lowerkit", options={...})``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from lowerkit.compiler import CompileOptions
from lowerkit.errors import UsageError

OnRefusal = Literal["break", "error"]


@dataclass(frozen=True)
class Settings:
    """How graphs are compiled.

    Attributes:
        target: accelerators and the CPU with their levels, as in :func:`lowerkit.compile`.
        on_refusal: ``break``: PyTorch runs the ops that lowerkit refuses, each named in one line of the log; ``error``:
            the refusal is raised, as under ``fullgraph=True``.
        freeze: parameters and buffers are packed at compile time where no gradient is asked for; without it they are
            read anew at each call.
        threads: threads of a run; None is the cores this process may use.
        workers: processes that compile kernels; None is one a core.
        use_cache: read and write the kernel cache on disk.
    """

    target: str = "cpu"
    on_refusal: OnRefusal = "break"
    freeze: bool = True
    threads: int | None = None
    workers: int | None = None
    use_cache: bool = True

    @staticmethod
    def of(options: Mapping[str, Any] | None) -> Settings:
        """Reads the options of ``torch.compile``.

        Raises:
            UsageError: LK1009, an option is unknown, or its value is of another type or out of its range.
            UnsupportedError: LK4003, the target is unknown.
        """
        given = dict(options or {})
        known = [entry.name for entry in fields(Settings)]
        problems: list[str] = []
        for name in [name for name in given if name not in known]:
            near = difflib.get_close_matches(str(name), known, 1)
            problems.append(f"there is no option {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
        for name, value in given.items():
            if name in _WANTED and not _WANTED[name][1](value):
                problems.append(f"{name} is {value!r}, expected {_WANTED[name][0]}")
        if problems:
            raise UsageError(
                "LK1009",
                'options of torch.compile(backend="lowerkit"): ' + problems[0],
                details=problems[1:],
                hint=f"the options are: {', '.join(known)}",
            )
        settings = Settings(**given)
        spec = settings.compile_options().spec
        _ = spec.host_target, spec.accelerator_targets  # an unknown one is named before any work
        return settings

    def compile_options(self) -> CompileOptions:
        """Returns them as those of :func:`lowerkit.compiler.compile_program`."""
        return CompileOptions(target=self.target, workers=self.workers, use_cache=self.use_cache, golden=False)


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1024)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_WANTED: dict[str, tuple[str, Any]] = {
    "target": ("a text such as 'cpu:x86-64-v3'", lambda value: isinstance(value, str)),
    "on_refusal": (" or ".join(map(repr, get_args(OnRefusal))), lambda value: value in get_args(OnRefusal)),
    "freeze": ("True or False", _is_flag),
    "threads": ("1 to 1024, or None", _is_count),
    "workers": ("1 to 1024, or None", _is_count),
    "use_cache": ("True or False", _is_flag),
}
"""What the values of an option may be, in words and as a question."""
