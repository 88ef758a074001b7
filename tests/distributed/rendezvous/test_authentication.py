"""The handshake: who knows the token meets; strangers, replays, garbage and wrong ranks do not, and harm nobody."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowerkit.runtimes.collective.rendezvous.authentication import (
    HELLO_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    Credentials,
    HandshakeRefused,
    check_hello,
    introduce,
)
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.listener import Listener
from tests.support.ranks import PATIENCE

TOKEN = b"t" * 32
MEETING = b"m" * 32
CREDENTIALS = Credentials(TOKEN, "world")


@pytest.fixture
def listener() -> Iterator[Listener]:
    one = Listener(0, 4, "127.0.0.1")
    one.serve(CREDENTIALS, MEETING)
    yield one
    one.close()


def connect(listener: Listener) -> socket.socket:
    return socket.create_connection((listener.address, listener.port), 10.0)


def closed_by_peer(stream: socket.socket) -> bool:
    stream.settimeout(PATIENCE)
    try:
        while stream.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def enters(listener: Listener, rank: int = 1) -> bool:
    with connect(listener) as stream:
        introduce(CREDENTIALS, MEETING, rank, 0, stream, Deadline(PATIENCE))
    return rank not in listener.missing()


def test_ranks_enter_by_tcp_and_by_unix_socket(listener: Listener) -> None:
    with connect(listener) as first, socket.socket(socket.AF_UNIX) as second:
        introduce(CREDENTIALS, MEETING, 1, 0, first, Deadline(PATIENCE))
        second.connect("\0" + listener.unix_name)
        introduce(CREDENTIALS, MEETING, 2, 0, second, Deadline(PATIENCE))
        assert listener.missing() == [3]
        assert not listener.wait(0.05)
        streams = listener.take()
        for rank, mine in ((1, first), (2, second)):
            streams[rank].send(b"hi")
            assert mine.recv(2) == b"hi"
            streams[rank].close()


@pytest.mark.parametrize(
    ("credentials", "meeting", "rank", "peer"),
    [
        (Credentials(b"x" * 32, "world"), MEETING, 1, 0),
        (Credentials(TOKEN, "other"), MEETING, 1, 0),
        (CREDENTIALS, b"n" * 32, 1, 0),
        (CREDENTIALS, MEETING, 0, 0),
        (CREDENTIALS, MEETING, 4, 0),
        (CREDENTIALS, MEETING, 2, 1),
    ],
    ids=["token", "group", "meeting", "own-rank", "rank-too-high", "other-listener"],
)
def test_strangers_are_refused_and_logged(
    listener: Listener, caplog: pytest.LogCaptureFixture, credentials: Credentials, meeting: bytes, rank: int, peer: int
) -> None:
    with caplog.at_level(logging.WARNING, "lowerkit.collective"), connect(listener) as stream:
        refusal = pytest.raises((HandshakeRefused, ConnectionError))
        with refusal:
            introduce(credentials, meeting, rank, peer, stream, Deadline(PATIENCE))
    assert listener.missing() == [1, 2, 3]
    assert "rank 0 refused a connection from 127.0.0.1" in caplog.text
    assert enters(listener)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0" * HELLO_BYTES,
        b"\xff" * 1_000_000,
        b"LKGROUP1" + b"\0" * (HELLO_BYTES - 8),
        b"",
        b"L",
    ],
    ids=["http", "zeros", "megabyte", "magic", "nothing", "one-byte"],
)
def test_foreign_bytes_are_refused(listener: Listener, sent: bytes) -> None:
    with connect(listener) as stream:
        try:
            stream.sendall(sent)
            stream.shutdown(socket.SHUT_WR)
        except OSError:  # closed before everything was sent
            pass
        assert closed_by_peer(stream)
    assert enters(listener)


def test_a_replayed_hello_is_refused(listener: Listener) -> None:
    class Recorder(socket.socket):
        sent = b""

        def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]
            self.sent += data
            super().sendall(data, flags)

    with Recorder(socket.AF_INET) as stream:
        stream.connect((listener.address, listener.port))
        introduce(CREDENTIALS, MEETING, 3, 0, stream, Deadline(PATIENCE))
        recorded = stream.sent
    assert len(recorded) == HELLO_BYTES
    for old in listener.take().values():
        old.close()
    with connect(listener) as replay:
        replay.sendall(recorded)
        assert closed_by_peer(replay)
    assert 3 in listener.missing()


def test_a_listener_without_the_token_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(secrets.token_bytes(NONCE_BYTES) + secrets.token_bytes(MAC_BYTES))
        with pytest.raises(HandshakeRefused, match="does not know the job token"):
            introduce(CREDENTIALS, MEETING, 1, 0, ours, Deadline(PATIENCE))


def test_a_reflected_mac_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        # The attacker repeats the connector's own MAC; it can do so only after it has read the hello.
        theirs.sendall(b"n" * NONCE_BYTES)

        def reflect() -> None:
            hello = b""
            while len(hello) < HELLO_BYTES:
                hello += theirs.recv(HELLO_BYTES - len(hello))
            theirs.sendall(hello[-MAC_BYTES:])

        thread = threading.Thread(target=reflect)
        thread.start()
        with pytest.raises(HandshakeRefused):
            introduce(CREDENTIALS, MEETING, 1, 0, ours, Deadline(PATIENCE))
        thread.join()


def test_a_silent_listener_costs_no_more_than_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            introduce(CREDENTIALS, MEETING, 1, 0, ours, Deadline(0.2))
        assert time.monotonic() - start < PATIENCE


def test_many_silent_strangers_do_not_keep_a_rank_out(listener: Listener) -> None:
    strangers = [connect(listener) for _ in range(200)]
    try:
        assert enters(listener)
        assert enters(listener, rank=2)
    finally:
        for stranger in strangers:
            stranger.close()


def hello_of(credentials: Credentials, nonce: bytes, rank: int, peer: int) -> bytes:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(nonce)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(HandshakeRefused):
            introduce(credentials, MEETING, rank, peer, ours, Deadline(PATIENCE))
        return theirs.recv(HELLO_BYTES, socket.MSG_WAITALL)


@given(st.integers(0, HELLO_BYTES - 1), st.integers(1, 255))
def test_no_byte_of_a_hello_may_change(position: int, difference: int) -> None:
    nonce = b"n" * NONCE_BYTES
    hello = bytearray(hello_of(CREDENTIALS, nonce, 2, 0))
    assert check_hello(CREDENTIALS, MEETING, 0, 4, nonce, bytes(hello))[0] == 2
    hello[position] ^= difference
    with pytest.raises(HandshakeRefused):
        check_hello(CREDENTIALS, MEETING, 0, 4, nonce, bytes(hello))


@given(st.binary(max_size=2 * HELLO_BYTES))
def test_random_hellos_are_refused(hello: bytes) -> None:
    with pytest.raises(HandshakeRefused):
        check_hello(CREDENTIALS, MEETING, 0, 4, b"n" * NONCE_BYTES, hello)
