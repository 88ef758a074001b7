"""What a rank tells the others through the store before they connect, and the digest of all of it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lowerkit.runtimes.collective.failures import not_formed
from lowerkit.runtimes.collective.rendezvous.published_line import PublishedLine

_UNIX_NAME = re.compile(r"[A-Za-z0-9.-]{1,100}")


@dataclass(frozen=True)
class RankAddress(PublishedLine):
    """One rank's line in the store.

    Attributes:
        size: ranks that this rank expects.
        host: equal for ranks that may share memory, see ``host.host_identity``.
        unix_name: its abstract Unix socket, without the leading zero byte.
        address: its IPv4 or IPv6 address.
        port: its TCP port.
        nonce: random, so that no two starts publish the same.
        token_given: whether it was told a job token, rather than taking the one in the store.
    """

    size: int
    host: str
    unix_name: str
    address: str
    port: int
    nonce: str
    token_given: bool

    def check(self) -> None:
        """Raises ValueError where a field holds what this rank could not connect to."""
        if not _UNIX_NAME.fullmatch(self.unix_name):
            raise ValueError("unix_name is none that a rank makes")
        if not self.address.isprintable():
            raise ValueError("address cannot be printed")
        ipaddress.ip_address(self.address)
        if not 0 < self.port < 1 << 16:
            raise ValueError(f"port is {self.port}")


def ranks_from_bytes(what: str, data: bytes, size: int) -> list[int]:
    """Returns a list of ranks that another rank put into the store as JSON.

    Raises:
        CollectiveFault: LK8007, it is none.
    """
    try:
        ranks = json.loads(data[: 16 * size + 16])
        if not isinstance(ranks, list) or not all(type(rank) is int and 0 <= rank < size for rank in ranks):
            raise ValueError(f"no list of ranks below {size}")
        if len(set(ranks)) < len(ranks):
            raise ValueError("a rank twice")
    except (ValueError, RecursionError) as error:
        raise not_formed(
            f"{what} cannot be read: {error}",
            hint="all ranks need the same version of lowerkit, and a store of their own",
        ) from error
    return ranks


def ranks_to_bits(ranks: Collection[int], size: int) -> bytes:
    """Returns a set of ranks as a bit for each of ``size`` ranks, in whole bytes."""
    return sum(1 << rank for rank in ranks).to_bytes(-(-size // 8), "little")


def ranks_from_bits(data: bytes, size: int) -> list[int]:
    """Returns the ranks below ``size`` whose bits are set, ascending."""
    bits = int.from_bytes(data, "little")
    return [rank for rank in range(size) if bits >> rank & 1]


def digest(lines: Mapping[int, RankAddress]) -> bytes:
    """Returns SHA-256 over the lines of all ranks, in the order of ranks: 32 bytes."""
    text = hashlib.sha256()
    for rank in sorted(lines):
        line = lines[rank].to_bytes()
        text.update(rank.to_bytes(4, "little") + len(line).to_bytes(4, "little") + line)
    return text.digest()


def check_agreement(group: str, rank: int, size: int, lines: Mapping[int, RankAddress]) -> None:
    """Checks that the ranks mean the same group.

    Raises:
        CollectiveFault: LK8007, ranks expect other sizes, or only some were told a job token.
    """
    sizes = [f"rank {r} expects {line.size} ranks" for r, line in lines.items() if line.size != size]
    if sizes:
        raise not_formed(f"group {group!r}: rank {rank} expects {size} ranks, others do not", details=sizes)
    given = [r for r, line in lines.items() if line.token_given]
    if given and len(given) < len(lines):
        without = [r for r, line in lines.items() if not line.token_given]
        raise not_formed(
            f"group {group!r}: ranks {given} were given a job token and ranks {without} were not",
            hint="give it to all: as an argument, or as LOWERKIT_JOB_TOKEN in the environment",
        )
