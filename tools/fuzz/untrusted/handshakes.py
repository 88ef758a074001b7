"""What ranks read from others before they know them, and from the store: a target of files.py.

A handshake's case is a letter that says what is read, and its bytes. Nothing but the sound bytes may be taken: where a
listener or a connector accepts others, the case fails.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective import shrink
from lowerkit.runtimes.collective.rendezvous import address_exchange, authentication, job_token, shared_memory
from lowerkit.runtimes.collective.rendezvous.authentication import MAC_BYTES, NONCE_BYTES, Credentials, HandshakeRefused
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.host import family_of, is_loopback
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from untrusted.mutations import mutate, mutate_document

TOKEN, MEETING, NONCE, SIZE = b"t" * 32, b"m" * 32, b"n" * NONCE_BYTES, 4
CREDENTIALS = Credentials(TOKEN, "world")
MEMORY_BYTES = 4096


class Wire:
    """A stream to a peer that sends given bytes, in pieces of any length, and takes everything."""

    def __init__(self, given: bytes, piece: int) -> None:
        self.given = given
        self.piece = piece
        self.taken = b""

    def settimeout(self, _seconds: float) -> None: ...

    def sendall(self, data: bytes) -> None:
        self.taken += data

    def recv(self, count: int) -> bytes:
        count = min(count, self.piece)
        found, self.given = self.given[:count], self.given[count:]
        return found


def hello(credentials: Credentials, meeting: bytes, rank: int, peer: int, nonce: bytes, own: bytes) -> bytes:
    """Returns message 2 as a rank sends it that draws the nonce ``own``."""
    wire = Wire(nonce, 1 << 20)
    with mock.patch.object(authentication, "new_nonce", return_value=own):
        try:
            authentication.introduce(credentials, meeting, rank, peer, wire, Deadline(60.0))  # type: ignore[arg-type]
        except HandshakeRefused:
            return wire.taken
    raise AssertionError("no answer came, and it was taken")


SOUND = {rank: hello(CREDENTIALS, MEETING, rank, 0, NONCE, bytes([rank]) * NONCE_BYTES) for rank in (1, 2, 3)}
_OTHERS = (
    hello(CREDENTIALS, MEETING, 1, 0, b"o" * NONCE_BYTES, NONCE),  # a replay: of another connection
    hello(CREDENTIALS, b"x" * 32, 1, 0, NONCE, NONCE),  # of an earlier start
    hello(Credentials(b"u" * 32, "world"), MEETING, 1, 0, NONCE, NONCE),
    hello(Credentials(TOKEN, "other"), MEETING, 1, 0, NONCE, NONCE),
    hello(CREDENTIALS, MEETING, 2, 1, NONCE, NONCE),
)
FOREIGN = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: scanner\r\n\r\n",
    bytes.fromhex("16030100c8010000c403036a") + b"\x5a" * 190,  # a TLS hello
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\x00" * 300,
    b"\xff" * 70_000,
    b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",  # a pickle
    b"*1\r\n$4\r\nPING\r\n",
)


def handshakes() -> list[bytes]:
    line = address_exchange.RankAddress(
        SIZE, "boot/1:2", "lowerkit-0123456789abcdef", "127.0.0.1", 4711, "ab" * 16, True
    )
    sixth = address_exchange.RankAddress(
        SIZE, "boot/1:2", "lowerkit-0123456789abcdef", "fe80::1", 65535, "ab" * 16, False
    )
    answer = NONCE + bytes(MAC_BYTES)
    message = shared_memory._MESSAGE  # pyright: ignore[reportPrivateUsage]
    memories = [bytes([count]) + message.pack(b"LKMEMORY", MEMORY_BYTES) for count in (0, 1, 2)]
    memories.append(b"\0" + message.pack(b"LKNOROOM", MEMORY_BYTES))
    return [
        *(b"h" + one for one in (*SOUND.values(), *_OTHERS, *FOREIGN)),
        *(b"a" + bytes([piece]) + answer for piece in (1, 5, 64)),
        *(b"a\x40" + one for one in FOREIGN),
        *(b"p" + one.to_bytes() for one in (line, sixth)),
        *(b"p" + one for one in FOREIGN),
        b"r[0, 1, 2]", b"r[]", b"r" + b"[" * 60, b"m[0, 2]", b"m[0, 1, 2, 3]", b"m{}",
        b"t" + job_token.draw_token().encode(), b"t" + TOKEN, b"t" * 16, b"t" * 2000,
        *(b"s" + one for one in memories),
    ]  # fmt: skip


def mutated_handshake(rng: np.random.Generator, corpus: list[bytes]) -> bytes:
    chosen = corpus[int(rng.integers(len(corpus)))]
    if chosen[:1] == b"p" and rng.random() < 0.7 and chosen[1:2] == b"{":
        return b"p" + mutate_document(rng, chosen[1:])
    kind, others = chosen[:1], [one[1:] for one in corpus]
    return kind + mutate(rng, chosen[1:], others)


def take_handshake(path: Path) -> str:
    data = path.read_bytes()
    return _READERS[data[:1]](data[1:])


def _take_hello(data: bytes) -> str:
    try:
        rank, _ = authentication.check_hello(CREDENTIALS, MEETING, 0, SIZE, NONCE, data)
    except HandshakeRefused:
        return "hello refused"
    if SOUND.get(rank) != data:
        raise AssertionError(f"a hello was taken for that of rank {rank}")
    return "hello taken"


def _take_answer(data: bytes) -> str:
    """The connector; bytes behind the nonce change the MAC that an honest listener would send."""
    if not data:
        return "nothing"
    sound = data[1:] == NONCE + bytes(MAC_BYTES)
    own = b"c" * NONCE_BYTES
    head = hello(CREDENTIALS, MEETING, 1, 0, NONCE, own)[:-MAC_BYTES]
    mac = CREDENTIALS.mac(b"listener", head, MEETING, NONCE)
    mask = data[1 + NONCE_BYTES :]
    changed = bytes(a ^ b for a, b in zip(mac, mask, strict=False)) + mask[MAC_BYTES:]
    wire = Wire(data[1 : 1 + NONCE_BYTES] + changed, data[0] or 1)
    with mock.patch.object(authentication, "new_nonce", return_value=own):
        try:
            authentication.introduce(CREDENTIALS, MEETING, 1, 0, wire, Deadline(60.0))  # type: ignore[arg-type]
        except HandshakeRefused:
            return "answer refused"
    # What follows the answer is the next layer's.
    if not sound and data[1:][: NONCE_BYTES + MAC_BYTES] != NONCE + bytes(MAC_BYTES):
        raise AssertionError("a listener was taken for one that knows the token")
    return "answer taken"


def _take_line(data: bytes) -> str:
    line = address_exchange.RankAddress.from_bytes(1, data)
    # What a rendezvous does with it must not fail.
    ipaddress.ip_address(line.address)
    is_loopback(line.address)
    with socket.socket(family_of(line.address), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((line.address, line.port))
        except OSError:  # no such network here
            return "line taken"
    if len(("\0" + line.unix_name).encode()) > 107:
        raise AssertionError("a name that no socket has")
    address_exchange.digest({1: line})
    address_exchange.check_agreement("world", 0, line.size, {1: line})
    return "line taken"


def _take_report(data: bytes) -> str:
    ranks = address_exchange.ranks_from_bytes("a report", data, SIZE)
    return f"report of {len(ranks)}"


def _take_members(data: bytes) -> str:
    store = MemoryStore()
    store.set("p/members", data)
    ranks = shrink.agree_on_survivors(store, "p", 0, SIZE, {1, 2, 3}, 0.0)
    if 0 not in ranks or ranks != sorted(set(ranks)):
        raise AssertionError(f"members {ranks}")
    return "members taken"


def _take_token(data: bytes) -> str:
    store = MemoryStore()
    store.set("lowerkit/world/token", data)
    for rank in (0, 1):
        token = job_token.shared_token(store, "world", rank, 0.0)
        # An empty value is none: rank 0 draws one.
        if not 16 <= len(token) <= 1024 or (data and token != data):
            raise AssertionError(f"{len(token)} bytes were taken for a token")
    with mock.patch.dict(os.environ, {job_token.ENVIRONMENT_VARIABLE: os.fsdecode(data.replace(b"\0", b"")) or "x"}):
        job_token.given_token(None)
    return "token taken"


_memory: list[int] = []


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _take_memory(data: bytes) -> str:
    """Memory that a rank passes on: so many descriptors, and a message."""
    if not _memory:
        _memory.append(shared_memory.create_memory("sound", MEMORY_BYTES))
        _memory.append(os.memfd_create("unsealed"))
    count, message = (data[0] % 4, data[1:65]) if data else (0, b"")
    ours, theirs = socket.socketpair()
    before = _descriptors()
    try:
        if message:
            given = [_memory[0 if data[0] < 128 else 1]] * count
            socket.send_fds(theirs, [message], given)
        theirs.shutdown(socket.SHUT_WR)
        try:
            got = shared_memory.receive_memory(ours, MEMORY_BYTES, Deadline(1.0), 0)
        except (LowerkitError, OSError) as error:
            if _descriptors() != before:
                raise AssertionError("a descriptor was left over") from error
            raise
        if os.fstat(got).st_size != MEMORY_BYTES:
            raise AssertionError("other memory was taken")
        os.close(got)
    finally:
        ours.close()
        theirs.close()
    return "memory taken"


_READERS: dict[bytes, Callable[[bytes], str]] = {
    b"h": _take_hello,
    b"a": _take_answer,
    b"p": _take_line,
    b"r": _take_report,
    b"m": _take_members,
    b"t": _take_token,
    b"s": _take_memory,
}
