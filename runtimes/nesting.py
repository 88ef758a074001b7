"""Nested arguments and results: dicts, lists and tuples of arrays, as the model itself takes and gives them.

Vocabulary
    tree      JSON: ``{"kind": "tuple" | "list", "items": [...]}``, ``{"kind": "dict", "keys": [...], "items": [...]}``,
              ``{"kind": "constant", "value": ...}``, an int (the number of an input or output), or None.
    arguments the tree of inputs: a tuple of the positional arguments and a dict of the keyword arguments, with
              ``"names"``: what ``forward`` calls the positional ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

Tree = Any


def rebuild_outputs(tree: Tree, outputs: Sequence[Any]) -> Any:
    """Nests a flat list of outputs as the model did; a tree of None means one output, or a tuple of several."""
    if tree is None:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
    return _rebuild(tree, outputs)


def _rebuild(tree: Tree, outputs: Sequence[Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, int):
        return outputs[tree]
    if tree["kind"] == "constant":
        return tree["value"]
    items = [_rebuild(item, outputs) for item in tree["items"]]
    match tree["kind"]:
        case "tuple":
            return tuple(items)
        case "list":
            return items
        case kind:
            assert kind == "dict", f"{kind} is no kind of a tree"
            return dict(zip(tree["keys"], items, strict=True))


def flatten_arguments(
    tree: Tree, names: Sequence[str], inputs: Sequence[Any], named: Mapping[str, Any], problems: list[str]
) -> dict[str, Any] | None:
    """Returns the arrays of nested arguments by the name of the input; None where nothing is nested.

    Args:
        tree: the arguments that the model was captured with; None where it is not known how they nest.
        names: names of the inputs.
        inputs: positional arguments of the model.
        named: keyword arguments: the model's own, positional ones by name, or inputs by name.
        problems: gets a line for each mismatch.
    """
    if tree is None or not any(_is_nest(value) or not _is_array(value) for value in (*inputs, *named.values())):
        return None
    positional, keywords = tree["items"]
    subtrees = dict(zip(keywords["keys"], keywords["items"], strict=True))
    subtrees |= dict(zip(tree["names"], positional["items"], strict=False))
    found: dict[str, Any] = {}
    if len(inputs) > len(positional["items"]):
        problems.append(f"{len(inputs)} positional arguments, the model takes {len(positional['items'])}")
    for number, (value, subtree) in enumerate(zip(inputs, positional["items"], strict=False)):
        label = tree["names"][number] if number < len(tree["names"]) else f"argument {number}"
        _flatten(subtree, value, label, names, found, problems)
    for key, value in named.items():
        if key in subtrees:
            _flatten(subtrees[key], value, key, names, found, problems)
        else:
            found[key] = value
    return found


def _flatten(
    tree: Tree, value: Any, label: str, names: Sequence[str], found: dict[str, Any], problems: list[str]
) -> None:
    if isinstance(tree, int):
        found[names[tree]] = value
    elif tree is None or tree["kind"] == "constant":
        captured = None if tree is None else tree["value"]
        if type(value) is not type(captured) or value != captured:
            problems.append(f"{label} is {value!r}, but the model was compiled for {captured!r}")
    elif tree["kind"] == "dict":
        values = cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        if set(values) != set(tree["keys"]):
            problems.append(
                f"{label} has the keys {sorted(map(str, values))}, expected {sorted(map(str, tree['keys']))}"
            )
            return
        for key, item in zip(tree["keys"], tree["items"], strict=True):
            _flatten(item, values[key], f"{label}[{key!r}]", names, found, problems)
    else:
        items = list(cast("Sequence[Any]", value)) if isinstance(value, (list, tuple)) else []
        if len(items) != len(tree["items"]):
            given = f"{len(items)} items" if isinstance(value, (list, tuple)) else type(value).__name__
            problems.append(f"{label} is {given}, expected a {tree['kind']} of {len(tree['items'])}")
            return
        for number, (item, one) in enumerate(zip(tree["items"], items, strict=True)):
            _flatten(item, one, f"{label}[{number}]", names, found, problems)


def _is_nest(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple)) or value is None


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__dlpack__")
