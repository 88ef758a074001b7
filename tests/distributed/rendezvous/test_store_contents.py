"""What others put into a store is read with care: whatever stands there, a rank ends with one error that says so."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.rendezvous.address_exchange import RankAddress, ranks_from_bytes
from lowerkit.runtimes.collective.rendezvous.connections import Connections, RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.job_token import shared_token
from lowerkit.runtimes.collective.rendezvous.rendezvous import meet
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.collective.shrink import agree_on_survivors
from tests.support.ranks import PATIENCE, run_ranks

LINE = RankAddress(2, "boot/1:2", "lowerkit-0123", "127.0.0.1", 4711, "ab", False)
DEEP = b"[" * 3000


@pytest.mark.parametrize(
    "changed",
    [
        {"address": "nowhere"}, {"address": ""}, {"address": "127.0.0.1\n"}, {"address": "fe80::1%\0"},
        {"address": "\ud800"}, {"port": 0}, {"port": 65536}, {"port": -1}, {"port": True}, {"unix_name": ""},
        {"unix_name": "a\0b"}, {"unix_name": "\ud800"}, {"unix_name": "x" * 101}, {"size": "2"}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_lines_that_name_no_place_are_an_error(changed: dict[str, object]) -> None:
    data = json.dumps({**asdict(LINE), **changed}).encode()
    with pytest.raises(LowerkitError, match=r"LK8007.*rank 1 published cannot be read"):
        RankAddress.from_bytes(1, data)
    store = MemoryStore()
    store.set("lowerkit/world/1", data)
    with pytest.raises(LowerkitError, match="LK8007"):
        meet(store, "world", 0, 2, RendezvousOptions(timeout=0.5), lambda _: 4096)


def test_sound_lines_are_read() -> None:
    for line in (LINE, replace(LINE, address="fe80::1%eth0", port=65535)):
        assert RankAddress.from_bytes(1, line.to_bytes()) == line


@pytest.mark.parametrize(
    "data", [b"", DEEP, b"{}", b"1", b"[-1]", b"[4]", b"[true]", b"[1, 1]", b"[0.5]", b"\xff", b"n"]
)
def test_lists_of_ranks_that_are_none_are_an_error(data: bytes) -> None:
    with pytest.raises(LowerkitError, match=r"LK8007.*a report cannot be read"):
        ranks_from_bytes("a report", data, 4)
    with pytest.raises(LowerkitError, match="LK8007"):
        RankAddress.from_bytes(1, data)
    store = MemoryStore()
    store.set("p/members", data or b"?")
    with pytest.raises(LowerkitError, match=r"LK8007.*ranks that are left"):
        agree_on_survivors(store, "p", 0, 4, {1, 2, 3}, 0.0)


@pytest.mark.parametrize("token", [b"t" * 32, None], ids=["given", "drawn"])
def test_nothing_stays_in_the_store(token: bytes | None) -> None:
    store, options = MemoryStore(), RendezvousOptions(token, timeout=PATIENCE)
    for _ in range(3):  # a name may be used again
        all_connections = run_ranks(3, lambda rank: meet(store, "world", rank, 3, options, lambda _: 4096))
        for connections in all_connections:
            assert isinstance(connections, Connections), connections
            assert connections.local_ranks == [0, 1, 2]
            connections.close()
        assert store.keys() == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("token", [b"short", b"x" * 1025])
def test_no_rank_takes_a_token_of_another_length(token: bytes, rank: int) -> None:
    store = MemoryStore()
    store.set("lowerkit/world/token", token)
    with pytest.raises(LowerkitError, match=r"LK1010.*the token in the store has"):
        shared_token(store, "world", rank, 0.1)
