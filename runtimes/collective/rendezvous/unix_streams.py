"""Which ranks reach which others by Unix streams: each rank tells every other, over the stream between them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

from lowerkit.runtimes.collective.rendezvous.address_exchange import ranks_from_bits, ranks_to_bits
from lowerkit.runtimes.collective.rendezvous.authentication import HandshakeRefused, receive_exactly
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline


def exchange_unix_streams(
    rank: int, size: int, streams: Mapping[int, socket.socket], deadline: Deadline
) -> dict[int, list[int]]:
    """Returns, by rank, the lower ranks that it has Unix streams to; without ranks that did not tell.

    Args:
        rank: this rank.
        size: number of ranks.
        streams: by rank, all other ranks'; just authenticated.
        deadline: until all must have told.
    """
    unix = [peer for peer, stream in streams.items() if peer < rank and stream.family == socket.AF_UNIX]
    told = ranks_to_bits(unix, size)
    reports = {rank: unix}
    for stream in streams.values():
        with suppress(OSError):  # found again when it is read from
            stream.settimeout(max(deadline.remaining(), 0.001))
            stream.sendall(told)
    for peer, stream in sorted(streams.items()):
        with suppress(HandshakeRefused, OSError):
            reports[peer] = ranks_from_bits(receive_exactly(stream, len(told), deadline), size)
    return reports
