"""What strangers do at the sockets of ranks that wait: see strangers.py."""

from __future__ import annotations

import collections
import contextlib
import socket
import struct
from collections.abc import Callable

import numpy as np

from lowerkit.runtimes.collective.rendezvous.address_exchange import RankAddress
from lowerkit.runtimes.collective.rendezvous.authentication import (
    HELLO_BYTES,
    MAC_BYTES,
    NONCE_BYTES,
    Credentials,
    receive_exactly,
)
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from untrusted.handshakes import FOREIGN, TOKEN, hello
from untrusted.mutations import mutate

_MOST_SILENT = 200


class Strangers:
    """Connections to the listeners of one meeting, by case number.

    Attributes:
        outcomes: how often what was seen.
        failures: what must not happen.
    """

    def __init__(self, name: str, lines: dict[int, RankAddress], meeting: bytes, recorded: list[bytes]) -> None:
        self.credentials = Credentials(TOKEN, name)
        self.lines = lines
        self.meeting = meeting
        self.recorded = recorded
        self.silent: list[socket.socket] = []
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []

    def visit(self, seed: int, number: int) -> None:
        """Comes as stranger ``number``."""
        rng = np.random.default_rng([seed, number])
        target = int(rng.integers(2))
        kind = _KINDS[int(rng.integers(len(_KINDS)))]
        stream = self._connect(target, unix=bool(rng.integers(2)))
        stream.settimeout(20.0)
        try:
            kept = kind(self, rng, target, stream)
        except (OSError, HandshakeEnded) as error:
            self.outcomes[f"{kind.__name__}: {type(error).__name__}"] += 1
            stream.close()
            return
        if kept:
            self.silent.append(stream)
            if len(self.silent) > _MOST_SILENT:
                self.silent.pop(0).close()
        else:
            stream.close()

    def close(self) -> None:
        for stream in self.silent:
            stream.close()

    def _connect(self, target: int, *, unix: bool) -> socket.socket:
        line = self.lines[target]
        stream = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        stream.connect("\0" + line.unix_name if unix else (line.address, line.port))
        return stream

    def expect_refusal(self, what: str, stream: socket.socket) -> None:
        """The listener must hang up and must not have answered: only who knows the token gets the second MAC."""
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while piece := stream.recv(4096):
                got += piece
        except ConnectionResetError:
            pass
        except TimeoutError:
            self.failures.append(f"{what}: the listener did not hang up")
        if len(got) > NONCE_BYTES:
            self.failures.append(f"{what}: the listener answered {got[NONCE_BYTES:].hex()}")
        self.outcomes[what + ": refused"] += 1


class HandshakeEnded(Exception):
    """The listener hung up early: it had too many connections."""


def _nonce(stream: socket.socket) -> bytes:
    try:
        return receive_exactly(stream, NONCE_BYTES, Deadline(20.0))
    except Exception as error:
        raise HandshakeEnded from error


def _sound(self: Strangers, rng: np.random.Generator, target: int, nonce: bytes) -> bytes:
    return hello(self.credentials, self.meeting, target + 1, target, nonce, rng.bytes(NONCE_BYTES))


def scanner(self: Strangers, rng: np.random.Generator, _target: int, stream: socket.socket) -> bool:
    stream.sendall(FOREIGN[int(rng.integers(len(FOREIGN)))])
    self.expect_refusal("scanner", stream)
    return False


def noise(self: Strangers, rng: np.random.Generator, _target: int, stream: socket.socket) -> bool:
    stream.sendall(rng.bytes(int(rng.integers(1, 3 * HELLO_BYTES))))
    self.expect_refusal("noise", stream)
    return False


def damaged(self: Strangers, rng: np.random.Generator, target: int, stream: socket.socket) -> bool:
    sound = _sound(self, rng, target, _nonce(stream))
    changed = mutate(rng, sound, self.recorded or [sound])
    if changed[:HELLO_BYTES] == sound:
        changed = bytes([changed[0] ^ 1]) + changed[1:]
    stream.sendall(changed)
    self.expect_refusal("damaged", stream)
    return False


def replayed(self: Strangers, rng: np.random.Generator, target: int, stream: socket.socket) -> bool:
    nonce = _nonce(stream)
    if not self.recorded or rng.random() < 0.1:
        self.recorded.append(_sound(self, rng, target, nonce))
        return False
    stream.sendall(self.recorded[int(rng.integers(len(self.recorded)))])
    self.expect_refusal("replayed", stream)
    return False


def foreign_credentials(self: Strangers, rng: np.random.Generator, target: int, stream: socket.socket) -> bool:
    nonce, own = _nonce(stream), rng.bytes(NONCE_BYTES)
    group = self.credentials.group
    stream.sendall(
        [
            lambda: hello(Credentials(rng.bytes(32), group), self.meeting, 2, target, nonce, own),
            lambda: hello(Credentials(TOKEN, group + "x"), self.meeting, 2, target, nonce, own),
            lambda: hello(self.credentials, rng.bytes(32), 2, target, nonce, own),
            lambda: hello(self.credentials, self.meeting, target, target, nonce, own),
            lambda: hello(self.credentials, self.meeting, 3, target, nonce, own),
            lambda: hello(self.credentials, self.meeting, 2, 1 - target, nonce, own),
        ][int(rng.integers(6))]()
    )
    self.expect_refusal("foreign credentials", stream)
    return False


def reflected(self: Strangers, rng: np.random.Generator, target: int, stream: socket.socket) -> bool:
    nonce = _nonce(stream)
    stream.sendall((nonce + rng.bytes(4 * MAC_BYTES))[:HELLO_BYTES].ljust(HELLO_BYTES, b"\0"))
    self.expect_refusal("reflected", stream)
    return False


def reset(self: Strangers, rng: np.random.Generator, _target: int, stream: socket.socket) -> bool:
    stream.sendall(rng.bytes(int(rng.integers(0, HELLO_BYTES))))
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    self.outcomes["reset"] += 1
    return False


def silent(self: Strangers, rng: np.random.Generator, target: int, stream: socket.socket) -> bool:
    """Stays, having said nothing or a part."""
    if rng.random() < 0.5:
        stream.sendall(_sound(self, rng, target, _nonce(stream))[: int(rng.integers(1, HELLO_BYTES))])
    self.outcomes["silent"] += 1
    return True


def drops(self: Strangers, rng: np.random.Generator, _target: int, stream: socket.socket) -> bool:
    """Byte by byte; what it says is wrong."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) if stream.family == socket.AF_INET else None
    for byte in rng.bytes(HELLO_BYTES):
        stream.send(bytes([byte]))
    self.expect_refusal("drops", stream)
    return False


_KINDS: tuple[Callable[[Strangers, np.random.Generator, int, socket.socket], bool], ...] = (
    scanner, noise, damaged, damaged, replayed, foreign_credentials, reflected, reset, silent, drops,
)  # fmt: skip
