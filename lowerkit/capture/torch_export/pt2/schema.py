"""JSON to the dataclasses of torch's schema of a ``.pt2``, by the types that the schema states and by nothing else.

torch's own decoder takes whatever the JSON holds where the schema says text or a number, and gives the text on to what
evaluates it. Here every value has the type of its field; symbolic sizes become sympy expressions by
:mod:`sympy_builder`; and each object is shown to a check (:mod:`checks`).
Resolving the type hints once for each class, and not for each of ten thousand objects, is what makes it quick.
"""

# The schema is a part of torch that it keeps private.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import dataclasses
import enum
import importlib
import types
import typing
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import msgspec

Check = Callable[[Any], None]


class SchemaDecoder:
    """Decodes the classes of one schema. Keys that the schema does not have are ignored, as torch does.

    Args:
        schema: the module ``torch._export.serde.schema``.
        symbolic: makes of an expression's text what stands for it.
        checks: by the name of a class, what looks at each object of it; it may change the object.
    """

    def __init__(self, schema: ModuleType, symbolic: Callable[[str], Any], checks: dict[str, Check]) -> None:
        self.schema = schema
        self.symbolic = symbolic
        self.checks = checks
        self.union = importlib.import_module("torch._export.serde.union")._Union
        self.hints = cache(self._hints)
        self.reader = cache(self._reader)

    def decode(self, kind: type, data: bytes) -> Any:
        """Returns the object of class ``kind`` that ``data`` describes.

        Raises:
            ValueError, TypeError, KeyError: a value has another type than its field.
        """
        return self.reader(kind)(msgspec.json.decode(data))

    def _hints(self, kind: type) -> dict[str, Callable[[Any], Any]]:
        hints = typing.get_type_hints(kind, globalns=vars(self.schema))
        return {field.name: self.reader(hints[field.name]) for field in dataclasses.fields(kind)}

    def _reader(self, kind: Any) -> Callable[[Any], Any]:
        """Returns what makes a value of type ``kind`` of JSON; fields of a class are looked up at its first object."""
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self.reader(arguments[0])
        if origin in (typing.Union, types.UnionType):
            inner = self.reader(arguments[0])
            return lambda data: None if data is None else inner(data)
        if origin is list:
            item = self.reader(arguments[0])
            return lambda data: [item(entry) for entry in _of(list, data)]
        if origin is dict:
            value = self.reader(arguments[1])
            return lambda data: {key: value(entry) for key, entry in _of(dict, data).items()}
        if isinstance(kind, type) and issubclass(kind, self.union):
            return lambda data: self._tagged(kind, _of(dict, data))
        if dataclasses.is_dataclass(kind):
            return lambda data: self._object(kind, _of(dict, data))
        if kind is float:
            return _float
        if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
            return lambda data: _of(int, data)
        if kind in (str, int, bool):
            return lambda data: _of(kind, data)
        raise TypeError(f"the schema of this torch has a field of type {kind}, which is not known")

    def _tagged(self, kind: Any, data: dict[str, Any]) -> Any:
        ((tag, value),) = data.items()
        made = kind.create(**{tag: self.hints(kind)[tag](value)})
        self._check(kind, made)
        return made

    def _object(self, kind: Any, data: dict[str, Any]) -> Any:
        values = {name: read(data[name]) for name, read in self.hints(kind).items() if name in data}
        if kind is self.schema.SymExpr:
            values["expr_str"] = self.symbolic(values["expr_str"])
        made = kind(**values)
        self._check(kind, made)
        return made

    def _check(self, kind: type, made: Any) -> None:
        check = self.checks.get(kind.__name__)
        if check is not None:
            check(made)


def _of(kind: type, data: Any) -> Any:
    """Returns ``data``, which is of type ``kind``; in JSON true is no number."""
    if type(data) is not kind:
        raise TypeError(f"{str(data)[:60]!r} stands where the schema has {kind.__name__}")
    return data


def _float(data: Any) -> float:
    """torch writes infinities and NaN as text."""
    if type(data) is str and data not in ("Infinity", "-Infinity", "NaN"):
        raise TypeError(f"{data[:60]!r} stands where the schema has a number")
    if type(data) not in (int, float, str):
        raise TypeError(f"{str(data)[:60]!r} stands where the schema has a number")
    return float(data)
