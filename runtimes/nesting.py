"""Nested arguments and results: dicts, lists and tuples of arrays, as the model itself takes and gives them.

Vocabulary
    tree      JSON: ``{"kind": "tuple" | "list", "items": [...]}``, ``{"kind": "dict", "keys": [...], "items": [...]}``,
              ``{"kind": "constant", "value": ...}``, an int (the number of an input or output), or None.
    arguments the tree of inputs: a tuple of the positional arguments and a dict of the keyword arguments, with
              ``"names"``: what ``forward`` calls the positional ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard, cast

import numpy as np

Tree = Any


MAXIMUM_DEPTH = 100


def tree_problems(tree: Tree, count: int, what: str) -> Iterator[str]:
    """Yields what is wrong with a tree that was read from a file; ``count``: the number of inputs or outputs."""
    stack: list[tuple[Any, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if node is None or (type(node) is int and 0 <= node < count):
            continue
        fields = cast("Mapping[str, Any]", node) if isinstance(node, dict) else {}
        kind, items, keys = fields.get("kind"), fields.get("items"), fields.get("keys")
        sound = kind == "constant" and "value" in fields
        if kind in ("tuple", "list", "dict") and isinstance(items, list) and depth < MAXIMUM_DEPTH:
            sound = kind != "dict" or (_are_keys(keys) and len(keys) == len(cast("list[Any]", items)))
            stack += [(item, depth + 1) for item in cast("list[Any]", items)]
        if not sound:
            yield f"the tree of {what} holds {node!r:.60} at depth {depth}"


def argument_problems(tree: Tree, count: int) -> Iterator[str]:
    """Yields what is wrong with the tree of a model's arguments: see :func:`tree_problems`."""
    yield from tree_problems(tree, count, "inputs")
    if tree is None:
        return
    items = tree.get("items") if isinstance(tree, dict) else None
    names = tree.get("names") if isinstance(tree, dict) else None
    kinds = [item.get("kind") if isinstance(item, dict) else None for item in items] if isinstance(items, list) else []
    if kinds not in (["tuple", "dict"], ["list", "dict"]) or not _are_keys(names):
        yield "the tree of inputs is no tuple of arguments and dict of keyword arguments"


def _are_keys(keys: Any) -> TypeGuard[list[str | float | None]]:
    return isinstance(keys, list) and all(key is None or isinstance(key, (str, int, float)) for key in keys)


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
