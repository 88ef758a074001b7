"""The structure of what a model returns, and readable names for its outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from lowerkit.program.program import OutputTree


def describe_outputs(spec: Any, leaves: Sequence[int | tuple[Any] | None]) -> tuple[OutputTree, dict[int, str]]:
    """Describes a torch ``TreeSpec`` of outputs as JSON.

    Args:
        spec: the TreeSpec of the returned value.
        leaves: for each leaf of ``spec`` the index of the output, None for a None, or ``(value,)`` for a constant.

    Returns:
        the tree (see :data:`~lowerkit.program.program.OutputTree`) and the names of the outputs by index.
    """
    names: dict[int, str] = {}
    remaining = list(reversed(leaves))

    def visit(node: Any, path: tuple[str, ...]) -> OutputTree:
        if node.is_leaf():
            leaf = remaining.pop()
            if isinstance(leaf, tuple):
                return {"kind": "constant", "value": leaf[0]}
            if leaf is not None:
                names[leaf] = ".".join(path)
            return leaf
        children = list(node.children() if callable(getattr(node, "children", None)) else node.children_specs)
        keys = _keys(node.type, node.context, len(children))
        if keys is None:
            kind = "list" if node.type is list else "tuple"
            return {
                "kind": kind,
                "items": [visit(child, (*path, str(index))) for index, child in enumerate(children)],
            }
        items = [visit(child, (*path, str(key))) for key, child in zip(keys, children, strict=True)]
        return {"kind": "dict", "keys": keys, "items": items}

    tree = visit(spec, ())
    assert not remaining, "more leaves than the tree has"
    return tree, _unique(names)


def describe_inputs(exported: ExportedProgram) -> OutputTree:
    """Describes the arguments of an exported program; None where it does not say how they nest."""
    leaves: list[int | tuple[Any] | None] = []
    count = 0
    for spec in exported.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            continue
        if isinstance(spec.arg, ConstantArgument):
            leaves.append(None if spec.arg.value is None else (spec.arg.value,))
        else:
            leaves.append(count)
            count += 1
    in_spec, called = exported.call_spec.in_spec, exported.module_call_graph[0].signature
    if in_spec is None or in_spec.num_leaves != len(leaves):
        return None
    tree, _ = describe_outputs(in_spec, leaves)
    positional = len(tree["items"][0]["items"])
    names = (called.forward_arg_names if called is not None else None) or []
    return {**tree, "names": list(names[:positional])}


def _keys(kind: Any, context: Any, count: int) -> list[Any] | None:
    """The keys of a mapping, a dataclass or a named tuple; None for a sequence."""
    if kind in (tuple, list):
        return None
    if isinstance(context, (list, tuple)):
        keys = cast("Sequence[Any]", context)
        for candidate in (keys, keys[0] if len(keys) and isinstance(keys[0], (list, tuple)) else ()):
            if len(candidate) == count and all(isinstance(key, (str, int)) for key in candidate):
                return list(candidate)
    named = getattr(context, "_fields", None) or getattr(kind, "_fields", None)  # the context of a NamedTuple's spec
    if named is None and is_dataclass(kind):
        named = tuple(entry.name for entry in fields(kind))
    return list(named) if named is not None and len(named) == count else None


def _unique(paths: dict[int, str]) -> dict[int, str]:
    names: dict[int, str] = {}
    taken: set[str] = set()
    for index, path in paths.items():
        stem = re.sub(r"[^A-Za-z0-9_.]", "_", path) or "output"
        stem = f"output_{stem}" if stem[0].isdigit() else stem
        name, number = stem, 0
        while name in taken:
            number += 1
            name = f"{stem}_{number}"
        taken.add(name)
        names[index] = name
    return names
