"""Makes the connections of one group: who is there, who shares memory with whom, one stream for each pair.

1. Every rank listens and publishes where (``address_exchange.py``); it reads what the others published.
2. Rank r connects to each lower rank s, by Unix socket if both run on one host, else by TCP, and they authenticate
   (``authentication.py``). A Unix socket that may not be used (a sandbox) gives way to TCP, and says so.
3. Every rank tells every other, over their stream, which of its streams are Unix streams. Ranks of one host are *local*
   if all pairs have one.
4. The lowest local rank makes the segment and passes it to the others (``shared_memory.py``).

Everything runs under one deadline, and nothing is left behind by a failure: streams, listeners and descriptors are
closed and the line in the store is deleted, as is the token that rank 0 published once all have used it. A child that
is forked meanwhile keeps none of the descriptors.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Sequence

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.failures import no_memory, not_formed, refused, usage
from lowerkit.runtimes.collective.rendezvous.address_exchange import RankAddress, check_agreement, digest
from lowerkit.runtimes.collective.rendezvous.authentication import Credentials, HandshakeRefused, introduce
from lowerkit.runtimes.collective.rendezvous.connections import Connections, RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline
from lowerkit.runtimes.collective.rendezvous.host import family_of, host_identity, is_loopback, listening_address
from lowerkit.runtimes.collective.rendezvous.job_token import forget_token, shared_token
from lowerkit.runtimes.collective.rendezvous.listener import Listener
from lowerkit.runtimes.collective.rendezvous.peer_process import process_of
from lowerkit.runtimes.collective.rendezvous.shared_memory import receive_memory, share_memory
from lowerkit.runtimes.collective.rendezvous.store import Store
from lowerkit.runtimes.collective.rendezvous.unix_streams import exchange_unix_streams

logger = logging.getLogger("lowerkit.collective")

_REREAD_SECONDS = 1.0
_HANDSHAKE_SECONDS = 5.0
_RETRY_SECONDS = 0.02
_DISAGREEMENT_SECONDS = 2.0
_LOOK_SECONDS = 0.1
# A refusal may come from a rank that has read the line of a dead one and will read again: longer than that.
_REFUSED_SECONDS = 2.5
_REFUSED_PAUSE = 0.25
_MOST_NAME_BYTES = 255


def meet(
    store: Store, name: str, rank: int, size: int, options: RendezvousOptions, memory_bytes: Callable[[int], int]
) -> Connections:
    """Connects the ranks of a group.

    Args:
        store: reached by all ranks; ``name`` is unique in it, or used by one meeting after another.
        name: the group's name, at most 255 bytes of UTF-8.
        rank: this rank, from 0.
        size: number of ranks.
        options: see there.
        memory_bytes: from the number of local ranks (at least 2) to the bytes that they share.

    Raises:
        UsageError: LK1010, an argument is out of range or there is no such interface.
        CollectiveFault: LK8007 ranks did not come (they are named) or do not fit together; LK8012 another token.
        ResourceError: LK7004, shared memory or descriptors ran out.
    """
    if not 0 <= rank < size:
        raise usage(f"rank is {rank}, expected 0 to {size - 1}")
    if not 0 < len(name.encode()) <= _MOST_NAME_BYTES:
        raise usage(f"the name of a group has 1 to {_MOST_NAME_BYTES} bytes, not {len(name.encode())}")
    if size == 1:
        return Connections(options.token or b"", secrets.token_hex(16), [0])
    try:
        return _Rendezvous(store, name, rank, size, options).run(memory_bytes)
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            raise
        raise no_memory(
            f"group {name!r}, rank {rank}: {error.strerror}", hint="ulimit -n says how many descriptors a process has"
        ) from error


class _Rendezvous:
    def __init__(self, store: Store, name: str, rank: int, size: int, options: RendezvousOptions) -> None:
        self._store = store
        self._name = name
        self._rank = rank
        self._size = size
        self._options = options
        self._deadline = Deadline(options.timeout)
        self._listener = Listener(rank, size, listening_address(options.interface))
        self._streams: dict[int, socket.socket] = {}
        self._refused: dict[int, Deadline] = {}
        self._pauses: dict[int, Deadline] = {}
        self._problem = ""  # that this rank had with its own descriptors
        _running.add(self)

    def close_in_child(self) -> None:
        """Closes what a child of fork() has no use for; the thread of the listener is not there."""
        self._listener.close_in_child()
        for stream in self._streams.values():
            stream.close()

    def run(self, memory_bytes: Callable[[int], int]) -> Connections:
        key = self._key(self._rank)
        try:
            self._store.set(key, self._own_line().to_bytes())
            token = self._connect()
            connections = Connections(token, self._meeting.hex(), self._agree_on_local_ranks(), -1, self._streams)
            try:
                for peer, stream in self._streams.items():
                    if stream.family == socket.AF_UNIX and (process := process_of(stream)) >= 0:
                        connections.processes[peer] = process
                try:
                    self._share_memory(connections, memory_bytes)
                except OSError as error:
                    raise not_formed(f"{self}: shared memory could not be passed: {error}") from error
            except BaseException:
                connections.close()
                raise
        except BaseException:
            for stream in self._streams.values():
                stream.close()
            raise
        finally:
            self._listener.close()
            self._store.delete(key)
        for stream in connections.streams.values():
            stream.settimeout(None)
            if stream.family != socket.AF_UNIX:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connections

    def __str__(self) -> str:
        return f"group {self._name!r}, rank {self._rank}"

    def _key(self, rank: int) -> str:
        return f"lowerkit/{self._name}/{rank}"

    def _own_line(self) -> RankAddress:
        listener = self._listener
        alone = "" if self._options.shared_memory else f"#{self._rank}"
        nonce = secrets.token_hex(16)
        given = self._options.token is not None
        host = host_identity() + alone
        return RankAddress(self._size, host, listener.unix_name, listener.address, listener.port, nonce, given)

    def _read_lines(self, wait: bool) -> dict[int, RankAddress]:
        lines: dict[int, RankAddress] = {}
        missing = list(range(self._size))
        while missing:
            # Waits for one and looks for all: another may come and give up while that one is waited for.
            for rank in list(missing):
                pause = min(_LOOK_SECONDS, self._deadline.remaining()) if wait and rank == missing[0] else 0.0
                try:
                    lines[rank] = RankAddress.from_bytes(rank, self._store.get(self._key(rank), pause))
                    missing.remove(rank)
                except TimeoutError:
                    continue
            if not wait or self._deadline.expired():
                break
        if missing:
            raise self._did_not_come(missing, "published no address" if wait else "gave up before all were there")
        try:
            check_agreement(self._name, self._rank, self._size, lines)
        except LowerkitError:
            # With this line the others find the same; without it they would wait for this rank.
            time.sleep(min(_DISAGREEMENT_SECONDS, self._deadline.remaining()))
            raise
        return lines

    def _did_not_come(self, ranks: Sequence[int], what: str, hint: str | None = None) -> LowerkitError:
        names = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
        problem = self._problem or self._listener.problem
        own = f"; rank {self._rank} itself could not take all connections: {problem}" if problem else ""
        return not_formed(
            f"{self}: {names} did not come within {self._deadline.timeout:.3g} s: {what}{own}",
            hint=hint or "see the output of those ranks; were they started, with the same store and size?",
        )

    def _connect(self) -> bytes:
        """Connects to all lower ranks and waits for all higher ones; returns the token."""
        self._lines = self._read_lines(wait=True)
        credentials = self._credentials()
        self._meeting = digest(self._lines)
        self._listener.serve(credentials, self._meeting)
        reread = Deadline(_REREAD_SECONDS)
        while True:
            for peer in range(self._rank):
                if peer not in self._streams and (peer not in self._pauses or self._pauses[peer].expired()):
                    self._try_connect(credentials, peer)
            complete = len(self._streams) == self._rank
            if (
                self._listener.wait(_RETRY_SECONDS if not complete else min(0.2, self._deadline.remaining()))
                and complete
            ):
                break
            if self._deadline.expired():
                missing = [peer for peer in range(self._rank) if peer not in self._streams] + self._listener.missing()
                raise self._did_not_come(missing, "published an address, and no stream came about")
            if not complete:
                time.sleep(_RETRY_SECONDS)
            if reread.expired():
                reread = Deadline(_REREAD_SECONDS)
                credentials = self._start_again_if_changed(credentials)
        self._streams.update(self._listener.take())
        if self._rank == 0 and self._options.token is None:
            forget_token(self._store, self._name)  # every rank has proved by now that it knows it
        return credentials.token

    def _credentials(self) -> Credentials:
        token = self._options.token
        if token is None:
            token = shared_token(self._store, self._name, self._rank, self._deadline.remaining())
        return Credentials(token, self._name)

    def _start_again_if_changed(self, credentials: Credentials) -> Credentials:
        """A rank that was started anew published anew: what stood in the store before was a dead one's."""
        lines = self._read_lines(wait=False)
        if digest(lines) == self._meeting:
            return credentials
        if lines[0] != self._lines[0]:  # with the line of the rank that drew it, the token may be another
            credentials = self._credentials()
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._refused.clear()
        self._lines, self._meeting = lines, digest(lines)
        self._listener.serve(credentials, self._meeting)
        return credentials

    def _try_connect(self, credentials: Credentials, peer: int) -> None:
        line, own = self._lines[peer], self._lines[self._rank]
        if line.host == own.host:
            try:
                return self._open(credentials, peer, socket.AF_UNIX, "\0" + line.unix_name)
            except PermissionError:
                logger.warning("%s: the Unix socket of rank %d may not be used; trying TCP", self, peer)
        elif is_loopback(line.address) and line.host.partition("#")[0] != own.host.partition("#")[0]:
            raise not_formed(
                f"{self}: rank {peer} is on another host (or in another network namespace) and listens on "
                f"{line.address}, which only its own host reaches",
                hint="give interface=, the name or address of the network interface between the hosts",
            )
        return self._open(credentials, peer, family_of(line.address), (line.address, line.port))

    def _open(
        self, credentials: Credentials, peer: int, family: socket.AddressFamily, address: str | tuple[str, int]
    ) -> None:
        try:
            stream = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no descriptors: others may be given back
            self._problem = str(error.strerror)
            return
        try:
            stream.settimeout(max(self._deadline.remaining(), 0.001))
            stream.connect(address)
            introduce(credentials, self._meeting, self._rank, peer, stream, self._deadline.sooner(_HANDSHAKE_SECONDS))
            self._streams[peer] = stream
        except HandshakeRefused as error:
            stream.close()
            self._pauses[peer] = Deadline(_REFUSED_PAUSE)
            if self._refused.setdefault(peer, Deadline(_REFUSED_SECONDS)).expired():
                raise refused(
                    f"{self}: the handshake with rank {peer} failed for {_REFUSED_SECONDS} s: {error}",
                    hint=f"do both have the same job token? rank {peer} logs why it refuses",
                ) from error
        except PermissionError:
            stream.close()
            raise
        except OSError:
            stream.close()  # not there yet, or no more: tried again until the deadline
        except BaseException:
            stream.close()
            raise

    def _agree_on_local_ranks(self) -> list[int]:
        reports = exchange_unix_streams(self._rank, self._size, self._streams, self._deadline)
        missing = [rank for rank in range(self._size) if rank not in reports]
        if missing:
            raise self._did_not_come(missing, "did not reach all of the others")
        own = self._lines[self._rank].host
        candidates = [rank for rank in range(self._size) if self._lines[rank].host == own]
        apart = [(a, b) for b in candidates for a in candidates if a < b and a not in reports[b]]
        if not apart:
            return candidates
        logger.warning("%s: %s are on one host and have no Unix stream: they use TCP and share no memory", self, apart)
        return [self._rank]

    def _share_memory(self, connections: Connections, memory_bytes: Callable[[int], int]) -> None:
        leader, *others = connections.local_ranks
        if not others:
            return
        size = memory_bytes(len(connections.local_ranks))
        if leader == self._rank:
            streams = [connections.streams[rank] for rank in others]
            connections.memory = share_memory(f"lowerkit {self._name}", streams, size, self._deadline)
        else:
            connections.memory = receive_memory(connections.streams[leader], size, self._deadline, leader)


_running: weakref.WeakSet[_Rendezvous] = weakref.WeakSet()


def _close_in_child() -> None:
    for running in list(_running):
        running.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
