"""Rendezvous: all pairs are connected, memory is shared by those of one host, failures name ranks and leave nothing."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.rendezvous import rendezvous
from lowerkit.runtimes.collective.rendezvous.connections import Connections, RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.host import address_towards, listening_address
from lowerkit.runtimes.collective.rendezvous.rendezvous import meet
from lowerkit.runtimes.collective.rendezvous.shared_memory import create_memory, receive_memory, send_memory
from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore, MemoryStore, Store
from tests.support.ranks import PATIENCE, run_ranks, succeed

pytestmark = pytest.mark.usefixtures("few_objects")

OPTIONS = RendezvousOptions(token=b"t" * 32, timeout=PATIENCE)


@pytest.fixture
def end_of_waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """As soon as it is set, the deadlines of all meetings have passed, and not before."""
    passed = threading.Event()

    def clock() -> float:
        return time.monotonic() + 2 * PATIENCE * passed.is_set()

    monkeypatch.setattr(rendezvous, "Deadline", lambda timeout: Deadline(timeout, clock))
    return passed


def memory_bytes(ranks: int) -> int:
    return 4096 * ranks


def meet_all(store: Store, size: int, options: RendezvousOptions = OPTIONS, name: str = "world") -> list[Connections]:
    return succeed(size, lambda rank: meet(store, name, rank, size, options, memory_bytes))


def close_all(all_connections: list[Connections]) -> None:
    for connections in all_connections:
        connections.close()


def check_streams(all_connections: list[Connections]) -> None:
    """Every pair has one stream: what one end says the other end hears."""
    size = len(all_connections)
    for rank, connections in enumerate(all_connections):
        assert sorted(connections.streams) == [other for other in range(size) if other != rank]
        for other, stream in connections.streams.items():
            stream.sendall(bytes([rank, other]))
    for rank, connections in enumerate(all_connections):
        for other, stream in connections.streams.items():
            stream.settimeout(PATIENCE)
            assert stream.recv(2) == bytes([other, rank])


def open_descriptors() -> Counter[str]:
    """What this process holds open: a thread of another test may close its own at any time, none may come."""
    gc.collect()
    found = Counter[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of this listing
            found[str(descriptor.readlink())] += 1
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_of_one_host_share_memory_and_have_unix_streams(size: int) -> None:
    before = open_descriptors()
    all_connections = meet_all(MemoryStore(), size)
    check_streams(all_connections)
    maps: list[mmap.mmap] = []
    for rank, connections in enumerate(all_connections):
        assert connections.local_ranks == list(range(size))
        assert all(stream.family == socket.AF_UNIX for stream in connections.streams.values())
        if size > 1:
            assert os.fstat(connections.memory).st_size == memory_bytes(size)
            maps.append(mmap.mmap(connections.memory, 0))
            maps[-1][rank] = rank + 1
    assert all(one[:size] == bytes(range(1, size + 1)) for one in maps)
    for one in maps:
        one.close()
    close_all(all_connections)
    assert open_descriptors() <= before


@pytest.mark.parametrize("interface", [None, "::1", "lo"])
def test_ranks_apart_have_tcp_streams(interface: str | None) -> None:
    if interface == "::1" and not ipv6():
        pytest.skip("no IPv6 here")
    options = RendezvousOptions(b"t" * 32, interface, shared_memory=False, timeout=PATIENCE)
    all_connections = meet_all(MemoryStore(), 3, options)
    for rank, connections in enumerate(all_connections):
        assert connections.local_ranks == [rank]
        assert connections.memory == -1
        for stream in connections.streams.values():
            assert stream.getpeername()[0] in ("127.0.0.1", "::1")
            assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert stream.gettimeout() is None
    check_streams(all_connections)
    close_all(all_connections)


def ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_two_hosts_share_memory_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    names = threading.local()
    monkeypatch.setattr(rendezvous, "host_identity", lambda: names.host)

    def run(rank: int) -> Connections:
        # A common first part: loopback reaches both of these "hosts".
        names.host = f"machine#{rank % 2}"
        return meet(store, "world", rank, 5, OPTIONS, memory_bytes)

    store = MemoryStore()
    all_connections = succeed(5, run)
    check_streams(all_connections)
    assert [connections.local_ranks for connections in all_connections] == [
        [0, 2, 4],
        [1, 3],
        [0, 2, 4],
        [1, 3],
        [0, 2, 4],
    ]
    assert os.fstat(all_connections[0].memory).st_size == memory_bytes(3)
    assert os.fstat(all_connections[1].memory).st_size == memory_bytes(2)
    assert all_connections[0].streams[1].family == socket.AF_INET
    assert all_connections[0].streams[2].family == socket.AF_UNIX
    close_all(all_connections)


def test_loopback_does_not_reach_another_host(monkeypatch: pytest.MonkeyPatch, end_of_waiting: threading.Event) -> None:
    names = threading.local()
    monkeypatch.setattr(rendezvous, "host_identity", lambda: names.host)

    def run(rank: int) -> Connections:
        names.host = f"machine{rank}"
        try:
            return meet(store, "world", rank, 2, OPTIONS, memory_bytes)
        finally:
            end_of_waiting.set()

    store = MemoryStore()
    first, second = run_ranks(2, run)
    assert isinstance(second, LowerkitError) and "interface=" in str(second) and second.code == "LK8007"
    assert isinstance(first, LowerkitError) and "rank 1" in str(first)


def test_forbidden_unix_sockets_give_way_to_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Sandboxed(socket.socket):
        def connect(self, address: object) -> None:
            if self.family == socket.AF_UNIX:
                raise PermissionError("no")
            super().connect(address)  # type: ignore[arg-type]

    monkeypatch.setattr(rendezvous.socket, "socket", Sandboxed)
    all_connections = meet_all(MemoryStore(), 3)
    check_streams(all_connections)
    assert [connections.local_ranks for connections in all_connections] == [[0], [1], [2]]
    assert "share no memory" in caplog.text and "trying TCP" in caplog.text
    close_all(all_connections)


def test_missing_ranks_are_named_at_the_deadline(end_of_waiting: threading.Event) -> None:
    store, before = MemoryStore(), open_descriptors()

    def run(rank: int) -> Connections | None:
        if rank == 1:  # no rank of the group: it looks until ranks 0 and 2 are there
            for present in (0, 2):
                store.get(f"lowerkit/world/{present}", PATIENCE)
            return end_of_waiting.set()
        return meet(store, "world", rank, 5, OPTIONS, memory_bytes)

    results = run_ranks(3, run)[::2]
    for result in results:
        assert isinstance(result, LowerkitError) and result.code == "LK8007"
        assert f"ranks 1, 3, 4 did not come within {PATIENCE:g} s" in str(result)
    assert store.keys() == []
    assert open_descriptors() <= before


def test_a_rank_with_another_token_is_refused(
    caplog: pytest.LogCaptureFixture, end_of_waiting: threading.Event
) -> None:
    store, before = MemoryStore(), open_descriptors()

    def run(rank: int) -> Connections:
        options = RendezvousOptions(b"ab"[rank : rank + 1] * 32, timeout=PATIENCE)
        try:
            return meet(store, "world", rank, 2, options, memory_bytes)
        finally:
            end_of_waiting.set()

    first, second = run_ranks(2, run)
    assert isinstance(second, LowerkitError) and second.code == "LK8012" and "job token" in str(second)
    assert isinstance(first, LowerkitError) and first.code == "LK8007" and "rank 1" in str(first)
    assert "wrong job token" in caplog.text
    assert open_descriptors() <= before


def test_a_token_for_some_is_an_error_for_all() -> None:
    store = MemoryStore()

    def run(rank: int) -> Connections:
        options = RendezvousOptions(b"t" * 32 if rank else None, timeout=3.0)
        return meet(store, "world", rank, 3, options, memory_bytes)

    for result in run_ranks(3, run):
        assert isinstance(result, LowerkitError) and result.code == "LK8007", result
    assert any("ranks [0] were not" in str(result) for result in run_ranks(3, run))


def test_sizes_that_differ_are_an_error() -> None:
    store = MemoryStore()
    results = run_ranks(
        2, lambda rank: meet(store, "world", rank, 2 + rank, RendezvousOptions(timeout=1.0), memory_bytes)
    )
    assert any("expects" in str(result) for result in results)
    assert all(isinstance(result, LowerkitError) for result in results)


def test_without_a_token_rank_0_makes_one(tmp_path: Path) -> None:
    all_connections = meet_all(DirectoryStore(tmp_path / "store"), 3, RendezvousOptions(timeout=PATIENCE))
    check_streams(all_connections)
    assert len({connections.token for connections in all_connections}) == 1
    close_all(all_connections)


def test_what_a_dead_rank_published_does_not_confuse_a_later_start() -> None:
    store = MemoryStore()
    line = rendezvous.RankAddress(3, rendezvous.host_identity(), "lowerkit-none", "127.0.0.1", 9, "0", True)
    store.set("lowerkit/world/1", line.to_bytes())

    def run(rank: int) -> Connections:
        time.sleep(0.3 * (rank == 1))
        return meet(store, "world", rank, 3, OPTIONS, memory_bytes)

    all_connections = succeed(3, run)
    check_streams(all_connections)
    close_all(all_connections)


def test_one_name_serves_one_meeting_after_another() -> None:
    store = MemoryStore()
    for _ in range(3):
        all_connections = meet_all(store, 2)
        check_streams(all_connections)
        close_all(all_connections)


@pytest.mark.parametrize("published", [b"", b"{}", b"[1]", b'{"size": 2}', b"x" * 5000, b"\x80\x04pickle"])
def test_foreign_lines_in_the_store_are_an_error(published: bytes) -> None:
    store = MemoryStore()
    store.set("lowerkit/world/1", published)
    with pytest.raises(LowerkitError, match=r"LK8007.*rank 1"):
        meet(store, "world", 0, 2, RendezvousOptions(timeout=1.0), memory_bytes)


def test_memory_that_cannot_be_allocated_is_an_error_of_all() -> None:
    store, before = MemoryStore(), open_descriptors()
    results = run_ranks(2, lambda rank: meet(store, "world", rank, 2, OPTIONS, lambda _: 1 << 60))
    first, second = results
    assert isinstance(first, LowerkitError) and first.code == "LK7004"
    assert isinstance(second, LowerkitError) and second.code == "LK7004" and "rank 0 could not" in str(second)
    assert all("shared_memory=False" in str(result) for result in results)
    assert open_descriptors() <= before


def test_memory_is_sealed_and_exact() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = create_memory("test", 8192)
        with pytest.raises(OSError):
            os.ftruncate(made, 4096)
        send_memory([ours], made, 8192, Deadline(PATIENCE))
        ours.sendall(b"behind")
        got = receive_memory(theirs, 8192, Deadline(PATIENCE), 0)
        assert theirs.recv(6) == b"behind"
        assert os.fstat(got).st_ino == os.fstat(made).st_ino
        os.close(got)
        send_memory([ours], made, 8192, Deadline(PATIENCE))
        before = open_descriptors()
        with pytest.raises(LowerkitError, match="LK8007"):
            receive_memory(theirs, 4096, Deadline(PATIENCE), 0)
        assert open_descriptors() <= before
        os.close(made)


def test_memory_that_could_shrink_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = os.memfd_create("unsealed", os.MFD_CLOEXEC)
        os.ftruncate(made, 4096)
        send_memory([ours], made, 4096, Deadline(PATIENCE))
        with pytest.raises(LowerkitError, match="for good"):
            receive_memory(theirs, 4096, Deadline(PATIENCE), 0)
        os.close(made)


def test_addresses() -> None:
    assert listening_address(None) == "127.0.0.1"
    assert listening_address("lo") == "127.0.0.1"
    assert listening_address("::1") == "::1"
    assert address_towards("127.0.0.1", 80) == "127.0.0.1"
    for wrong in ("0.0.0.0", "::", "no-such-interface"):
        with pytest.raises(LowerkitError, match="LK1010"):
            listening_address(wrong)
