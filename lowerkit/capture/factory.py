"""Models made by code: ``path/to/file.py:factory`` and ``package.module:factory``.

A factory takes no arguments and returns ``(module, example_inputs)``, where ``example_inputs`` is a tensor, a tuple of
positional arguments or a dict of keyword arguments. Its code is run: it is the user's own, named by the user.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lowerkit.errors import CaptureError, InputError
from lowerkit.program.files import check_file

_SPEC = re.compile(r"(?P<module>.+):(?P<attribute>[A-Za-z_][A-Za-z0-9_.]*)")


@dataclass(frozen=True)
class Made:
    """What a factory returned. ``location`` is its ``file:line``."""

    module: Any
    positional: tuple[Any, ...]
    named: dict[str, Any]
    location: str


def is_factory(text: str) -> bool:
    """Tells whether ``text`` names a factory rather than a file."""
    match = _SPEC.fullmatch(text)
    if match is None or Path(text).exists():
        return False
    module = match["module"]
    return module.endswith(".py") or (all(part.isidentifier() for part in module.split(".")))


def make_model(text: str, *, meta: bool = False) -> Made:
    """Runs a factory; with ``meta`` on the meta device, where tensors have shapes and no data.

    Raises:
        InputError: LK1001, there is no such file, module or attribute.
        CaptureError: LK2001, the factory raised, or returned something else than a module and its inputs.
    """
    match = _SPEC.fullmatch(text)
    assert match is not None, "is_factory() was asked first"
    module = _import_file(Path(match["module"])) if match["module"].endswith(".py") else _import_name(match["module"])
    factory: Any = module
    for part in match["attribute"].split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        public = sorted(
            name
            for name, value in vars(module).items()
            if callable(value) and not name.startswith("_") and not isinstance(value, type)
            if getattr(value, "__module__", None) == module.__name__
        )
        raise InputError(
            "LK1001",
            f"{match['module']} has no function {match['attribute']!r}",
            hint=f"its functions are {', '.join(public[:12])}" if public else "it defines no functions",
        )
    return _checked(_call(factory, text, meta), factory, text)


def _call(factory: Callable[[], Any], text: str, meta: bool) -> Any:
    try:
        if not meta:
            return factory()
        import torch

        with torch.device("meta"):
            return factory()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise CaptureError(
            "LK2001",
            f"the factory {text} raised {type(error).__name__}: {error}",
            location=f"{frame.filename}:{frame.lineno}",
            hint="on the meta device tensors have no data: a factory for --meta must not read, copy or load values"
            if meta
            else "it is called without arguments and must return (module, example_inputs)",
        ) from error


def _checked(result: Any, factory: Any, text: str) -> Made:
    code = getattr(factory, "__code__", None)
    location = f"{code.co_filename}:{code.co_firstlineno}" if code is not None else text
    if not isinstance(result, tuple) or len(result) != 2:
        raise CaptureError(
            "LK2001",
            f"the factory {text} returned {type(result).__name__}, not (module, example_inputs)",
            location=location,
            hint="return a tuple of the module and the tuple of its example inputs",
        )
    module, inputs = result
    if isinstance(inputs, Mapping):
        return Made(module, (), dict(inputs), location)
    return Made(module, tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,), {}, location)


def _import_file(path: Path) -> ModuleType:
    check_file(path)
    resolved = path.resolve()
    name = f"{path.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, resolved)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickling look their module up by name; imports of neighbours work as in a script.
    sys.modules[name] = module
    sys.path.insert(0, str(resolved.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _import_error(str(path), error) from error
    finally:
        sys.path.remove(str(resolved.parent))
    return module


def _import_name(name: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            raise InputError(
                "LK1001", f"there is no module {error.name!r}", hint="name a file instead: path/to/file.py:factory"
            ) from error
        raise _import_error(name, error) from error
    except Exception as error:
        raise _import_error(name, error) from error
    finally:
        sys.path.remove("")


def _import_error(what: str, error: Exception) -> CaptureError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    return CaptureError(
        "LK2001", f"{what} cannot be imported: {type(error).__name__}: {error}", location=place, hint=None
    )
