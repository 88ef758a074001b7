"""The parts of a contract: what an operator asks of its arguments, said once for all that heed it.

Vocabulary
    call        an operator's arguments by name; its tensors are whatever their front end has for them
    dims        some dims of a tensor, chosen by its rank or by what the arguments say
    need        what an extent must be: at least a number, equal to another, or not 1
    slot        the part of a tensor that a value is written to
    places      an argument whose values are positions along dims of a tensor
    of tracing  a need of programs that were traced with open extents, which eager does not have
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Extent = Any
"""An int, or what a front end has for an extent that is open."""


@dataclass(frozen=True)
class Call:
    """One use of an operator: its arguments by the names that the contract has for them, defaults included.

    ``shape_of`` gives the extents of a tensor, None of what is no tensor; ``is_mask`` says of a tensor that indexes
    whether it stands for as many dims as it has.
    """

    arguments: Mapping[str, Any]
    shape_of: Callable[[Any], Sequence[Extent] | None]
    is_mask: Callable[[Any], bool] = lambda _: False

    def data(self) -> Any:
        """Returns the tensor that the operator reads, or writes a part of."""
        return self.arguments.get("self", self.arguments.get("input"))


@dataclass(frozen=True)
class Need:
    """``extent`` must be at least ``other``, equal to it, or unequal."""

    relation: Literal["at least", "equal to", "unequal to"]
    extent: Extent
    other: Extent
    of_tracing: bool = False


Dims = Callable[[Call, int], Iterable[int]]
"""Gives dims of a tensor of some rank."""
Least = Callable[[Call, int], int | None]
"""Gives the fewest elements that the dim so far from the last may have; None where that is not known."""
Slot = Callable[[Call, list[Extent]], Sequence[Extent | None] | None]
"""Gives the shape of a part of a tensor of some shape; None of an extent that data decides, or of the whole."""
Rule = Callable[[Call], Iterator[Need]]


def ranked(choose: Callable[[int], Iterable[int]]) -> Dims:
    """Dims that follow from the rank."""
    return lambda call, rank: choose(rank)


def along(*names: str) -> Dims:
    """The dims that arguments name, each by an int or a list; where none does, all."""

    def dims(call: Call, rank: int) -> Iterable[int]:
        given = [call.arguments.get(name) for name in names]
        named = [dim for item in given if item is not None for dim in ([item] if isinstance(item, int) else item)]
        return [dim if dim >= 0 else dim + rank for dim in named or range(rank)] if rank else ()

    return dims


def last_as(name: str, each: int = 1) -> Dims:
    """The last dims, one for every ``each`` numbers of an argument."""
    return lambda call, rank: range(rank - len(call.arguments[name]) // each, rank)


def by_tuples(call: Call, rank: int) -> Iterable[int]:
    """As many dims as the last of the indices says, after those of a batch."""
    first, shape = call.arguments.get("batch_dims") or 0, call.shape_of(call.arguments["indices"])
    return range(first, first + (shape[-1] or 0)) if shape else ()


def said(name: str, count: Callable[[int], int] = int) -> Least:
    """As many elements as an argument says, or as ``count`` makes of it."""
    return lambda call, _: count(call.arguments[name]) if isinstance(call.arguments[name], int) else None


def beyond(name: str) -> Least:
    """More than are reflected; the last dim's padding comes first."""

    def least(call: Call, behind: int) -> int | None:
        amounts = call.arguments[name][2 * behind : 2 * behind + 2]
        return max((amount for amount in amounts if isinstance(amount, int)), default=0) + 1

    return least


def repeated(name: str) -> Least:
    """As many as are repeated, beside those that amounts below 0 cut off; the last dim's padding comes first.

    Where more are asked of what is left, eager reads what it has not written.
    """

    def least(call: Call, behind: int) -> int | None:
        amounts = [one for one in call.arguments[name][2 * behind : 2 * behind + 2] if isinstance(one, int)]
        return max(1, *amounts) - sum(min(amount, 0) for amount in amounts) if len(amounts) == 2 else None

    return least


def extents(
    dims: Dims,
    other: Least = lambda *_: 1,
    when: Callable[[Call], bool] = lambda _: True,
    relation: Literal["at least", "unequal to"] = "at least",
    *,
    of_tracing: bool = False,
) -> Rule:
    """Dims of the data have at least so many elements, one if nothing else is said; or another number of them."""

    def needs(call: Call) -> Iterator[Need]:
        shape = call.shape_of(call.data()) or ()
        for dim in dims(call, len(shape)) if shape and when(call) else ():
            count = other(call, len(shape) - 1 - dim)
            if count is not None and dim < len(shape):
                yield Need(relation, shape[dim], count, of_tracing)

    return needs


def fits(value: str, slot: Slot, *, spread: bool = False) -> Rule:
    """A value has the shape of the slot that it is written to; with ``spread``, it is broadcast to it."""

    def needs(call: Call) -> Iterator[Need]:
        into, given = call.shape_of(call.data()), call.shape_of(call.arguments[value])
        part = None if into is None or given is None else slot(call, list(into))
        if part is None or given is None:
            return
        if not spread and len(part) != len(given):
            yield Need("equal to", len(given), len(part))
        for extent, other in zip(reversed(given), reversed(part), strict=False):
            if other is not None and not (spread and extent == 1):
                yield Need("equal to", extent, other)

    return needs


@dataclass(frozen=True)
class Lookup:
    """Positions along ``dims`` of ``data``, taken together or, with ``places.parts``, one for each dim.

    ``factors`` are further extents of the product, and all of them without data.
    """

    places: Places
    index: Any
    data: Any
    dims: Sequence[int] = ()
    exempt: int | None = None
    factors: Sequence[Extent] = ()


@dataclass(frozen=True)
class Places:
    """The argument ``index`` holds positions along ``dims`` of the argument ``of``.

    Attributes:
        sizes: the argument that gives extents in the place of a tensor; below 1 they are for the operator to find.
        wraps: whether positions count from the end below 0.
        exempt: a value that is no position, or the argument that says it.
        first: the number of the first position.
        ends: whether they say where bags begin: at 0, in order, and the extent itself is a position.
        parts: whether the last dim of the indices holds tuples, with a position along each dim.
        listed: whether the argument is a list, with indices or None for each leading dim.
        unless: the argument without which alone positions may be out of range.
    """

    index: str
    dims: Dims = lambda _, rank: range(rank)
    of: str = "self"
    sizes: str = ""
    wraps: bool = False
    exempt: int | str | None = None
    first: int = 0
    ends: bool = False
    parts: bool = False
    listed: bool = False
    unless: str = ""

    def lookups(self, call: Call) -> Iterator[Lookup]:
        """Yields what is to be checked."""
        index, data = call.arguments.get(self.index), call.arguments.get(self.of)
        if self.listed:
            dim = 0
            for item in index or ():
                mask = item is not None and call.is_mask(item)
                if item is not None and not mask:
                    yield Lookup(self, item, data, (dim,))
                dim += len(call.shape_of(item) or ()) if mask else 1
        elif self.sizes:
            given = call.arguments[self.sizes]
            factors = given if isinstance(given, (list, tuple)) else [given]
            if not any(isinstance(factor, int) and factor < 1 for factor in factors):
                yield Lookup(self, index, None, factors=factors)
        elif index is not None and call.arguments.get(self.unless) is None:
            exempt = call.arguments.get(self.exempt) if isinstance(self.exempt, str) else self.exempt
            yield Lookup(self, index, data, tuple(self.dims(call, len(call.shape_of(data) or ()))), exempt)


@dataclass(frozen=True)
class Contract:
    """What an operator needs of extents, and which arguments hold places, looked at when a program runs.

    Attributes:
        refusal: a pattern of what eager says where it is not so; empty where eager computes.
        repeats: whether an extent of 1 is repeated, so that any other is asked to be as it is.
    """

    needs: tuple[Rule, ...] = ()
    places: tuple[Places, ...] = ()
    refusal: str = ""
    repeats: bool = False
