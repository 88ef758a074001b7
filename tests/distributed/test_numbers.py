"""Every operation, type and reduction over every transport, against numpy: NaN, infinities, odd and empty lengths."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.calls import DTYPES, REDUCTIONS, Array, Reduction
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous import rendezvous
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.collective.simulation.simulation import simulate
from tests.support.ranks import PATIENCE, succeed
from tests.support.suite.randomness import RANDOM

SIZE = 4
COUNTS = (0, 1, 7, 4099, 70_003)
TRANSPORTS = ("memory", "tcp", "hosts", "simulated")
FLOATS = ("float32", "float64", "float16", "bfloat16")
FACTORS = (0.5, -2.0, 0.25, 1.0)


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def over(transport: str, monkeypatch: pytest.MonkeyPatch, function: Callable[[Group], None], size: int = SIZE) -> None:
    """Runs a function of a group on each rank."""
    if transport == "simulated":
        with simulate(size, latency=1e-6, jitter=1e-6, reorder=0.2) as simulation:
            for outcome in simulation.run(function):
                if isinstance(outcome, BaseException):
                    raise outcome
        return
    names, store, identity = threading.local(), MemoryStore(), rendezvous.host_identity()
    # Two "hosts" that loopback reaches: ranks 0 and 2 share memory, and so do 1 and 3.
    monkeypatch.setattr(rendezvous, "host_identity", lambda: identity + names.suffix)
    options = RendezvousOptions(b"t" * 32, shared_memory=transport != "tcp", timeout=PATIENCE)

    def run(rank: int) -> None:
        names.suffix = f"#{rank % 2}" if transport == "hosts" else ""
        with Group.join(store, "world", rank, size, options, timeout=PATIENCE) as group:
            local = {"memory": tuple(range(size)), "tcp": (rank,), "hosts": tuple(range(rank % 2, size, 2))}
            assert group.local_ranks == local[transport]
            function(group)

    succeed(size, run)


def values(rng: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Numbers whose sums and products every float type holds; of integers, all there are."""
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.name in FLOATS:
        return rng.integers(-3, 4, shape).astype(dtype)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()


def expected(data: Array, reduction: str) -> Array | None:
    """What the ranks' rows reduce to; None: there is no such reduction."""
    dtype, floats = data.dtype, data.dtype.name in FLOATS
    if reduction in ("band", "bor", "bxor"):
        names = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
        return None if floats else names[reduction].reduce(data)
    if dtype == np.bool_:
        found = {"sum": data.any, "max": data.any, "product": data.all, "min": data.all}
        return np.asarray(found[reduction](0)) if reduction in found else None
    if reduction == "premul_sum" and not floats:
        return None
    with np.errstate(all="ignore"):
        wide = data.astype(np.float64) if floats else data
        if reduction == "premul_sum":
            return (wide * np.reshape(FACTORS, (SIZE, 1))).sum(0).astype(dtype)
        if reduction == "avg":
            total = wide.sum(0, dtype=wide.dtype)
            if floats:
                return (total / SIZE).astype(dtype)
            return np.array([abs(int(one)) // SIZE * (-1 if one < 0 else 1) for one in total], dtype)
        functions = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
        return functions[reduction].reduce(wide, dtype=wide.dtype).astype(dtype)


def equal(got: Array, wanted: Array, what: str) -> None:
    """As numpy's own, which does not know that a NaN of bfloat16 is one."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), what
    both = (got, wanted) if got.dtype.name not in FLOATS else (got.astype(np.float64), wanted.astype(np.float64))
    np.testing.assert_array_equal(*both, what)


def special(dtype: np.dtype[Any], count: int) -> Array:
    """Rows in which NaN and infinities meet numbers, each other and themselves, at both ends of what a vector holds."""
    rows = np.ones((SIZE, count), np.float64)
    cases = ((0, np.nan), (0, np.inf), (1, -np.inf), (2, np.nan), (3, np.inf), (1, np.nan))
    for column in range(count):
        rank, value = cases[column % len(cases)]
        rows[rank, column] = value
        if column % 4 == 3:
            rows[(rank + 1) % SIZE, column] = -np.inf
    return rows.astype(dtype)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_reductions(transport: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, rng = dtype_of(name), RANDOM
    rows = [values(rng, dtype, (SIZE, count)) for count in COUNTS]
    if name in FLOATS:
        rows += [special(dtype, count) for count in (13, 4099)]

    def run(group: Group) -> None:
        calls, rank = group.calls, group.rank
        for data in rows:
            for reduction in REDUCTIONS:
                wanted = expected(data, reduction)
                given: dict[str, Any] = {"reduction": reduction, "factor": FACTORS[rank]}
                if wanted is None:
                    with pytest.raises(LowerkitError, match="LK1010"):
                        group.run(calls.all_reduce(data[rank], **given))
                    continue
                check = f"{reduction} of {data.shape[1]} {name}"
                got = group.run(calls.all_reduce(data[rank], **given))
                equal(got, wanted, check)
                place = data[rank].copy()
                group.run(calls.all_reduce(place, **given, output=place))
                equal(place, wanted, check + " in place")
                at_root = group.run(calls.reduce(data[rank], SIZE - 1, **given))
                if at_root is not None:
                    equal(at_root, wanted, "reduce: " + check)
                # Unequal parts, an empty one among them.
                ends = [0, data.shape[1] // 2, data.shape[1] // 2, data.shape[1] * 3 // 4, data.shape[1]]
                parts = [data[rank, ends[part] : ends[part + 1]] for part in range(SIZE)]
                got = group.run(calls.reduce_scatter(parts, **given))
                equal(got, wanted[ends[rank] : ends[rank + 1]], "reduce_scatter: " + check)

    over(transport, monkeypatch, run)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_moves(transport: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype, rng = dtype_of(name), RANDOM
    # Any bytes, NaNs of all kinds too: nothing is computed.
    many = [
        rng.integers(0, 2, (SIZE, SIZE, count)).astype(dtype)
        if name == "bool"
        else np.frombuffer(rng.bytes(SIZE * SIZE * count * dtype.itemsize), dtype).reshape(SIZE, SIZE, count).copy()
        for count in (0, 1, 13, 9001)
    ]

    def same(got: Array | list[Array], wanted: Array | list[Array]) -> None:
        for one, other in zip(got, wanted, strict=True):
            assert one.tobytes() == other.tobytes()

    def run(group: Group) -> None:
        calls, rank = group.calls, group.rank
        for data in many:
            count = data.shape[2]
            sizes = [(one * count) // SIZE for one in range(1, SIZE + 1)]
            for root in (0, SIZE - 1):
                same(group.run(calls.broadcast(data[rank].copy(), root)), data[root])
                same([group.run(calls.scatter(list(data[root]), np.empty(count, dtype), root))], [data[root, rank]])
                gathered = group.run(calls.gather(data[rank], root))
                assert (gathered is None) == (rank != root)
                same(gathered or [], data if gathered is not None else [])
            same(group.run(calls.all_gather(data[rank])), data)
            same(group.run(calls.all_to_all(list(data[rank]))), data[:, rank])
            # What each gives differs in length, and so does what goes from one to another.
            unequal = [np.empty(size, dtype) for size in sizes]
            got = group.run(calls.all_gather(data[rank, 0, : sizes[rank]], parts=unequal))
            same(got, [data[one, 0, : sizes[one]] for one in range(SIZE)])
            outgoing = [data[rank, to, : sizes[(rank + to) % SIZE]] for to in range(SIZE)]
            incoming = [np.empty(sizes[(rank + source) % SIZE], dtype) for source in range(SIZE)]
            got = group.run(calls.all_to_all(outgoing, incoming))
            same(got, [data[source, rank, : sizes[(rank + source) % SIZE]] for source in range(SIZE)])
            if rank == 0:
                group.run(calls.send(data[0], 1, tag=5))
                work = group.start(calls.receive(np.empty_like(data[0]), tag=6))
                same(work.wait(), data[2])
                assert (work.source, work.count) == (2, data[2].size)
            elif rank in (1, 2):
                work = group.start(calls.receive(np.empty_like(data[0]), 0, tag=5)) if rank == 1 else None
                if work is not None:
                    same(work.wait(), data[0])
                else:
                    group.start(calls.send(data[2], 0, tag=6)).wait()
            group.run(calls.barrier())

    over(transport, monkeypatch, run)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sums_of_any_floats_are_within_their_roundings(
    transport: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, rng = dtype_of(name), RANDOM
    data = (rng.standard_normal((SIZE, 30_011)) * 2.0 ** rng.integers(-6, 7, (SIZE, 30_011))).astype(dtype)
    exact = data.astype(np.longdouble).sum(0)
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    # One rounding, of half a unit, for each of the additions of a chain; and one of the result.
    bound = SIZE * epsilon / 2 * np.abs(data.astype(np.longdouble)).sum(0)
    results: dict[int, bytes] = {}

    def run(group: Group) -> None:
        got = group.run(group.calls.all_reduce(data[group.rank]))
        assert (np.abs(got.astype(np.longdouble) - exact) <= bound).all()
        results[group.rank] = got.tobytes()

    over(transport, monkeypatch, run)
    assert len(set(results.values())) == 1, "all ranks have the same bits"


REDUCED: tuple[Reduction, ...] = ("sum", "avg")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_coalesced_calls_and_arrays_of_no_and_many_dimensions(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((), (1,), (0, 3), (2, 1, 2), (1,) * 12)

    def run(group: Group) -> None:
        arrays = [np.full(shape, group.rank + 1.0, np.float32) for shape in shapes]
        wide = [group.calls.all_reduce(array, reduction) for array in arrays for reduction in REDUCED]
        for index, result in enumerate(group.run_all(wide)):
            assert result.shape == shapes[index // 2]
            assert (result == (10.0 if index % 2 == 0 else 2.5)).all()
        gathered = group.run(group.calls.all_gather(arrays[0]))
        assert [float(one) for one in gathered] == [1.0, 2.0, 3.0, 4.0]

    over(transport, monkeypatch, run)
