"""Two processes prove to each other that they are ranks of one job, before any other byte is taken.

Vocabulary: the *connector* opens the stream, the *listener* accepted it. All messages have a fixed length, so nothing a
stranger sends can make a rank read or allocate more.

1. listener  -> connector: its nonce, 32 random bytes, fresh for each connection
2. connector -> listener: magic, digest of the group's name, both ranks, its nonce, HMAC-SHA256 labelled "connector"
3. listener  -> connector: HMAC-SHA256 labelled "listener"

Both MACs cover the magic, the group's digest, both ranks, the meeting's digest (everything that all ranks published, so
that streams of an earlier start under the same name are refused) and both nonces. The listener's nonce makes replays
useless, the labels make a reflected MAC useless, and who knows no token learns nothing but random bytes. MACs are
compared in constant time. Handshakes are those of version 1; another version has another magic.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
from dataclasses import dataclass

from lowerkit.runtimes.collective.rendezvous.deadline import Deadline

MAGIC = b"LKGROUP1"
NONCE_BYTES = 32
MAC_BYTES = 32
_HEAD = struct.Struct(f"<8s32sII{NONCE_BYTES}s")
HELLO_BYTES = _HEAD.size + MAC_BYTES


class HandshakeRefused(Exception):
    """The other side is no rank of this job, or not the one expected."""


@dataclass(frozen=True)
class Credentials:
    """What a rank proves itself with: the job token and the group's name.

    Attributes:
        token: the secret of the job.
        group: the group's name.
    """

    token: bytes
    group: str

    @property
    def group_digest(self) -> bytes:
        """SHA-256 of the group's name, 32 bytes."""
        return hashlib.sha256(self.group.encode()).digest()

    def mac(self, label: bytes, head: bytes, meeting: bytes, listener_nonce: bytes) -> bytes:
        """Returns HMAC-SHA256 over the label and what both sides said; every part has a fixed length."""
        assert [len(head), len(meeting), len(listener_nonce)] == [_HEAD.size, 32, NONCE_BYTES]
        return hmac.digest(self.token, label.ljust(16, b"\0") + head + meeting + listener_nonce, "sha256")


def new_nonce() -> bytes:
    """Returns 32 random bytes."""
    return secrets.token_bytes(NONCE_BYTES)


def check_hello(
    credentials: Credentials, meeting: bytes, rank: int, size: int, nonce: bytes, hello: bytes
) -> tuple[int, bytes]:
    """Checks message 2, as the listener.

    Args:
        credentials: of this rank.
        meeting: digest of what all ranks published, 32 bytes.
        rank: this rank.
        size: ranks of the group; connectors have higher ranks than listeners.
        nonce: the one sent in message 1 of this connection.
        hello: message 2, ``HELLO_BYTES`` bytes.

    Returns:
        The connector's rank and message 3.

    Raises:
        HandshakeRefused: the message is not from a rank of this job that wants this one.
    """
    if len(hello) != HELLO_BYTES or hello[: len(MAGIC)] != MAGIC:
        raise HandshakeRefused("these are not bytes of this protocol")
    head, mac = hello[: _HEAD.size], hello[_HEAD.size :]
    if not hmac.compare_digest(mac, credentials.mac(b"connector", head, meeting, nonce)):
        raise HandshakeRefused("wrong job token, group, or start of the job; or a replay")
    _, group, connector, listener, _ = _HEAD.unpack(head)
    if group != credentials.group_digest or listener != rank or not rank < connector < size:
        raise HandshakeRefused(f"rank {connector} wants rank {listener} of a group; this is rank {rank} of {size}")
    return connector, credentials.mac(b"listener", head, meeting, nonce)


def introduce(
    credentials: Credentials, meeting: bytes, rank: int, peer: int, stream: socket.socket, deadline: Deadline
) -> None:
    """Carries the handshake out, as the connector, over a connected stream.

    Raises:
        HandshakeRefused: the listener closed the stream or does not know the token.
        OSError: the stream broke or the deadline passed (TimeoutError).
    """
    nonce = receive_exactly(stream, NONCE_BYTES, deadline)
    head = _HEAD.pack(MAGIC, credentials.group_digest, rank, peer, new_nonce())
    stream.sendall(head + credentials.mac(b"connector", head, meeting, nonce))
    answer = receive_exactly(stream, MAC_BYTES, deadline)
    if not hmac.compare_digest(answer, credentials.mac(b"listener", head, meeting, nonce)):
        raise HandshakeRefused(f"who listens in place of rank {peer} does not know the job token")


def receive_exactly(stream: socket.socket, count: int, deadline: Deadline) -> bytes:
    """Returns ``count`` bytes and takes none beyond them.

    Raises:
        HandshakeRefused: the stream ended before.
        OSError: it broke, or the deadline passed (TimeoutError).
    """
    received = bytearray()
    while len(received) < count:
        stream.settimeout(max(deadline.remaining(), 0.001))
        piece = stream.recv(count - len(received))
        if not piece:
            raise HandshakeRefused("the other side closed the stream")
        received += piece
    return bytes(received)
