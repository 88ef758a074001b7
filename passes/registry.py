"""Finds passes by name, and reads textual pipelines such as ``fold-constants{bound=4096},simplify``."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import fields
from functools import cache

import lowerkit.passes
from lowerkit.errors import UsageError
from lowerkit.passes.base import Pass

_ITEM = re.compile(r"\s*(?P<name>[a-z][a-z0-9-]*)\s*(?:\{(?P<options>[^}]*)\})?\s*(?:,|$)")


@cache
def _modules_by_stem() -> dict[str, str]:
    """Returns file stem -> module name for every file in a folder below ``passes/``. Imports none of them."""
    found: dict[str, str] = {}
    folders = [("lowerkit.passes", list(lowerkit.passes.__path__))]
    for package, paths in folders:  # grows while it is read: a folder adds those inside it
        for entry in pkgutil.iter_modules(paths):
            if entry.ispkg:
                folders.append((f"{package}.{entry.name}", [f"{path}/{entry.name}" for path in paths]))
            elif package != "lowerkit.passes":
                found[entry.name] = f"{package}.{entry.name}"
    return found


def find_pass(name: str) -> type[Pass]:
    """Returns the pass class called ``name``.

    Raises:
        UsageError: LK3003, there is no such pass; the message lists those that exist.
    """
    module_name = _modules_by_stem().get(name.replace("-", "_"))
    if module_name is not None:
        for value in vars(importlib.import_module(module_name)).values():
            if isinstance(value, type) and issubclass(value, Pass) and getattr(value, "name", None) == name:
                return value
    raise UsageError("LK3003", f"there is no pass named {name!r}", hint="the passes are: " + ", ".join(pass_names()))


@cache
def pass_names() -> list[str]:
    """Returns the names of all passes, sorted."""
    names: list[str] = []
    for stem, module_name in _modules_by_stem().items():
        candidate = stem.replace("_", "-")
        members = vars(importlib.import_module(module_name)).values()
        if any(isinstance(m, type) and issubclass(m, Pass) and getattr(m, "name", None) == candidate for m in members):
            names.append(candidate)
    return sorted(names)


@cache
def ops_with_rules() -> frozenset[str]:
    """Returns the torch ops that a rule of some pass takes, by their names in the torch dialect.

    What is in no table is spelled out at capture, or refused by its name when raising ends.
    """
    tables = (getattr(find_pass(name), "rules", {}) for name in pass_names())
    return frozenset(name for table in tables for name in table)


def parse_pipeline(text: str) -> list[Pass]:
    """Parses ``a,b{option=1 other=x}`` into pass objects.

    Raises:
        UsageError: LK3003, the text is malformed, or a pass or an option is unknown.
    """
    passes: list[Pass] = []
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise UsageError(
                "LK3003",
                f"the pipeline {text!r} cannot be read at {text[position:]!r}",
                hint="write name,name{option=value option=value}",
            )
        passes.append(_build(find_pass(match["name"]), match["options"] or ""))
        position = match.end()
    return passes


def _build(pass_class: type[Pass], options_text: str) -> Pass:
    known = {option.name: option for option in fields(pass_class)}
    values: dict[str, object] = {}
    for item in options_text.split():
        key, separator, raw = item.partition("=")
        key = key.replace("-", "_")
        if key not in known or not separator:
            raise UsageError(
                "LK3003",
                f"pass {pass_class.name} has no option {item!r}",
                hint="its options are: " + (", ".join(sorted(known)) or "none"),
            )
        values[key] = _convert(pass_class.name, key, raw, str(known[key].type))
    return pass_class(**values)


def _convert(pass_name: str, key: str, raw: str, type_name: str) -> object:
    try:
        if type_name == "bool":
            return {"true": True, "false": False}[raw.lower()]
        if type_name == "int":
            return int(raw)
        if type_name == "float":
            return float(raw)
    except (KeyError, ValueError):
        raise UsageError("LK3003", f"option {key} of pass {pass_name} must be a {type_name}, got {raw!r}") from None
    return raw
