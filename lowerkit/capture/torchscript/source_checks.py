"""Reads the source and the pickles of a TorchScript file before torch does, and refuses what reaches beyond tensors.

``torch.jit.load`` compiles the source in a file, runs the ``__setstate__`` of its classes, and folds constants by
running operators. So every operator that the source can name is looked at first
(:mod:`lowerkit.capture.operator_allowlist`), in tokens of a grammar that is narrower than both Python's and
TorchScript's: no text means one thing here and another there.

Operators are reached as ``torch.NAME``, as ``ops.NAMESPACE.NAME``, as a method of any value (``x.save("file")``) and by
``getattr``; so every name behind a dot counts, wherever it stands. An attribute of a module that is called as a refused
operator is refused with it.
"""

from __future__ import annotations

import codecs
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lowerkit.capture.archives import Archive
from lowerkit.capture.operator_allowlist import is_harmless_operator
from lowerkit.errors import CaptureError, InputError

MAXIMUM_SOURCE_BYTES = 1 << 26
MAXIMUM_PROBLEMS = 16
_TOKEN = re.compile(
    rb"(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>[0-9][0-9A-Za-z_.]*(?:(?<=[eE])[-+][0-9]+j?)?|\.[0-9][0-9A-Za-z_]*)"
    rb'|(?P<text>"(?:[^"\\\n]|\\[ -~])*")|(?P<comment>#[^\n]*)|(?P<line>\n *)|(?P<space> +)'
    rb"|(?P<sign>[-+*/%<>=!&|^~@()\[\]{},:;.?])"
)
_CLASSES = ("quantized", "rnn", "sparse")
"""Namespaces of C++ classes (packed weights)."""
_GLOBALS = re.compile(
    r"__torch__\..*|collections\.OrderedDict|torch\.(?:[A-Za-z0-9]+Storage|device|Size|per_\w+)"
    r"|torch\._utils\._rebuild_(?:tensor|tensor_v2|qtensor|parameter|meta_tensor_no_storage|sparse_tensor)"
    r"|torch\.jit\._pickle\.(?:build_\w+|restore_type_tag)|torch\._tensor\._rebuild_from_type_v2"
    r"|torch\.serialization\._get_layout|builtins\.complex"
)
_OBJECTS = ("GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")


def require_harmless_script(path: Path, archive: Archive) -> None:
    """Refuses a TorchScript file whose loading or running could touch files, processes or memory of others.

    Raises:
        CaptureError: LK2002, with each operator, class or text that is refused.
        InputError: LK1002, an entry cannot be read.
    """
    problems: list[str] = []
    scan = _Scan()
    with zipfile.ZipFile(path) as opened:
        for name, info in archive.entries.items():
            kind = name.lower().rpartition(".")[2]  # torch finds entries whatever their case
            if kind not in ("py", "pkl") or name.startswith("extra/"):
                continue
            if info.file_size > MAXIMUM_SOURCE_BYTES * (4 if kind == "pkl" else 1):
                raise InputError("LK1002", f"{path}: {name} has {info.file_size} bytes", hint="export it again")
            try:
                data = opened.read(info)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError) as error:
                raise InputError("LK1002", f"{path}: {name} is damaged: {error}", hint="export it again") from error
            found = scan.problems(data) if kind == "py" else _pickle_problems(data)
            problems += [f"{name}: {problem}" for problem in found]
    problems += scan.endless()
    if problems:
        raise CaptureError(
            "LK2002",
            f"{path} is a TorchScript program that does more than compute on tensors; it is not loaded",
            details=list(dict.fromkeys(problems))[:MAXIMUM_PROBLEMS],
            hint="save a model without these operators, or name a factory: path/to/file.py:factory",
        )


def _pickle_problems(data: bytes) -> Iterator[str]:
    """Yields what a pickle would look up, other than tensors, containers and the file's own classes."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name not in _OBJECTS:
                continue
            name = str(argument).replace(" ", ".", 1)  # the module, a space, the class
            if opcode.name != "GLOBAL" or not _GLOBALS.fullmatch(name):
                yield f"an object of {name[:80]!r}"
            elif name.startswith("__torch__.torch.classes.") and name.split(".")[3] not in _CLASSES:
                yield f"an object of the C++ class {name[:80]!r}"
    except (ValueError, IndexError, OverflowError) as error:
        yield f"no pickle: {error!s:.80}"


@dataclass
class _Function:
    """What a function of the source calls by name, and whether it loops."""

    calls: set[str] = field(default_factory=set[str])
    loops: bool = False


class _Scan:
    """Goes through all source files of one program."""

    def __init__(self) -> None:
        self.functions: dict[str, _Function] = {}
        """By name; functions of one name are taken together."""

    def problems(self, source: bytes) -> Iterator[str]:
        """Yields what is refused in one file."""
        tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(source):
            match = _TOKEN.match(source, place)
            if match is None or match.lastgroup is None:
                yield f"{source[place : place + 40]!r} is no text that torch.jit.save writes"
                return
            kind, place = match.lastgroup, match.end()
            follows = source[place : place + 1]
            if follows == b'"' and kind in ("text", "name"):  # text in three quotes, or with a prefix
                yield f"{source[match.start() : place + 20]!r} is no text that torch.jit.save writes"
                return
            if kind not in ("space", "comment", "line"):
                tokens.append((kind, match[0].decode("ascii")))
        yield from self._names(tokens)

    def _names(self, tokens: list[tuple[str, str]]) -> Iterator[str]:
        function = _Function()
        place = 0
        while place < len(tokens):
            kind, value = tokens[place]
            behind_dot = place > 0 and tokens[place - 1] == ("sign", ".")
            place += 1
            behind_comma = place > 1 and tokens[place - 2] == ("sign", ",")  # as the second argument of getattr
            if kind == "text" and behind_comma and not _is_harmless_attribute(_unescaped(value)):
                yield f"the attribute {value}"
            if kind != "name":
                continue
            chain = [value]
            while tokens[place : place + 1] == [("sign", ".")] and tokens[place + 1 : place + 2]:
                if tokens[place + 1][0] != "name":
                    break
                chain.append(tokens[place + 1][1])
                place += 2
            if value == "def":
                function = self.functions.setdefault(tokens[place][1] if place < len(tokens) else "", _Function())
            function.loops |= value in ("for", "while")
            function.calls.update(chain)
            yield from _chain_problems(chain, behind_dot)

    def endless(self) -> Iterator[str]:
        """Yields the loops that run while the file is loaded: those that a ``__setstate__`` reaches."""
        reached: set[str] = set()
        waiting = {"__setstate__"} & self.functions.keys()
        while waiting:
            name = waiting.pop()
            reached.add(name)
            if self.functions[name].loops:
                yield f"a loop in {name!r}, which runs while the file is loaded"
            waiting |= (self.functions[name].calls & self.functions.keys()) - reached


def _chain_problems(chain: list[str], behind_dot: bool) -> Iterator[str]:
    """Yields what is refused of names joined by dots; ``behind_dot``: the first is an attribute of a value."""
    if chain[0] == "__torch__" and not behind_dot:
        if chain[1:3] == ["torch", "classes"] and (chain[3:4] or [""])[0] not in _CLASSES:
            yield f"the C++ class {'.'.join(chain)}"
        return
    if chain[0] == "ops" and not behind_dot:
        if len(chain) < 3 or not is_harmless_operator(chain[1], chain[2]):
            yield f"the operator {'::'.join(chain[1:3]) or 'ops'}"
        chain = chain[2:]
    for name in chain if behind_dot else chain[1:]:
        if not _is_harmless_attribute(name):
            yield f"the operator aten::{name}"


def _is_harmless_attribute(name: str) -> bool:
    return is_harmless_operator("aten", name)


def _unescaped(literal: str) -> str:
    """Returns the text of a literal; Python knows every escape that TorchScript knows."""
    return codecs.decode(literal[1:-1], "unicode_escape", "replace")
