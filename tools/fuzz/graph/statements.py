"""The statements that random functions are made of, with how often each is tried."""

from __future__ import annotations

from graph import layers, movement, numeric
from graph.builder import Builder, Statement

_ORDERED = {"bucketize": 1, "searchsorted": 0}
"""Operators that take a tensor in ascending order, and which argument it is."""

_OF_TIES = frozenset({"topk", "kthvalue", "median", "nanmedian", "mode", "sort"})
"""Operators whose second result is a place: of which of equal values, nothing says."""


def registry_call(b: Builder) -> None:
    """Any operator of PyTorch's registry; tensors of fitting shape and dtype come from the function."""
    import torch

    from graph.registry import sample, text_of

    if b.scriptable:
        raise LookupError("its samples are no script")
    found = sample(b.rng, getattr(torch, b.dtype()))
    if found is None:
        raise LookupError("no sample")
    name, chosen = found

    def text(value: object) -> str:
        if isinstance(value, torch.Tensor):
            if value.numel() > 4000 or value.is_complex():
                raise LookupError("too large")
            kind = str(value.dtype).removeprefix("torch.")
            integer = not value.is_floating_point() and value.dtype != torch.bool
            if integer:
                low = int(value.min()) if value.numel() else 0
                high = int(value.max()) + 1 if value.numel() else 1
                if low < 0:
                    return b.tensor(tuple(value.shape), kind)
                return b.tensor(tuple(value.shape), kind, holds="index", bound=high)
            return b.tensor(tuple(value.shape), kind)
        if isinstance(value, (list, tuple)):
            inside = ", ".join(text(entry) for entry in value)
            return f"[{inside}]" if isinstance(value, list) else f"({inside},)"
        if value is None or isinstance(value, (bool, int, float, str)):
            return f"float({str(value)!r})" if isinstance(value, float) and abs(value) == float("inf") else repr(value)
        if isinstance(value, (torch.dtype, torch.memory_format)):
            return str(value)
        raise LookupError("an argument of another kind")

    arguments = [text(value) for value in (chosen.input, *chosen.args)]
    if "batch_norm" in name and len({*arguments}) < len(arguments):
        raise LookupError("statistics that are written into one another")
    if name in _ORDERED:
        arguments[_ORDERED[name]] += ".sort(-1)[0]"  # where they are in no order, no result is right
    arguments += [f"{key}={text(value)}" for key, value in chosen.kwargs.items() if key != "sorter"]
    if name == "argsort":
        raise LookupError("the order of equal values is open")
    call = f"{text_of(name)}({', '.join(arguments)})"
    import warnings

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = b.evaluate(call)
    several = isinstance(result, (tuple, list))
    if several and name.partition("_")[0] in _OF_TIES:
        b.emit(f"{call}[0]")
    else:
        b.emit(call, parts=len(result) if several else 1)


def statements(*, scriptable: bool = False, control: bool = True) -> list[tuple[float, Statement]]:
    """All statements with their weights; those that a script cannot hold and control flow only where wanted."""
    found = [*numeric.STATEMENTS, *movement.STATEMENTS, *layers.STATEMENTS]
    if control:
        found += layers.CONTROL
    if not scriptable:
        found += [(30.0, registry_call)]
    return found
