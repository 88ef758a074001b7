"""Takes the streams of higher ranks: accepts, authenticates, and refuses everybody else without being held up.

One thread serves any number of strangers. Each connection gets its nonce at once and has a few seconds for its hello of
fixed length; what is wrong is closed and logged, and the listener goes on. When too many connections are pending the
oldest is dropped: ranks finish in milliseconds, strangers do not.
"""

from __future__ import annotations

import errno
import logging
import secrets
import selectors
import socket
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field

from lowerkit.errors import ResourceError
from lowerkit.runtimes.collective.failures import not_formed
from lowerkit.runtimes.collective.rendezvous.authentication import (
    HELLO_BYTES,
    Credentials,
    HandshakeRefused,
    check_hello,
    new_nonce,
)
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.host import family_of
from lowerkit.runtimes.mapping.address_space import limit_lines

logger = logging.getLogger("lowerkit.collective")

_PATIENCE = 5.0
_SPARE_PENDING = 64
_REFUSALS_LOGGED = 50
_ACCEPT_PAUSE = 0.05
_OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@dataclass(eq=False)
class _Pending:
    stream: socket.socket
    peer: str
    nonce: bytes = field(default_factory=new_nonce)
    hello: bytes = b""
    deadline: Deadline = field(default_factory=lambda: Deadline(_PATIENCE))


class Listener:
    """Listens for the higher ranks of one group, by an abstract Unix socket and by TCP on one address.

    Attributes:
        unix_name: the abstract socket's name, without the leading zero byte.
        address: the IPv4 or IPv6 address listened on.
        port: the TCP port, chosen by the kernel.
        problem: why connections wait to be accepted, "" where none had to.

    Raises:
        CollectiveFault: LK8007, the address cannot be listened on.
    """

    def __init__(self, rank: int, size: int, address: str) -> None:
        self._rank = rank
        self._size = size
        self._accepted: dict[int, socket.socket] = {}
        self._changed = threading.Condition()
        self._credentials: Credentials | None = None
        self._meeting = b""
        self._refusals = 0
        self._pause: Deadline | None = None  # until connections are accepted again
        self._thread: threading.Thread | None = None
        self.problem = ""
        self.unix_name = f"lowerkit-{secrets.token_hex(16)}"
        self.address = address
        self._servers: list[socket.socket] = []
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()  # not in the thread, which nobody hears
        try:
            self._listen(socket.AF_UNIX, "\0" + self.unix_name)
            self._listen(family_of(address), (address, 0))
        except OSError as error:
            self.close()
            raise not_formed(f"rank {rank} cannot listen on {address}: {error.strerror}") from error
        self.port = int(self._servers[1].getsockname()[1])

    def serve(self, credentials: Credentials, meeting: bytes) -> None:
        """Starts to take streams; called again with another meeting, drops those of the earlier one."""
        with self._changed:
            if meeting == self._meeting:
                return
            self._credentials, self._meeting = credentials, meeting
            self._drop_accepted()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"lowerkit-listener-{self._rank}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system gives no more threads, or there is no room for a stack
                reason = f"rank {self._rank} cannot listen: {error}"
                raise ResourceError("LK7002", reason, details=limit_lines()) from error
            self._thread = thread

    def wait(self, timeout: float) -> bool:
        """Tells whether all higher ranks are connected within ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._accepted) == self._size - 1 - self._rank, timeout)

    def missing(self) -> list[int]:
        """Returns the higher ranks that are not connected."""
        with self._changed:
            return [rank for rank in range(self._rank + 1, self._size) if rank not in self._accepted]

    def take(self) -> dict[int, socket.socket]:
        """Returns the streams by rank; they are the caller's from now on."""
        with self._changed:
            taken, self._accepted = self._accepted, {}
            return taken

    def close(self) -> None:
        """Stops listening and closes what was not taken."""
        self._waker.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._wake.close()
        self._selector.close()
        for server in self._servers:
            server.close()
        with self._changed:
            self._drop_accepted()
        if self._refusals > _REFUSALS_LOGGED:
            logger.warning("rank %d refused %d connections in all", self._rank, self._refusals)

    def close_in_child(self) -> None:
        """Closes the descriptors in a child of fork(), which has no thread of this listener."""
        for one in (*self._servers, self._wake, self._waker, self._selector, *self._accepted.values()):
            one.close()

    def _listen(self, family: socket.AddressFamily, address: str | tuple[str, int]) -> None:
        server = socket.socket(family, socket.SOCK_STREAM)
        self._servers.append(server)
        server.setblocking(False)
        server.bind(address)
        server.listen(self._size + _SPARE_PENDING)

    def _drop_accepted(self) -> None:
        for stream in self._accepted.values():
            stream.close()
        self._accepted.clear()

    def _run(self) -> None:
        pending: OrderedDict[int, _Pending] = OrderedDict()
        for server in (*self._servers, self._wake):
            self._selector.register(server, selectors.EVENT_READ)
        try:
            while self._turn(self._selector, pending):
                pass
        finally:
            for one in pending.values():
                one.stream.close()

    def _turn(self, selector: selectors.BaseSelector, pending: OrderedDict[int, _Pending]) -> bool:
        """Serves what is ready; tells whether to go on."""
        oldest = next(iter(pending.values()), None)
        waits = [deadline.remaining() for deadline in (oldest and oldest.deadline, self._pause) if deadline]
        events = selector.select(min(waits, default=None))
        if self._pause is not None and self._pause.expired():
            self._pause = None
            for server in self._servers:
                selector.register(server, selectors.EVENT_READ)
        for key, _ in events:
            if key.fileobj is self._wake:
                return False
            if key.fileobj in self._servers:
                assert isinstance(key.fileobj, socket.socket)
                self._accept(key.fileobj, selector, pending)
            elif key.fd in pending:
                self._advance(key.fd, selector, pending)
        while pending and next(iter(pending.values())).deadline.expired():
            self._refuse(next(iter(pending)), "no hello in time", selector, pending)
        return True

    def _accept(
        self, server: socket.socket, selector: selectors.BaseSelector, pending: OrderedDict[int, _Pending]
    ) -> None:
        try:
            stream, address = server.accept()
        except OSError as error:
            if error.errno in _OUT_OF_DESCRIPTORS:
                self._stop_accepting(str(error.strerror), selector)
            return  # else: gone again
        one = _Pending(stream, "a Unix socket" if server.family == socket.AF_UNIX else str(address[0]))
        pending[stream.fileno()] = one
        try:
            stream.setblocking(False)
            selector.register(stream, selectors.EVENT_READ)
            stream.send(one.nonce)
        except OSError as error:
            self._refuse(stream.fileno(), str(error), selector, pending)
        if len(pending) > self._size + _SPARE_PENDING:
            self._refuse(next(iter(pending)), "too many connections are pending", selector, pending)

    def _stop_accepting(self, problem: str, selector: selectors.BaseSelector) -> None:
        """Leaves connections in the backlog for a moment: they would be reported as ready again and again."""
        if not self.problem:
            logger.warning("rank %d cannot accept connections now: %s", self._rank, problem)
        self.problem = problem
        if self._pause is None:
            self._pause = Deadline(_ACCEPT_PAUSE)
            for server in self._servers:
                selector.unregister(server)

    def _advance(self, descriptor: int, selector: selectors.BaseSelector, pending: OrderedDict[int, _Pending]) -> None:
        one = pending[descriptor]
        try:
            piece = one.stream.recv(HELLO_BYTES - len(one.hello))
        except BlockingIOError:
            return None
        except OSError as error:
            return self._refuse(descriptor, str(error), selector, pending)
        one.hello += piece
        if not piece:
            return self._refuse(descriptor, "closed before its hello was complete", selector, pending)
        if len(one.hello) < HELLO_BYTES:
            return None
        with self._changed:
            credentials, meeting = self._credentials, self._meeting
        assert credentials is not None
        try:
            rank, answer = check_hello(credentials, meeting, self._rank, self._size, one.nonce, one.hello)
            with self._changed:
                if meeting != self._meeting:
                    raise HandshakeRefused("a rank was started anew meanwhile")
                one.stream.send(answer)
                earlier = self._accepted.pop(rank, None)
                if earlier is not None:  # its connector gave up on that one
                    earlier.close()
                self._accepted[rank] = one.stream
                self._changed.notify_all()
        except (HandshakeRefused, OSError) as error:
            return self._refuse(descriptor, str(error), selector, pending)
        selector.unregister(one.stream)
        del pending[descriptor]
        return None

    def _refuse(
        self, descriptor: int, reason: str, selector: selectors.BaseSelector, pending: OrderedDict[int, _Pending]
    ) -> None:
        one = pending.pop(descriptor)
        with suppress(KeyError, ValueError):
            selector.unregister(one.stream)
        self._refusals += 1
        if self._refusals <= _REFUSALS_LOGGED:
            logger.warning("rank %d refused a connection from %s: %s", self._rank, one.peer, reason)
        one.stream.close()
