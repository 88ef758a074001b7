"""Checks in the bytes of an artifact what its certificate states of weights.

Vocabulary
    root     the weight of the program of one device that others are slices and chunks of; its sha-256 is stated
    inside   of an element of a weight that ranks share: it is one of the root, and no padding

Steps: a table must have the rows that its fact states, for each rank. Slices and chunks are taken out of the layout in
which they are stored and put together as their facts say: there must be zeros where they go beyond the end of what they
are of, and the rest must be the root. Blocks of a weight, and weights that later stages have made others of, are not in
the artifact as they were proved: of these no byte can say anything.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from lowerkit.errors import ParityError
from lowerkit.runtimes.artifact_reader import Artifact
from lowerkit.runtimes.safetensors_header import typed_view
from lowerkit.spmd.certificate.certificate import AxisStep, Certificate
from lowerkit.spmd.certificate.facts import Chunks, Fact, Rows, Slices
from lowerkit.spmd.certificate.graph import shape_of
from lowerkit.spmd.certificate.sums.chunked_weights import places_of

Array = np.ndarray[Any, Any]

_LAYOUTS = ("lowerkit.targets.cpu.gemm.weight_packing", "lowerkit.targets.cuda.families.windows.conv_layouts")
_PACKED = re.compile(r"(\w+)\(((?:\w+=-?\d+,?)*)\)")


def facts_of(certificate: Certificate) -> dict[str, tuple[AxisStep, Fact]]:
    """Returns the facts of a certificate with their steps, by weight."""
    return {fact.symbol: (step, fact) for step in certificate.axes for fact in step.facts}


def roots_of(certificate: Certificate) -> list[str]:
    """Returns the weights of the program of one device that others are slices and chunks of."""
    facts = facts_of(certificate)
    sources = (fact.source for _, fact in facts.values() if isinstance(fact, Slices | Chunks))
    return [source for source in dict.fromkeys(sources) if source not in facts]


def check_facts(certificate: Certificate, artifact: Artifact) -> int:
    """Checks the facts of weights; returns of how many weights the bytes could say something.

    Raises:
        ParityError: LK6004, a weight is not what is stated.
    """
    try:
        return _checked(certificate, artifact)
    except (ValueError, IndexError, KeyError, TypeError, ArithmeticError, AssertionError) as error:
        _refuse(f"what it states of weights does not fit them: {error}")


def _checked(certificate: Certificate, artifact: Artifact) -> int:
    facts = facts_of(certificate)
    shapes = {
        symbol: shape_of(kind) or ()
        for graph in certificate.graphs
        for symbol, kind in graph.weights.items()
        if symbol in facts
    }
    chains = Chains(facts, shapes)
    checked: set[str] = set()
    for name, tensor in artifact.weights.items():
        symbol, _, layout = name.partition("|")
        if symbol not in facts:
            continue
        step, fact = facts[symbol]
        if chains.is_endless(symbol):
            _refuse(f"the weight {symbol!r} is said to be a part of itself")
        data = typed_view(artifact.weight_bytes(tensor.begin, tensor.end - tensor.begin), tensor)
        if isinstance(fact, Rows):
            _check_table(fact, step.ranks, data)
        elif not isinstance(fact, Slices | Chunks) or not _check_parts(certificate, chains, symbol, layout, data):
            continue
        checked.update(chains.to_root(symbol))
    return len(checked)


def sha256_of(array: Array) -> str:
    """Returns how the bytes of a root are stated."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).hexdigest()


def _check_table(fact: Rows, ranks: int, data: Array) -> None:
    count = max(fact.count, 1)
    if data.size != ranks * count:
        _refuse(f"the weight {fact.symbol!r} has {data.size} numbers, stated are {ranks} rows of {count}")
    rows, places = np.indices((ranks, count))
    stated = (fact.rank * rows + fact.step * places + fact.start) // fact.by
    other = np.argwhere(data.reshape(ranks, count) != stated)
    if len(other):
        rank, place = map(int, other[0])
        found = int(data.reshape(ranks, count)[rank, place])
        _refuse(f"the weight {fact.symbol!r} of rank {rank} has {found} at {place}, stated is {stated[rank, place]}")


def _check_parts(certificate: Certificate, chains: Chains, symbol: str, layout: str, data: Array) -> bool:
    """Whether the layout of a weight is known, and no part is anything else than what is stated."""
    shape, ranks = chains.shapes[symbol], chains.ranks(symbol)
    size = math.prod(shape)
    count = math.prod(ranks)
    if size * count > data.size:
        _refuse(f"the weight {symbol!r} is stored in {data.size} elements, stated are {count} parts of {size}")
    places = _places(layout, size) if layout else np.arange(1, size + 1)
    if places is None:
        return False
    if data.size != count * places.size:
        _refuse(f"the weight {symbol!r} is stored in {data.size} elements, stated are {count} parts of {places.size}")
    stored, inside = data.reshape(count, -1), places.reshape(-1) > 0
    parts = np.zeros((count, size), data.dtype)
    parts[:, places.reshape(-1)[inside] - 1] = stored[:, inside]
    root, whole, beyond = chains.put_together(symbol, parts.reshape(*ranks, *shape))
    if beyond or bool((stored[:, ~inside] != 0).any()):
        _refuse(f"the weight {symbol!r} has other numbers than zeros where it is padded")
    if root in certificate.weights and sha256_of(whole) != certificate.weights[root]:
        _refuse(f"the parts {symbol!r} put together are not the weight {root!r}")
    return True


@lru_cache(maxsize=2)
def _places(layout: str, size: int) -> Array | None:
    """Returns which element of a part, counted from 1, each stored one is, 0 for padding; None of an unknown layout.

    The name of a stored weight tells its layout: ``32x16|kind(name=1)``.
    """
    from lowerkit.targets.packing import LAYOUTS, Packing

    view, _, packing = layout.partition("|")
    found = _PACKED.fullmatch(packing)
    for module in _LAYOUTS:
        importlib.import_module(module)
    if found is None or found[1] not in LAYOUTS:
        return None
    parameters = dict(pair.split("=") for pair in found[2].split(",") if pair)
    own = Packing.of(found[1], **{name: int(value) for name, value in parameters.items()})
    shape = [int(extent) for extent in view.split("x") if extent]
    return own.apply(np.arange(1, size + 1, dtype=np.int64).reshape(shape)).reshape(-1)


@dataclass
class Chains:
    """Follows slices and chunks to their roots.

    Attributes:
        facts: with their steps, by weight.
        shapes: of these weights, as one rank has them.
    """

    facts: dict[str, tuple[AxisStep, Fact]]
    shapes: dict[str, tuple[int, ...]]

    def to_root(self, symbol: str) -> list[str]:
        """Returns a weight with a fact, and those with facts of which it is a part."""
        found: list[str] = []
        while symbol in self.facts and symbol not in found:
            found.append(symbol)
            fact = self.facts[symbol][1]
            symbol = fact.source if isinstance(fact, Slices | Chunks) else ""
        return found

    def is_endless(self, symbol: str) -> bool:
        """Whether a weight is a part of one that is a part of it."""
        path = self.to_root(symbol)
        last = self.facts[path[-1]][1]
        return isinstance(last, Slices | Chunks) and last.source in path

    def ranks(self, symbol: str) -> tuple[int, ...]:
        """Returns how many ranks share a weight along each axis, in the order in which its parts are stored."""
        step, fact = self.facts.get(symbol, (None, None))
        if step is None or not isinstance(fact, Slices | Chunks):
            return ()
        return (*self.ranks(fact.source), *((step.ranks,) if isinstance(fact, Slices) else ()))

    def put_together(self, symbol: str, parts: Array) -> tuple[str, Array, bool]:
        """Returns the root of a weight, what its parts are together, and whether other numbers than zeros are left."""
        step, fact = self.facts.get(symbol, (None, None))
        if step is None or not isinstance(fact, Slices | Chunks):
            return symbol, parts, False
        extents = shape_of(fact.kind) or ()
        leading = len(self.ranks(fact.source))
        at = leading + fact.axis
        if isinstance(fact, Chunks):
            places = np.broadcast_arrays(*places_of(fact, self.shapes[symbol]))
            wide = (*extents[: fact.axis], fact.count * fact.size, *extents[fact.axis + 1 :])
            joined = np.zeros((*parts.shape[:leading], *wide), parts.dtype)
            joined[(..., *places)] = parts
        else:
            moved = np.moveaxis(parts, leading, at)
            joined = moved.reshape(*moved.shape[:at], -1, *moved.shape[at + 2 :])
        whole, behind = np.split(joined, [extents[fact.axis]], axis=at)
        root, found, beyond = self.put_together(fact.source, whole)
        return root, found, beyond or bool((behind != 0).any())


def _refuse(reason: str) -> NoReturn:
    raise ParityError("LK6004", f"the certificate does not hold: {reason}")
